"""What asks a mask for its tiles on Hopper: the scheduler, where the test is short in 32 bits, or a kernel before."""

from __future__ import annotations

import pytest

from fagen.expr import CUDA_SCALAR, emit
from fagen.plan import plan
from fagen.plan.wgmma.forward import Forward
from fagen.runtime.variant import Expression, Param, Variant

PARAMS = (Param("ids", "i32", ("B", "n")), Param("left", "i32", ("H",)))


def variant(mask: str | None, head_dim: int = 128) -> Variant:
    expression = None if mask is None else Expression(mask, mask)
    params = PARAMS if mask and "[" in mask else ()
    return Variant("x", head_dim, head_dim, dtype="bf16", backward=False, mask=expression, params=params)


def chosen(mask: str | None) -> tuple[Forward, str]:
    made = plan(variant(mask), "sm_90a")
    assert isinstance(made.forward, Forward)
    return made.forward, made.why["finds"]


SHORT = (
    "kv <= q",
    "kv <= q and q - kv < 4096",
    "kv <= q or kv < 100",
    "abs(q - kv) <= 256 or kv < 16 or q < 16",
    "kv // 64 <= q // 64",
    "kv <= q and (q - kv) % 4 == 0",
    "abs(q // 56 - kv // 56) <= 3 and abs(q % 56 - kv % 56) <= 3",
    "kv >= kv_len // 2",
)


@pytest.mark.parametrize("mask", SHORT)
def test_the_scheduler_asks_where_the_test_is_short(mask: str) -> None:
    forward, why = chosen(mask)
    assert (forward.finds, forward.word_bytes, forward.draws) == ("scheduler", 0, True), why


@pytest.mark.parametrize("mask", SHORT)
def test_what_is_printed_in_32_bits_is_what_64_bits_have(mask: str) -> None:
    code = emit(variant(mask), CUDA_SCALAR)
    assert code.narrow is not None and code.wide == ""
    for narrow, wide in ((code.narrow.tile_test, code.tile_test), (code.narrow.key_ranges, code.key_ranges)):
        assert tuple(line.replace("Span32", "Span").replace("Pairs32", "Pairs") for line in narrow) == wide
    assert any("32" in line for line in code.narrow.tile_test)


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ("kv <= q and ids[b, q] == ids[b, kv]", "it reads params"),
        ("kv <= q and q - kv < left[h]", "it reads params"),
        ("0.5 * (q - kv) < 30", "it takes real numbers"),
        ("kv // (h + 1) <= q", "it divides by what is known at run time alone"),
        ("kv <= q and q + kv < 3000", "some of its conditions are solved row by row"),
        ("3 * kv < q", "some of its conditions are solved row by row"),
        (" or ".join(f"kv == {50 * n}" for n in range(30)), "it asks for more than 24 conditions"),
        ("q // 3 * 16 <= kv // 5 * 20", "its numbers may take 64 bits"),
        ("q - kv < 1000 * h", "its numbers may take 64 bits"),
    ],
)
def test_a_kernel_before_asks_otherwise(mask: str, why: str) -> None:
    forward, said = chosen(mask)
    assert said.endswith(why)
    assert (forward.finds, forward.word_bytes, forward.draws) == ("kernel", 16, True)


@pytest.mark.parametrize(("mask", "finds"), [("kv <= q", "scheduler"), ("kv <= q and q - kv < 4096", "kernel")])
def test_beside_three_warpgroups_there_are_few_registers(mask: str, finds: str) -> None:
    made = plan(variant(mask, 64), "sm_90a")
    assert isinstance(made.forward, Forward)
    assert (made.forward.groups, made.forward.finds) == (3, finds), made.why["finds"]


def test_without_a_mask_there_is_nothing_to_ask() -> None:
    forward, why = chosen(None)
    assert (forward.finds, forward.word_bytes, forward.draws, why) == ("none", 0, False, "there is no mask")

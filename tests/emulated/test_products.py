"""wgmma: every shape, type and operand form, against the product that it should be."""

from __future__ import annotations

import pytest
import torch

from fagen import emulate

from .products import PAIRS, Form, accumulators, arguments, operands, whole


def check(form: Form, adds: bool = True, completions: str = "random") -> None:
    a, b = operands(form)
    threads = 128 * form.groups
    start = torch.randint(-8, 9, (threads, form.registers)).to(torch.int32)
    if form.d != "s32":
        values = torch.randint(-8, 9, (threads, form.registers * (2 if form.d == "f16" else 1)))
        start = values.to(torch.float16 if form.d == "f16" else torch.float32).view(torch.int32)
    before = accumulators(form, start.clone()).double()
    args, shared = arguments(form, a, b, start, adds)
    emulate.launch(form.ptx(), "product", 1, threads, args, shared=shared, completions=completions)
    wanted = form.a_sign * form.b_sign * (a.double() @ b.double().T) + (before if adds else 0)
    assert torch.equal(accumulators(form, start).double(), wanted), form


@pytest.mark.parametrize("types", PAIRS, ids=["-".join(types) for types in PAIRS])
def test_every_type_from_memory_and_from_registers(types: tuple[str, str, str]) -> None:
    check(Form(16, *types))
    check(Form(64, *types, a_swizzle=None), adds=False)


@pytest.mark.parametrize("types", PAIRS, ids=["-".join(types) for types in PAIRS])
def test_128_by_128_by_64(types: tuple[str, str, str]) -> None:
    """Two warpgroups, in as many steps as K takes; A from memory or registers, both transposed where they can be."""
    for form in whole(types):
        check(form)


@pytest.mark.parametrize("n", [8, 24, 40, 72, 120, 136, 176, 200, 256])
def test_shapes(n: int) -> None:
    check(Form(n, "bf16", "bf16", "f32", part=n // 8 % 4))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_every_swizzle_and_transposition(swizzle: int) -> None:
    for a_transposed in (False, True):
        for b_transposed in (False, True):
            check(Form(96, "f16", "f16", "f32", swizzle, swizzle, a_transposed, b_transposed), completions="earliest")
    check(Form(32, "s8", "s8", "s32", swizzle, 128))


def test_signs_and_mixed_layouts() -> None:
    check(Form(48, "bf16", "bf16", "f32", 64, 32, a_sign=-1))
    check(Form(48, "tf32", "tf32", "f32", None, 0, b_sign=-1))
    check(Form(128, "f16", "f16", "f16", None, 128, b_transposed=True, a_sign=-1, b_sign=-1), completions="latest")


def test_what_the_isa_has_not_is_refused() -> None:
    for form in (Form(24, "f16", "f16", "f32"), Form(16, "bf16", "bf16", "f32")):
        text = form.ptx()
        for old, new in ((f"n{form.n}k16", f"n{form.n}k8"), (".f32.", ".s32."), (", 1, 1, 0, 0", ", 2, 1, 0, 0")):
            with pytest.raises(emulate.EmulationError) as caught:
                emulate.launch(text.replace(old, new), "product", 1, 128, [])
            assert "wgmma.mma_async" in str(caught.value)

"""What `attention` takes for granted: scale, align and layout, on modules whose kernels only say who was called."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fagen.runtime.dispatch import Dispatcher
from fagen.runtime.language import parse, unparse
from fagen.runtime.reference import reference
from fagen.runtime.variant import Expression, Variant


class Module:
    """As much of a module as the dispatcher asks of it. Its kernels return their name and the scale they got."""

    def __init__(self, *variants: Variant):
        self.name, self.spec_file, self.manifest = "fake", "fake.yaml", {"target": "cpu"}
        self.device, self.emulator = "cpu", None
        self.dispatcher: Any = None
        self.variants = lambda: variants
        self.variant = {variant.name: variant for variant in variants}.__getitem__
        self.kernels = {
            variant.name: SimpleNamespace(variant=variant, _run=lambda *args, name=variant.name: (name, args[4]))
            for variant in variants
        }

    def attention(self, *qkv: torch.Tensor, mask: str | None = None, **given: Any) -> Any:
        """As Module.attention, with its defaults."""
        defaults = {"scale": None, "sink": None, "return_lse": False, "out": None, "align": "bottom_right"}
        defaults |= {"layout": None, "fallback": None, "dropout_p": 0.0, "rng_state": None}
        self.dispatcher = self.dispatcher if given.pop("again", False) else Dispatcher(self)  # type: ignore[arg-type]
        return self.dispatcher(*qkv, mask, None, {}, **(defaults | given))


def variant(name: str, mask: str | None = None, **settings: Any) -> Variant:
    expression = None if mask is None else Expression(mask, unparse(parse(mask, expect="mask")))
    return Variant(name, 16, 16, "f32", mask=expression, **settings)


def draw() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(3, 1, 4, 2, 16))


def test_a_variant_of_another_scale_is_found_only_by_a_call_that_brings_one() -> None:
    module = Module(variant("unscaled", scale=1.0))
    with pytest.raises(ValueError, match=r"near: unscaled \(16, f32\) differs in scale \(pass scale=1.0 to ask for it"):
        module.attention(*draw())
    assert module.attention(*draw(), scale=1.0) == ("unscaled", 1.0)
    assert module.attention(*draw(), scale=0.3) == ("unscaled", 0.3)


def test_of_two_that_differ_in_scale_the_default_one_is_meant() -> None:
    module = Module(variant("unscaled", scale=1.0), variant("plain"))
    assert module.attention(*draw()) == ("plain", None)
    with pytest.raises(ValueError, match="2 variants of fake do this: unscaled, plain; call the one you mean by name"):
        module.attention(*draw(), scale=1.0)


def test_of_two_the_one_that_is_deterministic_is_for_those_who_ask_torch_for_that() -> None:
    module = Module(variant("quick"), variant("steady", deterministic=True))
    assert module.attention(*draw()) == ("quick", None)
    torch.use_deterministic_algorithms(True)
    try:
        assert module.attention(*draw(), again=True) == ("steady", None)
        assert Module(variant("quick")).attention(*draw()) == ("quick", None)
    finally:
        torch.use_deterministic_algorithms(False)
    assert module.attention(*draw(), again=True) == ("quick", None)
    assert Module(variant("steady", deterministic=True)).attention(*draw()) == ("steady", None)


@pytest.mark.parametrize("scale", [0.25, 0.25 * (1 + 1e-9)])
def test_the_default_scale_written_out_is_the_default(scale: float) -> None:
    assert Module(variant("quarter", scale=scale)).attention(*draw()) == ("quarter", None)


def test_align_is_compared_where_a_mask_reads_positions() -> None:
    module = Module(variant("early", "causal", align="top_left"))
    with pytest.raises(ValueError, match=r"early .* differs in align \(pass align='top_left' to ask for it"):
        module.attention(*draw(), mask="kv <= q")
    assert module.attention(*draw(), mask="kv <= q", align="top_left")[0] == "early"
    with pytest.raises(ValueError, match="align top_left\n(.*\n)*.*align: top_left}\n.*differs in align"):
        Module(variant("late", "causal")).attention(*draw(), mask="causal", align="top_left")


@pytest.mark.parametrize("mask", [None, "kv < 3", "j <= i"])
def test_align_means_nothing_where_positions_are_not_read(mask: str | None) -> None:
    module = Module(variant("early", mask, align="top_left"))
    assert module.attention(*draw(), mask=mask)[0] == module.attention(*draw(), mask=mask, align="top_left")[0]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
def test_the_fallback_takes_the_layout_of_the_module_and_the_align_of_the_call(layout: str, align: str) -> None:
    q, k, v = draw()
    length = 1 if layout == "bshd" else 2
    q = q.narrow(length, 0, 1)  # so that align matters
    with pytest.warns(UserWarning, match="falling back"):
        got = Module(variant("plain", layout=layout)).attention(q, k, v, mask="kv <= q", align=align,
                                                                fallback="reference")  # fmt: skip
    want, _ = reference(variant("want", "causal", layout=layout, align=align), q, k, v)
    torch.testing.assert_close(got, want.float())


def test_the_fallback_does_not_guess_a_layout() -> None:
    module = Module(variant("plain"), variant("heads_first", layout="bhsd"))
    with pytest.raises(ValueError, match="layout bshd and of layout bhsd.*pass layout="):
        module.attention(*draw(), mask="causal", fallback="reference")
    with pytest.warns(UserWarning, match="falling back"):
        module.attention(*draw(), mask="causal", fallback="reference", layout="bhsd")


def test_a_call_like_one_before_is_known_and_any_other_is_looked_through() -> None:
    """Whatever a choice hangs on, alone different after a call that was answered."""
    bf16 = replace(variant("small"), dtype="bf16")
    wide, causal = replace(variant("wide"), head_dim=32, value_dim=32), variant("causal", "kv <= q")
    plain, trained = replace(variant("plain"), backward=False), variant("trained", "kv < 9")
    module = Module(plain, bf16, wide, causal, trained, variant("unscaled", "kv > 1", scale=1.0))
    q, k, v = draw()
    assert module.attention(q, k, v) == ("plain", None)

    def again(*qkv: Any, **given: Any) -> Any:
        return module.attention(*qkv, **given, again=True)

    for _ in range(2):
        assert again(q, k, v) == ("plain", None)
        assert again(q, k, v, scale=2.0) == ("plain", 2.0)
        assert again(q, k, v, mask="kv <= q") == ("causal", None)
        assert again(q.bfloat16(), k.bfloat16(), v.bfloat16()) == ("small", None)
        assert again(*(torch.cat([x, x], -1) for x in (q, k, v))) == ("wide", None)
        assert again(q, k, v, mask="kv < 9") == ("trained", None)
        assert again(q.clone().requires_grad_(), k, v, mask="kv < 9") == ("trained", None)
        assert again(q, k, v, mask="kv > 1", scale=0.5) == ("unscaled", 0.5)
        with torch.autocast("cpu", torch.bfloat16):
            assert again(q, k, v) == ("small", None)
        for wrong, qkv, given in (
            ("no variant", (q, k.clone().requires_grad_(), v), {}),
            ("no variant", (q, k, torch.cat([v, v], -1)), {}),
            ("no variant", (q, k, v), {"mask": "kv <= q", "align": "top_left"}),
            ("no variant", (q, k, v), {"mask": "kv > 1"}),
            ("no variant", (q, k, v), {"layout": "bhsd"}),
            ("align: expected", (q, k, v), {"align": "left"}),
            ("layout: expected", (q, k, v), {"layout": "sbhd"}),
            ("fallback: expected", (q, k, v), {"fallback": "slow"}),
            ("q: expected 4 dims", (q[0], k, v), {}),
            ("k: expected 4 dims", (q, k[0], v), {}),
            ("v: expected 4 dims", (q, k, v[0]), {}),
        ):
            with pytest.raises(ValueError, match=wrong):
                again(*qkv, **given)
        with pytest.raises(TypeError, match="k: expected a torch.Tensor"):
            again(q, None, v)

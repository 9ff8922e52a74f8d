"""Every option of a variant, on every path, is applied as the reference says or refused when the spec is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from calls import call, draw, expected_of

from fagen.errors import SpecError
from fagen.runtime.reference import reference
from fagen.spec import expand, load_text
from fagen.spec.schema import schema

# Option -> a variant of specs/cases.yaml that has it, the arguments it takes, and the same variant without it.
APPLIED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "mask": ("causal_d16", lambda H, Sq, Skv: {}, {"mask": None}),
    "score": ("softcap15_d64", lambda H, Sq, Skv: {}, {"score": None}),
    "params": ("alibi_d16", lambda H, Sq, Skv: {"slope": torch.rand(H) + 0.1}, {"score": None, "params": ()}),
    "scale": ("scaled_d16", lambda H, Sq, Skv: {}, {"scale": None}),
    "sink": ("sink_d16", lambda H, Sq, Skv: {"sink": torch.randn(H) + 15.0}, {"sink": False}),
    "dropout": (
        "dropout_d16",
        lambda H, Sq, Skv: {"dropout_p": 0.5, "rng_state": torch.tensor([5, -7])},
        {"dropout": False},
    ),
    "align": ("topleft_d16", lambda H, Sq, Skv: {}, {"align": "bottom_right"}),
    "layout": ("causal_bhsd_d16", lambda H, Sq, Skv: {}, {"layout": "bshd"}),
    "value_dim": ("wide_d16", lambda H, Sq, Skv: {}, {}),
    "dtype": ("full_d64_bf16", lambda H, Sq, Skv: {}, {}),
    "head_dim": ("odd_d40", lambda H, Sq, Skv: {}, {}),
    "tiles": ("small_tiles_d16", lambda H, Sq, Skv: {}, {}),
    "deterministic": ("steady_d128_bf16", lambda H, Sq, Skv: {}, {}),
}
REFUSED = {
    "lengths": "varlen",
    "multiple_of": "64",
    "dtype": "{q: bf16, k: bf16, v: bf16, o: f32}",
    "cache": "{page: 16}",
    "splits": "4",
    "tile_map": "true",
    "value": '"k[:8]"',
    "weight": "sigmoid(x)",
    "normalize": "false",
    "schedule": "wgmma",
    "group": "4",
    "nonfinite": "fast",
}
# Of the build, of the spec itself or of kernels for cards: nothing that a call here could tell. Each has its own tests.
OF_THE_SPEC = {
    "backward_tiles",
    "name",
    "matrix",
    "later",
    "isa",
    "backward",
    "const",
    "define",
    "nonfinite",
    "lengths",
    "normalize",
}

PATHS = ("prefill", "decode", "cross", "grouped", "out", "backward", "attention", "compiled", "no_grad")


def test_the_table_has_every_option_of_the_schema():
    keys = set(schema()["$defs"]["VariantEntry"]["properties"])
    assert keys <= set(APPLIED) | set(REFUSED) | OF_THE_SPEC
    assert set(APPLIED) | set(REFUSED) <= keys | {"params"}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_is_not_built_is_refused_by_name(option):
    text = f"fagen: 1\nname: m\ntarget: cpu\nvariants:\n  - {{name: v, head_dim: 16, {option}: {REFUSED[option]}}}\n"
    with pytest.raises(SpecError, match="not built yet") as caught:
        expand(load_text(text))
    assert option in str(caught.value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", APPLIED)
def test_an_option_moves_the_result_as_the_reference_says_on_every_path(cases, option, path):
    name, arguments, without = APPLIED[option]
    kernel = getattr(cases, name)
    torch.manual_seed(0)
    sizes = {"decode": (1, 300), "cross": (37, 20), "grouped": (7, 50)}.get(path, (20, 37))
    heads = (4, 2) if path == "grouped" else (2, 2)
    q, k, v = draw(kernel, B=2, H=heads[0], Hk=heads[1], Sq=sizes[0], Skv=sizes[1], size=4.0)
    extras = arguments(heads[0], *sizes)
    d_o = torch.randn(*q.shape[:3], kernel.variant.value_dim).to(q.dtype)
    got = on_path(cases, kernel, path, q, k, v, d_o, extras)
    expected = expected_of(kernel, q, k, v, d_o=d_o, **extras)
    for deviation in expected.judge(got):
        assert deviation.passed, deviation
    if without:
        other = without_option(kernel.variant, without, q, k, v, extras)
        if other is not None:
            assert any(not deviation.passed for deviation in expected.judge({"o": other.to(q.dtype)}))


def without_option(variant, without, q, k, v, extras):
    """o of the reference of the variant without its option; None where that is the same, or has no meaning."""
    if "layout" in without:
        return None
    if without.get("mask", "") is None and q.shape[1] == 1:
        return None  # a causal mask lets the last query see everything
    if "align" in without and q.shape[1] == k.shape[1]:
        return None
    other = replace(variant, **without)
    params = {param.name: extras[param.name] for param in other.params}
    return reference(other, q, k, v, sink=extras.get("sink") if other.sink else None, params=params)[0]


def on_path(cases, kernel, path, q, k, v, d_o, extras):
    """Outputs by name, computed the way ``path`` says."""
    if path == "out":
        out = torch.full_like(d_o, torch.nan)
        _, lse = kernel(q, k, v, out=out, return_lse=True, **extras)
        return {"o": out, "lse": lse}
    if path == "backward":
        return call(kernel, q, k, v, d_o=d_o, **extras)
    if path == "attention":
        variant = kernel.variant
        mask, score = (None if part is None else part.text for part in (variant.mask, variant.score))
        try:
            o, lse = cases.attention(q, k, v, mask, score, return_lse=True, **extras)
        except ValueError as error:
            # What the expressions leave open must be named as such: never the wrong variant.
            assert "variants" in str(error) or "layout" in str(error), error
            return {}
        return {"o": o, "lse": lse}
    if path == "compiled":
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda *tensors: kernel(*tensors, return_lse=True, **extras), fullgraph=True, backend="eager"
        )
        o, lse = compiled(q, k, v)
        return {"o": o, "lse": lse}
    if path == "no_grad":
        with torch.no_grad():
            return call(kernel, q, k, v, **extras)
    return call(kernel, q, k, v, **extras)

"""`attention`: the variant that does what is asked, or what to add to which spec."""

from __future__ import annotations

import re
import warnings
from types import ModuleType

import naive
import pytest
import torch


def test_by_meaning(small: ModuleType) -> None:
    """Expressions are compared by what they mean, not by how they are written."""
    qkv, _ = naive.draw(small.causal_d16.variant)
    want = small.causal_d16(*qkv)
    for mask in ("causal", "kv <= q", "q >= kv", "kv - q < 1", "not kv > q", "kv <= q and kv <= q"):
        assert torch.equal(small.attention(*qkv, mask, layout="bshd"), want), mask
    assert torch.equal(small.attention(*qkv, scale=0.1), small.plain_d16(*qkv, scale=0.1))
    assert torch.equal(small.attention(*qkv, mask="True", score="s", scale=0.5), small.plain_d16(*qkv))
    o, lse = small.attention(*qkv, mask="causal", layout="bshd", return_lse=True)
    assert torch.equal(o, want) and lse.shape == (2, 4, 5)
    out = torch.empty_like(want)
    assert small.attention(*qkv, mask="causal", layout="bshd", out=out) is out and torch.equal(out, want)


def test_with_params_and_sink(small: ModuleType) -> None:
    qkv, named = naive.draw(small.alibi_d16.variant)
    for score in ("alibi(slope)", "s - slope[h] * abs(q - kv)", "s - abs(q - kv) * slope[h]"):
        assert torch.equal(small.attention(*qkv, score=score, **named), small.alibi_d16(*qkv, **named)), score
    qkv, named = naive.draw(small.sink_d16.variant)
    assert torch.equal(small.attention(*qkv, mask="causal", **named), small.sink_d16(*qkv, **named))
    qkv, named = naive.draw(small.doc_d16.variant)
    got = small.attention(*qkv, mask="doc[b, kv] == doc[b, q]", **named)
    assert torch.equal(got, small.doc_d16(*qkv, **named))


def test_gradient_narrows_the_choice(small: ModuleType) -> None:
    """Without gradients two variants do causal attention, one of them in another layout; with them one does."""
    qkv, _ = naive.draw(small.causal_d16.variant)
    with pytest.raises(ValueError, match="2 variants of small do this: causal_d16, bare_d16; pass layout="):
        small.attention(*qkv, mask="causal")
    leaf = qkv[0].requires_grad_()
    assert small.attention(leaf, *qkv[1:], mask="causal").requires_grad
    heads_first = [t.transpose(1, 2) for t in qkv]
    with torch.no_grad():
        got = small.attention(*heads_first, mask="causal", layout="bhsd")
    assert torch.equal(got, small.bare_d16(*(t.detach() for t in heads_first)))


def test_autocast_chooses_the_dtype(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="head_dim 16, bf16"):
        small.attention(*qkv)


def test_refusal_says_what_to_add(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    with pytest.raises(ValueError) as error:
        small.attention(*(t[..., :8].half() for t in qkv), mask="causal and q - kv < 100")
    assert str(error.value).splitlines()[:4] == [
        "attention: no variant of small computes head_dim 8, f16, mask `causal and q - kv < 100`",
        "  add to small.yaml and build again:",
        "  variants:",
        '    - {name: attention_d8_f16, head_dim: 8, dtype: f16, mask: "causal and q - kv < 100"}',
    ]
    assert "near: causal_d16" in str(error.value)


def test_what_it_says_to_add_is_a_spec(small: ModuleType) -> None:
    """The suggested lines, put into a spec, make the variant that was asked for."""
    from fagen.spec import expand, load_text

    qkv, _ = naive.draw(small.causal_d16.variant)
    bias = torch.rand(4, requires_grad=True)
    with pytest.raises(ValueError) as error:
        small.attention(*qkv, mask="causal", score="s + far[h] * (q - kv)", far=bias)
    lines = str(error.value).split("build again:\n")[1].split("\n  near:")[0]
    (variant,) = expand(load_text(f"fagen: 1\nname: more\ntarget: cpu\n{re.sub('^  ', '', lines, flags=re.M)}\n"))
    assert (variant.head_dim, variant.dtype, variant.backward) == (16, "f32", True)
    assert variant.mask is not None and variant.mask.text == "causal"
    assert [(p.name, p.dtype, p.grad) for p in variant.params] == [("far", "f32", True)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": "causal and foo"}, "mask: unknown name `foo`"),
        ({"mask": "kv <="}, "mask:"),
        ({"mask": "__import__('os')"}, "mask:"),
        ({"score": "causal"}, "score: a score change is a number"),
        ({"fallback": "slow"}, "fallback: expected None or 'reference', found 'slow'"),
        ({"align": "left"}, "align: expected 'bottom_right' or 'top_left', found 'left'"),
        ({"layout": "sbhd"}, "layout: expected 'bshd' or 'bhsd', found 'sbhd'"),
    ],
)
def test_bad_arguments(small: ModuleType, arguments: dict[str, str], message: str) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    with pytest.raises(ValueError, match=re.escape(message)):
        small.attention(*qkv, **arguments)


def test_bad_tensors(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    with pytest.raises(TypeError, match="q: expected a torch.Tensor, found ndarray"):
        small.attention(qkv[0].numpy(), *qkv[1:])
    with pytest.raises(TypeError, match="slope: expected a torch.Tensor, found float"):
        small.attention(*qkv, score="alibi(slope)", slope=0.5)
    with pytest.raises(ValueError, match="built for cpu, the tensors are on meta"):
        small.attention(*(t.to("meta") for t in qkv))
    with pytest.raises(ValueError, match="float64"):
        small.attention(*(t.double() for t in qkv))
    with pytest.raises(ValueError, match="attention: q: expected 4 dims"):
        small.attention(qkv[0].sum(), *qkv[1:])


def test_fallback_warns_once_and_is_right(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    mask = "causal or kv < 3"
    with pytest.warns(UserWarning, match="falling back on the reference") as caught:
        got = small.attention(*qkv, mask, fallback="reference", layout="bshd")
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, lse = small.attention(*qkv, mask, fallback="reference", layout="bshd", return_lse=True)
        o = small.attention(*qkv, scale=0.5, fallback="reference")  # there is a variant: no fallback
    assert torch.equal(o, small.plain_d16(*qkv))
    assert torch.equal(got, again) and got.dtype == torch.float32 and lse.dtype == torch.float32
    positions = torch.arange(5)[:, None] + 2
    allowed = (torch.arange(7) <= positions) | (torch.arange(7) < 3)
    q, k, v = (t.transpose(1, 2) for t in qkv)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(got, want)


def test_fallback_has_gradients_and_params(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    bias = torch.rand(4, 5, 7, requires_grad=True)
    with pytest.warns(UserWarning, match="falling back"):
        o = small.attention(*qkv, score="s + far[h, i, j]", far=bias, fallback="reference", layout="bshd")
    o.square().sum().backward()
    assert bias.grad.any()
    with pytest.raises(ValueError, match=r"far: .*\[H, Sq, Skv\]"):
        small.attention(*qkv, score="s + far[h, i, j]", far=bias[:3], fallback="reference", layout="bshd")
    table = torch.rand(4, 30)  # indexed by what is no name
    with pytest.warns(UserWarning, match="falling back"):
        found = small.attention(*qkv, score="s + far[h, q - kv + 9]", far=table, fallback="reference", layout="bshd")
    assert found.isfinite().all()

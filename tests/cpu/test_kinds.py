"""Whole kinds of fault, one property or two for each; options have a file of their own."""

from __future__ import annotations

import math

import pytest
import torch
from calls import call, draw, expected_of, merge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fagen.runtime.check.cases import VALUES, Case, Tiling
from fagen.runtime.check.memory import PLACES, place
from fagen.runtime.check.run import run_case

# The modules' kernels are the session's; hypothesis only draws numbers.
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**31 - 1)


def close(got, want, dtype):
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@given(seed=seeds, name=st.sampled_from(["masked_d16_f32", "masked_d16_bf16"]), keys=st.integers(1, 90), data=st.data())
@few
def test_parts_of_the_keys_merge_to_the_whole(cases, seed, name, keys, data):
    torch.manual_seed(seed)
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, B=2, Sq=7, Skv=keys)
    ok = torch.rand(2, 7, keys) < data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    ok[:, 0] = False
    cuts = sorted(data.draw(st.lists(st.integers(0, keys), max_size=4)))
    parts = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, keys], strict=True)]  # some of them empty
    whole = call(kernel, q, k, v, ok=ok)
    o, lse = merge([tuple(call(kernel, q, k[:, p], v[:, p], ok=ok[:, :, p]).values()) for p in parts])
    close(lse, whole["lse"], torch.float32)
    close(o, whole["o"], q.dtype)
    assert (whole["o"][:, 0] == 0).all() and (whole["lse"][:, :, 0] == -math.inf).all()


@given(seed=seeds, keys=st.integers(1, 40), where=st.sampled_from(["front", "middle", "end"]))
@few
def test_keys_that_are_masked_change_nothing_wherever_they_stand(cases, seed, keys, where):
    torch.manual_seed(seed)
    kernel = cases.masked_d16_f32
    q, k, v = draw(kernel, Sq=7, Skv=keys)
    ok = torch.rand(1, 7, keys) < 0.7
    d_o = torch.randn_like(q)
    want = call(kernel, q, k, v, d_o=d_o, ok=ok)
    at = {"front": 0, "middle": keys // 2, "end": keys}[where]
    for extra in (1, 300):  # a key; more than a tile

        def widened(tensor, axis, filler, extra=extra):
            gap = torch.full((*tensor.shape[:axis], extra, *tensor.shape[axis + 1 :]), filler, dtype=tensor.dtype)
            first, second = tensor.split([at, keys - at], axis)
            return torch.cat([first, gap, second], axis)

        got = call(kernel, q, widened(k, 1, 9.0), widened(v, 1, 9.0), d_o=d_o, ok=widened(ok, 2, False))
        for output in ("o", "lse", "dq"):
            torch.testing.assert_close(got[output], want[output], rtol=1e-5, atol=1e-5)
        for output in ("dk", "dv"):
            gone = got[output][:, at : at + extra]
            assert (gone == 0).all()
            kept = torch.cat([got[output][:, :at], got[output][:, at + extra :]], 1)
            torch.testing.assert_close(kept, want[output], rtol=1e-5, atol=1e-5)


@given(
    seed=seeds, power=st.integers(-40, 40), name=st.sampled_from(["full_d64_f32", "full_d64_bf16", "causal_d64_f32"])
)
@few
def test_powers_of_two_moved_from_q_to_k_change_nothing(cases, seed, power, name):
    torch.manual_seed(seed)
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, Sq=5, Skv=70)
    d_o = torch.randn(q.shape).to(q.dtype)
    want = call(kernel, q, k, v, d_o=d_o)
    got = call(kernel, q * 2.0**power, k * 2.0**-power, v, d_o=d_o)
    for output, factor in (("o", 1.0), ("lse", 1.0), ("dv", 1.0), ("dq", 2.0**power), ("dk", 2.0**-power)):
        assert torch.equal(got[output] * factor, want[output]), output


@given(seed=seeds, exponent=st.floats(-6.0, 11.0), sign=st.sampled_from([-1.0, 1.0]))
@few
def test_logits_of_any_magnitude(cases, seed, exponent, sign):
    torch.manual_seed(seed)
    kernel = cases.full_d64_f32
    q, k, v = draw(kernel, H=1, Hk=1, Sq=3, Skv=50)
    # Every logit of a row around sign * 10^exponent, on top of what makes them differ.
    q[..., 0], k[..., 0] = sign * 8.0 * 10.0 ** (exponent / 2), 10.0 ** (exponent / 2)
    expected = expected_of(kernel, q, k, v)
    for deviation in expected.judge(call(kernel, q, k, v)):
        assert deviation.passed, deviation


@given(seed=seeds, poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e4]), share=st.sampled_from([0.2, 0.8]))
@few
def test_what_is_excluded_has_no_influence(cases, seed, poison, share):
    torch.manual_seed(seed)
    kernel = cases.masked_d16_f32
    q, k, v = draw(kernel, B=2, Sq=9, Skv=70)
    ok = torch.rand(2, 9, 70) < 0.3
    hidden = torch.rand(2, 70) < share
    ok &= ~hidden[:, None]
    d_o = torch.randn_like(q)
    k[hidden], v[hidden] = 0.0, 0.0
    want = call(kernel, q, k, v, d_o=d_o, ok=ok)
    k[hidden], v[hidden] = poison, poison
    got = call(kernel, q, k, v, d_o=d_o, ok=ok)
    for output, tensor in want.items():
        assert torch.equal(got[output], tensor), output


@given(seed=seeds, tensor=st.sampled_from("qkv"), name=st.sampled_from(["masked_d16_f32", "masked_d16_bf16"]))
@few
def test_what_is_included_reaches_exactly_the_rows_that_see_it(cases, seed, tensor, name):
    torch.manual_seed(seed)
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, Sq=9, Skv=70)
    ok = torch.rand(1, 9, 70) < 0.4
    clean = call(kernel, q, k, v, ok=ok)
    row, head = int(torch.randint(9 if tensor == "q" else 70, ())), int(torch.randint(2, ()))
    {"q": q, "k": k, "v": v}[tensor][0, row, head] = math.nan
    got = call(kernel, q, k, v, ok=ok)
    spoilt = torch.zeros(9, 2, dtype=torch.bool)
    spoilt[:, head] = (torch.arange(9) == row) & ok[0].any(-1) if tensor == "q" else ok[0, :, row]
    assert torch.equal(got["o"][0].isnan().all(-1), spoilt)
    assert torch.equal(got["o"][0].isnan().any(-1), spoilt)
    assert torch.equal(got["o"][0][~spoilt], clean["o"][0][~spoilt])


TILE_ROWS, TILE_KEYS = 12, 32  # of small_tiles_d16
lengths = {
    "q": st.sampled_from([0, 1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 2 * TILE_ROWS + 1]),
    "kv": st.sampled_from([0, 1, TILE_KEYS - 1, TILE_KEYS, TILE_KEYS + 1, 2 * TILE_KEYS + 1, 3 * TILE_KEYS]),
}


@given(
    seed=seeds,
    q_len=lengths["q"],
    kv_len=lengths["kv"],
    batch=st.sampled_from([0, 1, 2, 3]),
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3), (6, 2)]),
    values=st.sampled_from([values for values in VALUES if values != "largest"]),  # that takes few keys
    where=st.sampled_from(PLACES),
    threads=st.sampled_from([1, 2, 5]),
)
@settings(few, max_examples=60)
def test_sizes_beside_every_edge(cases, seed, q_len, kv_len, batch, heads, values, where, threads):
    case = Case("k4", q_len, kv_len, batch, *heads, values=values, where=where, threads=threads, lse_gradient=True)
    failures = run_case(cases.small_tiles_d16, Tiling(((TILE_ROWS, TILE_KEYS),)), case, seed)
    assert not failures, failures


@given(seed=seeds, places=st.lists(st.sampled_from([p for p in PLACES if p != "broadcast"]), min_size=6, max_size=6))
@few
def test_every_tensor_may_be_any_view(cases, seed, places):
    torch.manual_seed(seed)
    kernel = cases.biased_d64_f32
    q, k, v = draw(kernel, B=2, Sq=11, Skv=13)
    bias, d_o = torch.randn(2, 2, 11, 13), torch.randn_like(q)
    want = call(kernel, q, k, v, d_o=d_o, bias=bias)
    views = [place(tensor, where) for tensor, where in zip((q, k, v, d_o, bias), places[:5], strict=True)]
    q, k, v, d_o, bias = (view.tensor for view in views)
    got = call(kernel, q, k, v, d_o=d_o, bias=bias)
    for output, tensor in want.items():
        assert torch.equal(got[output], tensor), output
    out = place(torch.full_like(q, math.nan), places[5])
    kernel(q, k, v, out=out.tensor, bias=bias)
    assert torch.equal(out.tensor, want["o"]) and not out.spilled()
    assert not any(view.changed() for view in views)


def documented(name, b, i, j, q_len, kv_len, extras):
    """Whether row i of sequence b sees key j, as docs/spec.md says."""
    top_left = name.startswith("topleft")
    q = i if top_left else i + kv_len - q_len
    if name.startswith("doc"):
        doc = extras["doc"][b]
        return (int(doc[q]) if 0 <= q < len(doc) else 0) == int(doc[j])
    if name.startswith("prefix"):
        return j <= q or j < int(extras["len"][b])
    if name.startswith("small_tiles"):
        return j <= q and q - j < 40
    if name.startswith("window_2_any"):
        return q - j <= 2
    return j <= q


@given(
    seed=seeds,
    name=st.sampled_from(
        ["causal_d16", "topleft_d16", "causal_bhsd_d16", "doc_d16", "prefix_d16", "small_tiles_d16", "window_2_any"]
    ),
    q_len=st.integers(1, 60),
    kv_len=st.integers(1, 120),
)
@few
def test_a_mask_is_what_the_documentation_says(cases, seed, name, q_len, kv_len):
    torch.manual_seed(seed)
    kernel = getattr(cases, name)
    extras = {}
    if name.startswith("doc"):
        extras["doc"] = torch.randint(0, 3, (2, max(q_len, kv_len)), dtype=torch.int32)
    if name.startswith("prefix"):
        extras["len"] = torch.randint(0, kv_len + 1, (2,), dtype=torch.int32)
    want = torch.tensor(
        [
            [[documented(name, b, i, j, q_len, kv_len, extras) for j in range(kv_len)] for i in range(q_len)]
            for b in range(2)
        ]
    )
    q, k = torch.zeros(2, q_len, 1, 16), torch.zeros(2, kv_len, 1, 16)
    printed = torch.zeros(2, q_len, kv_len)
    for first in range(0, kv_len, 16):  # 16 columns of v print 16 keys
        v = torch.zeros(2, kv_len, 1, 16)
        for key in range(first, min(first + 16, kv_len)):
            v[:, key, 0, key - first] = 1.0
        layout = (lambda t: t.transpose(1, 2)) if kernel.variant.layout == "bhsd" else (lambda t: t)
        got = call(kernel, layout(q), layout(k), layout(v), **extras)
        printed[:, :, first : first + 16] = layout(got["o"])[:, :, 0, : kv_len - first]
    assert torch.equal(printed > 0, want)
    torch.testing.assert_close(got["lse"][:, 0], want.sum(-1).float().log())


DIFFERENTIABLE = {
    "causal_d16": ("q", "k", "v"),
    "sink_d16": ("q", "k", "v", "sink"),
    "biased_d64_f32": ("q", "k", "v", "bias"),
    "alibi_d16": ("q", "k", "v", "slope"),
    "gain_d16": ("q", "k", "v", "gain"),
    "softcap15_d64": ("q", "k", "v"),
    "key_bias_d16": ("k", "key"),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@given(seed=seeds, heads=st.sampled_from([(2, 2), (4, 2)]), lse=st.booleans())
@settings(few, max_examples=8)
def test_gradients_are_those_of_the_kernel_s_own_forward(cases, name, seed, heads, lse):
    """Directional derivatives by differences, of each input alone and of all together."""
    torch.manual_seed(seed)
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, B=2, H=heads[0], Hk=heads[1], Sq=6, Skv=11, size=2.0)
    shapes = {
        "sink": (heads[0],),
        "bias": (2, heads[0], 6, 11),
        "slope": (heads[0],),
        "gain": (),
        "key": (heads[0], 11),
    }
    inputs = {"q": q, "k": k, "v": v, **{x: torch.randn(shapes[x]) for x in DIFFERENTIABLE[name] if x in shapes}}
    d_o = torch.randn(2, 6, heads[0], kernel.variant.value_dim)
    d_lse = torch.randn(2, heads[0], 6) if lse else None

    def loss(tensors):
        got = call(
            kernel, tensors["q"], tensors["k"], tensors["v"], **{x: tensors[x] for x in tensors if x not in "qkv"}
        )
        seen = got["lse"].isfinite()
        total = (got["o"].double() * d_o).sum()
        return float(total + (0.0 if d_lse is None else (got["lse"].double() * d_lse)[seen].sum()))

    extras = {x: tensor for x, tensor in inputs.items() if x not in "qkv"}
    got = call(kernel, q, k, v, d_o=d_o, d_lse=d_lse, **extras)
    gradients = {x: got[f"d{x}" if x in "qkv" else f"d_{x}"] for x in inputs}
    for names in [(x,) for x in DIFFERENTIABLE[name]] + [DIFFERENTIABLE[name]]:
        directions = {x: torch.randn_like(inputs[x]) for x in names}
        step = 4e-3
        moved = [
            loss({x: t + sign * step * directions[x] if x in directions else t for x, t in inputs.items()})
            for sign in (1.0, -1.0)
        ]
        measured = (moved[0] - moved[1]) / (2 * step)
        computed = float(sum((gradients[x].double() * directions[x]).sum() for x in names))
        size = float(sum((gradients[x].double() * directions[x]).abs().sum() for x in names))
        assert abs(measured - computed) < 2e-3 * size + 1e-2, (names, measured, computed)

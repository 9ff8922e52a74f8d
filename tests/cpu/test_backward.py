"""The backward kernel against autograd of the float64 oracle: dtypes, ISAs, shapes, layouts, expressions."""

from __future__ import annotations

import pytest
import torch
from backward_kernels import backward_kernel
from backward_rule import check_backward
from forward_rule import draw
from kernels import DTYPES, variant

from fagen.runtime.variant import Param, Tiles, Variant
from fagen.target import ISAS, native_isa

# The instruction sets that this machine can run, most capable first.
RUNNABLE = list(ISAS)[list(ISAS).index(native_isa()) :]


def differentiable(name: str, head_dim: int, dtype: str, **fields: object) -> Variant:
    return variant(name, head_dim, dtype, backward=True, **fields)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_isa_and_dtype(isa: str, dtype: str) -> None:
    """A mask and a score, unequal lengths both ways, dims that fill no vector, rows that see nothing."""
    slope = Param("slope", "f32", ("H",), grad=True)
    v = differentiable("isas", 40, dtype, value_dim=72, mask="causal", score="alibi(slope)", params=(slope,), sink=True)
    extras = {"params": {"slope": torch.rand(2)}, "sink": torch.randn(2)}
    check_backward(v, *draw(v, B=1, Sq=83, Skv=301, Hk=1), isa=isa, **extras)
    check_backward(v, *draw(v, B=1, Sq=201, Skv=93, Hk=1, spread=8.0), isa=isa, **extras)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths(dtype: str) -> None:
    """Lengths around every edge of a tile, a panel, a block and a work item, unequal ones too; and zero."""
    v = differentiable("lengths", 16, dtype, mask="causal", tiles=Tiles(q=12, kv=64))
    lengths = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129)
    for n, Sq in enumerate((0, 1, 7, 8, 9, 11, 12, 13, 25)):
        for Skv in lengths[n % 3 :: 3]:
            check_backward(v, *draw(v, B=1, H=1, Hk=1, Sq=Sq, Skv=Skv))
    full = differentiable("full_lengths", 16, dtype, tiles=Tiles(q=12, kv=64))
    for Skv in lengths[::2]:
        check_backward(full, *draw(full, B=1, H=2, Hk=1, Sq=13, Skv=Skv))
    check_backward(v, *draw(v, B=0, Sq=3, Skv=3))


@pytest.mark.parametrize("S", [1, 2, 15, 17, 63, 65, 127, 129, 1025])
def test_a_score_of_positions_at_uneven_lengths(S: int) -> None:
    v = differentiable("positions", 64, "f32", mask="causal", score="s + (q - kv) * 0.125")
    check_backward(v, *draw(v, B=1, H=1, Hk=1, Sq=S, Skv=S))


@pytest.mark.parametrize("head_dim", [1, 8, 17, 72, 104, 136, 256])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_head_dims(dtype: str, head_dim: int) -> None:
    v = differentiable("head_dims", head_dim, dtype, value_dim=max(1, head_dim - 7))
    check_backward(v, *draw(v, B=1, Sq=50, Skv=77))


@pytest.mark.parametrize(("H", "Hk"), [(6, 2), (8, 2), (4, 1), (9, 3)])
def test_grouped_heads(H: int, Hk: int) -> None:
    """dK and dV are sums over the heads of a group, rounded once: those of the heads apart, added in float32."""
    v = differentiable("grouped", 32, "bf16", mask="causal")
    q, k, w = draw(v, H=H, Hk=Hk, Sq=33, Skv=100)
    d_o = torch.randn(2, 33, H, 32).bfloat16()
    got = check_backward(v, q, k, w, d_o=d_o)
    assert all(gradient.isfinite().all() for gradient in got.values())


def views(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same numbers behind other strides, offsets and alignments."""
    offset = torch.full((tensor.numel() + 5,), torch.nan, dtype=tensor.dtype)
    offset[3:-2] = tensor.flatten()
    steps = torch.full((*tensor.shape[:3], 2 * tensor.shape[3]), torch.nan, dtype=tensor.dtype)
    steps[..., ::2] = tensor
    return {
        "transposed": tensor.transpose(1, 2).contiguous().transpose(1, 2),
        "permuted": tensor.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "offset": offset[3:-2].view(tensor.shape),
        "steps": steps[..., ::2],
        "reversed": tensor.flip(1).contiguous().flip(1),
    }


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layouts(dtype: str) -> None:
    """Any view of each argument and of each result gives the same bits, and nothing beside a view is written."""
    v = differentiable("layouts", 40, dtype, mask="causal")
    q, k, w = draw(v, H=4, Hk=2, Sq=37, Skv=70)
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    d_o = torch.randn(o.shape).to(o.dtype)
    want = call(q, k, w, o, lse, d_o)
    inputs = {"q": q, "k": k, "v": w, "o": o, "d_o": d_o}
    for name, tensor in inputs.items():
        for view in views(tensor).values():
            given = {**inputs, name: view}
            got = call(given["q"], given["k"], given["v"], given["o"], lse, given["d_o"])
            assert all(torch.equal(got[each], want[each]) for each in want), name
    for name in ("dq", "dk", "dv"):
        for view in views(want[name]).values():
            base = torch.full((view.untyped_storage().nbytes() // view.element_size(),), 7.0, dtype=view.dtype)
            out = base.as_strided(view.shape, view.stride(), view.storage_offset())
            out.fill_(torch.nan)
            call(q, k, w, o, lse, d_o, out={name: out})
            assert torch.equal(out, want[name]), name
            out.fill_(7.0)
            assert (base == 7.0).all(), name


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_broadcast_inputs(layout: str) -> None:
    """Heads and batches of stride 0, and the gradient of o.sum()."""
    v = differentiable("broadcast", 32, "f32", mask="causal", layout=layout)
    q, k, w = draw(v, H=4, Hk=4, Sq=30, Skv=50)
    axis = 1 if layout == "bhsd" else 2
    k, w = (tensor.narrow(axis, 0, 1).expand(tensor.shape) for tensor in (k, w))
    q = q[:1].expand(q.shape)
    check_backward(v, q, k, w, d_o=torch.ones(()).expand(q.shape), lse_gradient=False)


def test_masks_of_many_kinds() -> None:
    """Runs with holes, several ranges of queries, masks that read params."""
    doc = Param("doc", "i32", ("B", "n"))
    for name, mask, params in (
        ("striped", "kv % 128 < 64 and q % 3 != kv % 2", {}),
        ("global_window", "abs(q - kv) <= 20 or kv < 3 or q < 2", {}),
        ("anti_causal", "kv >= q", {}),
        ("documents", "document(doc)", {"doc": torch.arange(300).floor_divide(70).int()[None].expand(2, 300)}),
        ("nothing", "kv < 0", {}),
    ):
        v = differentiable(name, 16, "f32", mask=mask, params=(doc,) if params else ())
        check_backward(v, *draw(v, H=2, Hk=1, Sq=300, Skv=300), params=params)


PARAMS = {
    "scalar": (Param("t", "f32", (), grad=True), "softcap(20) * t", lambda B, H, S: torch.tensor(0.7)),
    "heads": (Param("t", "f32", ("H",), grad=True), "alibi(t)", lambda B, H, S: torch.rand(H)),
    "batch_heads": (
        Param("t", "bf16", ("B", "H"), grad=True),
        "s * t[b, h]",
        lambda B, H, S: torch.rand(B, H).bfloat16(),
    ),
    "key_heads": (Param("t", "f32", ("Hk",), grad=True), "s * t[hk]", lambda B, H, S: torch.rand(H // 2)),
    "rows_and_keys": (
        Param("t", "f32", ("B", "H", "n"), grad=True),
        "s + t[b, h, q] - t[b, h, kv]",
        lambda B, H, S: torch.randn(B, H, S),
    ),
    "keys": (Param("t", "f32", ("B", "H", "n"), grad=True), "s + t[b, h, kv]", lambda B, H, S: torch.randn(B, H, S)),
    "distances": (
        Param("t", "f32", ("H", "n"), grad=True),
        "s + t[h, q - kv + kv_len]",
        lambda B, H, S: torch.randn(H, 2 * S + 1),
    ),
    "buckets": (
        Param("t", "f32", ("n", "H"), grad=True),
        "s + t[min((q - kv) // 16, 7), h]",
        lambda B, H, S: torch.randn(8, H),
    ),
    "bias": (
        Param("t", "bf16", ("B", "H", "Sq", "Skv"), grad=True),
        "s + t[b, h, i, j]",
        lambda B, H, S: torch.randn(B, H, S, S).bfloat16(),
    ),
    "shared_bias": (
        Param("t", "f32", ("H", "Sq", "Skv"), grad=True),
        "s + t[h, i, j]",
        lambda B, H, S: torch.randn(H, S, S),
    ),
    "broadcast_bias": (
        Param("t", "f32", (1, "H", 1, "Skv"), grad=True),
        "s + t[0, h, 0, j]",
        lambda B, H, S: torch.randn(1, H, 1, S),
    ),
}


@pytest.mark.parametrize("kind", PARAMS)
def test_params(kind: str) -> None:
    param, score, make = PARAMS[kind]
    v = differentiable(f"param_{kind}", 16, "f32", mask="causal", score=score, params=(param,))
    params = {"t": make(2, 4, 300)}
    q, k, w = draw(v, H=4, Hk=2, Sq=300, Skv=300)
    got = check_backward(v, q, k, w, params=params)
    # Not wanted: nothing is written, and the rest is the same.
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w, params=params)
    d_o = torch.randn(o.shape)
    want = call(q, k, w, o, lse, d_o, params=params)
    less = call(q, k, w, o, lse, d_o, params=params, wanted=frozenset())
    assert set(less) == {"dq", "dk", "dv"} and "d_t" in got
    assert all(torch.equal(less[name], want[name]) for name in less)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sink_of_infinity_has_the_gradient_of_lse_and_leaves_the_others_none(dtype: str) -> None:
    v = differentiable("no_sinks", 16, dtype, sink=True, mask="causal")
    q, k, w = draw(v, B=1, H=2, Hk=2, Sq=90, Skv=70)
    got = check_backward(v, q, k, w, sink=torch.tensor([torch.inf, 0.0]))
    assert all((got[name][:, :, 0] == 0).all() and got[name].isfinite().all() for name in ("dq", "dk", "dv"))
    assert got["d_sink"].isfinite().all() and got["d_sink"][0] != 0

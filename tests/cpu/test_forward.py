"""The forward kernel against the float64 oracle: dtypes, instruction sets, shapes, layouts, expressions."""

from __future__ import annotations

import itertools
import mmap

import pytest
import torch
from forward_rule import check, draw
from kernels import DTYPES, kernel, variant

from fagen.runtime.reference import reference
from fagen.runtime.variant import Param, Tiles
from fagen.target import ISAS, native_isa

# The instruction sets that this machine can run, most capable first.
RUNNABLE = list(ISAS)[list(ISAS).index(native_isa()) :]
DOC = Param("doc", "i32", ("B", "n"))
SLOPE = Param("slope", "f32", ("H",), grad=True)
BIAS = Param("bias", "bf16", ("B", "H", "Sq", "Skv"), grad=True)
TREE = Param("tree", "bool", ("B", "Sq", "Sq"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_isa_and_dtype(isa: str, dtype: str) -> None:
    v = variant("isa", 40, dtype, value_dim=72, mask="causal")
    check(v, *draw(v, Sq=211, Skv=301, H=4), isa=isa)
    check(v, *draw(v, Sq=301, Skv=211, H=4, spread=8.0), isa=isa)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths(dtype: str) -> None:
    """Lengths around every edge of a tile, a panel, a block and a work item, unequal ones too; and zero."""
    v = variant("lengths", 16, dtype, mask="causal", tiles=Tiles(q=12, kv=64))
    lengths = (0, 1, 2, 17, 32, 63, 64, 65, 129)
    for Sq, Skv in itertools.product((0, 1, 5, 6, 13), lengths):
        check(v, *draw(v, B=1, Sq=Sq, Skv=Skv))
    full = variant("full_lengths", 16, dtype, tiles=Tiles(q=12, kv=64))
    for Skv in lengths:
        check(full, *draw(full, B=1, Sq=13, Skv=Skv))
    check(v, *draw(v, B=0, Sq=3, Skv=3))
    check(v, *draw(v, B=1, H=1, Hk=1, Sq=1025, Skv=1025))


@pytest.mark.parametrize("head_dim", [1, 3, 8, 17, 72, 80, 96, 104, 136, 192, 256, 320, 576])
def test_head_dims(head_dim: int) -> None:
    v = variant("head_dims", head_dim, "f32" if head_dim % 3 == 0 else "bf16", value_dim=max(1, head_dim - 7))
    check(v, *draw(v, B=1, Sq=50, Skv=77))


@pytest.mark.parametrize(("H", "Hk"), [(6, 2), (8, 2), (4, 1), (9, 3), (5, 5)])
@pytest.mark.parametrize("Sq", [1, 2, 33])
def test_grouped_heads(H: int, Hk: int, Sq: int) -> None:
    """Few queries of heads that share keys are one work item; the split never shows."""
    v = variant("grouped", 32, "bf16", mask="causal", params=(SLOPE,), score="alibi(slope)")
    q, k, w = draw(v, H=H, Hk=Hk, Sq=Sq, Skv=100)
    params = {"slope": torch.rand(H)}
    o, lse = check(v, q, k, w, params=params)
    for threads in (1, 3, 16):
        again, lse_again = kernel(v)(q, k, w, params=params, threads=threads)
        assert torch.equal(o, again) and torch.equal(lse, lse_again)


def test_thread_count_changes_nothing() -> None:
    v = variant("threads", 64, "bf16", mask="causal")
    q, k, w = draw(v, B=2, H=4, Hk=2, Sq=300, Skv=300)
    runs = [kernel(v)(q, k, w, threads=threads) for threads in (1, 2, 5)]
    assert all(torch.equal(o, runs[0][0]) and torch.equal(lse, runs[0][1]) for o, lse in runs)


EXPRESSIONS = {
    "window": {"mask": "window(20, 3)"},
    "window_causal": {"mask": "causal and q - kv < 70"},
    "top_left": {"mask": "causal", "align": "top_left"},
    "softcap": {"score": "softcap(5)", "mask": "causal"},
    "alibi": {"score": "alibi(slope)", "params": (SLOPE,)},
    "documents": {"mask": "causal and document(doc)", "params": (DOC,)},
    "bias": {"score": "s + bias[b, h, i, j]", "params": (BIAS,)},
    "tree": {"mask": "kv < kv_len - q_len or tree[b, i, kv - (kv_len - q_len)]", "params": (TREE,)},
    "blocks": {"mask": "abs(q//8 - kv//8) <= 2 and abs(q%8 - kv%8) <= 2"},
    "rows": {"mask": "q % 7 != 3"},
    "nothing": {"mask": "kv < 0"},
    "sink": {"mask": "causal", "sink": True},
    "scale": {"scale": 0.5, "score": "s - 3"},
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(name: str) -> None:
    v = variant(name, 32, "f32", **EXPRESSIONS[name])
    for B, H, Hk, Sq, Skv in ((2, 4, 2, 130, 130), (1, 3, 1, 30, 290), (1, 2, 2, 140, 60)):
        if name == "tree" and Sq > Skv:
            continue
        params = {
            "doc": torch.randint(0, 5, (B, max(Sq, Skv))).sort(-1).values.int(),
            "slope": torch.rand(H),
            "bias": torch.randn(B, H, Sq, Skv).bfloat16(),
            "tree": torch.rand(B, Sq, Sq) < 0.5,
        }
        used = {param.name: params[param.name] for param in v.params}
        check(v, *draw(v, B, H, Hk, Sq, Skv), params=used, sink=torch.randn(H) if v.sink else None)


def test_wide_tiles_and_narrow_ones_agree() -> None:
    for tiles in (Tiles(1, 16), Tiles(4, 48), Tiles(7, 32), Tiles(128, 1024)):
        v = variant("tiles", 24, "f32", mask="causal", tiles=tiles)
        assert (kernel(v).plan.forward.tile_q, kernel(v).plan.forward.tile_kv) == (tiles.q, tiles.kv)
        check(v, *draw(v, Sq=150, Skv=150))


def strided(x: torch.Tensor, how: str) -> torch.Tensor:
    """The same numbers in another memory layout, inside a buffer of NaN."""
    B, S, H, D = x.shape
    if how == "heads_first":
        buffer = torch.full((B, H, S, D), torch.nan, dtype=x.dtype).transpose(1, 2)
    elif how == "sequence_first":
        buffer = torch.full((S, B, H, D), torch.nan, dtype=x.dtype).transpose(0, 1)
    elif how == "every_second":
        buffer = torch.full((B, S, H, 2 * D), torch.nan, dtype=x.dtype)[..., ::2]
    elif how == "dim_first":
        buffer = torch.full((B, H, D, S), torch.nan, dtype=x.dtype).permute(0, 3, 1, 2)
    elif how == "fused":
        buffer = torch.full((B, S, 3, H, D), torch.nan, dtype=x.dtype)[:, :, 1]
    else:
        buffer = torch.full((x.numel() + 5,), torch.nan, dtype=x.dtype)[3:-2].view(B, S, H, D)
    return buffer.copy_(x)


LAYOUTS = ["heads_first", "sequence_first", "every_second", "dim_first", "fused", "odd_offset"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_are_bit_identical(dtype: str) -> None:
    v = variant("layouts", 40, dtype, mask="causal")
    q, k, w = draw(v, B=2, H=3, Hk=3, Sq=37, Skv=70)
    want, lse = check(v, q, k, w)
    for n, how in enumerate(LAYOUTS):
        others = [LAYOUTS[(n + step) % len(LAYOUTS)] for step in (0, 1, 2, 3)]
        out = strided(torch.zeros_like(q), others[3])
        o, lse_again = kernel(v)(*(strided(x, each) for x, each in zip((q, k, w), others, strict=False)), out=out)
        assert o is out and torch.equal(o, want) and torch.equal(lse, lse_again), how


def test_broadcast_heads_and_batch() -> None:
    v = variant("broadcast", 32, "f32")
    q, k, w = draw(v, B=2, H=4, Hk=4, Sq=20, Skv=40)
    k, w = k[:1, :, :1].expand(2, 40, 4, 32), w[:, :, :1].expand(2, 40, 4, 32)
    o, lse = check(v, q, k, w)
    again, lse_again = kernel(v)(q, k.contiguous(), w.contiguous())
    assert torch.equal(o, again) and torch.equal(lse, lse_again)


def test_heads_first_layout() -> None:
    v = variant("bhsd", 32, "bf16", layout="bhsd", mask="causal")
    check(v, *draw(v, H=4, Hk=2, Sq=70, Skv=90))


def test_outputs_outside_the_view_are_untouched() -> None:
    v = variant("guard", 24, "f32")
    q, k, w = draw(v, Sq=13, Skv=29)
    buffer = torch.full((2, 13, 2, 40), -7.0)
    o, _ = kernel(v)(q, k, w, out=buffer[..., 8:32])
    assert (buffer[..., :8] == -7).all() and (buffer[..., 32:] == -7).all() and o.isfinite().all()


def test_offsets_past_two_to_the_31() -> None:
    """Every tensor spread so far that its last row lies 2^31 elements beyond its first."""
    v = variant("far", 16, "bf16", mask="causal")
    S, far = 5, 2**29 + 1
    tensors = draw(v, B=1, H=2, Hk=2, Sq=S, Skv=S)
    want, lse = check(v, *tensors)
    no_reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    views = []
    for tensor in (*tensors, torch.empty_like(want)):
        memory = torch.frombuffer(mmap.mmap(-1, 2 * (S * far), flags=no_reserve), dtype=torch.bfloat16)
        views.append(memory.as_strided(tensor.shape, (0, far, 16, 1)).copy_(tensor))
    o, lse_again = kernel(v)(*views[:3], out=views[3])
    assert torch.equal(o, want) and torch.equal(lse, lse_again)


def test_memory_does_not_grow_with_the_square() -> None:
    v = variant("memory", 64, "f32", mask="causal")
    sizes = [kernel(v).workspace(*draw(v, B=1, H=1, Hk=1, Sq=S, Skv=S)) for S in (2048, 4096, 8192)]
    # Scratch of a thread is fixed; packed K and V are 4 · 128 bytes a key, and a line for each tile of 256.
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0]) == 4096 * 4 * 128 + 16 * 64


@pytest.mark.parametrize("mask", ["causal", "window(100, 0)", None])
def test_tile_counts(mask: str | None) -> None:
    v = variant("counts", 16, "f32", **({"mask": mask} if mask else {}), tiles=Tiles(q=32, kv=64))
    B, H, Sq, Skv = 2, 3, 200, 333
    q, k, _ = draw(v, B, H, H, Sq, Skv)
    counts = kernel(v).tile_counts(q, k)
    admits = torch.ones(Sq, Skv, dtype=torch.bool)
    i, j = torch.arange(Sq)[:, None] + Skv - Sq, torch.arange(Skv)
    if mask is not None:
        admits = (j <= i) if mask == "causal" else (j <= i) & (j >= i - 100)
    full = partial = 0
    for row, key in itertools.product(range(0, Sq, 32), range(0, Skv, 64)):
        tile = admits[row : row + 32, key : key + 64]
        whole = bool(tile.all()) and tile.shape[1] == 64
        full += whole
        partial += bool(tile.any()) and not whole
    assert counts.total == B * H * 7 * 6
    assert (counts.full, counts.partial, counts.empty) == (B * H * full, B * H * partial, 0)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ("f32", "bf16"))
def test_values_of_wildly_different_size(isa: str, dtype: str) -> None:
    """Columns and rows with small values keep their digits beside those whose sums overflow before they are divided."""
    v = variant("sizes", 8, dtype, mask="causal", align="top_left")
    size = torch.tensor([3e38, 1e30, 1.0, 1e-20, 1.2345e-33, 1e-36, 1e-30, 2e38])
    q, k, _ = draw(v, B=1, H=1, Hk=1, Sq=40, Skv=40)
    value = (size * (0.5 + torch.rand(1, 40, 1, 8) / 2.0)).to(q.dtype)
    value[:, :20, :, :2] = 1e-33
    o, _ = check(v, q, k, value, isa=isa)
    exact = reference(v, q, k, value)[0]
    # Each element by itself: a rule for a row would not see the small ones.
    assert ((o.double() - exact).abs() <= exact.abs() * (2.0**-20 if dtype == "f32" else 2.0**-7)).all()

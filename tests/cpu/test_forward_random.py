"""Any shape in any memory layout, by any number of threads: the oracle's numbers, and always the same ones."""

from __future__ import annotations

import torch
from forward_rule import check, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import kernel, variant
from test_forward import LAYOUTS, strided

from fagen.runtime.variant import Tiles

VARIANTS = (
    variant("random_f32", 24, "f32", value_dim=40, mask="causal", tiles=Tiles(q=20, kv=64)),
    variant("random_bf16", 33, "bf16", value_dim=20, mask="window(50, 10)", tiles=Tiles(q=20, kv=64)),
    variant("random_f16", 16, "f16", sink=True, tiles=Tiles(q=20, kv=64)),
)
LENGTHS = st.one_of(st.integers(0, 8), st.sampled_from([19, 20, 21, 63, 64, 65, 127, 128, 129, 150]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    v=st.sampled_from(VARIANTS),
    B=st.integers(0, 3),
    Hk=st.integers(1, 3),
    group=st.integers(1, 4),
    Sq=LENGTHS,
    Skv=LENGTHS,
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 4),
    threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_random_calls(
    v: object, B: int, Hk: int, group: int, Sq: int, Skv: int, layouts: tuple[str, ...], threads: int, seed: int
) -> None:
    torch.manual_seed(seed)
    q, k, w = draw(v, B, Hk * group, Hk, Sq, Skv)  # type: ignore[arg-type]
    sink = torch.randn(Hk * group) if v.sink else None  # type: ignore[attr-defined]
    want, want_lse = check(v, q, k, w, sink=sink)  # type: ignore[arg-type]
    out = strided(torch.zeros_like(want), layouts[3])
    views = [strided(x, how) for x, how in zip((q, k, w), layouts, strict=False)]
    o, lse = kernel(v)(*views, sink=sink, out=out, threads=threads)  # type: ignore[arg-type]
    assert torch.equal(o, want) and torch.equal(lse, want_lse)

"""The compiled kernels of specs/cpu.yaml visit no tile that admits no pair, as `module.tile_counts` counts them."""

from __future__ import annotations

import pytest
import torch
from kernels import DTYPES, kernel

from fagen.resources import specs_dir
from fagen.runtime.variant import Variant
from fagen.spec import expand, load

READY = expand(load(specs_dir() / "cpu.yaml"))
SIZES = [(1024, 1024), (1000, 1000), (300, 2000), (2000, 300), (97, 97), (1, 777)]


def _each() -> list[object]:
    """One of each family now, the others at night: what differs is the size of a tile."""
    nightly = [pytest.mark.nightly]
    return [pytest.param(v, id=v.name, marks=[] if (v.head_dim, v.dtype) == (64, "f32") else nightly) for v in READY]


@pytest.mark.parametrize("variant", _each())
def test_no_tile_is_visited_in_vain(variant: Variant) -> None:
    made = kernel(variant)
    for q_len, kv_len in SIZES:
        q = torch.zeros(2, q_len, 4, variant.head_dim, dtype=DTYPES[variant.dtype])
        k = torch.zeros(2, kv_len, 2, variant.head_dim, dtype=DTYPES[variant.dtype])
        longest = max(q_len, kv_len)
        params = {
            # Documents of unequal lengths, as packing makes them, that begin at no edge of a tile.
            "doc": torch.bucketize(torch.arange(longest), torch.tensor([50, 311, 730])).int().expand(2, longest),
            "slope": torch.ones(4),
        }
        counts = made.tile_counts(q, k, {param.name: params[param.name] for param in variant.params})
        assert counts.empty == 0, (q_len, kv_len)
        assert 0 < counts.full + counts.partial <= counts.total
        if variant.name.startswith("full"):
            assert counts.full + counts.partial == counts.total

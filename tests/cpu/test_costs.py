"""The memory that `fagen explain` says a kernel holds is what the kernel asks for, at two lengths."""

from __future__ import annotations

import pytest
import torch
from backward_kernels import backward_kernel
from kernels import variant

from fagen.costs import Costs, costs


def _extra(found: Costs, sizes: dict[str, int]) -> float:
    return float(found.extra.subs({symbol: sizes[symbol.name] for symbol in found.extra.free_symbols}))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_extra_memory_grows_with_the_length_as_said(direction: str) -> None:
    of = variant("positions", 64, "f32", backward=True, mask="causal", score="s + (q - kv) * 0.125")
    backward = backward_kernel(of)
    kernel = backward.forward if direction == "forward" else backward
    found = costs(kernel.plan, direction)
    asked, said = [], []
    for length in (1536, 3072, 6144):  # whole tiles of both directions
        q, k, v = (torch.empty(2, length, heads, 64) for heads in (4, 2, 2))
        asked.append(kernel.workspace(q, k, v))
        said.append(_extra(found, {"B": 2, "H": 4, "Hk": 2, "Sq": length, "Skv": length}))
    for n in (1, 2):
        # Besides: a line of the cache for each tile.
        assert asked[n] - asked[n - 1] == pytest.approx(said[n] - said[n - 1], rel=0.02)
    assert asked[2] - asked[1] == 2 * (asked[1] - asked[0])

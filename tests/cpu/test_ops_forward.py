"""The forward ops: what they compute, and what they refuse."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.nn.functional import scaled_dot_product_attention


def test_causal_is_torchs(small: ModuleType) -> None:
    q, k, v = (torch.randn(2, 9, 4, 16) for _ in range(3))
    o = small.causal_d16(q, k, v)
    expected = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(o, expected)

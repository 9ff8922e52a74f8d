"""Shapes and sizes, from faults reported to attention libraries.

Alignment of the diagonal, tile edges, nothing, odd head dims, groups.
"""

from __future__ import annotations

import pytest
import torch
from calls import call, draw, judge

from fagen.runtime.check.memory import place


def one_hot(length: int, dim: int) -> torch.Tensor:
    """v[j] = one-hot(j), [1, length, 1, dim]."""
    return torch.eye(length, dim)[None, :, None]


@pytest.mark.parametrize(
    "name, sizes, seen",
    [
        ("causal_d16", (2, 5), [[0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        ("causal_d16", (5, 2), [[], [], [], [0], [0, 1]]),
        ("topleft_d16", (2, 5), [[0], [0, 1]]),
        ("topleft_d16", (5, 2), [[0], [0, 1], [0, 1], [0, 1], [0, 1]]),
    ],
)
def test_where_the_diagonal_lies(cases, name, sizes, seen):
    kernel = getattr(cases, name)
    q, k, v = torch.zeros(1, sizes[0], 1, 16), torch.zeros(1, sizes[1], 1, 16), one_hot(sizes[1], 16)
    want = torch.zeros(sizes[0], 16)
    for i, keys in enumerate(seen):
        want[i, keys] = 1 / max(len(keys), 1)
    got = call(kernel, q, k, v, d_o=torch.eye(sizes[0], 16)[None, :, None])
    torch.testing.assert_close(got["o"][0, :, 0], want)
    count = torch.tensor([float(len(keys)) for keys in seen])
    torch.testing.assert_close(got["lse"][0, 0], count.log())
    # dv[j, i] is the weight of key j in row i.
    torch.testing.assert_close(got["dv"][0, :, 0, : sizes[0]], want[:, : sizes[1]].T)


LENGTHS = (1, 2, 15, 17, 63, 65, 127, 129)


@pytest.mark.parametrize("name", ["full_d64_f32", "causal_d64_f32", "causal_d64_bf16"])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_that_are_no_multiple_of_a_tile(cases, name, length):
    kernel = getattr(cases, name)
    other = LENGTHS[(LENGTHS.index(length) * 3 + 2) % len(LENGTHS)]
    for sizes in ((length, length), (length, other)):
        # Between memory that must not be read, and out between memory that must not be written.
        q, k, v = (place(tensor, "offset") for tensor in draw(kernel, Sq=sizes[0], Skv=sizes[1]))
        judge(kernel, q.tensor, k.tensor, v.tensor, d_o=torch.randn_like(q.tensor))
        assert not q.changed() and not k.changed() and not v.changed()
        out = place(torch.full_like(q.tensor, torch.nan), "offset")
        kernel(q.tensor, k.tensor, v.tensor, out=out.tensor)
        assert not out.spilled() and not out.tensor.isnan().any()


def test_a_mask_and_a_score_change_beyond_a_tile(cases):
    for name in ("skew_d64", "causal_d64_f32"):
        kernel = getattr(cases, name)
        q, k, v = draw(kernel, H=1, Hk=1, Sq=1025, Skv=1025)
        judge(kernel, q, k, v, d_o=torch.randn_like(q))


@pytest.mark.parametrize("name", ["full_d64_f32", "causal_d64_f32", "causal_bhsd_d16", "sink_d16"])
@pytest.mark.parametrize("empty", ["B", "Sq", "Skv"])
def test_nothing_is_a_size(cases, name, empty):
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, **{"B": 2, "Sq": 3, "Skv": 4, empty: 0})
    extras = {"sink": torch.randn(2)} if kernel.variant.sink else {}
    d_o = torch.randn(*q.shape[:3], kernel.variant.value_dim)
    got = judge(kernel, q, k, v, d_o=d_o, **extras)
    assert got["o"].shape == d_o.shape
    if empty == "Skv":
        want = extras["sink"][None, :, None].expand(2, 2, 3) if extras else torch.full((2, 2, 3), -torch.inf)
        assert torch.equal(got["lse"], want)
        assert (got["o"] == 0).all() and (got["dq"] == 0).all()
    else:
        assert (got["dk"] == 0).all() and (got["dv"] == 0).all()


@pytest.mark.parametrize("head_dim", [8, 40, 72, 80, 96, 104, 120, 136])
def test_head_dims_that_are_no_multiple_of_a_vector(cases, head_dim):
    kernel = getattr(cases, f"odd_d{head_dim}")
    q, k, v = draw(kernel, H=8, Hk=8, Sq=512, Skv=512)
    got = judge(kernel, q, k, v, d_o=torch.randn(q.shape).bfloat16())
    # The scale is that of the true width.
    scaled = call(kernel, q, k, v, scale=head_dim**-0.5)
    assert torch.equal(got["o"], scaled["o"])


@pytest.mark.parametrize("heads", [(3, 2), (33, 2), (2, 3), (4, 0)])
def test_heads_that_are_no_groups_are_refused(cases, heads):
    kernel = cases.causal_d16
    q, k, v = draw(kernel, H=heads[0], Hk=heads[1])
    with pytest.raises(ValueError, match=rf"\b{heads[0]}\b.*\b{heads[1]}\b"):
        kernel(q, k, v)

"""What a call refuses, and how it says so: the op, the argument, what was expected, what was found."""

from __future__ import annotations

import contextlib
import gc
import re
import resource
from collections.abc import Callable
from types import ModuleType
from typing import Any

import naive
import pytest
import torch

from fagen.expr import MAX_LENGTH
from fagen.resources import templates_dir

Call = Callable[[ModuleType, Any, Any, Any], Any]
ZEROS = torch.zeros

REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "q dtype": (
        lambda m, q, k, v: m.causal_d16(q.double(), k, v),
        TypeError,
        "causal_d16_forward: q: expected dtype torch.float32, found torch.float64",
    ),
    "v dtype": (
        lambda m, q, k, v: m.causal_d16(q, k, v.bfloat16()),
        TypeError,
        "causal_d16_forward: v: expected dtype torch.float32, found torch.bfloat16",
    ),
    "q rank": (
        lambda m, q, k, v: m.causal_d16(q[0], k, v),
        ValueError,
        "q: expected shape [B, Sq, H, 16], found shape [5, 4, 16]",
    ),
    "k rank": (
        lambda m, q, k, v: m.causal_d16(q, k[0], v),
        ValueError,
        "k: expected shape [B, Skv, Hk, 16], found shape [7, 2, 16]",
    ),
    "q head dim": (
        lambda m, q, k, v: m.causal_d16(q[..., :8], k, v),
        ValueError,
        "q: expected shape [B, Sq, H, 16], found shape [2, 5, 4, 8]",
    ),
    "layout in words": (
        lambda m, q, k, v: m.bare_d16(q, k[..., :3], v),
        ValueError,
        "k: expected shape [B, Hk, Skv, 16], found shape [2, 7, 2, 3]",
    ),
    "k batch": (
        lambda m, q, k, v: m.causal_d16(q, k[:1], v),
        ValueError,
        "k: expected batch 2 as in q, found shape [1, 7, 2, 16]",
    ),
    "v length": (
        lambda m, q, k, v: m.causal_d16(q, k, v[:, :6]),
        ValueError,
        "v: expected shape [2, 7, 2, 16], found shape [2, 6, 2, 16]",
    ),
    "value dim": (
        lambda m, q, k, v: m.sink_d16(q, k, v, sink=ZEROS(4)),
        ValueError,
        "sink_d16_forward: v: expected shape [2, 7, 2, 8], found shape [2, 7, 2, 16]",
    ),
    "sink shape": (
        lambda m, q, k, v: m.sink_d16(q, k, v[..., :8], sink=ZEROS(2)),
        ValueError,
        "sink: expected shape [4], found shape [2]",
    ),
    "sink dtype": (
        lambda m, q, k, v: m.sink_d16(q, k, v[..., :8], sink=ZEROS(4).half()),
        TypeError,
        "sink: expected dtype torch.float32, found torch.float16",
    ),
    "param of heads": (
        lambda m, q, k, v: m.alibi_d16(q, k, v, slope=ZEROS(2)),
        ValueError,
        "slope: expected shape [H] = [4] (expand() a broadcast one), found shape [2]",
    ),
    "param with a batch": (
        lambda m, q, k, v: m.alibi_d16(q, k, v, slope=ZEROS(2, 4)),
        ValueError,
        "slope: expected shape [H] = [4] (expand() a broadcast one), found shape [2, 4]",
    ),
    "param of batch and any": (
        lambda m, q, k, v: m.doc_d16(q, k, v, doc=ZEROS(1, 7, dtype=torch.int32)),
        ValueError,
        "doc: expected shape [B, n] = [2, n] (expand() a broadcast one), found shape [1, 7]",
    ),
    "param half": (
        lambda m, q, k, v: m.alibi_d16(q, k, v, slope=ZEROS(4).half()),
        ValueError,
        "slope: expected dtype torch.float32, found torch.float16",
    ),
    "param double": (
        lambda m, q, k, v: m.alibi_d16(q, k, v, slope=ZEROS(4).double()),
        TypeError,
        "slope: expected dtype torch.float32, found torch.float64",
    ),
    "param of integers": (
        lambda m, q, k, v: m.alibi_d16(q, k, v, slope=ZEROS(4, dtype=torch.int64)),
        ValueError,
        "slope: expected dtype torch.float32, found torch.int64",
    ),
    "n twice, different": (
        lambda m, q, k, v: m.pair_d16(q, k, v, pair=ZEROS(7, 6)),
        ValueError,
        "pair: expected shape [n, n] = [n, n] (expand() a broadcast one), found shape [7, 6]",
    ),
    "ids of 64 bits": (
        lambda m, q, k, v: m.doc_d16(q, k, v, doc=ZEROS(2, 7, dtype=torch.int64)),
        TypeError,
        "doc: expected dtype torch.int32, found torch.int64",
    ),
    "a number for a tensor": (
        lambda m, q, k, v: m.alibi_d16(q, k, v, slope=0.5),
        TypeError,
        "alibi_d16: slope: expected a torch.Tensor, found float",
    ),
    "an array for a tensor": (
        lambda m, q, k, v: m.causal_d16(q.numpy(), k, v),
        TypeError,
        "causal_d16: q: expected a torch.Tensor, found ndarray",
    ),
    "a sparse tensor": (
        lambda m, q, k, v: m.causal_d16(q.to_sparse(), k, v),
        TypeError,
        "causal_d16: q: expected a dense tensor, found layout torch.sparse_coo",
    ),
    "a missing param": (
        lambda m, q, k, v: m.alibi_d16(q, k, v),
        TypeError,
        "missing 1 required keyword-only argument: 'slope'",
    ),
    "an unknown param": (
        lambda m, q, k, v: m.causal_d16(q, k, v, slope=q),
        TypeError,
        "unexpected keyword argument 'slope'",
    ),
    "two devices": (
        lambda m, q, k, v: m.causal_d16(q, k.to("meta"), v),
        ValueError,
        "causal_d16: expected all tensors on one device, found q on cpu, k on meta, v on cpu",
    ),
    "a scale that is no number": (
        lambda m, q, k, v: m.causal_d16(q, k, v, scale="big"),
        ValueError,
        "could not convert",
    ),
    "a scale that wants a gradient": (
        lambda m, q, k, v: m.causal_d16(q, k, v, scale=torch.tensor(0.5, requires_grad=True)),
        TypeError,
        "causal_d16: scale: expected a number, found a tensor that wants a gradient",
    ),
    "out shape": (
        lambda m, q, k, v: m.causal_d16(q, k, v, out=ZEROS(2, 5, 4, 8)),
        ValueError,
        "causal_d16_forward_out: out: expected shape [2, 5, 4, 16], found shape [2, 5, 4, 8]",
    ),
    "out dtype": (
        lambda m, q, k, v: m.causal_d16(q, k, v, out=ZEROS(2, 5, 4, 16).half()),
        TypeError,
        "out: expected dtype torch.float32, found torch.float16",
    ),
    "out over itself": (
        lambda m, q, k, v: m.causal_d16(q, k, v, out=ZEROS(1, 5, 4, 16).expand(2, -1, -1, -1)),
        ValueError,
        "out: expected a place of its own for every element, found a tensor that overlaps itself",
    ),
    "out over q": (
        lambda m, q, k, v: m.causal_d16(q, k, v, out=q),
        ValueError,
        "out: expected memory apart from that of q, found memory in common",
    ),
    "out with a gradient": (
        lambda m, q, k, v: m.causal_d16(q.requires_grad_(), k, v, out=ZEROS(2, 5, 4, 16)),
        ValueError,
        "causal_d16: out= has no gradient",
    ),
    "a gradient without backward": (
        lambda m, q, k, v: m.bare_d16(q.requires_grad_(), k, v),
        ValueError,
        "bare_d16: built without backward, but an argument requires grad: set `backward: true` in small.yaml",
    ),
    "a gradient of a param without one": (
        lambda m, q, k, v: m.scalar_d16(q, k, v, bias=torch.tensor(0.5, requires_grad=True)),
        ValueError,
        "scalar_d16: no gradient for bias: add `grad: true` to the param in small.yaml",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(small: ModuleType, case: str) -> None:
    call, kind, message = REFUSED[case]
    qkv, _ = naive.draw(small.causal_d16.variant)
    with pytest.raises(kind, match=re.escape(message)):
        call(small, *qkv)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 2), (33, 2), (2, 3), (4, 0)])
def test_heads_that_do_not_divide(small: ModuleType, heads: int, kv_heads: int) -> None:
    """Both counts are named."""
    qkv, _ = naive.draw(small.causal_d16.variant, H=heads, Hk=kv_heads)
    with pytest.raises(ValueError, match=f"found {heads} query heads and {kv_heads} key heads"):
        small.causal_d16(*qkv)


@pytest.mark.parametrize("which", ["batch", "heads", "key heads", "q", "k"])
def test_sizes_past_the_limit(small: ModuleType, which: str) -> None:
    """Index arithmetic of kernels counts on it; expanded tensors have such sizes without the memory."""
    sizes = {"batch": 1, "heads": 1, "key heads": 1, "q": 1, "k": 1} | {which: MAX_LENGTH + 1}
    heads = sizes["heads"] if which != "key heads" else 0  # a multiple of them
    q = torch.zeros(1, 1, min(heads, 1), 16).expand(sizes["batch"], sizes["q"], heads, 16)
    k = torch.zeros(1, 1, 1, 16).expand(sizes["batch"], sizes["k"], sizes["key heads"], 16)
    expected = rf"expected batches, heads and lengths up to {MAX_LENGTH}, found .*{MAX_LENGTH + 1}"
    for call in (lambda: small.causal_d16.ops.forward(q, k, k, 0.25), lambda: small.tile_counts("causal_d16", q, k)):
        with pytest.raises(ValueError, match=expected):
            call()


@pytest.mark.parametrize(("batch", "heads", "size"), [(2, 2**20, str(2**54)), (8, 2**27, "2^63 or more")])
def test_no_memory(small: ModuleType, batch: int, heads: int, size: str) -> None:
    """The message has the size, and what it was to hold."""
    q = torch.zeros(1, 1, 1, 16).expand(batch, 2**27, heads, 16)
    k = torch.zeros(1, 1, 1, 16).expand(batch, 1, 1, 16)
    with pytest.raises(RuntimeError, match=re.escape(f"torch could not allocate {size} bytes for o")):
        small.causal_d16(q, k, k)
    lse = q[..., 0].transpose(1, 2)
    copy = f"torch could not allocate {4 * lse.numel()} bytes for a contiguous copy of lse"
    with pytest.raises(RuntimeError, match=copy):
        small.causal_d16.ops.backward(q, None, q, k, k, q, lse, 0.25, 0)


def test_the_limit_of_sizes_is_the_one_that_index_arithmetic_counts_on() -> None:
    header = (templates_dir() / "include/fagen/params.h").read_text()
    shift = re.search(r"kMaxLength = int64_t\{1\} << (\d+);", header)
    assert shift is not None and 1 << int(shift[1]) == MAX_LENGTH


def test_no_reference_is_kept(small: ModuleType) -> None:
    """A refused call lets go of its tensors at once: 200 of them with 8 MiB each leave no 1.6 GB behind."""
    k = torch.zeros(2, 7, 2, 16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.disable()
    try:
        for _ in range(200):
            with contextlib.suppress(ValueError):
                small.causal_d16(torch.zeros(2, 1 << 14, 4, 16), k, k[:, :6])
    finally:
        gc.enable()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB

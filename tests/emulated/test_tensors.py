"""Bulk and tensor copies: what lies where, and what is found when they are not waited for, fenced or counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fagen import emulate

from .compiled import ptx_of
from .launches import FEW, check_place, fault_of, run

orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")


def shuffled(box: Tensor, swizzle: int) -> Tensor:
    """The bytes of a box, as (chunks of 16): in lines of 128 bytes, chunk c of line r is found at c ^ r."""
    chunks = box.contiguous().view(torch.uint8).reshape(-1, 16)
    out = torch.empty_like(chunks)
    for n in range(len(chunks)):
        out[n ^ (n // 8 % 8 & (max(swizzle, 16) // 16 - 1))] = chunks[n]
    return out


def loaded(tensor: Tensor, box: tuple[int, ...], at: tuple[int, ...], swizzle: int, dtype: torch.dtype) -> Tensor:
    size = torch.Size(box).numel() * tensor.element_size()
    out = torch.zeros(size // 16, 16, dtype=torch.uint8)
    places = [*at[::-1], *[0] * (5 - len(at))]
    tile = emulate.encode_tiled(tensor, box, swizzle=swizzle)
    run(
        "tensors", f"box{tensor.dim()}", 1, 32, [tile, out, size // 16, *places],
        shared=size, memory=[emulate.readonly(tensor)],
    )  # fmt: skip
    return out


def cut(tensor: Tensor, box: tuple[int, ...], at: tuple[int, ...]) -> Tensor:
    """The box with zeros where it is outside."""
    out = torch.zeros(box, dtype=tensor.dtype)
    inside = tuple(slice(max(a, 0), min(a + b, n)) for a, b, n in zip(at, box, tensor.shape, strict=True))
    if all(part.start < part.stop for part in inside):
        to = tuple(slice(part.start - a, part.stop - a) for part, a in zip(inside, at, strict=True))
        out[to] = tensor[inside]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_in_every_swizzle(swizzle: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(96 * 256).reshape(96, 256).to(dtype)
    columns = (swizzle or 64) // tensor.element_size()
    for at in ((0, 0), (8, 32), (-3, 16), (90, 256 - columns // 2), (200, 0)):
        box = (24, columns)
        assert torch.equal(loaded(tensor, box, at, swizzle, dtype), shuffled(cut(tensor, box, at), swizzle)), at


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_rank(rank: int) -> None:
    tensor = torch.arange(5 * 4 * 6 * 7 * 32.0).reshape(5, 4, 6, 7, 32)[(0,) * (5 - rank)]
    box, at = (2, 3, 2, 5, 8)[5 - rank :], (4, -1, 3, 2, 20)[5 - rank :]
    assert torch.equal(loaded(tensor, box, at, 32, tensor.dtype), shuffled(cut(tensor, box, at), 32))


@orders
def test_stores_leave_out_what_is_outside_and_add(order: emulate.Order) -> None:
    x, y = torch.randn(16, 32), torch.randn(20, 64)
    for adds in (False, True):
        given = y.clone()
        maps = [emulate.encode_tiled(each, (16, 32), swizzle=128) for each in (x, given)]
        run("tensors", f"4moveILb{int(adds)}E", 1, 32, [*maps, 2048, 48, 10], shared=2048, memory=[x, given], **order)
        wanted = y.clone()
        wanted[10:, 48:] = x[:10, :16] + (y[10:, 48:] if adds else 0)
        assert torch.equal(given, wanted)


@pytest.mark.parametrize(
    ("tensor", "box", "swizzle", "says"),
    [
        (torch.zeros(8, 8)[:, 1:], (8, 4), 0, "globalAddress: no multiple of 16"),
        (torch.zeros(8, 7), (8, 4), 0, "globalStrides[0]: 28 bytes, no multiple of 16"),
        (torch.zeros(8, 8), (8, 3), 0, "boxDim[0]: 12 bytes, no multiple of 16"),
        (torch.zeros(8, 64), (8, 64), 128, "boxDim[0]: 256 bytes, more than the 128 that the swizzle spans"),
        (torch.zeros(300, 8), (257, 8), 0, "boxDim[1]: 257, expected 1 to 256"),
        (torch.zeros(1, 1, 1, 1, 1, 16), (1,) * 5 + (16,), 0, "tensorRank: 6, expected 1 to 5"),
    ],
)
def test_a_map_that_the_driver_would_refuse(tensor: Tensor, box: tuple[int, ...], swizzle: int, says: str) -> None:
    with pytest.raises(emulate.EmulationError) as caught:
        emulate.encode_tiled(tensor, box, swizzle=swizzle)
    assert says in str(caught.value)


def test_no_tensor_map_and_one_of_another_rank() -> None:
    out, x = torch.zeros(8, 16, dtype=torch.uint8), torch.zeros(64)
    more = {"shared": 128, "memory": [x]}
    fault = fault_of("tensors", "box2", 1, 32, [bytes(128), out, 8, 0, 0, 0, 0, 0], **more)
    assert fault.kind == "tensor map" and "no tensor map lies here" in fault.what
    fault = fault_of("tensors", "box2", 1, 32, [emulate.encode_tiled(x, (32,)), out, 8, 0, 0, 0, 0, 0], **more)
    assert fault.kind == "tensor map" and "of 1 dimensions in an instruction for 2" in fault.what


# Fault, its kind, what is said, where: mark and opcode.
FAULTS = [
    (1, "proxy", "without a fence.proxy.async", "store", "cp.async.bulk"),
    (2, "race", "the write of an asynchronous copy", "double", "ld.shared"),
    (3, "mbarrier", "bulk copies bring 64 bytes more than the phase expects", "load", "cp.async.bulk"),
    (4, "mbarrier", "expects 128 bytes that nothing brings", "await", "mbarrier.try_wait"),
    (5, "proxy", "whose initialisation no fence", "load", "cp.async.bulk"),
    (6, "race", "the read of an asynchronous copy", "change", "st.shared"),
    (7, "race", "the block ends while a bulk copy may still read", "store", "cp.async.bulk"),
    (8, "mbarrier", "a phase is waited for twice", "await", "mbarrier.try_wait"),
]


@orders
@pytest.mark.parametrize(("number", "kind", "says", "mark", "opcode"), FAULTS, ids=[str(each[0]) for each in FAULTS])
def test_a_fault(number: int, kind: str, says: str, mark: str, opcode: str, order: emulate.Order) -> None:
    fault = fault_of("tensors", f"twiceILi{number}E", 1, 32, [torch.randn(64), torch.zeros(64)], **order)
    if number == 8 and order["completions"] == "earliest":  # the next phase is over before it is asked
        assert fault.kind == "deadlock"
        return
    assert fault.kind == kind and says in fault.what, fault
    if number != 4:
        check_place(fault.at, "tensors", mark, opcode)


@orders
def test_their_twin(order: emulate.Order) -> None:
    x, out = torch.randn(64), torch.zeros(64)
    run("tensors", "twiceILi0E", 1, 32, [x, out], **order)
    assert torch.equal(out, 2 * x)


def test_the_fixture_is_of_hopper() -> None:
    assert ".target sm_90a" in ptx_of("tensors").read_text()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "s32", "u64"])
def test_reductions_of_bytes(kind: str) -> None:
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "s32": torch.int32}.get(
        kind, torch.int64
    )
    each = 16 // torch.empty(0, dtype=dtype).element_size()
    x, out = (torch.randint(-9, 9, (n, each)).to(dtype) for n in (32, 16))
    pairs = torch.cat([x.view(16, 2, each), out.view(16, 1, each)], 1)
    wanted = pairs.amax(1) if kind == "s32" else pairs.sum(1).to(dtype)
    run("tensors", f"reduce_{kind}", 1, 32, [x, out])
    assert torch.equal(out, wanted)

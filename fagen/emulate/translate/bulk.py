"""Bulk and tensor copies. Source: PTX ISA, Data Movement: cp.async.bulk and on, cp.reduce.async.bulk and on."""

from __future__ import annotations

from ..ptx.model import Address, Instruction, Operand
from .emit import Emitter
from .modifiers import Modifiers, refused
from .operands import truth

_REDUCTIONS = {"add": 1, "min": 2, "max": 3, "inc": 4, "dec": 5, "and": 6, "or": 7, "xor": 8}
_TYPES = {name: f"Type::k{name.capitalize()}" for name in "u32 s32 u64 s64 b32 b64 f16 bf16 f32 f64".split()}
_SPACES = {"shared::cluster": "Space::kShared", "shared::cta": "Space::kShared", "global": "Space::kGlobal"}
_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")


def copy(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """What follows `cp.async.bulk` or `cp.reduce.async.bulk`."""
    if m.flag("commit_group"):
        m.done()
        e.here()
        e.line("call.bulk_commit(t);")
    elif m.flag("wait_group"):
        read = m.flag("read")
        m.done()
        e.here()
        e.wait_for(f"call.bulk_wait(t, {e.read(i.operands[0], 'u32')}, {truth(read)})")
    elif m.flag("prefetch"):
        _prefetch(i, m)
        e.line(";")
    else:
        _move(e, i, m)


def _prefetch(i: Instruction, m: Modifiers) -> None:
    """Only what it looks like is checked: what is prefetched is no access."""
    m.flag("tensor")
    m.choice(*_DIMENSIONS, default="")
    m.choice("L2")
    m.choice("global")
    m.flag("tile")
    m.flag("L2::cache_hint")
    m.done()


def _move(e: Emitter, i: Instruction, m: Modifiers) -> None:
    tensor = m.flag("tensor")
    rank = int(m.choice(*_DIMENSIONS)[0]) if tensor else 0
    to = m.choice(*_SPACES)
    source = m.choice(*_SPACES)
    m.flag("tile")
    completes = m.flag("mbarrier::complete_tx::bytes")
    if not completes:
        m.choice("bulk_group")
    multicast = m.flag("multicast::cluster")
    m.flag("L2::cache_hint")
    m.flag("noftz")
    reduce, kind = 0, "b32"
    if i.modifiers[0] == "reduce":
        reduce = _REDUCTIONS[m.choice(*_REDUCTIONS)]
        if not tensor:
            kind = m.choice(*_TYPES)
    m.done()
    if completes == (to == "global") or (reduce and completes):
        raise refused(i, "this direction is not built")
    operands = list(i.operands)
    e.here()
    e.line("{ BulkCopy c{};")
    for name, space in (("to", to), ("from", source)):
        operand = operands.pop(0)
        is_map = tensor and space == "global"
        if is_map:
            _coordinates(e, i, operand, rank)
        e.line(f"c.{name} = {e.address(operand)};")
        e.line(f"c.{name}_space = {'Space::kGeneric' if is_map else _SPACES[space]};")
    if not tensor:
        e.line(f"c.bytes = {e.read(operands.pop(0), 'u32')};")
    if completes:
        e.line(f"c.completes = true; c.mbarrier = {e.address(operands.pop(0))};")
    if multicast:
        e.line(f"c.multicast = true; c.mask = {e.read(operands.pop(0), 'u16')};")
    e.line(f"c.rank = {rank}; c.reduce = {reduce}; c.type = {_TYPES[kind]}; call.bulk_copy(t, c); }}")


def _coordinates(e: Emitter, i: Instruction, operand: Operand, rank: int) -> None:
    if not isinstance(operand, Address) or len(operand.index) != rank:
        raise refused(i, f"expected {rank} coordinates")
    for n, each in enumerate(operand.index):
        e.line(f"c.at[{n}] = {e.read(each, 's32')};")

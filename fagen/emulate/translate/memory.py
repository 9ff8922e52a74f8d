"""Loads, stores, atomics, cp.async. Source: PTX ISA, Data Movement; Parallel Synchronization: atom, red."""

from __future__ import annotations

from ..ptx.model import Immediate, Instruction, Operand, Sink, Vector
from ..ptx.parse import type_bytes
from . import bulk
from .emit import PAUSES, SPINS, Emitter, always, translates
from .modifiers import Modifiers, refused
from .operands import UNSIGNED, truth

_SPACES = {
    "": "kGeneric",
    "global": "kGlobal",
    "shared": "kShared",
    "shared::cta": "kShared",
    "shared::cluster": "kShared",
    "local": "kLocal",
    "param": "kParam",
    "param::entry": "kParam",
    "param::func": "kParam",
    "const": "kConst",
}
_ORDERS = {
    "": "kWeak",
    "weak": "kWeak",
    "volatile": "kVolatile",
    "relaxed": "kRelaxed",
    "acquire": "kAcquire",
    "release": "kRelease",
    "acq_rel": "kAcquireRelease",
    "mmio": "kRelaxed",
}
_SCOPES = {"": "kGpu", "cta": "kCta", "cluster": "kCluster", "gpu": "kGpu", "sys": "kSystem"}
# What the hardware may cache, evict and prefetch: no matter here.
_HINTS = (
    "ca cg cs lu cv wb wt nc L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
    "L2::evict_normal L2::evict_first L2::evict_last L2::cache_hint L2::64B L2::128B L2::256B unified noftz"
).split()


def space_of(m: Modifiers) -> str:
    """The C++ name of an instruction's state space."""
    return f"Space::{_SPACES[m.choice(*(name for name in _SPACES if name), default='')]}"


def order_of(m: Modifiers, default: str = "") -> tuple[str, str]:
    """Those of its order and scope."""
    order = m.choice(*(name for name in _ORDERS if name), default=default)
    scope = m.choice(*(name for name in _SCOPES if name), default="")
    return f"Order::{_ORDERS[order]}", f"Scope::{_SCOPES[scope]}"


def skip_hints(m: Modifiers) -> bool:
    """Leaves out what concerns caches alone; whether there is an operand for it."""
    policy = "L2::cache_hint" in m.left()
    for name in _HINTS:
        m.flag(name)
    return policy


def _strong(i: Instruction) -> bool:
    return bool({"volatile", "relaxed", "acquire", "mmio"} & set(i.modifiers))


SPINS["ld"] = _strong
SPINS["atom"] = SPINS["nanosleep"] = SPINS["activemask"] = always
SPINS["mbarrier"] = lambda i: bool({"test_wait", "try_wait"} & set(i.modifiers))
PAUSES["cp"] = lambda i: "wait_group" in i.modifiers or "wait_all" in i.modifiers


@translates("ld", "ldu")
def _load(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    count = int(m.choice("v2", "v4", "v8", default="v1")[1:])
    skip_hints(m)
    space = space_of(m)
    order, scope = order_of(m)
    m.done()
    size = type_bytes(kind)
    unsigned = UNSIGNED[size]
    items = e.vector(i.operands[0], count)
    place = e.frame(i.operands[1]) if space == "Space::kParam" else None
    e.line(f"{{ {unsigned} x[{count}];")
    if place is not None:
        base = "t.param" if place[0] == "param" else "t.local"
        e.line(f"std::memcpy(x, {base} + {place[1]}, {size * count});")
    else:
        e.here()
        e.line(f"call.load(t, {space}, {e.address(i.operands[1])}, x, {size * count}, {order}, {scope});")
    for n, item in enumerate(items):
        e.write(item, f"{_cast(kind)}(x[{n}])", kind if kind[0] in "su" else f"b{8 * size}")
    e.line("}")


def _cast(kind: str) -> str:
    size = type_bytes(kind)
    return f"s{8 * size}" if kind[0] == "s" else "" if size == 16 else f"u{8 * size}"


@translates("st")
def _store(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if "async" in m.left() or "bulk" in m.left():
        raise refused(i, "asynchronous stores are not built")
    count = int(m.choice("v2", "v4", "v8", default="v1")[1:])
    skip_hints(m)
    space = space_of(m)
    order, scope = order_of(m)
    m.done()
    size = type_bytes(kind)
    place = e.frame(i.operands[0]) if space == "Space::kParam" else None
    values = [e.pattern(item, kind) for item in e.vector(i.operands[1], count)]
    e.line(f"{{ const {UNSIGNED[size]} x[{count}] = {{{', '.join(f'{UNSIGNED[size]}({value})' for value in values)}}};")
    if place is not None:
        if place[0] == "param":
            raise refused(i, "the launch's parameters are read only")
        e.line(f"std::memcpy(t.local + {place[1]}, x, {size * count});")
    else:
        e.here()
        e.line(f"call.store(t, {space}, {e.address(i.operands[0])}, x, {size * count}, {order}, {scope});")
    e.line("}")


_ATOMICS = {name: f"Atomic::k{name.capitalize()}" for name in "add min max inc dec and or xor exch cas".split()}
_TYPES = {
    name: f"Type::k{name.capitalize()}"
    for name in "b16 b32 b64 b128 u32 u64 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64".split()
}


@translates("atom", "red")
def _atomic(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if "async" in m.left():
        raise refused(i, "asynchronous reductions are not built")
    count = int(m.choice("v2", "v4", "v8", default="v1")[1:])
    skip_hints(m)
    space = space_of(m)
    order, scope = order_of(m, "relaxed")
    what = _ATOMICS[m.choice(*_ATOMICS)]
    m.done()
    if kind not in _TYPES:
        raise refused(i, f".{kind} is not built")
    size = type_bytes(kind)
    unsigned = UNSIGNED[size]
    result: Operand = Sink()
    rest = i.operands
    if i.opcode == "atom":
        result, *others = i.operands
        rest = tuple(others)
    address = e.address(rest[0])
    operands = rest[1:]
    firsts = e.vector(operands[0], count)
    olds = e.vector(result, count) if isinstance(result, Vector) else (result,) * count
    e.line("{")
    e.here()
    for n, (first, old) in enumerate(zip(firsts, olds, strict=True)):
        e.line(f"{{ const {unsigned} a = {e.pattern(first, kind)};")
        second = "nullptr"
        if what == "Atomic::kCas":
            e.line(f"const {unsigned} b = {e.pattern(operands[1], kind)};")
            second = "&b"
        e.line(f"{unsigned} old; (void)old;")
        e.line(
            f"call.atomic(t, {space}, {address} + {n * size}, {what}, {_TYPES[kind]}, &a, {second}, "
            f"{'nullptr' if i.opcode == 'red' else '&old'}, {order}, {scope});"
        )
        if not isinstance(old, Sink):
            e.write(old, "old", f"b{8 * size}")
        e.line("}")
    e.line("}")


@translates("prefetch", "prefetchu", "applypriority", "discard")
def _prefetch(e: Emitter, i: Instruction) -> None:
    if i.opcode == "discard":
        raise refused(i, "discarding is not built")
    e.line(";")


@translates("mapa")
def _map(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    generic = not m.flag("shared::cluster")
    m.done()
    address = e.read(i.operands[1], kind)
    rank = e.read(i.operands[2], "u32")
    e.here()
    e.write(i.operands[0], f"call.map_shared(t, {address}, {rank}, {truth(generic)})", kind)


@translates("getctarank")
def _rank(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    generic = not m.flag("shared::cluster")
    m.done()
    address = e.read(i.operands[1], kind)
    e.write(i.operands[0], f"call.rank_of(t, {address}, {truth(generic)})", "u32")


@translates("createpolicy")
def _policy(e: Emitter, i: Instruction) -> None:
    e.write(i.operands[0], "u64(0)", "b64")


@translates("cp")
def _copy(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.flag("reduce")
    m.choice("async")
    if m.flag("bulk"):
        bulk.copy(e, i, m)
        return
    if "reduce" in i.modifiers:
        raise refused(i, "this instruction is not built")
    if m.flag("commit_group"):
        m.done()
        e.here()
        e.line("call.copy_commit(t);")
        return
    if m.flag("wait_group"):
        m.done()
        e.here()
        e.wait_for(f"call.copy_wait(t, {e.read(i.operands[0], 'u32')})")
        return
    if m.flag("wait_all"):
        m.done()
        e.here()
        e.line("call.copy_commit(t);")
        e.wait_for("call.copy_wait(t, 0)")
        return
    if m.flag("mbarrier"):
        m.flag("arrive")
        noinc = m.flag("noinc")
        m.flag("b64")
        space = m.choice("shared", "shared::cta", default="")
        m.done()
        address = e.address(i.operands[0])
        e.here()
        if not space:
            address = f"({address} - kSharedWindow)"
        e.line(f"call.copy_arrive(t, {address}, {truth(noinc)});")
        return
    skip_hints(m)
    m.choice("shared", "shared::cta")
    m.flag("global")
    m.done()
    operands = list(i.operands)
    size = operands[2]
    if not isinstance(size, Immediate) or size.bits not in (4, 8, 16):
        raise refused(i, "4, 8 or 16 bytes are copied")
    source = str(size.bits)
    if len(operands) > 3 and "L2::cache_hint" not in i.modifiers or len(operands) > 4:
        third = operands[3]
        registers = self_type(e, third)
        source = f"({e.read(third, 'pred')} ? 0u : {size.bits}u)" if registers == "pred" else e.read(third, "u32")
    e.here()
    e.line(f"call.copy_async(t, {e.address(operands[0])}, {e.address(operands[1])}, {size.bits}, {source});")


def self_type(e: Emitter, operand: Operand) -> str:
    """The declared type of a register operand; "" for others."""
    return e.kernel.registers.get(getattr(operand, "name", ""), "")

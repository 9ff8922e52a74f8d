"""Control flow, barriers, fences, mbarriers. Source: PTX ISA, Control Flow; Parallel Synchronization."""

from __future__ import annotations

from ..ptx.model import Address, Instruction, Operand
from .emit import PAUSES, Emitter, always, translates
from .memory import order_of, space_of
from .modifiers import Modifiers, refused
from .operands import truth

PAUSES["bar"] = PAUSES["barrier"] = PAUSES["setmaxnreg"] = always


_REDUCE = {"popc": 1, "and": 2, "or": 3}


@translates("bra")
def _branch(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.flag("uni")
    m.done()
    e.branch(e.label_name(i.operands[0]))


@translates("brx")
def _branch_by_index(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.flag("idx")
    m.flag("uni")
    m.done()
    e.line(f"switch ({e.read(i.operands[0], 'u32')}) {{")
    for n, name in enumerate(e.branch_list(i)):
        e.line(f"case {n}: {{")
        e.branch(name)
        e.line("}")
    e.here()
    e.line('default: call.fault(t, "brx.idx: no such target"); }')


@translates("ret", "exit")
def _exit(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.flag("uni")
    m.done()
    e.line("{ t.state = State::kDone; return; }")


@translates("trap", "brkpt")
def _trap(e: Emitter, i: Instruction) -> None:
    e.here()
    e.line("call.trap(t);")


@translates("nanosleep", "pmevent", "griddepcontrol")
def _nothing(e: Emitter, i: Instruction) -> None:
    # One launch at a time: what a grid depends on is done before it begins.
    e.line(";")


@translates("setmaxnreg")
def _registers(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    more = m.choice("inc", "dec") == "inc"
    m.choice("sync")
    m.choice("aligned")
    m.flag("u32")
    m.done()
    e.here()
    e.wait_for(f"call.set_registers(t, {e.read(i.operands[0], 'u32')}, {truth(more)})")


@translates("bar", "barrier")
def _barrier(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    if m.flag("cluster"):
        _cluster_barrier(e, m)
        return
    if m.flag("warp"):
        m.flag("sync")
        m.done()
        e.collective("fagen_bar_warp", e.read(i.operands[0], "u32"), (), (), aligned=False, orders=True)
        return
    m.flag("cta")
    aligned = m.flag("aligned") or i.opcode == "bar"
    how = m.choice("sync", "arrive", "red")
    operands: list[Operand] = list(i.operands)
    result, reduce, value = "-1", 0, "false"
    if how == "red":
        kind = m.last()
        reduce = _REDUCE[m.choice(*_REDUCE)]
        target = operands.pop(0)
        value = e.read(operands.pop(), "pred")
        field = e.temporary("u32")
        result = f"(s32)offsetof({e.struct()}, {field.removeprefix('R.')})"
    m.done()
    number = e.read(operands[0], "u32")
    count = e.read(operands[1], "u32") if len(operands) > 1 else "0"
    e.here()
    e.pause(
        f"t.barrier = (s32){number}; t.barrier_count = {count}; t.barrier_reduce = {reduce};",
        f"t.barrier_value = {value}; t.barrier_result = {result};",
        f"t.barrier_arrive_only = {truth(how == 'arrive')};",
        f"t.barrier_aligned = {truth(aligned)}; t.state = State::kBarrier;",
    )
    if how == "red":
        e.write(target, field if kind == "u32" else f"({field} != 0)", kind)


def _cluster_barrier(e: Emitter, m: Modifiers) -> None:
    arrives = m.choice("arrive", "wait") == "arrive"
    order = m.choice("release", "acquire", "relaxed", default="")
    m.flag("aligned")
    m.done()
    e.here()
    if arrives:
        e.line(f"call.cluster_arrive(t, {truth(order != 'relaxed')});")
    else:
        e.wait_for("call.cluster_wait(t, true)")


@translates("membar", "fence")
def _fence(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    e.here()
    if any(each.startswith("proxy") for each in m.left()):
        # Of the async proxy; others (of tensor maps, constants, aliases) have nothing to order here.
        e.line("call.fence_proxy(t, 0);" if any("async" in each for each in m.left()) else ";")
        return
    if m.flag("mbarrier_init"):
        m.flag("release")
        m.flag("cluster")
        m.done()
        e.line("call.fence_mbarrier_init(t);")
        return
    if i.opcode == "membar":
        level = m.choice("cta", "gl", "sys")
        m.done()
        scope = {"cta": "kCta", "gl": "kGpu", "sys": "kSystem"}[level]
        e.line(f"call.fence(t, Order::kAcquireRelease, Scope::{scope});")
        return
    m.flag("sc")
    order, scope = order_of(m, "acq_rel")
    m.done()
    e.line(f"call.fence(t, {order}, {scope});")


@translates("mbarrier")
def _mbarrier(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.flag("b64")
    what = m.choice(
        "init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx", "pending_count"
    )
    order, _ = order_of(m)
    if order == "Order::kRelaxed" and what not in ("expect_tx", "complete_tx"):  # which order nothing
        raise refused(i, "relaxed operations on mbarriers are not built")
    space = space_of(m)
    operands = list(i.operands)
    e.here()
    if what == "pending_count":
        m.done()
        # Bits 0 to 19 of the machine's state.
        e.write(operands[0], f"u32({e.read(operands[1], 'b64')} & 0xfffffu)", "u32")
    elif what == "init":
        m.done()
        e.line(f"call.mbarrier_init(t, {space}, {e.address(operands[0])}, {e.read(operands[1], 'u32')});")
    elif what == "inval":
        m.done()
        e.line(f"call.mbarrier_inval(t, {space}, {e.address(operands[0])});")
    elif what in ("expect_tx", "complete_tx"):
        m.done()
        name = what.split("_")[0]
        e.line(f"call.mbarrier_{name}(t, {space}, {e.address(operands[0])}, {e.read(operands[1], 'u32')});")
    elif what in ("arrive", "arrive_drop"):
        expect, no_complete = m.flag("expect_tx"), m.flag("noComplete")
        m.done()
        state = None if isinstance(operands[0], Address) else operands.pop(0)
        count = e.read(operands[1], "u32") if len(operands) > 1 else "1"
        drop = truth(what == "arrive_drop")
        arrivals, tx = ("1", count) if expect else (count, "0")
        value = (
            f"call.mbarrier_arrive(t, {space}, {e.address(operands[0])}, {arrivals}, {drop}, "
            f"{truth(expect)}, {tx}, {truth(no_complete)})"
        )
        if state is None:
            e.line(f"{value};")
        else:
            e.write(state, value, "b64")
    else:
        parity = m.flag("parity")
        m.done()
        # A suspended try_wait may return at any time; it gives way at the branch that tries again.
        token = e.read(operands[2], "u32" if parity else "b64")
        value = f"call.mbarrier_test(t, {space}, {e.address(operands[1])}, {token}, {truth(parity)})"
        e.write(operands[0], value, "pred")

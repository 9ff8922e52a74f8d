"""The oldest target that has an instruction, where that is sm_90 or sm_90a. Source: PTX ISA, Target ISA Notes."""

from __future__ import annotations

from collections.abc import Callable

from ..ptx.model import Instruction, Register, Sink

_Asked = Callable[[Instruction], bool]


def _opcode(*opcodes: str) -> _Asked:
    return lambda i: i.opcode in opcodes


def _with(*modifiers: str) -> _Asked:
    return lambda i: any(each in i.modifiers for each in modifiers)


def _both(*asked: _Asked) -> _Asked:
    return lambda i: all(each(i) for each in asked)


def _counted(i: Instruction) -> bool:
    """An arrival of a number of threads, which only .noComplete had before."""
    counts = len(i.operands) == 3 or (len(i.operands) == 2 and isinstance(i.operands[0], Sink))
    return i.opcode == "mbarrier" and "noComplete" not in i.modifiers and i.modifiers[0].startswith("arrive") and counts


def _special(i: Instruction) -> bool:
    """A register that tells of clusters."""
    names = (each.name for each in i.operands if isinstance(each, Register))
    return any(name.startswith(_CLUSTERS) for name in names)


_CLUSTERS = ("%cluster_", "%clusterid.", "%nclusterid.", "%is_explicit_cluster", "%aggr_smem_size")
_PACKED = ("bf16", "bf16x2", "s16x2", "u16x2")
_BFLOATS = ("bf16", "bf16x2")
_LEAST: tuple[tuple[str, _Asked], ...] = (
    ("sm_90a", _opcode("wgmma", "setmaxnreg")),
    ("sm_90", _opcode("elect", "mapa", "getctarank", "griddepcontrol", "stmatrix")),
    ("sm_90", _with("bulk", "cluster", "shared::cluster", "oob")),
    ("sm_90", _both(_opcode("fence"), _with("async", "mbarrier_init", "tensormap::generic"))),
    ("sm_90", _both(_opcode("mbarrier"), _with("try_wait", "expect_tx", "complete_tx"))),
    ("sm_90", _counted),
    ("sm_90", _both(_opcode("prefetch"), _with("tensormap"))),
    ("sm_90", _special),
    ("sm_90", _both(_opcode("atom", "red"), _with(*_BFLOATS, "b128", "v2", "v4", "v8"))),
    ("sm_90", _both(_opcode("add", "sub", "mul", "set", "setp", "ex2", "tanh"), _with(*_PACKED))),
    ("sm_90", _both(_opcode("min", "max"), _with("s16x2", "u16x2"))),
    ("sm_90", _both(_opcode("min", "max"), _with("relu"))),
    # From and to float32 alone before.
    ("sm_90", lambda i: i.opcode == "cvt" and "bf16" in i.modifiers[-2:] and "f32" not in i.modifiers[-2:]),
    ("sm_90", lambda i: i.opcode == "cvt" and "tf32" in i.modifiers and "rna" not in i.modifiers),
    ("sm_90", lambda i: i.opcode == "mma" and "f64" in i.modifiers and "m8n8k4" not in i.modifiers),
)


def newer_than(target: str, instruction: Instruction) -> str | None:
    """The target that an instruction needs, if ``target`` ("sm_80", "sm_90a") has it not."""
    for least, asked in _LEAST:
        has = target == least if least.endswith("a") else _number(target) >= _number(least)
        if not has and asked(instruction):
            return least
    return None


def _number(target: str) -> int:
    return int("".join(each for each in target if each.isdigit()) or 0)

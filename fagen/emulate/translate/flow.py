"""Which registers a thread must keep while it waits: those alive across a yield."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..ptx.model import Address, Instruction, Label, Negated, Operand, Pair, Register, Symbol, Vector
from .modifiers import refused

# No first operand that is written.
WITHOUT_RESULT = frozenset(
    "bra brx st red ret exit trap brkpt membar fence bar barrier cp prefetch prefetchu discard applypriority stmatrix "
    "nanosleep setmaxnreg griddepcontrol pmevent wgmma tcgen05 stackrestore".split()
)


def registers_of(operand: Operand) -> Iterator[str]:
    """The registers an operand names."""
    match operand:
        case Register(name):
            yield name
        case Negated(register):
            yield register.name
        case Address(base, _, index):
            if isinstance(base, Register):
                yield base.name
            for coordinate in index:
                yield from registers_of(coordinate)
        case Vector(items):
            for item in items:
                yield from registers_of(item)
        case Pair(first, second):
            yield from registers_of(first)
            yield from registers_of(second)


def results(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands that an instruction writes."""
    name = instruction.opcode
    if name in WITHOUT_RESULT and not (name in ("bar", "barrier") and "red" in instruction.modifiers):
        return ()
    if name == "mbarrier" and not {"arrive", "arrive_drop", "test_wait", "try_wait", "pending_count"} & set(
        instruction.modifiers
    ):
        return ()
    first = instruction.operands[:1]
    if first and isinstance(first[0], Address):  # `mbarrier.arrive` without its state
        return ()
    return first


def wgmma_registers(instruction: Instruction) -> Iterator[str]:
    """Those that a product of a warpgroup has in flight: D's, and A's where no descriptor stands for it."""
    if instruction.opcode == "wgmma" and "mma_async" in instruction.modifiers:
        for operand in instruction.operands[:2]:
            if isinstance(operand, Vector):
                yield from registers_of(operand)


def used_and_written(instruction: Instruction) -> tuple[set[str], set[str], bool]:
    """Registers it reads, registers it writes, and whether it surely writes them (has no guard)."""
    written = {name for operand in results(instruction) for name in registers_of(operand)}
    skipped = len(results(instruction))
    used = {name for operand in instruction.operands[skipped:] for name in registers_of(operand)}
    if instruction.guard is not None:
        used.add(instruction.guard.name)
        return used | written, written, False
    return used, written, True


def kept(
    statements: Sequence[Instruction | Label],
    registers: Iterable[str],
    waits: Callable[[int, Instruction], bool],
    needed: Callable[[Instruction], Iterable[str]],
    branch_targets: Callable[[Instruction], Sequence[str]],
) -> set[str]:
    """Registers alive where ``waits(index, instruction)`` says that a thread may pause, and those ``needed`` besides.

    A backward analysis of liveness over instructions; a pause lies before or after its instruction, so both count.
    """
    bit = {name: 1 << n for n, name in enumerate(registers)}
    labels = {each.name: n for n, each in enumerate(statements) if isinstance(each, Label)}

    def mask(names: Iterable[str]) -> int:
        total = 0
        for name in names:
            total |= bit.get(name, 0)  # special registers are no variables
        return total

    count = len(statements)
    use, write, follow = [0] * count, [0] * count, [[n + 1] for n in range(count)]
    for n, each in enumerate(statements):
        if isinstance(each, Label):
            continue
        used, written, surely = used_and_written(each)
        use[n], write[n] = mask(used), mask(written) if surely else 0
        if each.opcode in ("bra", "brx"):
            names = list(branch_targets(each))
            for name in names:
                if name not in labels:
                    raise refused(each, f"there is no label {name}")
            targets = [labels[name] for name in names]
            follow[n] = targets if each.guard is None else [n + 1, *targets]
        elif each.opcode in ("ret", "exit", "trap") and each.guard is None:
            follow[n] = []
    before, after = [0] * (count + 1), [0] * count
    changed = True
    while changed:
        changed = False
        for n in range(count - 1, -1, -1):
            out = 0
            for m in follow[n]:
                out |= before[m]
            inside = use[n] | (out & ~write[n])
            after[n] = out
            if inside != before[n]:
                before[n] = inside
                changed = True
    total = 0
    for n, each in enumerate(statements):
        if isinstance(each, Instruction):
            if waits(n, each):
                total |= before[n] | after[n]
            total |= mask(needed(each))
    return {name for name in bit if bit[name] & total}


def label_of(operand: Operand) -> str:
    """The label that a branch names."""
    assert isinstance(operand, Symbol)
    return operand.name

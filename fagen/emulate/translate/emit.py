"""A kernel's `step` function in C++: what the tables of instructions write into."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ..ptx.model import (
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    Sink,
)
from ..ptx.parse import type_bytes
from ..ptx.tokens import PtxError
from .flat import Kernel
from .flow import kept, label_of, registers_of, used_and_written, wgmma_registers
from .modifiers import Unplaced, refused
from .operands import UNSIGNED, Operands, truth
from .targets import newer_than

_BRANCHES = ("bra", "brx", "exit", "ret")  # a condition decides where these lead, not whether they run

Translate = Callable[["Emitter", Instruction], None]
TABLE: dict[str, Translate] = {}
# Opcodes whose lanes meet, so that a thread pauses there; a function tells for those that may.
PAUSES: dict[str, Callable[[Instruction], bool]] = {}
# Opcodes that a thread may spin on until another thread acts.
SPINS: dict[str, Callable[[Instruction], bool]] = {}
# Those whose operands must lie where other lanes and the machine find them.
SHARED_OPERANDS: dict[str, Callable[[Instruction], bool]] = {}


def translates(*opcodes: str) -> Callable[[Translate], Translate]:
    """Registers what writes an opcode's C++."""

    def register(function: Translate) -> Translate:
        for opcode in opcodes:
            assert opcode not in TABLE, opcode
            TABLE[opcode] = function
        return function

    return register


def always(_: Instruction) -> bool:
    """For tables that ask of an instruction."""
    return True


class Emitter(Operands):
    """Writes one kernel; ``number`` is its index in the program, ``first`` that of its first instruction there."""

    def __init__(self, module: Module, kernel: Kernel, number: int, first: int):
        super().__init__(kernel)
        self.module = module
        self._number = number
        self._first = first
        self.instructions: list[Instruction] = []
        self._lines: list[str] = []
        self._tables: list[str] = []
        self._extra: dict[str, str] = {}  # fields beside the kernel's registers, with their C++ types
        self._resumes = 0
        self._temporaries = 0
        self.functions: set[str] = set()  # of the machine, that collectives run
        # Runs of instructions that are carried out equally often: the first one's index, and which counter counts them.
        self.blocks: list[tuple[int, int]] = []
        self.counters = 0
        self._noted: dict[str, int] = {}  # registers that some wgmma has, and which byte of `noted` is theirs
        for each in kernel.statements:
            if isinstance(each, Instruction):
                for name in wgmma_registers(each):
                    self._noted.setdefault(name, len(self._noted))
        self._labels = {each.name: n for n, each in enumerate(kernel.statements) if isinstance(each, Label)}
        self.kept = kept(
            kernel.statements,
            kernel.registers,
            lambda n, i: self._waits(n, i),
            lambda i: _shared_operands(i),
            self._targets,
        )

    # ---- the whole

    def text(self) -> str:
        """The kernel's C++."""
        self._block()
        for index, statement in enumerate(self.kernel.statements):
            if isinstance(statement, Label):
                self._lines.append(f"{self._label(statement.name)}:;")
                self._block()
            else:
                self._at = index
                self._one(statement)
        registers = {name: f"  {self.type_of(name)} {self.name_of(name)};" for name in self.kernel.registers}
        fields = [line for name, line in registers.items() if name in self.kept]
        fields += [f"  {kind} {name};" for name, kind in self._extra.items()]
        fields.append(f"  u8 noted[{max(len(self._noted), 1)}];")
        local = [line for name, line in registers.items() if name not in self.kept]
        resumes = "".join(f" case {n}: goto resume{n};" for n in range(1, self._resumes + 1))
        return "\n".join(
            [
                f"struct Registers{self._number} {{",
                *fields,
                "};",
                *self._tables,
                f"static void step{self._number}(Thread& t) {{",
                f"  auto& R = *reinterpret_cast<Registers{self._number}*>(t.registers);",
                "  const Calls& call = *t.calls;",
                "  (void)R; (void)call;",
                *local,
                f"  switch (t.next) {{{resumes} default: break; }}",
                *("  " + line for line in self._lines),
                "  t.state = State::kDone;",
                "}",
            ]
        )

    def _one(self, instruction: Instruction) -> None:
        translate = TABLE.get(instruction.opcode)
        if translate is None:
            raise refused(instruction, "this instruction is not built")
        needed = newer_than(self.module.target, instruction)
        if needed is not None:
            raise refused(instruction, f"this needs .target {needed}, found {self.module.target}")
        self.instructions.append(instruction)
        try:
            if instruction.guard is None:
                self._touch(instruction)
                translate(self, instruction)
            else:
                negation = "!" if instruction.guard_negated else ""
                self.line(f"if ({negation}{self.register(instruction.guard)}) {{")
                if instruction.opcode in _BRANCHES:
                    translate(self, instruction)
                    self.line("}")
                    self._block()
                else:
                    counter = self.blocks[-1][1]
                    self._block(self.index())
                    self._touch(instruction)
                    translate(self, instruction)
                    self.line("}")
                    self.blocks.append((self.index() + 1, counter))
        except Unplaced as error:
            raise refused(instruction, str(error)) from None
        except PtxError:
            raise
        except (LookupError, ValueError) as error:  # operands or modifiers that the ISA does not have here
            raise refused(instruction, "this form is not built") from error

    def _touch(self, instruction: Instruction) -> None:
        """Registers that a wgmma may have in flight are looked after wherever others touch them."""
        if not self._noted or instruction.opcode == "wgmma":
            return
        used, written, _ = used_and_written(instruction)
        for name in sorted((used | written) & self._noted.keys()):
            index = self._noted[name]
            writes = name in written
            flags = "kFlies | kIsRead" if writes else "kFlies"
            self.line(
                f"if (R.noted[{index}] & ({flags})) {{ t.at = {self.index()}; "
                f'call.touched(t, {index}, "{name}", {truth(writes)}); }}'
            )
            if writes and instruction.opcode != "mov":  # compilers put copies behind the fence
                self.line(f"R.noted[{index}] |= kWritten;")

    def noted_row(self) -> str:
        """Where the notes lie among the registers, and how many there are, for the kernel's row."""
        return f"(u32)offsetof({self.struct()}, noted), {len(self._noted)}"

    def _block(self, first: int | None = None) -> None:
        """Counts how often control comes here, where the instruction of that index begins; None is the next."""
        self._lines.append(f"++t.visits[{self.counters}];")
        self.blocks.append((self._first + len(self.instructions) if first is None else first, self.counters))
        self.counters += 1

    # ---- what tables use

    def line(self, text: str) -> None:
        """Adds a line of C++."""
        self._lines.append(text)

    def index(self) -> int:
        """Of the instruction being written, in the program."""
        return self._first + len(self.instructions) - 1

    def here(self) -> None:
        """The next call may fault: the thread knows where it is."""
        self.line(f"t.at = {self.index()};")

    def temporary(self, kind: str) -> str:
        """A field of its own, for a value that must outlive a pause."""
        self._temporaries += 1
        name = f"x{self._temporaries}"
        self._extra[name] = kind
        return f"R.{name}"

    def pause(self, *before: str) -> None:
        """The thread returns here, in the state that ``before`` sets, and goes on behind it later."""
        self._resumes += 1
        self.line(f"{{ {' '.join(before)} t.next = {self._resumes}; return; }} resume{self._resumes}:;")

    def wait_for(self, condition: str) -> None:
        """The thread tries ``condition`` again and again, giving way to others in between."""
        self._resumes += 1
        n = self._resumes
        self.line(f"resume{n}: if (!({condition})) {{ t.state = State::kWaiting; t.next = {n}; return; }}")

    def collective(
        self,
        function: str,
        mask: str,
        operands: Sequence[Operand | str | None],
        types: Sequence[str],
        *,
        aligned: bool,
        orders: bool = False,
        detail: Sequence[int] = (),
        noted: Sequence[Operand] = (),
    ) -> None:
        """Lanes meet for ``function`` of the machine. A constant operand is put into a field first; None is a sink.
        Behind the operands stands where the registers ``noted`` have their notes."""
        offsets = []
        for operand, kind in zip(operands, types, strict=True):
            offsets.append(self._offset(operand, kind))
        for each in noted:
            index = self._noted[each.name] if isinstance(each, Register) else -1
            offsets.append(f"(s32)offsetof({self.struct()}, noted) + {index}")
        self.functions.add(function)
        n = self.index()
        table = f"operands{n}"
        if offsets:
            self._tables.append(f"static const s32 {table}[] = {{{', '.join(offsets)}}};")
        numbers = [*detail, *[0] * (4 - len(detail))]
        self._tables.append(
            f"static const Collective collective{n} = {{{function}, {n}, {truth(aligned)}, {truth(orders)}, "
            f"{len(offsets)}, {table if offsets else 'nullptr'}, {{{', '.join(map(str, numbers))}}}}};"
        )
        self.here()
        self.pause(f"t.mask = {mask};", f"t.collective = &collective{n};", "t.state = State::kCollective;")

    def _offset(self, operand: Operand | str | None, kind: str) -> str:
        if operand is None or isinstance(operand, Sink):
            return "-1"
        declared = self.kernel.registers.get(operand.name) if isinstance(operand, Register) else None
        if isinstance(operand, Register) and declared and type_bytes(declared) == type_bytes(kind):
            return f"(s32)offsetof(Registers{self._number}, {self.name_of(operand.name)})"
        field = self.temporary("bool" if kind == "pred" else UNSIGNED[type_bytes(kind)])
        value = operand if isinstance(operand, str) else self.read(operand, kind.replace("f", "b"))
        self.line(f"{field} = {value};")
        return f"(s32)offsetof(Registers{self._number}, {field.removeprefix('R.')})"

    def write(self, operand: Operand, value: str, kind: str) -> None:
        """Assigns ``value``, of PTX type ``kind``, to the register ``operand``."""
        self.line(self.assigned(operand, value, kind))

    def carry(self) -> str:
        """The condition code that .cc instructions set and addc reads."""
        self._extra.setdefault("carry", "bool")
        return "R.carry"

    def struct(self) -> str:
        """The C++ type of the kernel's registers."""
        return f"Registers{self._number}"

    def label_name(self, operand: Operand) -> str:
        """The label that an operand names."""
        return label_of(operand)

    def branch(self, name: str) -> None:
        """Jump to a label; where a thread may spin, others get their turn first."""
        target = self._label(name)
        if self._spins(self._at, name):
            self._resumes += 1
            n = self._resumes
            self.line(
                f"if (--t.budget < 0) {{ t.state = State::kWaiting; t.at = {self.index()}; t.next = {n}; return; }} "
                f"resume{n}: goto {target};"
            )
        else:
            if self._labels[name] <= self._at:
                self.line(f"if (--t.fuel < 0) {{ t.at = {self.index()}; call.tired(t); }}")
            self.line(f"goto {target};")

    # ---- details

    def _waits(self, index: int, instruction: Instruction) -> bool:
        asked = PAUSES.get(instruction.opcode)
        if asked is not None and asked(instruction):
            return True
        if instruction.opcode in ("bra", "brx"):
            return any(self._spins(index, name) for name in self._targets(instruction))
        return False

    def _spins(self, index: int, label: str) -> bool:
        """Whether a branch from here goes back over something that waits for another thread."""
        statements = self.kernel.statements
        target = self._labels[label]
        if target > index:
            return False
        return any(
            isinstance(each, Instruction) and (asked := SPINS.get(each.opcode)) is not None and asked(each)
            for each in statements[target : index + 1]
        )

    def _targets(self, instruction: Instruction) -> Sequence[str]:
        if instruction.opcode == "brx":
            return self.branch_list(instruction)
        return [label_of(instruction.operands[0])]

    def branch_list(self, instruction: Instruction) -> Sequence[str]:
        """The labels that `brx.idx` chooses among."""
        name = label_of(instruction.operands[1])
        return self.module.branch_targets[name]

    def _label(self, name: str) -> str:
        return "label_" + re.sub(r"\W", lambda c: f"_{ord(c[0]):x}_", name)


def _shared_operands(instruction: Instruction) -> Iterable[str]:
    asked = SHARED_OPERANDS.get(instruction.opcode)
    if asked is None or not asked(instruction):
        return
    for operand in instruction.operands:
        yield from registers_of(operand)

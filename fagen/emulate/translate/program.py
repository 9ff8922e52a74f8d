"""A PTX module as one C++ file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

from ..ptx.model import Instruction, Label, Module
from ..ptx.parse import type_bytes
from ..ptx.tokens import PtxError
from . import compare, convert, floats, integer, memory, moves, services, sync, warp, wgmma  # noqa: F401  each fills the tables
from .emit import Emitter
from .flat import Kernel, flatten, size_of

_STORED = ("global", "const")  # the spaces of variables that a program has storage for


@dataclass(frozen=True)
class Translation:
    """``text`` is the C++; ``instructions`` those its indices mean, kernel after kernel. By kernel: what it was
    flattened to, the most threads a block of it may have (0: not said), and its runs of instructions that
    are counted together: the first one of each, and its counter."""

    text: str
    target: int
    instructions: tuple[Instruction, ...]
    kernels: dict[str, Kernel]
    max_threads: dict[str, int]
    blocks: dict[str, tuple[tuple[int, int], ...]]

    def of(self, kernel: str) -> tuple[Instruction, ...]:
        """The instructions of one kernel."""
        first = self.blocks[kernel][0][0]
        after = [others[0][0] for others in self.blocks.values() if others[0][0] > first]
        return self.instructions[first : min(after, default=len(self.instructions))]


def translate(module: Module, entries: tuple[str, ...]) -> Translation:
    """The program of the kernels named ``entries``. Raises PtxError for what it cannot translate."""
    instructions: list[Instruction] = []
    texts: list[str] = []
    rows: list[str] = []
    kernels: dict[str, Kernel] = {}
    max_threads: dict[str, int] = {}
    blocks: dict[str, tuple[tuple[int, int], ...]] = {}
    functions: set[str] = set()
    narrowest = {"shared": 4, "global": 4}
    for number, name in enumerate(entries):
        function = module.functions[name]
        kernel = kernels[name] = flatten(module, function)
        emitter = Emitter(module, kernel, number, len(instructions))
        texts.append(emitter.text())
        instructions += emitter.instructions
        functions |= emitter.functions
        blocks[name] = tuple(emitter.blocks)
        _narrow(kernel, narrowest)
        bounds = function.directives.get("maxntid") or function.directives.get("reqntid") or (0,)
        max_threads[name] = threads = prod(bounds)
        offsets = ", ".join(map(str, kernel.param_offsets)) or "0"
        sizes = ", ".join(map(str, kernel.param_sizes)) or "0"
        texts.append(f"static const u32 offsets{number}[] = {{{offsets}}}, sizes{number}[] = {{{sizes}}};")
        rows.append(
            f'  {{"{name}", step{number}, sizeof(Registers{number}), {kernel.local_bytes}, {kernel.param_bytes}, '
            f"{kernel.shared_bytes}, {threads}, {len(kernel.param_offsets)}, offsets{number}, sizes{number}, "
            f"{emitter.counters}, {emitter.noted_row()}}},"
        )
    files = {number: index for index, number in enumerate(module.files)}
    said = [
        f"  {{{json.dumps(i.text, ensure_ascii=True)}, {i.place.line}, "
        f"{-1 if i.place.file is None else files.get(i.place.file, -1)}, {i.place.source_line}}},"
        for i in instructions
    ]
    names = ", ".join(json.dumps(name) for name in module.files.values())
    variables, table, pointers = _variables(module)
    lines = [
        '#include "machine/scalar.h"',
        "namespace fagen::emulate {",
        'extern "C" {',
        *(f"void {name}(Machine&, Warp&, u32, const Collective&);" for name in sorted(functions)),
        "}",
        "namespace {",
        *variables,
        *texts,
        "const Kernel kernels[] = {",
        *rows,
        "};",
        "const Instruction instructions[] = {",
        *(said or ['  {"", 0, -1, 0},']),
        "};",
        f"const char* const files[] = {{{names or 'nullptr'}}};",
        "const Variable variables[] = {",
        *(table or ["  {nullptr, 0, nullptr, nullptr, false},"]),
        "};",
        "const Pointer pointers[] = {",
        *(pointers or ["  {0, 0, 0},"]),
        "};",
        f"const Program program = {{2, {_target(module)}, {len(rows)}, kernels, {len(said)}, instructions, "
        f"{len(files)}, files, {len(table)}, variables, {len(pointers)}, pointers, "
        f"{narrowest['shared']}, {narrowest['global']}}};",
        "}  // namespace",
        'extern "C" __attribute__((visibility("default"))) const Program* fagen_program() { return &program; }',
        "}  // namespace fagen::emulate",
    ]
    text = "\n".join(lines) + "\n"
    return Translation(text, _target(module), tuple(instructions), kernels, max_threads, blocks)


def _target(module: Module) -> int:
    digits = "".join(c for c in module.target if c.isdigit())
    if not digits:
        raise PtxError(f"PTX target {module.target!r} is not known")
    return int(digits)


def _variables(module: Module) -> tuple[list[str], list[str], list[str]]:
    """Storage of the module's variables, the rows that describe them, and those of the addresses that they hold."""
    storage: list[str] = []
    rows: list[str] = []
    pointers: list[str] = []
    places = {variable.name: index for index, variable in enumerate(module.variables) if variable.space in _STORED}
    for index, variable in enumerate(module.variables):
        if variable.space not in _STORED:
            continue
        size = max(size_of(variable), 1)
        storage.append(f"alignas({max(variable.align, 16)}) unsigned char variable{index}[{size}];")
        initial = "nullptr"
        if variable.initial:
            data = ", ".join(map(str, variable.initial))
            storage.append(f"const unsigned char initial{index}[{size}] = {{{data}}};")
            initial = f"initial{index}"
        constant = "true" if variable.space == "const" else "false"
        for offset, symbol in variable.addresses:
            if symbol.name not in places or type_bytes(variable.type) != 8:
                line = variable.place.line
                raise PtxError(
                    f"PTX line {line}: {variable.name} holds the address of {symbol.name}: this is not built"
                )
            value = f"reinterpret_cast<u64>(variable{places[symbol.name]}) + {symbol.offset}"
            pointers.append(f"  {{{len(rows)}, {offset}, {value}}},")
        rows.append(f'  {{"{variable.name}", {size}, {initial}, variable{index}, {constant}}},')
    return storage, rows, pointers


def _narrow(kernel: Kernel, narrowest: dict[str, int]) -> None:
    """How few bytes a store writes at once, by space; generic ones count for both."""
    for each in kernel.statements:
        if isinstance(each, Label) or each.opcode not in ("st", "atom", "red") or "param" in each.modifiers:
            continue
        if "local" in each.modifiers:
            continue
        size = min(4, type_bytes(each.modifiers[-1]))
        spaces = [space for space in narrowest if any(m.split("::")[0] == space for m in each.modifiers)]
        for space in spaces or list(narrowest):
            narrowest[space] = min(narrowest[space], size)

"""`emulate.launch`: one kernel of a PTX text, over a grid, on torch CPU tensors."""

from __future__ import annotations

import ctypes
import json
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from .compile import Entry, Loaded, load, machine
from .faults import EmulationError, Fault, fault_from

COMPLETIONS = ("earliest", "latest", "random")


class Order(TypedDict):
    """How a launch is carried out: keywords of :func:`launch`."""

    completions: str
    seed: int


def orders(seeds: int = 10) -> list[Order]:
    """What a kernel should be run under: completions at the earliest, at the latest, and ``seeds`` random orders."""
    random: list[Order] = [{"completions": "random", "seed": seed} for seed in range(1, seeds + 1)]
    return [{"completions": "earliest", "seed": 0}, {"completions": "latest", "seed": 0}, *random]


_FORMATS = {"f32": "<f", "f64": "<d"}


@dataclass(frozen=True)
class ReadOnly:
    """A tensor that a kernel may read and not write; see :func:`readonly`."""

    tensor: Tensor


def readonly(tensor: Tensor) -> ReadOnly:
    """``tensor`` as an argument or as memory into which a store is a fault."""
    return ReadOnly(tensor)


@dataclass(frozen=True)
class Statistics:
    """What a launch did: ``executed`` tells for each PTX line of the kernel how often a thread carried it out. A branch
    is carried out whether it is taken or not, other instructions only where their predicate holds. ``conflicts`` has,
    where banks were counted, the lines that access shared memory in more parts than their width takes, and how many
    more."""

    barriers: int
    collectives: int
    executed: dict[int, int]
    conflicts: dict[int, int] = field(default_factory=dict)


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_void_p),
        ("kernel", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("registers", ctypes.c_uint32),
        ("dynamic_shared", ctypes.c_uint32),
        ("param", ctypes.c_char_p),
        ("buffer_count", ctypes.c_int32),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("completions", ctypes.c_int32),
        ("checks", ctypes.c_int32),
        ("seconds", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("visits", ctypes.POINTER(ctypes.c_uint64)),
        ("conflicts", ctypes.POINTER(ctypes.c_uint64)),
    ]


@dataclass(frozen=True)
class Memory:
    """A range that a kernel may touch."""

    address: int
    bytes: int
    writable: bool
    name: str


Argument = Tensor | ReadOnly | int | float | bool | bytes


def launch(
    ptx: str | Path,
    kernel: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Argument],
    *,
    shared: int = 0,
    cluster: int | Sequence[int] | None = None,
    memory: Sequence[Tensor | ReadOnly] = (),
    completions: str = "random",
    seed: int = 0,
    checks: bool = True,
    seconds: float = 600.0,
    banks: bool = False,
) -> Statistics:
    """Run ``kernel`` of ``ptx`` (a text, or the path of one) once over ``grid`` blocks of ``block`` threads.

    ``kernel`` is the entry's name, or a part of it that no other entry has. ``args`` are matched to its parameters: a
    torch CPU tensor stands for its address and may be touched by the kernel (``readonly(tensor)``: only read), numbers
    for themselves, bytes for a struct. ``memory`` may be touched as well: what pointers within structs lead to.
    ``shared`` bytes are added to the kernel's static shared memory. ``cluster`` is how many blocks make a cluster,
    where the kernel does not say it itself. Warps and lanes take turns in an order drawn from
    ``seed``; asynchronous copies land as early or as late as they may, or at random (``completions``). Without
    ``checks`` accesses that nothing orders are not looked for. A kernel that takes more than ``seconds`` of the
    processor's time is given up as one that never ends (0: never). Conflicts of banks are counted if ``banks`` says so;
    it takes time.

    Raises :class:`Fault` at the first mistake of the kernel's, :class:`EmulationError` for what cannot be run.
    """
    program = load(_text(ptx))
    entry = _entry(program, kernel)
    if isinstance(args, Tensor):
        raise EmulationError("args: expected a list of arguments, found a tensor: write [tensor]")
    if len(args) != len(entry.param_sizes):
        raise EmulationError(f"{entry.name} takes {len(entry.param_sizes)} arguments, found {len(args)}")
    params = bytearray(entry.param_bytes + 16)
    ranges = []
    for n, argument in enumerate(args):
        offset, size = entry.param_offsets[n], entry.param_sizes[n]
        params[offset : offset + size] = _packed(argument, size, entry.param_types[n], f"argument {n} of {entry.name}")
        if isinstance(argument, Tensor | ReadOnly):
            ranges.append(_memory(argument, f"argument {n}"))
    ranges += [_memory(each, f"memory {n}") for n, each in enumerate(memory)]
    return run(
        program,
        entry,
        _three(grid, "grid"),
        _three(block, "block"),
        whole(shared, "shared: bytes", 2**32 - 1),
        bytes(params),
        ranges,
        cluster=None if cluster is None else _three(cluster, "cluster"),
        completions=completions,
        seed=whole(seed, "seed", 2**64 - 1),
        checks=checks,
        seconds=seconds,
        banks=banks,
    )


def whole(value: object, what: str, most: int) -> int:
    """``value``, a whole number from 0 to ``most`` of any kind of integers; EmulationError if it is none."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise EmulationError(f"{what}: expected a whole number, found {value!r}") from None
    if not 0 <= number <= most:
        raise EmulationError(f"{what}: expected 0 to {most}, found {number}")
    return number


def cpu_tensor(value: object, what: str) -> Tensor:
    """``value``, a tensor whose elements lie in this machine's memory; EmulationError if it is none."""
    if not isinstance(value, Tensor):
        raise EmulationError(f"{what}: expected a CPU tensor, found {type(value).__name__}")
    if value.device.type != "cpu" or value.layout != torch.strided:
        found = f"one on {value.device}" if value.device.type != "cpu" else f"one of layout {value.layout}"
        raise EmulationError(f"{what}: expected a CPU tensor, found {found}")
    return value


def run(
    program: Loaded,
    entry: Entry,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    params: bytes,
    ranges: Sequence[Memory],
    *,
    cluster: tuple[int, int, int] | None = None,
    completions: str,
    seed: int,
    checks: bool,
    seconds: float = 600.0,
    banks: bool = False,
) -> Statistics:
    """As :func:`launch`, of what is loaded, with parameters as bytes and memory as ranges."""
    _check_limits(program, entry, grid, block, shared)
    together = _cluster(entry, grid, cluster)
    if completions not in COMPLETIONS:
        raise EmulationError(f"completions: expected one of {', '.join(COMPLETIONS)}, found {completions!r}")
    joined = _joined(ranges)
    buffers = (_Buffer * max(len(joined), 1))(
        *(_Buffer(r.address, r.bytes, r.writable, r.name.encode()) for r in joined)
    )
    visits = (ctypes.c_uint64 * (max((counter for _, counter in entry.blocks), default=0) + 1))()
    conflicts = (ctypes.c_uint64 * len(program.instructions))() if banks else None
    arguments = _Launch(
        program.handle,
        entry.index,
        (ctypes.c_uint32 * 3)(*grid),
        (ctypes.c_uint32 * 3)(*block),
        (ctypes.c_uint32 * 3)(*together),
        entry.max_registers or _registers(max(entry.max_threads, block[0] * block[1] * block[2])),
        shared,
        params,
        len(joined),
        buffers,
        COMPLETIONS.index(completions),
        checks,
        seconds,
        seed,
        visits,
        conflicts,
    )
    library = machine()
    text = library.fagen_launch(ctypes.byref(arguments))
    try:
        report = json.loads(ctypes.string_at(text))
    finally:
        library.fagen_free(text)
    if "error" in report:
        raise EmulationError(report["error"])
    if "fault" in report:
        raise fault_from(report["fault"], program.instructions, entry.name)
    counted: dict[int, int] = {}
    for instruction, count in zip(program.instructions, conflicts or (), strict=False):
        if count:
            counted[instruction.line] = counted.get(instruction.line, 0) + count
    return Statistics(report["barriers"], report["collectives"], _executed(program, entry, list(visits)), counted)


def _executed(program: Loaded, entry: Entry, visits: Sequence[int]) -> dict[int, int]:
    ends = [first for first, _ in entry.blocks[1:]] + [_end(program, entry)]
    found: dict[int, int] = {}
    for (first, counter), end in zip(entry.blocks, ends, strict=True):
        for index in range(first, end):
            line = program.instructions[index].line
            found[line] = max(found.get(line, 0), visits[counter])
    return found


def _end(program: Loaded, entry: Entry) -> int:
    after = [other.blocks[0][0] for other in program.entries.values() if other.index > entry.index]
    return min(after, default=len(program.instructions))


def _text(ptx: str | Path) -> str:
    return ptx.read_text() if isinstance(ptx, Path) else ptx


def _entry(program: Loaded, kernel: str) -> Entry:
    if kernel in program.entries:
        return program.entries[kernel]
    found = [entry for name, entry in program.entries.items() if kernel in name]
    if len(found) != 1:
        names = ", ".join(program.entries) or "none"
        raise EmulationError(
            f"kernel {kernel!r}: expected one of the entries, or a part of one's name; there are {names}"
        )
    return found[0]


def _packed(argument: Argument, size: int, kind: str, where: str) -> bytes:
    match argument:
        case Tensor():
            packed = struct.pack("<Q", cpu_tensor(argument, where).data_ptr())
        case ReadOnly(tensor):
            return _packed(cpu_tensor(tensor, where), size, kind, where)
        case bytes():
            packed = argument
        case bool() | int() if kind not in _FORMATS:
            if not -(1 << 8 * size - 1) <= argument < 1 << 8 * size:
                raise EmulationError(f"{where}: {argument} is no number of {8 * size} bits")
            packed = (int(argument) & (1 << (8 * size)) - 1).to_bytes(size, "little")
        case int() | float() if kind in _FORMATS or (kind.startswith("b") and size in (4, 8)):
            try:
                packed = struct.pack(_FORMATS.get(kind, "<f" if size == 4 else "<d"), argument)
            except OverflowError:
                raise EmulationError(f"{where}: {argument} is beyond the numbers of {8 * size} bits") from None
        case float():
            raise EmulationError(f"{where}: expected a whole number or a tensor, by its type .{kind}, found {argument}")
        case _:
            raise EmulationError(f"{where}: expected a tensor, a number or bytes, found {type(argument).__name__}")
    if len(packed) != size:
        raise EmulationError(f"{where}: expected {size} bytes, found {len(packed)}")
    return packed


def _memory(argument: Tensor | ReadOnly, name: str) -> Memory:
    tensor = cpu_tensor(argument.tensor if isinstance(argument, ReadOnly) else argument, name)
    storage = tensor.untyped_storage()
    return Memory(storage.data_ptr(), storage.nbytes(), not isinstance(argument, ReadOnly), name)


def _joined(ranges: Sequence[Memory]) -> list[Memory]:
    """Ranges sorted, those of one storage once; writable if any mention is."""
    found: dict[tuple[int, int], Memory] = {}
    for each in ranges:
        if each.bytes == 0:
            continue
        known = found.get((each.address, each.bytes))
        found[each.address, each.bytes] = Memory(
            each.address,
            each.bytes,
            each.writable or (known is not None and known.writable),
            known.name if known else each.name,
        )
    return sorted(found.values(), key=lambda each: each.address)


def _three(sizes: int | Sequence[int], what: str) -> tuple[int, int, int]:
    given = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else (sizes,)
    try:
        numbers = [operator.index(size) for size in given]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or any(size < 1 for size in numbers):
        raise EmulationError(f"{what}: expected one to three positive numbers, found {sizes!r}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _check_limits(
    program: Loaded, entry: Entry, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int
) -> None:
    """The launch limits that do not depend on registers. Source: CUDA C++ Programming Guide, Compute Capabilities."""
    threads = block[0] * block[1] * block[2]

    def limit(value: int, most: int, what: str) -> None:
        if value > most:
            raise Fault("limits", f"{what}: {value}, of at most {most}, in {entry.name}")

    limit(threads, 1024, "threads a block")
    if entry.max_threads:
        limit(threads, entry.max_threads, "threads a block, by the kernel's own bounds")
    limit(block[2], 64, "threads along z")
    limit(grid[0], 2**31 - 1, "blocks along x")
    limit(grid[1], 65535, "blocks along y")
    limit(grid[2], 65535, "blocks along z")
    limit(
        entry.static_shared + shared,
        _SHARED.get(program.target, 227 * 1024),
        f"bytes of shared memory on sm_{program.target}",
    )
    blocks = grid[0] * grid[1] * grid[2]
    if blocks * threads > _MOST_THREADS:
        raise EmulationError(f"a grid of {blocks} blocks of {threads} threads: at most 2^31 threads are emulated")


def _cluster(entry: Entry, grid: tuple[int, int, int], asked: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Blocks of a cluster: what the kernel's directive or the launch says. 16 is the most, beyond 8 by permission."""
    own = _three(entry.cluster, "cluster") if entry.cluster and all(entry.cluster) else None
    if own and asked and own != asked:
        raise Fault("limits", f"clusters of {asked}, in {entry.name}, which requires {own}")
    size = own or asked or (1, 1, 1)
    if size[0] * size[1] * size[2] > 16:
        raise Fault("limits", f"blocks a cluster: {size[0] * size[1] * size[2]}, of at most 16, in {entry.name}")
    if any(whole % part for whole, part in zip(grid, size, strict=True)):
        raise Fault("limits", f"a grid of {grid}, no whole number of clusters of {size}, in {entry.name}")
    return size


def _registers(threads: int) -> int:
    """What a thread has when it begins: as many as fit, in eights, as a compiler told of the threads would allow."""
    return min(256, 65536 // threads // 8 * 8)


_MOST_THREADS = 2**31
_KIB = 1024
_SHARED = {
    75: 64 * _KIB, 80: 163 * _KIB, 86: 99 * _KIB, 87: 163 * _KIB, 89: 99 * _KIB, 90: 227 * _KIB, 100: 227 * _KIB,
    103: 227 * _KIB, 110: 227 * _KIB, 120: 99 * _KIB, 121: 99 * _KIB,
}  # fmt: skip

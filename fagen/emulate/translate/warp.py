"""What the lanes of a warp do together: shuffles, votes, matches, matrices. Source: PTX ISA, shfl.sync and on; Warp
Level Matrix Multiply-Accumulate Instructions."""

from __future__ import annotations

from ..ptx.model import Instruction, Operand, Pair, Sink
from .elements import BITS, ELEMENTS
from .emit import PAUSES, SHARED_OPERANDS, Emitter, always, translates
from .modifiers import Modifiers, refused

for _name in ("shfl", "vote", "match", "redux", "elect", "ldmatrix", "stmatrix", "movmatrix", "mma", "wmma"):
    PAUSES[_name] = SHARED_OPERANDS[_name] = always

_SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}


def _two(operand: Operand) -> tuple[Operand, Operand]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())


@translates("shfl")
def _shuffle(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.last()
    if not m.flag("sync"):
        raise refused(i, "shfl without .sync is not built")
    mode = _SHUFFLES[m.choice(*_SHUFFLES)]
    m.done()
    d, p = _two(i.operands[0])
    a, b, c, mask = i.operands[1:]
    # Operands: d, p, a, b, c; detail: the mode.
    kinds = ("b32", "pred", "b32", "b32", "b32")
    e.collective("fagen_shfl", e.read(mask, "u32"), (d, p, a, b, c), kinds, aligned=False, detail=(mode,))


_VOTES = {"all": 0, "any": 1, "uni": 2, "ballot": 3}


@translates("vote")
def _vote(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if not m.flag("sync"):
        raise refused(i, "vote without .sync is not built")
    mode = _VOTES[m.choice(*_VOTES)]
    m.done()
    value = e.temporary("bool")
    e.line(f"{value} = {e.read(i.operands[1], 'pred')};")
    # Operands: result, predicate; detail: the mode.
    e.collective(
        "fagen_vote",
        e.read(i.operands[2], "u32"),
        (i.operands[0], value),
        (kind, "pred"),
        aligned=False,
        detail=(mode,),
    )


@translates("match")
def _match(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.flag("sync")
    every = m.choice("any", "all") == "all"
    m.done()
    d, p = _two(i.operands[0])
    # Operands: d, p, a; detail: all?, bytes.
    e.collective(
        "fagen_match",
        e.read(i.operands[2], "u32"),
        (d, p, i.operands[1]),
        ("b32", "pred", kind),
        aligned=False,
        detail=(int(every), 8 if kind == "b64" else 4),
    )


_REDUCTIONS = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5}


@translates("redux")
def _redux(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.flag("sync")
    what = _REDUCTIONS[m.choice(*_REDUCTIONS)]
    absolute, nan = m.flag("abs"), m.flag("NaN")
    m.done()
    # Operands: d, a; detail: what, 0 unsigned, 1 signed, 2 float32 (| 4 abs, | 8 NaN).
    type_ = {"s": 1, "f": 2}.get(kind[0], 0) | (4 if absolute else 0) | (8 if nan else 0)
    e.collective(
        "fagen_redux",
        e.read(i.operands[2], "u32"),
        (i.operands[0], i.operands[1]),
        ("b32", "b32"),
        aligned=False,
        detail=(what, type_),
    )


@translates("elect")
def _elect(e: Emitter, i: Instruction) -> None:
    d, p = _two(i.operands[0])
    # Operands: d, p.
    e.collective("fagen_elect", e.read(i.operands[1], "u32"), (d, p), ("b32", "pred"), aligned=False)


@translates("activemask")
def _active(e: Emitter, i: Instruction) -> None:
    # Threads are scheduled one by one, so the lanes that happen to be together are this one.
    e.write(i.operands[0], "(1u << t.lane)", "b32")


@translates("ldmatrix", "stmatrix")
def _matrix(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.flag("sync")
    m.flag("aligned")
    shape = m.choice("m8n8", "m16n8", "m16n16", "m8n16")
    count = int(m.choice("x1", "x2", "x4")[1:])
    trans = m.flag("trans")
    space = m.choice("shared", "shared::cta", default="")
    if shape != "m8n8" or kind != "b16":
        raise refused(i, "matrices of 8-bit elements are not built")
    m.done()
    memory, registers = (1, 0) if i.opcode == "ldmatrix" else (0, 1)
    address = e.temporary("u64")
    text = e.address(i.operands[memory])
    e.line(f"{address} = {text if space else f'({text} - kSharedWindow)'};")
    items = e.vector(i.operands[registers], count)
    # Operands: the address, then the registers; detail: how many, transposed?
    e.collective(
        f"fagen_{i.opcode}",
        "0xffffffffu",
        (address, *items),
        ("b64", *["b32"] * count),
        aligned=True,
        detail=(count, int(trans)),
    )


@translates("movmatrix")
def _movmatrix(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.last()
    for name in ("sync", "aligned", "m8n8", "trans"):
        m.choice(name)
    m.done()
    e.collective("fagen_movmatrix", "0xffffffffu", i.operands, ("b32", "b32"), aligned=True)


@translates("mma")
def _mma(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    both, differ = m.flag("and"), m.flag("xor")
    if both or differ:
        m.choice("popc")
    c, b, a, d = m.last(), m.last(), m.last(), m.last()
    for name in ("sync", "aligned"):
        m.choice(name)
    shape = m.choice(
        "m8n8k4",
        "m8n8k16",
        "m8n8k32",
        "m8n8k128",
        "m16n8k4",
        "m16n8k8",
        "m16n8k16",
        "m16n8k32",
        "m16n8k64",
        "m16n8k128",
        "m16n8k256",
    )
    rows_first = m.choice("row", "col")
    columns_first = m.choice("row", "col")
    sat = m.flag("satfinite")
    m.flag("kind::f8f6f4")
    m.done()
    mm, nn, kk = (int(part) for part in shape.replace("m", "").replace("n", " ").replace("k", " ").split())
    if shape == "m8n8k4" and a == "f16":
        _quads(e, i, rows_first == "row", columns_first == "row", d == "f32", c == "f32")
        return
    if (rows_first, columns_first) != ("row", "col"):
        raise refused(i, "only row.col is built")
    for each in (a, b, c, d):
        if each not in ELEMENTS:
            raise refused(i, f".{each} is not built")
    operands: list[Operand] = []
    kinds: list[str] = []
    for operand, kind, elements in zip(i.operands, (d, a, b, c), (mm * nn, mm * kk, kk * nn, mm * nn), strict=True):
        bits = {"s32": 32}.get(kind, BITS.get(kind, 32)) * elements // 32
        wide = 64 if kind == "f64" else 32
        count = bits // wide
        operands += e.vector(operand, count)
        kinds += [f"b{wide}"] * count
    # Operands: d, a, b, c, each its registers; detail: m | n << 8 | k << 16, a | b << 8, d | c << 8, and
    # satfinite | .and << 1.
    e.collective(
        "fagen_mma",
        "0xffffffffu",
        operands,
        kinds,
        aligned=True,
        detail=(
            mm | nn << 8 | kk << 16,
            ELEMENTS[a] | ELEMENTS[b] << 8,
            ELEMENTS[d] | ELEMENTS[c] << 8,
            sat | both << 1,
        ),
    )


def _quads(e: Emitter, i: Instruction, a_rows: bool, b_rows: bool, d_wide: bool, c_wide: bool) -> None:
    """m8n8k4 of f16: four products, each of eight lanes."""
    counts = (8 if d_wide else 4, 2, 2, 8 if c_wide else 4)
    operands = [each for operand, count in zip(i.operands, counts, strict=True) for each in e.vector(operand, count)]
    # Operands: d, a, b, c, each its registers; detail: a in rows? | b in rows? << 1, d of float32? | c << 1.
    e.collective(
        "fagen_mma_quads",
        "0xffffffffu",
        operands,
        ["b32"] * sum(counts),
        aligned=True,
        detail=(a_rows | b_rows << 1, d_wide | c_wide << 1),
    )

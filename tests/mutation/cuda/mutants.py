"""What is changed in the kernels for CUDA cards."""

from __future__ import annotations

from dataclasses import replace

from ..mutate import Kind, Mutant, mutants
from ..program import Program
from ..workers import copied_headers
from .subjects import SUBJECTS

# Not bounds.h, of which these kernels use little: it is tested by itself, on the host, from the same text
# (tests/build/test_expr_code.py). Nor cuda/math.h, which only expressions call; nor ptx/grid.h: the emulator runs the
# kernels of a stream one after the other, and what it cannot tell tests/emulated/test_hopper_forward.py holds.
HEADERS = (
    *(f"ptx/{name}.h" for name in ("barrier", "math", "matrix", "memory", "mbarrier", "tensor", "warpgroup")),
    *(
        f"cuda/{name}.h"
        for name in ("threads", "lanes", "tiles", "exclude", "exclude_unrolled", "exclude_rows", "rows")
    ),
    *(f"cuda/{name}.h" for name in ("softmax", "element", "products", "nonfinite", "shared_elements", "array")),
    *(f"cuda/{name}.h" for name in ("key_range", "ring", "group_tiles", "slabs", "fragment_rows", "row_softmax")),
    *(f"cuda/{name}.h" for name in ("warp_scores", "band")),
)

KIND = Kind(
    swaps=(
        # Waits and barriers, weaker.
        (r"wait_for_copies<1>", "wait_for_copies<2>"),
        (r"wait_for_copies<0>", "wait_for_copies<1>"),
        (r"\b(?:ptx::sync_block|__syncthreads)\(\)", "__syncwarp()"),
        (r"\b(?:ptx::sync_block_or|__syncthreads_or)\(", "("),
        (r"bar\.sync 0;", "bar.warp.sync 0xffffffff;"),
        (r"bar\.red\.or", "bar.red.and"),
        (r"\"(?:bar\.sync 0|cp\.async\.\w+(?: %0)?);\"", '""'),
        (r"\"(?:wgmma\.(?:fence|commit_group)|fence)\.[\w.:]+;\"", '""'),
        (r"wait_for_products<0>", "wait_for_products<1>"),
        (r"wait_for_products<1>", "wait_for_products<2>"),
        (r"\b(?:\w+(?:\(\))?\.)+(?:wait_full|wait_empty|next)\(\w*\);", ";"),
        (r"\.wait_full\(", ".wait_empty("),
        (r"\.wait_empty\(", ".wait_full("),
        (r"\.full\(", ".empty("),
        (r"\.empty\(", ".full("),
        (r"\bmake\(1, ", "make(2, "),
        (r"\.parity\(\)", ".stage()"),
        # Stages, and notes of tiles.
        (r"\bkBehind\b", "(kBehind + 1)"),
        (r"\bkFirst\b", "kStop"),
        (r"\bkStop\b", "kFirst"),
        (r"(?<=[&=] )(?:none|whole)\b(?=\)| &)", "0u"),
        (r"\bblock_\.before\(\)", "block_.stage()"),
        (r"\bblock_\.stage\(\)", "block_.before()"),
        (r"\.stage_before\(\)", ".stage()"),
        (r"\bstage \^ 1", "stage"),
        (r"(?<=[ (,])stage(?=[,)])", "0"),
        (r"\b(load_[kv]\()after\b", r"\1tile"),
        (r"(?<=\(tile, )0\)", "1)"),
        # Places in shared memory.
        (r" \^ ", " + "),
        (r" \^ (?:[\w:.]+(?:<\w+>)?)?(?:\([^()]*\))?", ""),
        (r"& 7\b", "& 3"),
        (r"\bkQBytes\b", "0"),
        (r"\bkKBytes\b", "(kKBytes - 16)"),
        (r"\bkVBytes\b", "(kVBytes - 16)"),
        (r"\bkWarpRows\b", "(kWarpRows - 1)"),
        (r"\bkThreads\b", "(kThreads - 32)"),
        (r"\bldmatrix_x4_trans\b(?!\()", "ldmatrix_x4"),
        (r"ldmatrix_x4_trans\(b", "ldmatrix_x4(b"),
        (r"\.trans\b", ""),
        (r"\bkSlabBytes\b", "(kSlabBytes - 16)"),
        (r"\bkBytes\b", "(kBytes - 8)"),
        (r"\bp, 1, 1, 0, 0;", "p, 1, 1, 1, 0;"),
        (r"\bp, 1, 1, 1;", "p, 1, 1, 0;"),
        (r"\b1024\b", "512"),
        # Lanes.
        (r" % 2\b", " % 1"),
        (r" % 4\b", " % 2"),
        (r" % 8\b", " % 4"),
        (r" % 16\b", " % 8"),
        (r" % 32\b", " % 16"),
        (r" / 4\b", " / 2"),
        (r" / 8\b", " / 4"),
        (r" / 16\b", " / 8"),
        (r" / 32\b", " / 16"),
        (r"\blane_id\(\)", "(lane_id() ^ 1)"),
        (r"~0u", "0xffffu"),
        (r"(_xor_sync\(.*, )1\)", r"\g<1>2)"),
        (r"(_xor_sync\(.*, )2\)", r"\g<1>1)"),
        (r"\b31\b", "30"),
        (r"\b32\b", "31"),
        # Which head, batch entry and block.
        (r"(?<=, )hk\b", "block.h"),
        (r"\bhidden\(p\)\.k\b", "hidden(p).v"),
        (r"\bhidden\(p\)\.v\b", "hidden(p).k"),
        (r"\bat_key\(own\b", "at_key(block"),
        (r"\btile\.hk\b", "0"),
        (r"\btile\.b\b", "tile.hk"),
        (r"\bgroup_\b", "0"),
        (r"\bpart\.h\b", "part.b"),
        (r"\bpart\.b\b", "part.h"),
        (r"\bblock\.h\b", "block.b"),
        (r"\bblock\.b\b", "block.h"),
        (r"\bat\.h\b", "at.b"),
        (r"\bat\.b\b", "at.h"),
        (r"\bblockIdx\.x\b", "0u"),
        # Ends.
        (r"(?<=[ (,])kv_len(?=[ ,);])", "(kv_len - 1)"),
        (r"(?<=[ (,])q_len(?=[ ,);])", "(q_len - 1)"),
        (r"\bshape\.q_len\b", "shape.kv_len"),
        (r"\bshape\.kv_len\b", "shape.q_len"),
        # Numbers.
        (r"\bfmaxf\(", "fminf("),
        (r" \+ shift\b", ""),
        (r"\bkLog2e\b", "1.0f"),
        (r"\bkLn2\b", "1.0f"),
        (r"\bhalf\](?!\[)", "0]"),
        (r"\((\w+), (\w+)\); }$", r"(\2, \1); }"),
    ),
    # What a constant of the launch says is checked by it.
    # How many registers a thread has, and where the compiler is to compute, is not what is computed; and the sums that
    # are listed as operands of a product are printed by a loop.
    skipped=r"prefetch|ptx::hide(_contents)?\(|void hide\(|^constexpr |^using |^  using |static constexpr int k|"
    r"static_assert|^ +: \"\+f\"\(|\bsettle\b|compute_here|(give_up|take)_registers|setmaxnreg|"
    r"ptx::(let_next_begin|wait_for_last)\(",
)


def text_of(file: str) -> str:
    """The text of a file that mutants have: a kernel, as forward:window, or a header, as cuda/softmax.h."""
    _, colon, name = file.partition(":")
    return SUBJECTS[name].source.text if colon else (copied_headers() / "fagen" / file).read_text()


def all_mutants() -> tuple[Mutant, ...]:
    """Of every subject's kernels and of the headers; what subjects share counts once, for the first."""
    alike: dict[tuple[str, ...], list[Mutant]] = {}
    for name, subject in SUBJECTS.items():
        for mutant in mutants(f"forward:{name}", subject.source.text, KIND):
            place = (mutant.function, str(mutant.nth), mutant.before, mutant.after)
            alike.setdefault(place, []).append(mutant)
    found = [replace(first, also=tuple(others)) for first, *others in alike.values()]
    for header in HEADERS:
        found += mutants(header, text_of(header), KIND)
    return tuple(found)


PROGRAM = Program("cuda", all_mutants(), tuple(SUBJECTS), text_of)

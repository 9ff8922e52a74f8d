"""What is changed in the kernels for CPUs."""

from __future__ import annotations

from dataclasses import replace

from ..mutate import Kind, Mutant, mutants
from ..program import Program
from ..workers import copied_headers
from .subjects import HEADERS, SUBJECTS

KIND = Kind(
    swaps=(
        (r"\bkRows\b", "(kRows - 1)"),
        (r"\bkLanes\b", "(kLanes - 1)"),
        (r"\bitem\.hk\b", "item.h"),
        (r"\b__ATOMIC_ACQUIRE\b", "__ATOMIC_RELAXED"),
    ),
    # Not computed by a kernel, or about speed alone; other tests look at them.
    skipped=r"tile_counts|admits_any|prefetch|constexpr int k|static_assert|__builtin_prefetch",
)


def text_of(file: str) -> str:
    """The text of a file that mutants have: a kernel, as forward:rich, or a header, as cpu/softmax.h."""
    direction, colon, name = file.partition(":")
    return SUBJECTS[name].sources[direction].text if colon else (copied_headers() / "fagen" / file).read_text()


def all_mutants() -> tuple[Mutant, ...]:
    """Of every subject's kernels and of the headers; what subjects or directions share counts once, for the first."""
    alike: dict[tuple[str, ...], list[Mutant]] = {}
    for name, subject in SUBJECTS.items():
        for direction, source in subject.sources.items():
            if subject.forward_only and direction != "forward":
                continue
            for mutant in mutants(f"{direction}:{name}", source.text, KIND):
                # The two kernels of a variant ask the same mask of the same tiles.
                side = "" if mutant.function in ("mask_test", "tile_test") else direction
                place = (side, mutant.function, str(mutant.nth), mutant.before, mutant.after)
                alike.setdefault(place, []).append(mutant)
    found = [replace(first, also=tuple(others)) for first, *others in alike.values()]
    for header in HEADERS:
        found += mutants(header, text_of(header), KIND)
    return tuple(found)


PROGRAM = Program("cpu", all_mutants(), tuple(SUBJECTS), text_of)

"""The grids that attention kernels for cards are compared over, by name: which functions, at which sizes, how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..costs import ProblemSize
from ..runtime.language import LanguageError, canonical, parse
from ..runtime.reference import trees
from ..runtime.variant import Param, Variant
from ..size import TOKENS, WIDTH, grid_size
from .measure import How

_DIMS = (64, 128, 256)
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_MASKS = (None, "causal")
_SUSTAINED = 0.25  # seconds: after a tenth of that the clock is where the power limit has it


@dataclass(frozen=True)
class Function:
    """What a variant without a sink and without dropout computes; a ``scale`` of None is the default one.

    ``mask`` and ``score`` are compared by what they mean; params go by name: ``slope`` of ALiBi, ``doc`` of
    documents, ``bias`` of a table.
    """

    head_dim: int
    mask: str | None = None
    score: str | None = None
    value_dim: int | None = None
    dtype: str = "bf16"
    scale: float | None = None

    def __str__(self) -> str:
        values = "" if self.value_dim is None else f", values of {self.value_dim}"
        parts = [f"{name} {text}" for name, text in (("mask", self.mask), ("score", self.score)) if text is not None]
        return ", ".join([f"{self.dtype} D {self.head_dim}{values}", *parts])

    def matches(self, variant: Variant) -> bool:
        """Whether ``variant`` computes it."""
        plain = (self.head_dim, self.value_dim or self.head_dim, self.dtype, self.scale, False, False)
        dims = (variant.head_dim, variant.value_dim)
        if plain != (*dims, variant.dtype, variant.scale, variant.sink, variant.dropout):
            return False
        # A module's own copies of these are of other classes.
        params = {x.name: Param(x.name, x.dtype, tuple(x.shape), x.grad) for x in variant.params}
        try:
            wanted = [
                None if text is None else canonical(parse(text, params=params, expect=expect))
                for text, expect in ((self.mask, "mask"), (self.score, "score"))
            ]
        except LanguageError:  # it reads a param that the variant lacks
            return False
        return wanted == [None if tree is None else canonical(tree) for tree in trees(variant)]

    @classmethod
    def of(cls, variant: Variant) -> Function:
        """That of a variant without a sink and without dropout."""
        mask, score = (None if part is None else part.resolved for part in (variant.mask, variant.score))
        return cls(variant.head_dim, mask, score, variant.value_dim, variant.dtype, variant.scale)


@dataclass(frozen=True)
class Entry:
    """A function at a size. ``flex`` asks for FlexAttention as well; ``aligned`` is the entry, among the others, whose
    rate an operation should be reached: the nearest whose dims and lengths suit the kernel's tiles."""

    function: Function
    size: ProblemSize
    how: How = How()
    flex: bool = False
    aligned: Entry | None = None

    @property
    def key(self) -> tuple[Function, ProblemSize, How]:
        """What is measured, whatever it stands beside."""
        return self.function, self.size, self.how


def entries(names: Sequence[str], lengths: Sequence[int] = ()) -> list[Entry]:
    """Those of the grids called ``names``, each once; with ``lengths``, those whose queries are as many."""
    found: dict[tuple[Function, ProblemSize, How], Entry] = {}
    for entry in (entry for name in names for entry in GRIDS[name]()):
        there = found.setdefault(entry.key, entry)
        found[entry.key] = replace(there, flex=there.flex or entry.flex, aligned=there.aligned or entry.aligned)
    return [entry for entry in found.values() if not lengths or entry.size.q_len in lengths]


def _standard(lengths: Sequence[int] = _LENGTHS, how: How = How()) -> Iterator[Entry]:  # noqa: B008
    """TOKENS tokens and heads of WIDTH columns in all."""
    for dim in _DIMS:
        for mask in _MASKS:
            for length in lengths:
                yield Entry(Function(dim, mask), grid_size(length, dim), how)


def _sustained() -> Iterator[Entry]:
    """The standard grid's sequences of 8192, back to back."""
    return _standard((8192,), How(sustained=_SUSTAINED))


def _second() -> Iterator[Entry]:
    """Grouped heads, few queries and many keys, lengths and dims that fill no tile; what is aligned comes first."""
    for mask in _MASKS:
        for heads in (32, 64):
            yield from _beside(
                Entry(Function(128, mask), ProblemSize(2, heads, heads, 8192, 8192)),
                [Entry(Function(128, mask), ProblemSize(2, heads, 8, 8192, 8192))],
            )
        for dim in _DIMS:
            heads = WIDTH // dim
            yield from _beside(
                Entry(Function(dim, mask), grid_size(8192, dim)),
                [
                    Entry(Function(dim, mask), ProblemSize(2, heads, heads, 2048, 32768)),
                    *(
                        Entry(Function(width, mask, value_dim=value), grid_size(8192, width))
                        for width, value in ((72, None), (80, None), (96, None), (112, None), (192, None), (192, 128))
                        if _nearest(width, value or width) == dim
                    ),
                ],
            )
            for length, aligned in ((1000, 1024), (4097, 4096)):
                batch = TOKENS // aligned
                yield from _beside(
                    Entry(Function(dim, mask), ProblemSize(batch, heads, heads, aligned, aligned)),
                    [Entry(Function(dim, mask), ProblemSize(batch, heads, heads, length, length))],
                )


def _beside(aligned: Entry, others: Sequence[Entry]) -> Iterator[Entry]:
    yield aligned
    for entry in others:
        yield Entry(entry.function, entry.size, entry.how, entry.flex, aligned)


def _nearest(head_dim: int, value_dim: int) -> int:
    """The head dim of _DIMS that is nearest to what a pair costs; of two as near the larger, which is faster."""
    mean = (head_dim + value_dim) / 2
    return min(_DIMS, key=lambda dim: (abs(dim - mean), -dim))


def _custom() -> Iterator[Entry]:
    """Masks and scores that fused kernels lack, beside FlexAttention."""
    causal = "causal"
    for function in (
        Function(128),
        Function(128, causal),
        Function(128, causal, "alibi(slope)"),
        Function(128, causal, "softcap(50)"),
        Function(128, "causal and q - kv < 1024"),
        Function(256, "causal and q - kv < 4096", "softcap(50)"),  # a local layer of Gemma-2
        Function(128, "causal and document(doc)"),
        Function(128, None, "s + bias[h, q - kv + kv_len]"),
    ):
        kv_heads = 8 if function.head_dim == 256 else 16
        yield Entry(function, ProblemSize(2, 16, kv_heads, 8192, 8192), flex=True)


def _short() -> Iterator[Entry]:
    """Sequences of 512 and less, as CUDA graphs, which leave the host's time out; and one small call."""
    yield Entry(Function(64), ProblemSize(1, 16, 16, 128, 128), How(graph=True))
    yield from _standard((128, 256, 512), How(graph=True))


def _host() -> Iterator[Entry]:
    """Calls so small that the host's time is what counts."""
    for mask in _MASKS:
        yield Entry(Function(64, mask), ProblemSize(1, 16, 16, 128, 128), How(host=True))


GRIDS: dict[str, Callable[[], Iterator[Entry]]] = {
    "standard": _standard,
    "sustained": _sustained,
    "second": _second,
    "custom": _custom,
    "short": _short,
    "host": _host,
}

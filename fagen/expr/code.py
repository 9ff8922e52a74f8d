"""What the middle end hands to a kernel's template: C++ statements, and nothing that decides anything.

Every class round-trips through plain JSON (``to_json`` and ``from_json`` of KernelCode).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Dialects of C++: with GCC/Clang vector extensions, one vector of keys at a time; scalars, one pair at a time.
CPU_VECTOR = "cpu_vector"
CUDA_SCALAR = "cuda_scalar"


@dataclass(frozen=True)
class Snippet:
    """Statements that compute one or more values of a query row and a vector of keys.

    ``row`` runs once a query row, with int32_t b, h, hk, i, q, q_len and kv_len in scope; ``pair`` once a vector of
    adjacent keys, with vi j and kv (and vf s, the scaled score) in scope too; in scalars once a pair, with int32_t j
    and kv and float s. ``results`` are expressions, valid after
    ``pair``. The names that statements declare end in a digit or hold ``_at``.

    Those of RowScores have float raw in scope too, the unscaled score, and float scale, reference and step and int32_t
    first: see exponents.py.
    """

    row: tuple[str, ...]
    pair: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class ParamGrad:
    """The gradient of one read of a param.

    ``name`` and ``param_index`` say which param, ``factor`` which result of ``score_grad`` is d x / d entry (a float or
    vf expression) and of ``score_grad_mask``. ``kind`` says how often the entry changes:

    - "row": the entry is one for the whole row. Sum ``g`` = dx · factor (zero where not allowed) over the keys of
      the row, lanes too, into a float ``total``, then run ``scatter`` with that in scope.
    - "pair": run ``scatter`` once a vector of keys with the vf ``g`` in scope.

    ``row`` holds statements for once a row that ``scatter`` needs; both see what a Snippet's statements see.
    ``owner`` are the names among b, h, hk, i (also for q), j (also for kv) that the read is indexed by directly, up to
    a constant of the row: work items that differ in one of these never touch the same entry through this read.
    ``axes`` says for each axis which of b, h and hk is its index, "" where none is; ``diagonal`` whether all pairs of a
    diagonal read the same entry.
    """

    param_index: int
    name: str
    kind: str
    factor: int
    row: tuple[str, ...]
    scatter: tuple[str, ...]
    owner: tuple[str, ...]
    axes: tuple[str, ...]
    diagonal: bool


@dataclass(frozen=True)
class ArrayDeclaration:
    """The array ``name`` of a param, or of its gradient: ``rank`` axes of ``element``, seen through ``source``.

    ``param_index`` says which param.
    """

    name: str
    element: str
    rank: int
    source: str
    param_index: int

    @property
    def text(self) -> str:
        """The statement that makes it."""
        return f"const Array<{self.element}, {self.rank}> {self.name}({self.source});"


@dataclass(frozen=True)
class RowScores:
    """A row's scores as kernels have them that compute one row after the other.

    The result of ``score`` is x, that of ``exponent`` x · log2(e) less ``reference``. ``near``, which is shorter, is
    the same for tiles in whose pairs no result of ``tested`` is larger than kTanhNear, whatever its sign; both are None
    where there is no such form.
    """

    score: Snippet
    exponent: Snippet
    near: Snippet | None
    tested: Snippet | None


@dataclass(frozen=True)
class Band:
    """A read that is the same for all pairs of a diagonal, as a kernel has it that brings these to shared memory first.

    ``name`` is the C++ name of what gives a pair its own, of type ``element``. The result of ``load`` is that of one
    pair, by a checked access.
    """

    name: str
    element: str
    load: Snippet


@dataclass(frozen=True)
class BandedScore:
    """The scores with the reads of some params taken from ``bands``; ``grad`` and ``grad_mask`` are ``score_grad`` and
    ``score_grad_mask`` of KernelCode.

    Statements call ``NAME.of(n, c, kRow)``, those of gradients ``NAME.of(n, c, row)``, where ``kRow`` or ``row``, ``n``
    and ``c`` say which of a lane's pairs the loops of a kernel's template are at. ``loads`` says whether pairs read
    params by accesses of their own besides.
    """

    score: RowScores
    grad: Snippet
    grad_mask: Snippet | None
    bands: tuple[Band, ...]
    loads: bool


@dataclass(frozen=True)
class NarrowBounds:
    """``tile_test`` and ``key_ranges`` of KernelCode over Span32 and, where the limits are, int32_t: for masks of which
    32 bits hold all numbers, that read no params and are short. ``conditions`` is how many the test has."""

    tile_test: tuple[str, ...]
    key_ranges: tuple[str, ...]
    conditions: int


@dataclass(frozen=True)
class KernelCode:
    """All that a kernel says about its variant's expressions.

    ``declarations`` make the arrays of params, from a ``p`` that is ForwardParams or BackwardParams;
    ``grad_declarations`` those of gradients. ``score`` (results: x) is None where x is s, as is
    ``row_scores`` but beside a sink; CPUs have none of these, nor of ``banded_score``, which is None too where no read
    is the same along diagonals; ``score_mask`` (results: x, allowed) is None where there is no mask, as is ``mask``
    (result: allowed). ``score_grad`` and ``score_grad_mask`` have the results x, d x / d s, one factor for each entry
    of ``param_grads``, and, the latter, allowed; a result may be a scalar (such as ``1.0f``) where it is one for the
    whole row, but x and allowed never are.

    ``tile_test`` is the body of ``Tri tile_test(int32_t b, int32_t h, Span q, Span kv)``, ``key_ranges`` that of
    ``Ranges key_ranges(int32_t b, int32_t h, Span q)`` and ``query_ranges`` that of
    ``Ranges query_ranges(int32_t b, int32_t h, Span kv)``; hk, q_len, kv_len and the declared arrays must be in scope
    too. Spans are positions of rows and keys that exist; key_ranges gives key indexes and query_ranges row
    indexes i. ``tests_params`` are the params whose entries the three look through. ``narrow`` does the same in
    32 bits; where it is None, ``wide`` says why.
    ``mask_ends`` says whether the mask by itself shuts out what would be keys past the last one, for rows that exist.
    """

    declarations: tuple[ArrayDeclaration, ...]
    grad_declarations: tuple[ArrayDeclaration, ...]
    score: Snippet | None
    row_scores: RowScores | None
    banded_score: BandedScore | None
    score_mask: Snippet | None
    mask: Snippet | None
    score_grad: Snippet
    score_grad_mask: Snippet | None
    param_grads: tuple[ParamGrad, ...]
    tile_test: tuple[str, ...]
    key_ranges: tuple[str, ...]
    query_ranges: tuple[str, ...]
    tests_params: tuple[str, ...]
    mask_ends: bool
    narrow: NarrowBounds | None
    wide: str

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and strings; :meth:`from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelCode:
        """The code a plan in JSON holds."""
        values = dict(data)
        for key in ("score", "score_mask", "mask", "score_grad", "score_grad_mask"):
            values[key] = values[key] and _snippet(values[key])
        if values["row_scores"]:
            values["row_scores"] = _row_scores(values["row_scores"])
        if values["banded_score"]:
            banded = values["banded_score"]
            bands = tuple(Band(**{**band, "load": _snippet(band["load"])}) for band in banded["bands"])
            mask = banded["grad_mask"] and _snippet(banded["grad_mask"])
            values["banded_score"] = BandedScore(
                _row_scores(banded["score"]), _snippet(banded["grad"]), mask, bands, banded["loads"]
            )
        values["narrow"] = values["narrow"] and NarrowBounds(**_with_tuples(values["narrow"]))
        for key in ("declarations", "grad_declarations"):
            values[key] = [ArrayDeclaration(**each) for each in values[key]]
        values["param_grads"] = [ParamGrad(**_with_tuples(grad)) for grad in values["param_grads"]]
        return cls(**_with_tuples(values))


def _snippet(parts: Mapping[str, Any]) -> Snippet:
    return Snippet(**_with_tuples(parts))


def _row_scores(parts: Mapping[str, Any]) -> RowScores:
    return RowScores(**{name: part and _snippet(part) for name, part in parts.items()})


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

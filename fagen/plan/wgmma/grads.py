"""How the wgmma schedule's backward kernels sum gradients of params."""

from __future__ import annotations

from dataclasses import dataclass

from ...expr import KernelCode, ParamGrad
from ...runtime.variant import Variant
from ..mma.slopes import exact_params, gradient_declaration, of_one_pair
from ..pieces import Piece, identifiers, needs, times, used_declarations, used_statements

# What shares an element, and so is summed before anything is added to it: all pairs of a head, those of a query, of a
# key, of a diagonal; or nothing that is known.
HEAD, QUERY, KEY, DIAGONAL, PAIR = "head", "query", "key", "diagonal", "pair"

_SUMMED = {
    HEAD: "over a head's queries and 16 keys",
    QUERY: "over 16 keys of a query, across lanes",
    KEY: "over a tile's queries of a key, in registers and across lanes",
    DIAGONAL: "over the diagonals of 16 keys and a tile's queries, across lanes",
    PAIR: "pair by pair",
}
_OF = {
    HEAD: "all pairs of a head and the warp's keys",
    QUERY: "the pairs of query `column`",
    KEY: "the pairs of key `key`",
    DIAGONAL: "the pairs as far apart as query `column` and key 0",
    PAIR: "a pair",
}
_PLACES = {HEAD: "", QUERY: ", int column", KEY: ", int key", DIAGONAL: ", int column", PAIR: ", int column, int key"}


def kind_of(grad: ParamGrad) -> str:
    """What shares an element by a read."""
    names = identifiers((*grad.row, *grad.scatter))
    if "s" in names:
        return PAIR
    if not {"j", "kv"} & names:
        return QUERY if {"i", "q"} & names else HEAD
    if not {"i", "q"} & names:
        return KEY
    return DIAGONAL if grad.diagonal else PAIR


def reads_of(code: KernelCode) -> tuple[ParamGrad, ...]:
    """Those that scores change with."""
    return tuple(grad for grad in code.param_grads if _factor(code, grad) != "0.0f")


def exact_sums(variant: Variant, code: KernelCode) -> tuple[int, ...]:
    """The params whose gradients are summed exactly: with `deterministic`, those of which several threads may add to an
    element. A key's sums are those of one thread, which takes heads that share the key one after the other."""

    def alone(grad: ParamGrad) -> bool:
        owner = set(grad.owner)
        return kind_of(grad) == KEY and {"b", "j"} <= owner and bool(owner & {"h", "hk"})

    return exact_params(variant, code, lambda grad: of_one_pair(grad) or alone(grad))


def sums_of(variant: Variant, code: KernelCode) -> tuple[dict[str, str], dict[str, str]]:
    """How each param's gradient is summed, "atomic" or "exact", and why."""
    exact = exact_sums(variant, code)
    sums: dict[str, str] = {}
    why: dict[str, str] = {}
    for grad in reads_of(code):
        how = f"{_SUMMED[kind_of(grad)]}; "
        if grad.param_index in exact:
            sums[grad.name] = "exact"
            how += "of several threads, and `deterministic` asks for a sum that has no order"
        else:
            sums[grad.name] = "atomic"
            how += "one thread adds to an element" if variant.deterministic else "float32 numbers, as threads come"
        why[grad.name] = f"{why[grad.name]}; {how}" if grad.name in why else how
    return sums, why


@dataclass(frozen=True)
class GradOfRead(Piece):
    """What pairs add to a param's gradient by a read that changes scores.

    ``g`` is what a pair adds, of ``dx`` = d loss / d x. Where ``kind`` says, what is summed goes to a function by the
    name of ``add``, whose ``places`` say of which query or key it is, and ``amount`` the sum; its ``lines`` add that to
    what ``gradient`` declares. ``sum`` names the sum, or what makes it; ``held`` are those of a head that come before.
    """

    param: str
    kind: str
    g: str
    add: str
    sum: str
    held: int
    of: str
    places: str
    amount: str
    gradient: str
    lines: tuple[str, ...]

    @property
    def column(self) -> str:
        """How far its query is from a tile's first."""
        return " + column" if "column" in self.places else ""

    @property
    def key(self) -> str:
        """How far its key is from a warp's first."""
        return " + key" if "key" in self.places else ""


@dataclass(frozen=True)
class ParamGrads(Piece):
    """From dx to what ``reads`` add to gradients, and to what weights are multiplied by (``times``: "" where d x / d s
    is 1), by the statements of scores that these need. ``row`` runs once a query, ``pair`` once a pair."""

    row: tuple[str, ...]
    pair: tuple[str, ...]
    times: str
    reads: tuple[GradOfRead, ...]

    @property
    def held(self) -> tuple[GradOfRead, ...]:
        """Those whose sums a warp holds in shared memory from tile to tile of a head."""
        return tuple(read for read in self.reads if read.kind == HEAD)

    @property
    def across(self) -> tuple[GradOfRead, ...]:
        """Those that are summed across a warp's lanes for each eight of a tile's queries."""
        return tuple(read for read in self.reads if read.kind in (QUERY, DIAGONAL))

    @property
    def keeps_scores(self) -> bool:
        """Whether scores are needed once more when there is dx."""
        return "s" in self.needs

    @property
    def across_lanes(self) -> bool:
        """Whether sums, or places of elements, take registers beside a tile's pairs."""
        return any(read.kind != HEAD for read in self.reads)

    @property
    def by_pair(self) -> bool:
        """Whether a pair adds by itself."""
        return any(read.kind == PAIR for read in self.reads)


def param_grads(variant: Variant, code: KernelCode) -> ParamGrads:
    """Of no reads where no param's gradient is asked for."""
    snippet = code.score_grad
    dx_ds = snippet.results[1]
    found = reads_of(code)
    if not found:
        return ParamGrads((), (), (), (), "", ())
    heads = [number for number, grad in enumerate(found, 1) if kind_of(grad) == HEAD]
    reads = tuple(
        _of_read(variant, code, grad, number, sum(head < number for head in heads))
        for number, grad in enumerate(found, 1)
    )
    names = identifiers((dx_ds, *(read.g for read in reads)))
    pair = used_statements(snippet.pair, names)
    row = used_statements(snippet.row, names)
    return ParamGrads(
        used_declarations(code.declarations, names),
        needs(names, variant),
        row,
        pair,
        "" if dx_ds == "1.0f" else dx_ds,
        reads,
    )


def _factor(code: KernelCode, grad: ParamGrad) -> str:
    return code.score_grad.results[grad.factor]


def _of_read(variant: Variant, code: KernelCode, grad: ParamGrad, number: int, held: int) -> GradOfRead:
    lines, kind = (*grad.row, *grad.scatter), kind_of(grad)
    names = identifiers(lines)
    (gradient,) = (each for each in code.grad_declarations if each.param_index == grad.param_index)
    return GradOfRead(
        declarations=used_declarations(code.declarations, names),
        needs=needs(names, variant),
        param=grad.name,
        kind=kind,
        g=times(_factor(code, grad)),
        add=f"add_grad{number}",
        sum=f"sum{number}",
        held=held,
        of=_OF[kind],
        places=_PLACES[kind],
        amount="total" if grad.kind == "row" else "g",
        gradient=gradient_declaration(gradient, exact_sums(variant, code)),
        lines=lines,
    )

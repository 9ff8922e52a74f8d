"""How large an integer can become, and so whether 32 bits hold it."""

from __future__ import annotations

from collections.abc import Mapping

from ..runtime.variant import Param
from .graph import Graph, Node, below

# The largest length, and so position, that kernels accept, and the most heads and batch entries: with it
# q - kv + kv_len stays within 32 bits. The host unit refuses more (kMaxLength in params.h).
MAX_LENGTH = 2**28

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)

_NAMES = {
    "b": (0, MAX_LENGTH),
    "h": (0, MAX_LENGTH),
    "hk": (0, MAX_LENGTH),
    "i": (0, MAX_LENGTH),
    "j": (0, MAX_LENGTH),
    "q": (-MAX_LENGTH, MAX_LENGTH),
    "kv": (0, MAX_LENGTH),
    "first": (0, MAX_LENGTH),
    "q_len": (0, MAX_LENGTH),
    "kv_len": (0, MAX_LENGTH),
}


class Sizes:
    """The ranges of integer nodes, given the dtypes of params. Both ends are inclusive, and not limited to 64 bits."""

    def __init__(self, params: Mapping[str, Param]):
        self.params = params
        self._known: dict[Node, tuple[int, int]] = {}
        self._wide: dict[Node, bool] = {}

    def range(self, node: Node) -> tuple[int, int]:
        """The least and greatest value an integer node can have."""
        known = self._known
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [arg for arg in top.args if arg.type == "int" and arg not in known]
            if waiting and top.op != "read":
                stack.extend(waiting)
                continue
            known[stack.pop()] = self._range(top, known)
        return known[node]

    def _range(self, node: Node, known: Mapping[Node, tuple[int, int]]) -> tuple[int, int]:
        if node.op == "const":
            return node.integer, node.integer
        if node.op == "name":
            return _NAMES[str(node.value)]
        if node.op == "read":
            return INT64 if self.params[str(node.value)].dtype == "i64" else INT32
        spans = [known[arg] for arg in node.args if arg.type == "int"]
        lo, hi = spans[0]
        if node.op == "neg":
            return -hi, -lo
        if node.op == "abs":
            return (max(lo, -hi, 0), max(hi, -lo))
        other_lo, other_hi = spans[1]
        if node.op == "add":
            return lo + other_lo, hi + other_hi
        if node.op == "sub":
            return lo - other_hi, hi - other_lo
        if node.op == "mul":
            corners = [a * b for a in (lo, hi) for b in (other_lo, other_hi)]
            return min(corners), max(corners)
        if node.op == "min":
            return min(lo, other_lo), min(hi, other_hi)
        if node.op == "max":
            return max(lo, other_lo), max(hi, other_hi)
        if node.op == "select":
            return min(lo, other_lo), max(hi, other_hi)
        if node.op == "floordiv":
            if other_lo > 0:
                corners = [a // b for a in (lo, hi) for b in (other_lo, other_hi)]
                return min(corners), max(corners)
            largest = max(abs(lo), abs(hi))
            return -largest, largest
        return min(other_lo + 1, 0), max(other_hi - 1, 0)  # mod

    def fits(self, node: Node, limits: tuple[int, int] = INT32) -> bool:
        """Whether every value an integer node can have is within ``limits``."""
        lo, hi = self.range(node)
        return limits[0] <= lo and hi <= limits[1]

    def bits(self, node: Node) -> int:
        """32, or 64 where the value of an integer node, or one it is computed from, needs them."""
        wide = self._wide
        for part in below((node,)) if node not in wide else ():
            if part not in wide and part.type == "int":
                operands = () if part.op == "read" else part.args
                wide[part] = not self.fits(part) or any(wide.get(arg, False) for arg in operands)
        return 64 if wide[node] else 32


def settled(graph: Graph, root: Node, sizes: Sizes) -> Node:
    """The root with integer comparisons that no possible value changes as constants, such as ``kv >= 0``."""
    done: dict[Node, Node] = {}
    for node in below((root,)):
        made = graph.again(node, tuple(done[arg] for arg in node.args))
        if made.op in ("lt", "le", "eq") and made.args[0].type == "int":
            known = _comparison(made, sizes)
            made = made if known is None else graph.truth(known)
        done[node] = made
    return done[root]


def _comparison(node: Node, sizes: Sizes) -> bool | None:
    if not all(sizes.fits(part, INT64) for part in below(node.args) if part.type == "int"):
        return None  # what wraps may be anything
    (a_lo, a_hi), (b_lo, b_hi) = (sizes.range(arg) for arg in node.args)
    if node.op == "eq":
        return False if a_hi < b_lo or b_hi < a_lo else None
    strict = node.op == "lt"
    if a_hi < b_lo or (a_hi == b_lo and not strict):
        return True
    return False if a_lo > b_hi or (a_lo == b_hi and strict) else None

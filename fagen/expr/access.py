"""How a read of a param moves as the key moves: not at all, along an axis, or anyhow."""

from __future__ import annotations

from dataclasses import dataclass

from .affine import as_sum
from .graph import Graph, Node

# Direct indexes, and the name each counts as when work is split between threads.
_OWNERS = {"b": "b", "h": "h", "hk": "hk", "i": "i", "q": "i", "j": "j", "kv": "j"}

_POSITIONS = ("i", "q", "j", "kv")


@dataclass(frozen=True)
class Access:
    """One read.

    ``kind`` is "row" (one entry for a row and all its keys), "run" (the index along ``axis`` is ``key`` times
    ``direction``, 1 or -1, plus ``offset``; the others stay) or "gather".
    """

    kind: str
    axis: int = 0
    direction: int = 1
    key: Node | None = None  # the name j or kv
    offset: Node | None = None  # an integer of the row


def classify(graph: Graph, read: Node) -> Access:
    """How a read moves as the key moves."""
    moving = [axis for axis, index in enumerate(read.args) if index.per_key]
    if not moving:
        return Access("row")
    if len(moving) == 1:
        keys, rest = as_sum(read.args[moving[0]]).split(lambda atom: atom.per_key)
        if len(keys.terms) == 1:
            key, direction = keys.terms[0]
            if key.op == "name" and abs(direction) == 1:
                return Access("run", moving[0], direction, key, rest.node(graph))
    return Access("gather")


def is_diagonal(read: Node) -> bool:
    """Whether a read changes with the key, and is told by how far row and key are apart: the same for all pairs of a
    diagonal, as that of ``bias[h, q - kv]`` is."""
    if not read.per_key:
        return False
    stack = list(read.args)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "name" and node.value in ("s", *_POSITIONS):
            return False
        atoms: tuple[Node, ...] = node.args
        if node.type == "int" and node.op in ("neg", "add", "sub", "mul"):
            positions, rest = as_sum(node).split(lambda atom: atom.op == "name" and atom.value in _POSITIONS)
            # q is i and j is kv, but for what a block of rows and keys has in common.
            if sum(factor for _, factor in positions.terms) != 0:
                return False
            if all(atom is not node for atom, _ in rest.terms):  # else it is a product
                atoms = tuple(atom for atom, _ in rest.terms)
        stack.extend(atoms)
    return True


def owners(read: Node) -> tuple[str, ...]:
    """The names that a read is indexed by directly: among b, h, hk, i (or q), j (or kv), up to sign and constants."""
    found: dict[str, None] = {}
    for index in read.args:
        total = as_sum(index)
        own = [(atom, factor) for atom, factor in total.terms if atom.value not in ("q_len", "kv_len")]
        if len(own) == 1 and own[0][0].op == "name" and own[0][1] != 0:
            found[_OWNERS[str(own[0][0].value)]] = None
    return tuple(found)


def direct_axes(read: Node) -> tuple[str, ...]:
    """For each axis of a read the name among b, h, hk that is its index, "" if none of them is."""
    return tuple(
        str(index.value) if index.op == "name" and index.value in ("b", "h", "hk") else "" for index in read.args
    )

"""Whether more sequences can be put into a batch without the expressions noticing."""

from __future__ import annotations

from .language import parse
from .language.nodes import Name, Node, Read, walk
from .variant import Variant


def foldable(variant: Variant) -> bool:
    """True where the batch is only ever an index: `b` stands alone in the B dims of params and nowhere else.

    A batch of batches is then the same as one long batch. A variant that computes with `b`, or indexes a B dim with
    anything else, sees the difference.
    """
    params = {param.name: param for param in variant.params}
    if variant.dropout:
        return False  # which weights are dropped depends on where a sequence stands in the batch
    if any("B" in param.shape[1:] for param in variant.params):
        return False
    for what, expect in ((variant.mask, "mask"), (variant.score, "score")):
        if what is not None and not _batch_is_an_index(parse(what.resolved, params=params, expect=expect), variant):
            return False
    return True


def _batch_is_an_index(tree: Node, variant: Variant) -> bool:
    shapes = {param.name: param.shape for param in variant.params}
    uses = indices = 0
    for node in walk(tree):
        if node == Name("b"):
            uses += 1
        elif isinstance(node, Read) and shapes[node.param][0] == "B":
            if node.indices[0] != Name("b"):
                return False
            indices += 1
    return uses == indices

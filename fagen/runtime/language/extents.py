"""What the declared shape of a param says about reading it."""

from __future__ import annotations

from ..variant import Param
from .nodes import Name, Node, Type

_INDEX_OF = {"B": "b", "H": "h", "Hk": "hk", "Sq": "i", "Skv": "j"}
_EXTENT_OF = {"b": "B", "h": "H", "hk": "Hk"}
_ALONG_SEQUENCES = ("i", "j", "q", "kv", "q_len", "kv_len")


def element_type(param: Param) -> Type:
    """What an entry of a param is to an expression."""
    if param.dtype == "bool":
        return "bool"
    return "int" if param.dtype in ("i32", "i64") else "real"


def typical_index(extent: str | int) -> str:
    """The name that usually runs over a dimension."""
    return _INDEX_OF.get(str(extent), "kv")


def wrong_index(extent: str | int, index: Node) -> bool:
    """Whether an index is a bare name that cannot belong to the extent: slope[hk] of shape [H] would read amiss.

    Only B, H and Hk are that strict. A dimension of the sequence may be read at any position or row of either side,
    one of length n or a constant at anything.
    """
    if not isinstance(index, Name) or extent not in _INDEX_OF:
        return False
    if extent in _EXTENT_OF.values():
        return index.id in _ALONG_SEQUENCES or _EXTENT_OF.get(index.id, extent) != extent
    return index.id in _EXTENT_OF

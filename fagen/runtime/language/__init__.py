"""The language of `mask:` and `score:`: text to typed tree and back, without ever evaluating the text.

parse(text, params=..., consts=..., defines=..., expect="mask") -> Node
unparse(node) -> text          parse(unparse(node), params=...) == node
canonical(node) -> text        equal for expressions that are provably the same function
mutants(node)                  the same expression with one mistake in it
reads(node)                    the params it reads
"""

from .canonical import canonical
from .construct import NumberError
from .errors import LanguageError
from .functions import FUNCTIONS
from .macros import BUILT_INS, Define
from .mutants import mutants
from .nodes import (
    FALSE,
    NAMES,
    TRUE,
    Binary,
    Call,
    Compare,
    Conditional,
    Logic,
    Name,
    Node,
    Not,
    Number,
    Read,
    Type,
    Unary,
    children,
    reads,
    walk,
    with_children,
)
from .parse import RESERVED, parse
from .unparse import unparse

__all__ = [
    "BUILT_INS",
    "FALSE",
    "FUNCTIONS",
    "NAMES",
    "RESERVED",
    "TRUE",
    "Binary",
    "Call",
    "Compare",
    "Conditional",
    "Define",
    "LanguageError",
    "Logic",
    "Name",
    "Node",
    "Not",
    "Number",
    "NumberError",
    "Read",
    "Type",
    "Unary",
    "canonical",
    "children",
    "mutants",
    "parse",
    "reads",
    "unparse",
    "walk",
    "with_children",
]

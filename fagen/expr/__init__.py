"""The middle end: from a variant's expressions to the code that computes, differentiates and bounds them.

In the order an expression passes through: lower (tree to graph), derive; conditions, tiles and limits (what is known
of a mask before run time); printer and print_bounds (C++), or evaluate (the same bounds, in Python).
"""

from .code import (
    CPU_VECTOR,
    CUDA_SCALAR,
    ArrayDeclaration,
    Band,
    BandedScore,
    KernelCode,
    NarrowBounds,
    ParamGrad,
    Snippet,
)
from .emit import emit
from .sizes import MAX_LENGTH
from .work import PairWork, work_of_pair

__all__ = [
    "CPU_VECTOR",
    "CUDA_SCALAR",
    "MAX_LENGTH",
    "ArrayDeclaration",
    "Band",
    "BandedScore",
    "KernelCode",
    "NarrowBounds",
    "PairWork",
    "ParamGrad",
    "Snippet",
    "emit",
    "work_of_pair",
]

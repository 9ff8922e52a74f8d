"""The middle end: from a variant's expressions to the code that computes, differentiates and bounds them."""

from .code import CPU_VECTOR, KernelCode, ParamGrad, Snippet
from .emit import emit

__all__ = ["CPU_VECTOR", "KernelCode", "ParamGrad", "Snippet", "emit"]

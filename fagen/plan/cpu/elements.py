"""How elements of q, k and v are multiplied on the CPU: the Product of gemm.h."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime.variant import Variant
from ...target import Isa


@dataclass(frozen=True)
class Elements:
    """``element`` is their C++ type in memory, ``product`` what multiplies them; a word of ``word_bytes`` holds
    ``depth`` of them. ``note`` describes the product in a comment."""

    element: str
    product: str
    note: str
    depth: int
    why: str
    word_bytes: int = 4


def choose_elements(variant: Variant, isa: Isa) -> Elements:
    """bf16 dot products where there are any and the variant is bf16; otherwise everything is float32 once packed."""
    if variant.dtype == "bf16" and isa.bf16_dots:
        return Elements(
            "bf16", "Bf16Pairs", "bf16 pairs, summed in float32", 2, f"{isa.name} multiplies pairs of bf16 into float32"
        )
    why = {
        "f32": "float32 as it is",
        "bf16": f"{isa.name} has no bf16 dot product: float32 holds every bf16",
        "f16": "float32 holds every f16, and the products of bf16 do not",
    }[variant.dtype]
    return Elements(variant.dtype, "F32", "float32", 1, why)

"""How much of a product is kept in registers: a choice that both directions of the cpu schedule make the same way."""

from __future__ import annotations

from dataclasses import dataclass

from ...target import Isa

# A register tile of rows × vectors holds as many accumulators, its vectors of B and one broadcast of A. Measured on a
# Zen 4 core, B streaming from the second-level cache: 6×4 reaches 97 % of the multiply-add peak, 12×2 96 %, 8×3 94 %.
ROWS = 6
WIDEST = {32: 4, 16: 2}  # vectors, by the registers of the ISA


@dataclass(frozen=True)
class RegisterTile:
    """ROWS rows of A by ``vectors`` vectors of B at a time, in ``panels`` panels of B."""

    vectors: int
    panels: int
    why: str


def register_tile(columns: int, isa: Isa) -> RegisterTile:
    """The register tile of a product with so many columns: least padding first, then the widest.

    One vector alone would load more than it multiplies, so it is left to products that have no second.
    """
    needed = -(-columns // isa.lanes)
    widest = WIDEST[isa.registers]
    if needed == 1:
        return RegisterTile(1, 1, f"{columns} columns fill one vector of {isa.lanes}")
    vectors = min(range(2, min(widest, needed) + 1), key=lambda each: (-needed % each, -each))
    panels = -(-needed // vectors)
    width = panels * vectors * isa.lanes
    why = (
        f"{ROWS} × {widest} accumulators are what {isa.registers} registers leave room for; "
        f"{panels} × {vectors} vectors of {isa.lanes} pad {columns} columns by {width - columns}"
    )
    return RegisterTile(vectors, panels, why)

"""The memory that kernels hold beyond inputs and outputs, of the part that grows with a length."""

from __future__ import annotations

from ...target import ISAS
from ..model import Plan
from .backward import Backward
from .elements import choose_elements
from .forward import Forward


def key_bytes(plan: Plan) -> int:
    """What forward holds for a key and its value, packed for the products, if enough work items read them."""
    assert plan.isa is not None and isinstance(plan.forward, Forward)
    isa, variant = ISAS[plan.isa], plan.variant
    elements = choose_elements(variant, isa)
    width = plan.forward.value_vectors * plan.forward.value_panels * isa.lanes
    return elements.word_bytes * (-(-variant.head_dim // elements.depth) + width // elements.depth)


def row_bytes(plan: Plan) -> int:
    """What backward holds for a query row: its dQ, its delta (dO · o - dlse) and its norm, all in float32."""
    assert plan.isa is not None and isinstance(plan.backward, Backward)
    return 4 * (plan.backward.head_vectors * plan.backward.head_panels * ISAS[plan.isa].lanes + 2)

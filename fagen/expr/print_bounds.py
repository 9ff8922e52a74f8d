from __future__ import annotations
from dataclasses import dataclass
from fagen.runtime.variant import Variant
from .graph import Graph, Node

@dataclass(frozen=True)
class Bounds:
    tile_test: tuple[str, ...]
    key_ranges: tuple[str, ...]
    query_ranges: tuple[str, ...]
    params: tuple[str, ...]

def print_bounds(graph: Graph, variant: Variant, mask: Node | None) -> Bounds:
    return Bounds(
        ("return fagen::Tri::kAll;" if mask is None else "return fagen::Tri::kSome;",),
        ("return fagen::Ranges::between(0, kv_len);",),
        ("return fagen::Ranges::between(0, q_len);",),
        (),
    )

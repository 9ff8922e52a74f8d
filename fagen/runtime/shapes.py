"""How a variant's arguments are shaped and named, in words: shared by documentation, schemas and error messages."""

from __future__ import annotations

from .variant import Param, Variant


def tensor_shape(variant: Variant, tensor: str) -> str:
    """The shape of q, k, v or o in the variant's layout, as ``[B, Sq, H, 64]``."""
    length, heads, dim = {
        "q": ("Sq", "H", variant.head_dim),
        "k": ("Skv", "Hk", variant.head_dim),
        "v": ("Skv", "Hk", variant.value_dim),
        "o": ("Sq", "H", variant.value_dim),
    }[tensor]
    middle = f"{heads}, {length}" if variant.layout == "bhsd" else f"{length}, {heads}"
    return f"[B, {middle}, {dim}]"


def shape_of(param: Param) -> str:
    """A param's shape, as ``[B, n]``."""
    return f"[{', '.join(str(extent) for extent in param.shape)}]"


def argument_names(variant: Variant) -> tuple[str, ...]:
    """The tensors an op takes besides q, k and v, in order, as its schema names them."""
    params = tuple(f"param_{param.name}" for param in variant.params)
    return ("sink",) * variant.sink + params + ("rng_state",) * variant.dropout


def gradient_params(variant: Variant) -> tuple[Param, ...]:
    """The params whose gradient the backward op returns, in order."""
    return tuple(param for param in variant.params if param.grad)

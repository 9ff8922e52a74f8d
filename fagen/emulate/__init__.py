"""Runs PTX on the CPU, and finds what is wrong with it; docs/emulator.md says what it promises.

stats = emulate.launch(ptx, "kernel", grid=4, block=128, args=[x, y, n])
"""

from .faults import At, EmulationError, Fault
from .launch import Order, ReadOnly, Statistics, launch, orders, readonly
from .tensormap import encode_tiled

__all__ = [
    "At", "EmulationError", "Fault", "Order", "ReadOnly", "Statistics", "encode_tiled", "launch", "orders", "readonly"
]  # fmt: skip

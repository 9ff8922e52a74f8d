"""The wgmma schedule: warp-specialised kernels for Hopper."""

from .schedule import WGMMA

__all__ = ["WGMMA"]

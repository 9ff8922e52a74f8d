"""The schedule of the CPU target: what its kernels choose, and what its templates print."""

from .schedule import CPU

__all__ = ["CPU"]

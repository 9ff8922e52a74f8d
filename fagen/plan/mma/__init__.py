"""The mma schedule: mma.sync on Turing, Ampere, Ada and small Blackwell."""

from .schedule import MMA

__all__ = ["MMA"]

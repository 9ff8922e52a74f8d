"""What ../program.py says, of the CPU kernels."""

from ..program import run
from .mutants import PROGRAM

run(PROGRAM)

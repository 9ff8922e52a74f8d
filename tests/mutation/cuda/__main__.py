"""What ../program.py says, of the CUDA kernels."""

from ..program import run
from .mutants import PROGRAM

run(PROGRAM)

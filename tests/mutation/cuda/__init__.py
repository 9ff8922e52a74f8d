"""Mutants of the kernels for CUDA cards, tried in the emulator."""

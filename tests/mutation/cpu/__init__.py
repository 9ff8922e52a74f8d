"""Mutants of the kernels for CPUs; a run of all takes an hour or so on two cores."""

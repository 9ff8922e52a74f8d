"""Specs: YAML files that say which attention kernels to build.

    spec = load("specs/cpu.yaml")     # all mistakes at once, each with its place
    variants = expand(spec)           # one Variant for each kernel

Reads no more than the file it is given, writes and runs nothing.
"""

from .expand import MAX_PARAMS, MAX_VARIANTS, expand
from .load import load, load_text
from .model import Entry, Spec
from .schema import schema

__all__ = ["MAX_PARAMS", "MAX_VARIANTS", "Entry", "Spec", "expand", "load", "load_text", "schema"]

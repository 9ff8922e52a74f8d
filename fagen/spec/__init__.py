"""Specs: YAML files that say which attention kernels to build.

    spec = load("specs/cpu.yaml")     # all mistakes at once, each with its place
    variants = expand(spec)           # one Variant for each kernel

Reads no more than the file it is given, writes and runs nothing.
"""

from fagen.spec.expand import MAX_PARAMS, MAX_VARIANTS, expand
from fagen.spec.load import load, load_text
from fagen.spec.model import Entry, Spec
from fagen.spec.schema import schema

__all__ = ["MAX_PARAMS", "MAX_VARIANTS", "Entry", "Spec", "expand", "load", "load_text", "schema"]

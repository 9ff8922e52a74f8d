"""Fixtures that several files share."""

from tuned import card, compiler, spec

__all__ = ["card", "compiler", "spec"]

"""From a spec file to a published module: compile what the cache lacks, link, check, swap in."""

from .pipeline import BuildResult, build

__all__ = ["BuildResult", "build"]

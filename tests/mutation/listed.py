r"""The mutants that compute what the kernel does, as cpu/equivalent/*.toml and cuda/equivalent/*.toml list them.

    [[equivalent]]
    reason = "Why they compute the same."
    mutants = ['forward:rich: attend: before => after']         # by their keys
    patterns = ['cpu/pack\.h: pack_rows: .*words < .*']         # regular expressions, each for whole keys

A mutant named by its key must survive. One that a pattern matches may be found as well: a pattern is for a group with
one reason, of which some break what others leave whole, as when memory is larger than needed or too small.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Listed:
    """The reasons, by mutants' keys and by patterns."""

    keys: dict[str, str]
    patterns: dict[str, str]

    def named(self, key: str) -> bool:
        """Whether a mutant is listed by its key, so that it must survive."""
        return key in self.keys

    def reason(self, key: str) -> str | None:
        """Why a mutant may survive; None if it may not."""
        if key in self.keys:
            return self.keys[key]
        return next((reason for pattern, reason in self.patterns.items() if re.fullmatch(pattern, key)), None)

    def matching_nothing(self, every: Iterable[str]) -> list[str]:
        """Keys and patterns that match none of these mutants."""
        known = set(every)
        return sorted(self.keys.keys() - known) + sorted(
            pattern for pattern in self.patterns if not any(re.fullmatch(pattern, key) for key in known)
        )


def listed(folder: Path) -> Listed:
    """What the files of a folder list. Raises ValueError where one is listed twice or without a reason."""
    keys: dict[str, str] = {}
    patterns: dict[str, str] = {}
    count: Counter[str] = Counter()
    for path in sorted(folder.glob("*.toml")):
        for group in tomllib.loads(path.read_text())["equivalent"]:
            unknown = group.keys() - {"reason", "mutants", "patterns"}
            if unknown or not group.get("reason", "").strip():
                raise ValueError(f"{path.name}: a group has a reason, mutants and patterns: {group}")
            for names, found in (("mutants", keys), ("patterns", patterns)):
                count.update(group.get(names, ()))
                found.update((name, group["reason"]) for name in group.get(names, ()))
    twice = [name for name, number in count.items() if number > 1]
    if twice:
        raise ValueError("listed twice: " + "; ".join(twice))
    return Listed(keys, patterns)

"""What the kernels that are mutated have in common: a variant, and what the check asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fagen.runtime.check.cases import Case, Tiling, cases
from fagen.runtime.check.compare import Expected, expect
from fagen.runtime.check.inputs import Inputs, draw
from fagen.runtime.reference import trees
from fagen.runtime.variant import Variant


@dataclass(frozen=True)
class Checked(ABC):
    """A variant and its cases."""

    variant: Variant

    @property
    @abstractmethod
    def tiling(self) -> Tiling:
        """Its tiles."""

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """What the check has for it, the most telling first."""
        return cases(self.tiling)

    def drawn(self, case: Case) -> Inputs:
        """A case's inputs."""
        known = [tree for tree in trees(self.variant) if tree is not None]
        return draw(self.variant, known, case, 0)

    @lru_cache  # noqa: B019  a subject lives as long as the process
    def prepared(self, case: Case) -> tuple[Inputs, Expected]:
        """A case's inputs and what they should give: computed once, for all mutants."""
        inputs = self.drawn(case)
        return inputs, expect(self.variant, inputs, gradients=self.variant.backward)

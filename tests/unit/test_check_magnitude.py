"""How large the terms of a result are held to be: what allows a kernel its rounding, and a wrong one nothing."""

from __future__ import annotations

from dataclasses import replace

import torch

from fagen.runtime.check.cases import Case
from fagen.runtime.check.inputs import draw
from fagen.runtime.check.magnitude import Sizes
from fagen.runtime.reference import reference, trees
from fagen.runtime.variant import Expression, Param, Variant


def test_what_is_no_number_in_excluded_pairs_leaves_the_sizes_of_params() -> None:
    """A derivative that is NaN, and is multiplied by 0, must not make a size of 0: nothing would pass then."""
    gain = Param("gain", "f32", ("B", "H"), grad=True)
    variant = Variant(
        "v", 16, 16, "f32", mask=Expression("m", "kv < 5"), score=Expression("x", "s * gain[b, h]"), params=(gain,)
    )
    written = tuple(tree for tree in trees(variant) if tree is not None)
    sizes = []
    for poison in ("", "unseen"):
        given = draw(variant, written, replace(Case("c", 8, 12, 1, 2, 1), poison=poison), seed=3)
        o, lse = reference(variant, given.q, given.k, given.v, params=given.params)
        assert o.isfinite().all() and given.k.isnan().any() == bool(poison)
        sizes.append(Sizes(variant, given, o, lse, gradients=True).size("d_gain", torch.ones(1, 2)))
    torch.testing.assert_close(*sizes)

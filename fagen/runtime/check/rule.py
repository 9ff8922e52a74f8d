"""The rule every number of a kernel must pass.

For each row (the last dim of a tensor) the error against float64 may be twice that of a plain PyTorch computation
in the same dtype (the baseline), plus ``unit`` times the size of the terms that were added up to make the row: a
kernel may round as often as the baseline does, but not in other places or to fewer bits. The root mean square
over a row and its largest element are judged apart, so that neither one bad element nor a small shift of all of
them passes. Everything is written so that a NaN fails.

A row's *size* is not the row's own magnitude but that of its terms, added without cancelling: a row that cancels
to nothing (a gradient where one key takes all the weight) still carries their rounding. :mod:`.magnitude`
computes it in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# What one rounding of a term may cost: four times half a unit in the last place, for float32 32 times. Honest
# kernels need less than half of it in hundreds of checks (tests/unit/test_check_faults.py), and the faults that we
# know of are far above it.
UNITS = {"f32": 2.0**-19, "bf16": 2.0**-7, "f16": 2.0**-10}
# What may be lost beside that: instructions that multiply bfloat16 take products below its normal numbers for 0.
FLUSHED = {"f32": 0.0, "bf16": 8 * 2.0**-126, "f16": 0.0}


@dataclass(frozen=True)
class Deviation:
    """The worst place of one output: ``ratio`` is its error over what the rule allows, and at most 1 passes.

    ``measure`` says which clause it is: "rms" or "max" of a row, "nan" or "inf" (one where the other is not),
    "shape" (then ``index`` is empty). ``got`` and ``want`` are the values at ``index``.
    """

    output: str
    ratio: float
    measure: str = "max"
    index: tuple[int, ...] = ()
    got: float = 0.0
    want: float = 0.0
    allowed: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the rule holds; false when the ratio is NaN."""
        return self.ratio <= 1.0


def judge(output: str, got: Tensor, want: Tensor, base: Tensor, size: Tensor, dtype: str) -> Deviation:
    """Hold ``got`` to the rule.

    ``got`` is the kernel's tensor, ``want`` the float64 reference, ``base`` the baseline's tensor and ``size`` the
    float64 magnitude of the terms, all of one shape [..., row]; ``dtype`` is that of what was multiplied. NaN must be
    exactly where ``want`` has NaN, and infinities must be equal.
    """
    unit, flushed = UNITS[dtype], FLUSHED[dtype]
    if got.shape != want.shape:
        return Deviation(output, float("inf"), "shape")
    if want.numel() == 0:
        return Deviation(output, 0.0)
    rounded = want.to(got.dtype).double()
    got64 = got.double()
    for measure, wrong in (
        ("nan", got64.isnan() != want.isnan()),
        ("inf", (got64.isinf() | rounded.isinf()) & (got64 != rounded) & ~want.isnan()),
    ):
        if bool(wrong.any()):
            return _at(output, float("inf"), measure, int(wrong.flatten().int().argmax()), got64, want, 0.0)
    counted = want.isfinite() & rounded.isfinite()
    error = _where(counted, (got64 - want).abs())
    # Where the baseline itself is not finite it excuses nothing.
    base_error = _where(counted & base.isfinite(), (base.double() - want).abs())
    size = _where(counted, size)
    rms_allowed = 2.0 * _rms(base_error) + unit * _rms(size) + flushed
    max_allowed = 2.0 * base_error.amax(-1) + unit * size.amax(-1) + flushed
    rms_ratio = _ratio(_rms(error), rms_allowed)
    max_ratio = _ratio(error.amax(-1), max_allowed)
    rms_worst, max_worst = float(rms_ratio.max()), float(max_ratio.max())
    if max_worst >= rms_worst:
        worst, measure, ratio, allowed = max_worst, "max", max_ratio, max_allowed
    else:
        worst, measure, ratio, allowed = rms_worst, "rms", rms_ratio, rms_allowed
    row = int(ratio.flatten().argmax())
    column = int(error.reshape(-1, error.shape[-1])[row].argmax())
    return _at(output, worst, measure, row * error.shape[-1] + column, got64, want, float(allowed.flatten()[row]))


def _where(kept: Tensor, values: Tensor) -> Tensor:
    return torch.where(kept, values, torch.zeros_like(values))


def _rms(values: Tensor) -> Tensor:
    return values.square().mean(-1).sqrt()


def _ratio(error: Tensor, allowed: Tensor) -> Tensor:
    """error / allowed, 0 where there is no error, and inf where that is not a number."""
    ratio = torch.where(error == 0, torch.zeros_like(error), error / allowed)
    return torch.where(ratio.isnan(), torch.full_like(ratio, float("inf")), ratio)


def _at(output: str, ratio: float, measure: str, flat: int, got: Tensor, want: Tensor, allowed: float) -> Deviation:
    """The deviation at flat index ``flat`` of the tensors."""
    place = _place(flat, got.shape)
    return Deviation(output, ratio, measure, place, float(got[place]), float(want[place]), allowed)


def _place(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """The index of element ``flat`` in row-major order (torch's own unravel_index would import sympy)."""
    place = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        place.append(index)
    return tuple(reversed(place))

"""The rule: what passes, what fails, and where it points."""

import math

import pytest
import torch

from fagen.runtime.check.rule import UNITS, judge

UNIT = UNITS["f32"]


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def verdict(got, want, base=None, size=None, dtype="f32"):
    base = want if base is None else base
    size = torch.ones_like(want) if size is None else size
    return judge("o", got.float(), want, base.float(), size, dtype)


WANT = rows([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0])


def test_the_same_numbers_pass():
    assert verdict(WANT, WANT).ratio == 0.0


def test_an_error_within_the_unit_passes_and_beyond_fails():
    assert verdict(WANT + 0.9 * UNIT, WANT).passed
    assert not verdict(WANT + 1.3 * UNIT, WANT).passed


def test_twice_the_baseline_s_error_passes():
    base = WANT + 0.01
    assert verdict(WANT + 0.0199, WANT, base).passed
    assert not verdict(WANT + 0.0203, WANT, base).passed


def test_the_baseline_excuses_only_its_own_row():
    base = WANT.clone()
    base[0] += 0.01
    assert not verdict(WANT + rows([0.0] * 4, [0.01] * 4), WANT, base).passed


def test_one_bad_element_fails_though_its_row_is_good_on_average():
    base = WANT + rows([0.01, -0.01, 0.01, -0.01] * 2).view(2, 4)
    got = WANT + rows([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.03, 0.0])
    deviation = verdict(got, WANT, base)
    assert not deviation.passed
    assert (deviation.measure, deviation.index) == ("max", (1, 2))


def test_a_small_shift_of_a_whole_row_fails_though_no_element_stands_out():
    base = WANT + rows([0.01, 0.0, 0.0, 0.0] * 2).view(2, 4)
    deviation = verdict(WANT + rows([0.015] * 4, [0.0] * 4), WANT, base)
    assert not deviation.passed
    assert deviation.measure == "rms"
    assert deviation.index[0] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_fails(value):
    got = WANT.clone()
    got[1, 3] = value
    deviation = verdict(got, WANT)
    assert deviation.ratio == math.inf
    assert deviation.index == (1, 3)


def test_nan_must_be_exactly_where_the_reference_has_it():
    want = WANT.clone()
    want[0, 1] = math.nan
    assert verdict(want, want).passed
    assert not verdict(WANT, want).passed
    want[1, 1] = math.nan
    assert not verdict(torch.where(WANT == 2.0, torch.nan, WANT), want).passed


def test_infinities_must_be_equal():
    want = WANT.clone()
    want[0, 1] = -math.inf
    assert verdict(want, want).passed
    assert not verdict(torch.where(want.isinf(), math.inf, want), want).passed
    assert not verdict(torch.where(want.isinf(), -1e30, want), want).passed
    assert not verdict(torch.where(want.isinf(), math.nan, want), want).passed


def test_a_value_beyond_the_dtype_s_range_rounds_to_infinity():
    want = rows([1e6, 1.0])
    got = torch.tensor([[math.inf, 1.0]], dtype=torch.float16)
    assert judge("o", got, want, got, torch.ones_like(want), "f16").passed
    finite = torch.tensor([[65504.0, 1.0]], dtype=torch.float16)
    assert not judge("o", finite, want, finite, torch.ones_like(want), "f16").passed


def test_denormal_products_of_bf16_alone_may_be_lost():
    want, nothing = rows([2.0**-127, 2.0**-126]), rows([0.0, 0.0])
    assert verdict(nothing, want, size=want, dtype="bf16").passed
    for dtype in ("f32", "f16"):
        assert not verdict(nothing, want, size=want, dtype=dtype).passed
    assert not verdict(nothing, want * 16, size=want * 16, dtype="bf16").passed


def test_a_baseline_that_is_not_finite_excuses_nothing():
    base = WANT.clone()
    base[0, 0] = math.inf
    assert not verdict(WANT + 0.1, WANT, base).passed


def test_a_size_that_is_not_a_number_fails():
    assert not verdict(WANT + 1e-3, WANT, size=torch.full_like(WANT, math.nan)).passed


def test_another_shape_fails():
    assert verdict(WANT[:1], WANT).measure == "shape"


def test_no_elements_pass():
    assert verdict(torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64)).passed

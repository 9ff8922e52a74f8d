"""Which ways of writing an expression are one, and which are not."""

from __future__ import annotations

import itertools
import time

import pytest

from fagen.runtime.language import canonical, parse
from fagen.runtime.variant import Param

PARAMS = {
    param.name: param
    for param in (
        Param("slope", "f32", ("H",)),
        Param("doc", "i32", ("B", "n")),
        Param("glob", "bool", ("B", "n")),
        Param("on", "bool", ()),
        Param("n", "i32", ()),
        Param("f", "f32", ("B", "H", "n")),
        Param("tree", "bool", ("B", "Sq", "Sq")),
    )
}


def form(text: str, expect: str = "mask") -> str:
    return canonical(parse(text, params=PARAMS, expect=expect))


SAME_MASK = [
    ("kv <= q", "q - kv >= 0", "not (kv > q)", "q + 1 > kv", "causal", "2*kv <= 2*q + 1", "~(q < kv)", "-q <= -kv"),
    ("kv <= q", "kv <= q and kv <= q", "kv <= q or (kv <= q and on)", "kv <= q and (kv <= q or on)", "kv - 1 < q"),
    (
        "kv <= q",
        "kv <= q and kv <= q + 5",
        "kv <= q or kv < q",
        "kv <= q if true else on",
        "kv <= q and not kv > q",
    ),
    ("abs(q - kv) <= 5", "-5 <= q - kv <= 5", "window(5, 5)", "abs(kv - q) < 6", "not abs(q - kv) > 5"),
    ("0 <= q - kv < 64", "causal and q - kv < 64", "window(63, 0)", "not (kv > q or q - kv > 63)"),
    ("document(doc)", "doc[b, kv] == doc[b, q]", "doc[b, q] - doc[b, kv] == 0", "not doc[b, q] != doc[b, kv]"),
    ("q != kv", "not q == kv", "abs(q - kv) > 0", "q < kv or q > kv", "3*q != 3*kv"),
    ("max(q, kv) < 5", "q < 5 and kv < 5", "max(kv, q) <= 4", "not (min(4 - q, 4 - kv) < 0)"),
    ("min(q, kv, n) < 5", "q < 5 or kv < 5 or n < 5", "min(n, min(kv, q)) < 5"),
    ("(q + 64) // 64 == kv // 64 + 1", "q // 64 == kv // 64", "(kv // 64) * 2 == q // 64 * 2"),
    ("(q + 130) % 64 < 3", "(q + 2) % 64 < 3", "(q + 64*kv - 62) % 64 <= 2"),
    ("(q - kv) ** 2 <= 9", "(kv - q) * (kv - q) < 10", "q*q - 2*q*kv + kv*kv <= 9"),
    ("on or causal", "causal or on", "not (not on and kv > q)", "true if on else causal", "causal if not on else true"),
    ("glob[b, q] == on", "on == glob[b, q]", "not on == (not glob[b, q])", "(not on) != glob[b, q]"),
    ("true", "q == q", "q < kv or q >= kv", "on or not on", "on == on", "2*q != 2*kv + 1", "abs(q) >= 0 or q == q"),
    ("false", "q < q", "q < kv and kv < q", "on and not on", "on != on", "2*q == 2*kv + 1", "abs(q) < 0", "not q == q"),
    ("on and q < kv", "on and (q < kv or not on)", "on and (not on or kv > q) and on"),
    ("q < kv and q < 3", "q < 3 and q < kv and (q < 5 or on)", "not (q >= kv or 3 <= q)"),
    ("slope[h] < 0.5", "0.5 > slope[h]", "not not slope[h] < 0.5"),
    ("slope[h] == 3", "3 == slope[h]", "not 3.0 != slope[h]"),
    ("tree[b, i, kv - (kv_len - q_len)]", "tree[b, i, kv + q_len - kv_len]"),
    ("(q if on else kv) < 3", "(kv if not on else q) < 3"),
    ("on if q < kv else glob[b, q]", "glob[b, q] if kv <= q else on"),
]

SAME_SCORE = [
    ("softcap(50)", "50*tanh(s/50)", "tanh(s/50)*50", "50.0*tanh(s/50.0)", "-(-50)*tanh(s/50)"),
    ("alibi(slope)", "s - slope[h]*abs(kv-q)", "s + -slope[h]*abs(kv-q)", "-slope[h]*abs(q-kv) + s"),
    ("alibi(slope)", "s - abs(q-kv)*slope[h]", "s + abs(q-kv)*-slope[h]", "s - (-slope[h])*(-abs(q-kv))"),
    ("s + slope[h]*(kv - q)", "s - slope[h]*(q - kv)", "s - (q - kv)*slope[h]", "s - -slope[h]*(kv - q)"),
    ("s + 0.5", "0.5 + s", "s - -0.5", "--s + 0.5"),
    ("-s - 1", "-1 - s", "-1 + -s"),
    ("abs(-s)", "abs(s)", "abs(--s)"),
    ("s if causal else 0", "0 if not causal else s", "s if q >= kv else 0.0"),
    ("s * max(q, kv)", "max(kv, q) * s", "s * max(max(q, kv), q)"),
    ("s + f[b,h,q+1-1]", "f[b,h,q] + s"),
    ("s", "+s", "s if true else 0", "-(-s)"),
    ("s / -2", "-(s / 2)", "-s / 2"),
]


@pytest.mark.parametrize("family", SAME_MASK, ids=lambda family: family[0])
def test_one_mask(family: tuple[str, ...]) -> None:
    assert {text: form(text) for text in family} == dict.fromkeys(family, form(family[0]))


@pytest.mark.parametrize("family", SAME_SCORE, ids=lambda family: family[0])
def test_one_score(family: tuple[str, ...]) -> None:
    assert {text: form(text, "score") for text in family} == dict.fromkeys(family, form(family[0], "score"))


def test_families_differ() -> None:
    for families, expect in ((SAME_MASK, "mask"), (SAME_SCORE, "score")):
        first = dict.fromkeys(family[0] for family in families)
        for one, other in itertools.combinations(first, 2):
            assert form(one, expect) != form(other, expect), (one, other)


DIFFERENT_SCORES = [
    ("s + (slope[h] + b)", "s + slope[h] + b"),  # rounds otherwise
    ("s - s", "0.0"),
    ("0 * s", "0.0"),
    ("s / 2", "s * 0.5"),
    ("s * 2", "s + s"),
    ("s ** 2", "s * s"),
    ("min(s, 1)", "min(1, s)"),  # the gradient of a tie
    ("s / (q - kv)", "-s / (kv - q)"),  # infinities of other sign at q == kv
    ("(q - kv) ** -1.0 + s", "s - (kv - q) ** -1.0"),
    ("sqrt(s * (q - kv))", "sqrt(-s * (kv - q))"),
    ("q / 2 + s", "q // 2 + s"),
    ("q // 2 + s", "q // 2.0 + s"),
    ("-(s + 1)", "1 - s"),
    ("tanh(-s)", "-tanh(s)"),  # no function is known to be odd to the last bit
]


@pytest.mark.parametrize("a, b", DIFFERENT_SCORES)
def test_nothing_that_rounding_could_tell_apart_is_one(a: str, b: str) -> None:
    assert form(a, "score") != form(b, "score")


@pytest.mark.parametrize(
    "a, b",
    [
        ("not slope[h] < 0.5", "slope[h] >= 0.5"),  # NaN
        ("slope[h] == slope[h]", "true"),  # NaN
        ("slope[h] + 1 < slope[h] + 2", "slope[h] < slope[h] + 1"),  # rounding
        ("q // 2 * 2 <= kv", "q <= kv"),
        ("q < kv", "i < j"),
        ("h < 3", "hk < 3"),
        ("kv <= q", "kv < q"),
        ("window(5, 0)", "window(6, 0)"),
        ("window(5, 0)", "window(0, 5)"),
    ],
)
def test_masks_that_differ(a: str, b: str) -> None:
    assert form(a) != form(b)


def test_form_is_readable() -> None:
    assert form("causal and q - kv < 4096") == "kv - q >= -4095 and kv - q <= 0"
    assert form("not on") == "not on"
    assert form("q < 3 or q == 5 or q > 9") == "q <= 2 or q == 5 or q >= 10"
    assert form("q != 3 and not 5 < q < 9") == "q <= 2 or q >= 4 and q <= 5 or q >= 9"
    assert form("q != 3 and on and q != 4 + 2") == "on and q != 3 and q != 6"


def test_expressions_made_to_blow_up_are_quick() -> None:
    nested, products, conditions = "q - kv", "q + kv + b + h + 1", "on"
    for k in range(14):
        nested = f"abs({nested} - {k})"
        conditions = f"({conditions} == (q < {k}))"
    products = f"({products}) ** 60 < ({products}) ** 60 + 1"
    maxima = " + ".join(f"max(q, kv + {k}, doc[b, {k}])" for k in range(12))
    begun = time.perf_counter()
    for text in (f"{nested} < 3", products, f"{maxima} < 3", f"{maxima} == 4", conditions):
        again = parse(form(text), params=PARAMS, expect="mask")
        assert again.type == "bool"
    assert time.perf_counter() - begun < 5

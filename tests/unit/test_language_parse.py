"""What the language takes, as what type and tree."""

from __future__ import annotations

import pytest
from language_names import PARAMS, read

from fagen.runtime.language import RESERVED, Define, parse, reads, unparse
from fagen.runtime.language.nodes import Binary, Call, Compare, Logic, Name, Not, Number, Read, children, with_children

MASKS = {
    "causal": "kv <= q",
    "kv<=q": "kv <= q",
    "  causal \n and\tq - kv < 4096 ": "kv <= q and q - kv < 4096",
    "0 <= q - kv < W": "0 <= q - kv and q - kv < 64",
    "q == kv != i": "q == kv and kv != i",
    "causal & (q - kv < 3) | on": "kv <= q and q - kv < 3 or on",
    "(q < 3) & (kv < 2) & on": "q < 3 and kv < 2 and on",
    "~causal": "not kv <= q",
    "not causal or not on": "not kv <= q or not on",
    "q < 3 and (kv < 2 or on)": "q < 3 and (kv < 2 or on)",
    "(q < 3 and kv < 2) and on": "q < 3 and kv < 2 and on",
    "window(2, 0)": "q - kv <= 2 and kv - q <= 0",
    "window(left=-1, right=0)": "kv - q <= 0",
    "window(0, None)": "q - kv <= 0",
    "window(None, -1)": "true",
    "window(W - 1, 0)": "q - kv <= 63 and kv - q <= 0",
    "window(width, 0)": "(width < 0 or q - kv <= width) and kv - q <= 0",
    "prefix(prefix)": "kv <= q or kv < prefix[b]",
    "prefix(width)": "kv <= q or kv < width",
    "prefix(7)": "kv <= q or kv < 7",
    "kv < prefix[b]": "kv < prefix[b]",
    "document(doc)": "doc[b, q] == doc[b, kv]",
    "document(line)": "line[q] == line[kv]",
    "glob[b, q] == glob[b, kv]": "glob[b, q] == glob[b, kv]",
    "tree[b, i, kv - (kv_len - q_len)]": "tree[b, i, kv - (kv_len - q_len)]",
    "abs(q//W - kv//W) <= R": "abs(q // 64 - kv // 64) <= 3",
    "-q**2 < (-q)**2": "-q ** 2 < (-q) ** 2",
    "2**10 - 7//2 * 3 > kv % -3": "1015 > kv % -3",
    "-7 // 2 == -4": "-4 == -4",
    "eps < b0": "-0.5 < b0",
    "wide": "true",
    "True and false": "true and false",
    "kv <= q if on else kv < 3": "kv <= q if on else kv < 3",
    "on if on else (on if on else on)": "on if on else on if on else on",
    "line[line[q] + 1] > 0": "line[line[q] + 1] > 0",
    "table[3, kv] > 1e-3": "table[3, kv] > 0.001",
    "q < 1_000": "q < 1000",
    "local(W)": "kv <= q and q - kv < 64",
    "near(q, 5) or near(n=2, a=i)": "abs(q - kv) <= 5 or abs(i - kv) <= 2",
    "bare": "kv % 64 == 0",
    "bare()": "kv % 64 == 0",
    "same(doc)": "doc[b, q] == doc[b, kv]",
    "mine(kv) > 0": "kv * 2 + kv > 0",
    "outer(kv + 1) > 0": "(kv + 1) * 2 + kv + q > 0",
    "twice(twice(q)) < 8": "q + q + (q + q) < 8",
    "((((q))) < (3))": "q < 3",
    "bias[b, h, i, j] > 0": "bias[b, h, i, j] > 0",
    "slope[h + 0] < 1 or slope[0] < 1": "slope[h + 0] < 1 or slope[0] < 1",
}


@pytest.mark.parametrize("text", MASKS)
def test_masks(text: str) -> None:
    node = read(text)
    assert node.type == "bool"
    assert unparse(node) == MASKS[text]
    assert parse(MASKS[text], params=PARAMS, expect="mask") == node


SCORES = {
    "s": ("s", "real"),
    "softcap(50)": ("50 * tanh(s / 50)", "real"),
    "softcap(b0) + 1": ("b0 * tanh(s / b0) + 1", "real"),
    "alibi(slope)": ("s - slope[h] * abs(q - kv)", "real"),
    "alibi(slopes)": ("s - slopes[b, h] * abs(q - kv)", "real"),
    "alibi(0.5)": ("s - 0.5 * abs(q - kv)", "real"),
    "alibi(b0)": ("s - b0 * abs(q - kv)", "real"),
    "alibi(2.0 ** (-h / 2))": ("s - 2.0 ** (-h / 2) * abs(q - kv)", "real"),
    "s + rel[h, q - kv + kv_len]": ("s + rel[h, q - kv + kv_len]", "real"),
    "min(s, 1, 2, q)": ("min(min(min(s, 1), 2), q)", "real"),
    "max(min(3, 7), q)": ("max(3, q)", "int"),
    "floor(s) + floor(q)": ("floor(s) + floor(q)", "real"),
    "q / 2": ("q / 2", "real"),
    "q // 2": ("q // 2", "int"),
    "q % 2.0": ("q % 2.0", "real"),
    "s if causal else 0": ("s if kv <= q else 0", "real"),
    "2.0 ** -1 * s": ("2.0 ** -1 * s", "real"),
    "s ** 2 ** 3": ("s ** 8", "real"),
    "(s ** 2) ** 3": ("(s ** 2) ** 3", "real"),
    "-0.0 + s": ("-0.0 + s", "real"),
    "s - -1": ("s - -1", "real"),
    "s - (1 - s)": ("s - (1 - s)", "real"),
    "s - 1 - s": ("s - 1 - s", "real"),
    "s * (q / 3)": ("s * (q / 3)", "real"),
    "+s": ("s", "real"),
    "softplus(s) - log2(exp2(sigmoid(sin(cos(sqrt(abs(s)))))))": (
        "softplus(s) - log2(exp2(sigmoid(sin(cos(sqrt(abs(s)))))))",
        "real",
    ),
}


@pytest.mark.parametrize("text", SCORES)
def test_scores(text: str) -> None:
    written, kind = SCORES[text]
    node = read(text, "score")
    assert (unparse(node), node.type) == (written, kind)
    assert parse(written, params=PARAMS, expect="score") == node


@pytest.mark.parametrize("text, written", [("1/16", "1 / 16"), ("R * 2", "6"), ("eps", "-0.5"), ("sqrt(2)", "sqrt(2)")])
def test_constants(text: str, written: str) -> None:
    assert unparse(read(text, "number")) == written


def test_types_are_part_of_a_number() -> None:
    assert len({Number(1), Number(1.0), Number(True)}) == 3
    assert Number(1) != Number(1.0)
    assert read("s + 1", "score") != read("s + 1.0", "score")


def test_tree_of_a_mask() -> None:
    q, kv = Name("q"), Name("kv")
    assert read("causal and not doc[b, q] < 3 * q") == Logic(
        "and",
        (
            Compare("<=", kv, q),
            Not(Compare("<", Read("doc", (Name("b"), q), "int"), Binary("*", Number(3), q))),
        ),
    )
    assert read("max(s, b0)", "score") == Call("max", (Name("s", "real"), Name("b0", "real")))


def test_children_and_back() -> None:
    for text in [*MASKS]:
        node = read(text)
        assert with_children(node, children(node)) == node


def test_reads_in_order_of_use() -> None:
    assert reads(read("doc[b, line[q]] < width and on and doc[b, kv] > 0")) == ("doc", "line", "width", "on")
    assert reads(read("causal")) == ()


def test_params_may_share_names_with_macros_that_take_arguments() -> None:
    assert "prefix" not in RESERVED
    assert {"s", "q", "kv", "tanh", "causal", "true", "None"} <= RESERVED


def test_a_macro_means_the_same_wherever_it_is_used() -> None:
    """`outer` binds x, `mine` binds q: neither sees the other's, and the argument keeps the caller's meaning."""
    assert unparse(read("outer(q) > 0")) == "q * 2 + kv + q > 0"
    inner = {"f": Define(("kv",), "g() < kv"), "g": Define((), "kv")}
    assert unparse(parse("f(q)", defines=inner, expect="mask")) == "kv < q"

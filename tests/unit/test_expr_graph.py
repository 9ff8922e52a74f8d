"""The graph: shared nodes, exact folding, and no simplification that could change a float."""

from __future__ import annotations

import math

import pytest
from expr_grid import variant_of
from expr_random import PARAMS
from hypothesis import given
from hypothesis import strategies as st

from fagen.errors import PlanError
from fagen.expr.affine import as_sum
from fagen.expr.emit import lowered
from fagen.expr.graph import Graph, Node, below, round_f32
from fagen.expr.literals import float_literal, int_literal
from fagen.expr.sizes import Sizes
from fagen.runtime.language import LanguageError


def score(text: str) -> tuple[Graph, Node]:
    graph = Graph()
    return graph, lowered(graph, variant_of(PARAMS, score=text))[0]


def mask(text: str) -> tuple[Graph, Node]:
    graph = Graph()
    node = lowered(graph, variant_of(PARAMS, mask=text))[1]
    assert node is not None
    return graph, node


def test_equal_expressions_are_one_node() -> None:
    graph, node = score("tanh(s) * tanh(s) + slope[h] * slope[h]")
    names = [part.op for part in below((node,))]
    assert names.count("tanh") == 1
    assert names.count("read") == 1


def test_constants_that_compare_equal_in_python_stay_apart() -> None:
    graph = Graph()
    nodes = [graph.integer(1), graph.real(1.0), graph.truth(True), graph.real(0.0), graph.real(-0.0), graph.integer(0)]
    assert len({id(node) for node in nodes}) == len(nodes)


@pytest.mark.parametrize(
    "text",
    ["s + 1e8 - 1e8", "0 * s", "s - s", "s / s", "s + 0.0", "(s + 0.1) + 0.2", "s * 0.0", "0.0 - s", "s * 2 / 2"],
)
def test_real_arithmetic_is_left_as_written(text: str) -> None:
    _, node = score(text)
    operations = [part.op for part in below((node,)) if part.op in ("add", "sub", "mul", "div")]
    assert len(operations) == sum(text.count(sign) for sign in ("+ ", "* ", "/ ", " - "))


@pytest.mark.parametrize(
    "text", ["s * 1", "1 * s", "s / 1", "s - 0.0", "--s", "min(s, s)", "s if causal or true else 2"]
)
def test_identities_that_hold_for_every_float_are_used(text: str) -> None:
    graph, node = score(text)
    assert node is graph.name("s")


@pytest.mark.parametrize(
    ("text", "value"),
    [("kv * 0", 0), ("7 // -2", -4), ("-7 % 3", 2), ("kv - kv", 0), ("kv // 1 - kv", 0), ("2 ** 10", 1024)],
)
def test_integers_fold_exactly(text: str, value: int) -> None:
    graph, node = score(f"s + ({text})")
    assert node is graph.add(graph.name("s"), graph.real(float(value)))


def test_real_constants_fold_as_float32_does() -> None:
    graph, node = score("s + 1 / 3")
    assert node.args[1].value == round_f32(1 / 3)
    graph, node = score("s * (0.1 + 0.2)")
    assert node.args[1].value == round_f32(round_f32(0.1) + round_f32(0.2))


def test_not_less_is_not_greater_or_equal_among_reals() -> None:
    graph, node = mask("not (f[b, h, kv] < t)")
    assert node.op == "not"
    graph, node = mask("not (kv < q)")
    assert node is graph.compare("le", graph.name("q"), graph.name("kv"))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("kv < 3.5", "kv < 4"),
        ("kv >= 2.5", "kv >= 3"),
        ("kv <= 16777217.0", "kv <= 16777216"),
        ("kv == 4.0", "kv == 4"),
    ],
)
def test_an_integer_against_a_real_constant_is_compared_exactly(text: str, same: str) -> None:
    graph, node = mask(text)
    assert node is lowered(graph, variant_of(PARAMS, mask=same))[1]


@given(st.floats(width=32))
def test_float_literals_read_back_exactly(value: float) -> None:
    text = float_literal(value)
    if math.isnan(value):
        assert text == "kNan"
    elif math.isinf(value):
        assert text.removeprefix("-") == "kInfinity" and text.startswith("-") == (value < 0)
    else:
        assert text.endswith("f") and ("." in text or "e" in text)
        found = round_f32(float(text[:-1]))
        assert repr(found) == repr(value)


def test_literals_people_would_write() -> None:
    assert [float_literal(round_f32(x)) for x in (50.0, 0.1, -0.0, 1e-5, 3e38)] == [
        "50.0f",
        "0.1f",
        "-0.0f",
        "1e-05f",
        "3e+38f",
    ]
    assert int_literal(-5) == "-5"
    assert int_literal(2**31) == "int64_t{2147483648}"
    assert int_literal(-(2**63)) == "(int64_t{-9223372036854775807} - 1)"
    with pytest.raises(PlanError, match="64 bits"):
        int_literal(2**63)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("q - kv + kv_len", 32),
        ("q * 4", 32),
        ("q * kv", 64),
        ("ids[b, q]", 32),
        ("ids[b, q] - ids[b, kv]", 64),
        ("(q * kv) % 7", 64),
        ("ids64[b, kv]", 64),
        ("ids[b, ids64[b, q]]", 32),
    ],
)
def test_integers_are_as_wide_as_their_values_need(text: str, bits: int) -> None:
    graph, node = score(f"s + ({text})")
    (operand,) = node.args[1].args
    assert Sizes(PARAMS).bits(operand) == bits


_names = st.sampled_from(["q", "kv", "b", "c", "ids[b, q]", "3", "-4", "2147483647"])


def _grown(below_: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(below_, st.sampled_from(["+", "-", "*", "//", "%"]), below_).map(" ".join)
    return pair.map("({})".format) | st.tuples(st.sampled_from(["min", "max"]), below_, below_).map(
        lambda x: f"{x[0]}({x[1]}, {x[2]})"
    )


@given(
    st.recursive(_names, _grown, max_leaves=6), st.integers(-9, 9), st.integers(0, 9), st.integers(-(2**31), 2**31 - 1)
)
def test_ranges_hold_every_value(text: str, q: int, kv: int, other: int) -> None:
    try:
        graph, node = score(f"s + ({text})")
    except LanguageError:  # a division by a constant 0, or a constant past 64 bits
        return
    if node.op == "name" or node.args[1].is_const:
        return
    (integer,) = node.args[1].args
    lo, hi = Sizes(PARAMS).range(integer)
    names = {"q": q, "kv": kv, "b": abs(q)}
    done: dict[Node, int] = {}
    for part in below((integer,)):
        if part.op in ("name", "read"):
            done[part] = names.get(str(part.value), other)
        elif part.op == "const":
            done[part] = part.integer
        else:
            a, b = (done[part.args[0]], done[part.args[-1]])
            done[part] = {
                "neg": lambda a=a, b=b: -a,
                "add": lambda a=a, b=b: a + b,
                "sub": lambda a=a, b=b: a - b,
                "mul": lambda a=a, b=b: a * b,
                "floordiv": lambda a=a, b=b: a // b if b else 0,
                "mod": lambda a=a, b=b: a % b if b else 0,
                "min": lambda a=a, b=b: min(a, b),
                "max": lambda a=a, b=b: max(a, b),
            }[part.op]()
    assert lo <= done[integer] <= hi
    total = as_sum(integer)
    assert total.constant + sum(factor * done[atom] for atom, factor in total.terms) == done[integer]

"""What holds of every expression: it is read back from its text, and its canonical form is the same function."""

from __future__ import annotations

import math

import pytest
from expressions import PARAMS, masks, points, scores, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fagen.runtime.language import FUNCTIONS, LanguageError, Node, canonical, mutants, parse, reads, unparse, walk

POINTS = points()
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def same(a: object, b: object) -> bool:
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))  # 0.0 == -0.0
    return a is b if isinstance(a, bool) else a == b


def table(node: Node) -> list[object]:
    return [value(node, point) for point in POINTS]


def read(text: str, like: Node) -> Node:
    return parse(text, params=PARAMS, expect="mask" if like.type == "bool" else "score")


@quick
@given(masks() | scores())
def test_text_reads_back(node: Node) -> None:
    try:
        again = read(unparse(node), node)
    except LanguageError as error:  # only past the size limits
        assert "deep" in str(error) or "terms" in str(error)
        return
    assert again == node
    assert hash(again) == hash(node)
    assert unparse(again) == unparse(node)


@quick
@given(masks(4) | masks(2))
def test_canonical_mask_is_the_same_function(node: Node) -> None:
    text = canonical(node)
    again = read(text, node)
    assert table(again) == table(node), text


@quick
@given(scores(3))
def test_canonical_score_is_the_same_function(node: Node) -> None:
    text = canonical(node)
    again = read(text, node)
    assert all(map(same, table(again), table(node))), text


@quick
@given(masks(3) | scores(3))
def test_canonical_form_is_its_own(node: Node) -> None:
    text = canonical(node)
    assert canonical(read(text, node)) == text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(masks(2) | scores(2))
def test_mutants_are_expressions_of_their_own(node: Node) -> None:
    found = mutants(node)
    texts = [canonical(node), *(canonical(mutant) for _, mutant in found)]
    assert len(set(texts)) == len(texts)
    for description, mutant in found:
        assert mutant.type in ((node.type,) if node.type == "bool" else ("int", "real"))
        assert read(unparse(mutant), node) == mutant, description


@quick
@given(masks(3))
def test_negation_twice_is_none(node: Node) -> None:
    assert canonical(read(f"not not ({unparse(node)})", node)) == canonical(node)


@quick
@given(masks(2), masks(2))
def test_order_and_repetition_do_not_matter(a: Node, b: Node) -> None:
    x, y = unparse(a), unparse(b)
    for word in ("and", "or"):
        assert canonical(read(f"({x}) {word} ({y})", a)) == canonical(read(f"({y}) {word} ({x}) {word} ({y})", a))
    assert canonical(read(f"not (({x}) or ({y}))", a)) == canonical(read(f"not ({x}) and not ({y})", a))


@quick
@given(masks(3) | scores(3))
def test_reads_names_every_param_once(node: Node) -> None:
    found = reads(node)
    assert len(set(found)) == len(found)
    text = unparse(node)
    needed = {name: PARAMS[name] for name in found}
    assert parse(text, params=needed, expect="mask" if node.type == "bool" else "score") == node
    for name in found:
        with pytest.raises(LanguageError):
            parse(text, params={k: p for k, p in needed.items() if k != name}, expect="score")
    assert sum(1 for _ in walk(node)) >= len(found)


words = st.sampled_from(
    "( ) [ ] , + - * / // % ** < <= > >= == != & | ~ and or not if else is in lambda = : . ; ' \" # \\ \n "
    "causal window prefix document softcap alibi None True true s b h q kv q_len ids slope on at 0 1 2.5 1e9 9 ' ' x "
    "\u00e9 \u2264 @ ! ^ { } $ ? ` :=".split(" ")
    + list(FUNCTIONS)
)


@settings(max_examples=800, deadline=None)
@given(st.lists(words, max_size=14).map(" ".join) | st.text(max_size=20), st.sampled_from(["mask", "score", "number"]))
def test_any_text_is_an_expression_or_a_language_error(text: str, expect: str) -> None:
    try:
        node = parse(text, params=PARAMS, expect=expect)
    except LanguageError as error:
        assert 0 <= error.start <= error.end <= len(text)
        assert error.message and "\n" not in error.message
        assert str(error)
    else:
        assert read(unparse(node), node) == node

"""Whatever the text, loading it ends soon: in a Spec that expands, or in a SpecError with problems in place."""

from __future__ import annotations

import datetime
import string
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fagen.errors import SpecError
from fagen.resources import specs_dir
from fagen.spec import expand, load_text
from fagen.spec.schema import ParamKeys, SpecFile, VariantEntry

BUDGET = settings(
    max_examples=150,
    deadline=datetime.timedelta(seconds=2),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

READY = (specs_dir() / "cpu.yaml").read_text()


def loads_or_says_why(text: str) -> None:
    try:
        spec = load_text(text)
    except SpecError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert problem.path == "<spec>"
            assert problem.message.startswith("and ") or (problem.line is not None and problem.column is not None)
        return
    names = [variant.name for variant in expand(spec)]
    assert len({name.lower() for name in names}) == len(names)
    assert all(name.isidentifier() and name.isascii() for name in names)
    for variant in expand(spec):
        for expression in (variant.mask, variant.score):
            if expression is not None:
                assert expression.text.isprintable()
                assert expression.text.isascii()
                assert "\\" not in expression.text
                assert "*/" not in expression.text


@BUDGET
@given(st.text())
@example("")
@example("\ufeff")
@example("? ")
@example("- ")
@example("{")
@example("--- !!str\n...\n")
@example("*")
@example("&a [*a]")
def test_any_text(text: str) -> None:
    loads_or_says_why(text)


@BUDGET
@given(st.text("fagen: 1\n-[]{}&*!|>'\"%@`#,?<=~xyz()", max_size=200))
def test_text_of_yamls_own_characters(text: str) -> None:
    loads_or_says_why(text)
    loads_or_says_why("fagen: 1\nname: a\ntarget: cpu\nvariants:\n  - name: a\n    head_dim: 64\n    mask: " + text)


KEYS = st.sampled_from(
    [*SpecFile.model_fields, *VariantEntry.model_fields, *ParamKeys.model_fields, "q", "x", "near(w)"]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 200),
    st.integers(),
    st.floats(),
    st.text(string.printable, max_size=20),
    st.sampled_from(
        ["causal", "softcap(50)", "a{head_dim}", "{x}", "bf16", "f32", "cpu", "sm_90a", "H", "n", "s + x[h]"]
    ),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=40
)


@BUDGET
@given(TREES, st.booleans())
def test_any_tree(tree: Any, flow: bool) -> None:
    loads_or_says_why(yaml.safe_dump(tree, default_flow_style=flow))


VARIANT = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "a{head_dim}", "c{dtype}_{w}"])},
    optional={key: TREES | LEAVES for key in VariantEntry.model_fields if key != "name"},
)


@BUDGET
@given(st.lists(VARIANT, max_size=4), st.fixed_dictionaries({}, optional=dict.fromkeys(SpecFile.model_fields, TREES)))
def test_any_values_under_the_right_keys(variants: list[Any], top: dict[str, Any]) -> None:
    spec = {"fagen": 1, "name": "demo", "target": "cpu", "variants": variants}
    loads_or_says_why(yaml.safe_dump(spec))
    loads_or_says_why(yaml.safe_dump({**spec, **top}))


@BUDGET
@given(st.data())
def test_a_ready_spec_with_something_cut_or_put_in(data: st.DataObject) -> None:
    text = READY
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.sampled_from([0, 0, 1, 2, 10, 200]))
        put = data.draw(st.text(string.printable, max_size=5))
        text = text[:start] + put + text[start + cut :]
    loads_or_says_why(text)

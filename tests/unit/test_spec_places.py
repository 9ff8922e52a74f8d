"""Every message points at the character it is about, however YAML quotes, escapes or folds it."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from fagen.errors import SpecError
from fagen.resources import specs_dir
from fagen.spec import expand, load, load_text, yaml_tree
from fagen.spec.document import Mapping, Scalar
from fagen.spec.yaml_tree import parse

HEAD = "fagen: 1\nname: demo\ntarget: cpu\nvariants:\n  - name: a\n    head_dim: 64\n"


@pytest.mark.parametrize(
    "written",
    [
        "mask: causal and wrong > 3",
        "mask:    causal and wrong > 3   # why",
        "mask: 'causal and wrong > 3'",
        'mask: "causal and wrong > 3"',
        'mask: "   causal and wrong > 3"',
        r'mask: "\x63ausal \x61nd wrong > 3"',
        'mask: "causal \\\n      and wrong > 3"',
        "mask: causal\n      and\n      wrong > 3",
        "mask: 'causal\n      and\n\n      wrong > 3'",
        "mask: >\n      causal and\n      wrong > 3",
        "mask: >-\n      causal\n      and wrong\n      > 3",
        "mask: |\n      causal and wrong > 3",
        "mask: |2\n      causal and wrong > 3",
        "mask:\n      causal and wrong > 3",
        "mask: &m causal and wrong > 3\n  - {name: b, head_dim: 64, mask: *m}",
        "'mask': causal and wrong > 3",
        "score: s + min(\n      wrong, 3)",
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_unknown_name_is_pointed_at(written: str, line_end: str) -> None:
    text = (HEAD + "    " + written + "\n").replace("\n", line_end)
    with pytest.raises(SpecError) as caught:
        load_text(text)
    problem = next(p for p in caught.value.problems if "wrong" in p.message or "line break" in p.message)
    line = text.split(line_end)[(problem.line or 0) - 1]
    if "line break" in problem.message:  # '...\n\n...' folds to a line break, which is what is wrong there
        assert line.strip() in ("and", "")
        return
    assert line[(problem.column or 0) - 1 :].startswith("wrong")


def test_columns_count_characters_not_bytes() -> None:
    with pytest.raises(SpecError) as caught:
        load_text("# 𝄞é\nfagen: 1\n# é\n{}: 1\n".replace("{}", "𝄞é"))
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (2, 1)
    with pytest.raises(SpecError) as caught:
        load_text(
            HEAD.replace("a\n", '"𝄞é", mask: 1\n').replace("- name", "- {name").replace("    head_dim: 64\n", "    }")
        )
    place = caught.value.problems[0]
    assert (place.line, place.column) == (5, 12)


WORDS = st.lists(st.text(string.ascii_letters + string.digits + "_+-*/<>=()[],.'\"%&|~!?:#{}", min_size=1), min_size=1)


@given(words=WORDS, style=st.sampled_from([None, "'", '"', ">", "|"]), width=st.integers(5, 60), flow=st.booleans())
def test_characters_are_where_they_are_said_to_be(words: list[str], style: str | None, width: int, flow: bool) -> None:
    value = " ".join(words)
    text = yaml.dump({"k": [value]}, default_style=style, width=width, default_flow_style=flow, allow_unicode=True)
    document = parse(text, "x")
    root = document.root
    assert isinstance(root, Mapping)
    (item,) = root.entries["k"].items  # type: ignore[union-attr]
    assert isinstance(item, Scalar)
    assume(item.text == value)
    lines = text.split("\n")
    for offset, character in enumerate(value):
        place = document.place_in(item, offset)
        there = lines[place.line - 1][place.column - 1 :]
        if character == " ":
            continue
        if item.style == '"' and there.startswith("\\"):
            assert there[1] == character
        else:
            assert there[0] == character


@pytest.mark.parametrize("path", sorted(specs_dir().glob("*.yaml")), ids=lambda path: path.stem)
def test_yaml_without_libyaml_reads_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = expand(load(path))
    monkeypatch.setattr(yaml_tree, "Loader", yaml.SafeLoader)
    assert expand(load(path)) == fast


@pytest.mark.parametrize("text", ["[" * 5000, "- " * 5000, "{a: " * 5000, "mask: & x", "a: 'b", "\t- a"])
def test_yaml_without_libyaml_fails_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_tree, "Loader", yaml.SafeLoader)
    with pytest.raises(SpecError):
        load_text(text)

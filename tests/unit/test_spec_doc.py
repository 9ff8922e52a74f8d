"""docs/spec.md and specs/schema.json say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fagen.errors import SpecError
from fagen.resources import specs_dir
from fagen.runtime.language import BUILT_INS, FUNCTIONS, NAMES
from fagen.spec import expand, load_text, schema
from fagen.spec.reference_doc import PARTS, refreshed
from fagen.spec.schema import LEVELS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")


def test_page_is_up_to_date() -> None:
    assert refreshed(PAGE) == PAGE, "run: python -m fagen.spec.reference_doc docs/spec.md"


def test_every_part_is_on_the_page() -> None:
    assert sorted(re.findall(r"<!-- generated: ([\w ]+) -->", PAGE)) == sorted(PARTS)


@pytest.mark.parametrize("word", [*NAMES, *FUNCTIONS, *BUILT_INS, *LEVELS["variants"].model_fields])
def test_every_word_is_explained(word: str) -> None:
    assert re.search(rf"^\| `{word}(\(.*\))?` \|", PAGE, re.MULTILINE)


def test_the_specs_on_the_page_load() -> None:
    head = "fagen: 1\nname: x\ntarget: cpu\n"
    params = "params: {doc: {dtype: i32, shape: [B, n]}, img: {dtype: i32, shape: [B, n]}}\n"
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    whole, family, mask, define = blocks
    assert len(expand(load_text(whole))) == 3
    assert len(expand(load_text(f"{head}variants:\n{family}"))) == 4
    indented = mask.replace("\n", "\n    ")
    assert expand(load_text(f"{head}{params}variants:\n  - name: a\n    head_dim: 64\n    {indented}"))
    assert expand(load_text(head + params + define))


def test_schema_file_is_up_to_date() -> None:
    stored = json.loads((specs_dir() / "schema.json").read_text(encoding="utf-8"))
    assert stored == schema(), "run: fagen schema > specs/schema.json"


def test_every_key_has_a_description_and_an_example() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, entry in node.get("properties", {}).items():
                assert entry.get("description"), key
                assert entry.get("examples"), key
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(schema())


@pytest.mark.parametrize("path", sorted(specs_dir().glob("*.yaml")), ids=lambda path: path.stem)
def test_ready_specs_point_editors_at_the_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    match = re.fullmatch(r"# yaml-language-server: \$schema=(.*)", first)
    assert match is not None
    assert (path.parent / match[1]).is_file()


@pytest.mark.parametrize("path", sorted(specs_dir().glob("*.yaml")), ids=lambda path: path.stem)
def test_schema_accepts_the_ready_specs(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "change",
    [
        {"variants": [{"name": "a", "haed_dim": 64}]},
        {"variants": [{"head_dim": 64}]},
        {"variants": [{"name": "a", "layout": "sbhd"}]},
        {"params": {"x": {"dtype": "f32"}}},
        {"fagen": 2},
        {"isa": "sse"},
        {"variants": [{"name": "a", "matrix": {"head_dim": 64}}]},
    ],
)
def test_schema_refuses_what_the_loader_refuses(change: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    good = {"fagen": 1, "name": "a", "target": "cpu", "variants": [{"name": "a", "head_dim": 64}]}
    validator = jsonschema.Draft202012Validator(schema())
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, **change})


def test_the_worked_example_of_a_mask() -> None:
    page = (ROOT / "docs" / "adding-a-mask.md").read_text(encoding="utf-8")
    (spec,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert [variant.name for variant in expand(load_text(spec))] == ["blocks_d64"]
    (told,) = re.findall(r"^    (error: blocks.*?\n      hint: .*?)\n", page, re.DOTALL | re.MULTILINE)
    with pytest.raises(SpecError) as caught:
        load_text(spec.replace("block[b, kv]", "blok[b, kv]"), "blocks.yaml")
    assert str(caught.value) == told.replace("\n    ", "\n")

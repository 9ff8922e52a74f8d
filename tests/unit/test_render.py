"""The rules that keep templates readable, and rendered text what a person would have written."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.meta
import pytest
from golden_plans import card_plans, golden_plans

from fagen.plan import Plan, context, direction_names, plan, shared_names
from fagen.render import environment, render
from fagen.resources import templates_dir
from fagen.runtime.variant import Expression, Variant

ROOT = Path(__file__).parents[2]
SCHEDULES = ("cpu", "mma", "wgmma")
DIRECTIONS = ("forward", "backward")
CONTROL = re.compile(r"\{%-?\s*(if|elif|else|macro|call|filter)\b")


def skeletons(schedule: str) -> list[Path]:
    return sorted((templates_dir() / schedule).glob("*.j2"))


def parts(schedule: str) -> list[Path]:
    return sorted((templates_dir() / schedule / "parts").glob("*.j2"))


def closure(name: str) -> dict[str, str]:
    """A template and all it includes, by name."""
    env = environment()
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (templates_dir() / name).read_text()
            waiting += [each for each in jinja2.meta.find_referenced_templates(env.parse(found[name])) if each]
    return found


def used_names(name: str) -> set[str]:
    """The names that a template and its includes take from the planner."""
    env = environment()
    used: set[str] = set()
    own: set[str] = set()
    for text in closure(name).values():
        tree = env.parse(text)
        used |= jinja2.meta.find_undeclared_variables(tree)
        own |= {each.name for each in tree.find_all(jinja2.nodes.Name) if each.ctx == "store"}
    return used - own


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_skeleton_never_branches(schedule: str) -> None:
    assert skeletons(schedule)
    for path in skeletons(schedule):
        assert not CONTROL.search(path.read_text()), path.name


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_part_is_small_and_never_loops_over_tiles(schedule: str) -> None:
    assert parts(schedule)
    for path in parts(schedule):
        text = path.read_text()
        assert "each_tile" not in text and len(text.splitlines()) <= 60, path.name


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_part_is_used(schedule: str) -> None:
    used = {name for path in skeletons(schedule) for name in closure(f"{schedule}/{path.name}")}
    assert {f"{schedule}/parts/{path.name}" for path in parts(schedule)} <= used


def test_templates_use_the_names_that_a_plan_offers_and_no_others() -> None:
    shared_used: set[str] = set()
    for direction in DIRECTIONS:
        used = used_names(f"cpu/{direction}.cpp.j2")
        planned = next(each for each in golden_plans() if direction in each.directions)
        offered, own = set(context(planned, direction)), set(direction_names(planned, direction))
        assert used <= offered, f"{direction} prints what the planner does not offer: {used - offered}"
        assert own <= used, f"no template of {direction} prints {own - used}"
        shared_used |= used & set(shared_names(planned))
    assert shared_used == set(shared_names(golden_plans()[0]))


def test_names_are_the_same_for_every_variant() -> None:
    for direction in DIRECTIONS:
        offered = [frozenset(context(each, direction)) for each in golden_plans() if direction in each.directions]
        assert len(set(offered)) == 1


@pytest.mark.parametrize("value", [True, False, None])
def test_truth_values_and_none_are_never_printed(value: object) -> None:
    with pytest.raises(TypeError, match="a template prints"):
        environment().from_string("{{ x }}").render(x=value)
    assert environment().from_string("{{ x }} {{ y }} {{ z }}").render(x=0, y=0.0, z=-1) == "0 0.0 -1"


def test_an_undefined_name_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


@pytest.mark.parametrize("planned", golden_plans() + card_plans(), ids=lambda planned: planned.variant.name)
def test_rendered_text(planned: Plan) -> None:
    for source in render(planned):
        lines = source.text.splitlines()
        assert (
            lines[0]
            == f"// {planned.variant.name}, {source.direction}, of spec {planned.spec}: rendered by fagen, do not edit."
        )
        mask = planned.variant.mask
        assert lines[1] == f"// mask: {mask.text if mask else 'none'}"
        assert source.text.endswith("}\n") and "\n\n\n" not in source.text
        assert not any(line != line.rstrip() or "\t" in line for line in lines)
        assert str(ROOT) not in source.text and not re.search(r"\b20\d\d-\d\d", source.text)
        assert "if constexpr" not in source.text


HOSTILE = ["a */ b", "a\nint x;", "a\\", "{{ name }}", "{% if x %}", "// x ??/", "\u202e", 'a"b', "\x00"]


@pytest.mark.parametrize("text", HOSTILE)
def test_user_text_stays_in_its_comment(text: str) -> None:
    plain = Variant("v", 64, 64, "f32", backward=False, mask=Expression("MARK", "kv <= q"))
    hostile = dataclasses.replace(plain, mask=Expression(text, "kv <= q"))
    want, got = (render(plan(each))[0].text.splitlines() for each in (plain, hostile))
    assert len(got) == len(want)
    assert [n for n, (a, b) in enumerate(zip(got, want, strict=True)) if a != b] == [1]
    assert got[1].startswith("// mask: ") and "*/" not in got[1] and not got[1].endswith("\\")
    assert got[1].isascii() and got[1].isprintable()


def test_the_same_bytes_under_any_hash_seed() -> None:
    code = (
        "import hashlib, json\nfrom fagen.render import render\nfrom golden_plans import golden_plans\n"
        "plans = golden_plans()\n"
        "text = ''.join(source.text for each in plans for source in render(each))\n"
        "text += json.dumps([each.to_json() for each in plans])\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1

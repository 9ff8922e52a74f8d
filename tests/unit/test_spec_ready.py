"""The specs that come with fagen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fagen.resources import specs_dir
from fagen.runtime.language import parse
from fagen.runtime.variant import Variant
from fagen.spec import expand, load
from fagen.target import TARGETS

READY = sorted(specs_dir().glob("*.yaml"))
GPUS = {
    "t4": "sm_75",
    "a100": "sm_80",
    "rtx4090": "sm_89",
    "rtx5090": "sm_120",
    "h100": "sm_90a",
    "h100_training": "sm_90a",
    "b200": "sm_100a",
}


def test_the_list() -> None:
    assert {path.stem for path in READY} == {"cpu", "zoo", *GPUS}


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_loads_and_expands(path: Path) -> None:
    spec = load(path)
    variants = expand(spec)
    assert spec.name == path.stem
    assert len(variants) + len(spec.skipped) >= 10
    for variant in variants:
        for expect, expression in (("mask", variant.mask), ("score", variant.score)):
            if expression is None:
                continue
            parse(expression.resolved, params={param.name: param for param in variant.params}, expect=expect)
            line = spec.text.split("\n")[expression.line - 1]
            assert line[expression.column - 1 :].lstrip('"').startswith(expression.text)
    assert [Variant.from_json(variant.to_json()) for variant in variants] == variants


def test_cpu_is_the_grid_of_the_project() -> None:
    variants = expand(load(specs_dir() / "cpu.yaml"))
    kinds = {"full", "causal", "window", "softcap", "alibi", "documents"}
    expected = {(kind, dim, dtype) for kind in kinds for dim in (64, 128) for dtype in ("f32", "bf16")}
    found = {(v.name.split("_")[0], v.head_dim, v.dtype) for v in variants}
    assert len(variants) == 24
    assert found == expected
    for v in variants:
        assert v.name == f"{v.name.split('_')[0]}_d{v.head_dim}" + ("_bf16" if v.dtype == "bf16" else "")
        assert v.backward
        assert (v.mask is None) == v.name.startswith("full")
    slope = next(v for v in variants if v.name == "alibi_d64").params[0]
    assert (slope.name, slope.shape, slope.grad) == ("slope", ("H",), True)


@pytest.mark.parametrize("name", GPUS)
def test_gpu_specs_ask_only_for_what_their_target_takes(name: str) -> None:
    spec = load(specs_dir() / f"{name}.yaml")
    assert spec.targets == (GPUS[name],) and spec.name == name
    target = TARGETS[GPUS[name]]
    for variant in expand(spec):
        assert variant.dtype in target.dtypes
        assert variant.head_dim in target.head_dim
        assert variant.value_dim in target.value_dim


def test_the_zoo_holds_every_attention_that_must_be_expressible() -> None:
    spec = load(specs_dir() / "zoo.yaml")
    assert {variant.name for variant in expand(spec)} == set(
        """gemma2_local gemma3_local gpt_oss t5 bloom mistral longformer prefix_lm packed tree ring diff mla_prefill
        cross natten2d fox dense_bias""".split()
    )
    assert dict(spec.skipped) == {
        "mla_decode": ("value", "cache", "lengths"),
        "sigmoid": ("weight", "normalize"),
        "paged_decode": ("cache", "lengths"),
    }


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_lines_are_short_enough_to_read(path: Path) -> None:
    assert all(len(line) <= 120 for line in path.read_text(encoding="utf-8").split("\n"))
    assert not re.search(r"[ \t]$", path.read_text(encoding="utf-8"), re.MULTILINE)

"""Hints for what somebody new to specs writes first, and the places of what a target cannot do."""

from __future__ import annotations

import pytest

from fagen.build.planning import plan_spec
from fagen.errors import PlanError, Problem, SpecError
from fagen.spec import expand, load_text
from fagen.target import TARGETS

VARIANT = "variants:\n  - {name: a, head_dim: 64}\n"


def refused(text: str) -> Problem:
    with pytest.raises(SpecError) as caught:
        load_text(text)
    (problem,) = caught.value.problems
    return problem


def spec(variant: str, top: str = "") -> str:
    return f"fagen: 1\nname: x\ntarget: cpu\n{top}variants:\n  - {{name: a, {variant}}}\n"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"name: x\ntarget: cpu\n{VARIANT}", "`fagen: 1`"),
        (f"fagen: 1\ntarget: cpu\n{VARIANT}", "`name: cpu`"),
        (f"fagen: 1\nname: x\n{VARIANT}", "`target: cpu`"),
        ("fagen: 1\nname: x\ntarget: cpu\n", "`variants: [{name: causal_d64, head_dim: 64, mask: causal}]`"),
        (spec("head_dim: 8", "params: {tiles: {dtype: f32}}\n"), "`shape: [H]`"),
    ],
)
def test_a_missing_key_is_shown(text: str, hint: str) -> None:
    assert refused(text).hint == f"add it, for example {hint}"


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_mask_that_is_a_truth_value(value: str) -> None:
    hint = refused(spec(f"head_dim: 64, mask: {value}")).hint
    assert hint is not None and hint.endswith("leave `mask` out to admit every pair")
    assert ("every output would be 0" in hint) is (value == "false")


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("h100", "write `sm_90a`"),
        ("NVIDIA H200", "write `sm_90a`"),
        ("b200", "write `sm_100a`"),
        ("4090", "write `sm_89`"),
        ("rtx4090", "write `sm_89`"),
        ("GeForce RTX 3060 Ti", "write `sm_86`"),
        ("RTX 50", "write `sm_120`"),
        ("orin", "write `sm_87`"),
        ("t4", "write `sm_75`"),
        ("hopper", "write `sm_90a`"),
        ("ampere", "write `sm_80` (Ampere (A100)) or `sm_86` (Ampere (A10, RTX 30)) or `sm_87` (Ampere (Jetson Orin))"),
        ("x86_64", "write `cpu`"),
        ("avx2", "write `target: cpu` and `isa: avx2`"),
        ("AVX512_bf16", "write `target: cpu` and `isa: avx512_bf16`"),
        ("cpus", "did you mean `cpu`?"),
        ("mi300", None),
    ],
)
def test_a_target_by_another_name(written: str, hint: str | None) -> None:
    assert refused(spec("head_dim: 64").replace("target: cpu", f"target: {written}")).hint == hint


@pytest.mark.parametrize("written", ["cuda", "gpu", "nvidia", "GPU"])
def test_a_gpu_of_no_name(written: str) -> None:
    """`gpu` is near to `cpu` in letters alone."""
    hint = refused(spec("head_dim: 64").replace("target: cpu", f"target: {written}")).hint
    assert hint is not None and "`sm_90a` for an H100" in hint and "`native`" in hint
    assert "sm_90a" in TARGETS and "H100" in TARGETS["sm_90a"].title


def test_head_dims_are_constants_wherever_they_stand() -> None:
    """In a matrix or not: moving one out of it changes no expression."""
    (variant,) = expand(load_text(spec("head_dim: 64, scale: 1/sqrt(head_dim)")))
    assert variant.scale == 0.125
    (variant,) = expand(
        load_text(spec("value_dim: 16, mask: kv < value_dim + w", "defaults: {head_dim: 9}\nconst: {w: 1}\n"))
    )
    assert variant.mask is not None and variant.mask.resolved.replace(" ", "") == "kv<17"
    (variant,) = expand(load_text(spec("head_dim: 8, scale: 1/value_dim")))
    assert variant.scale == 0.125
    (variant,) = expand(load_text(spec("head_dim: 8, mask: near(2)", "define: {near(c): kv < c * head_dim}\n")))
    assert variant.mask is not None and variant.mask.resolved == "kv < 16"


def test_a_spec_s_own_head_dim_is_that() -> None:
    (variant,) = expand(load_text(spec("head_dim: 8, scale: head_dim", "const: {head_dim: 3}\n")))
    assert variant.scale == 3
    text = spec("head_dim: 8, score: 's + head_dim[h]'", "params: {head_dim: {dtype: f32, shape: [H]}}\n")
    (variant,) = expand(load_text(text))
    assert [param.name for param in variant.params] == ["head_dim"]


@pytest.mark.parametrize("more", ["", "head_dim: 99999, ", "head_dim: wide, value_dim: 8, "])
def test_a_head_dim_that_is_wrong_is_told_once(more: str) -> None:
    assert "head_dim" in refused(spec(f"{more}scale: 1/sqrt(head_dim)")).message


@pytest.mark.parametrize("used", ["", ", mask: one(2) < kv"])
def test_a_macro_that_uses_itself_is_refused_whether_used_or_not(used: str) -> None:
    define = "define:\n  two(x): one(x)\n  one(n): min(three, n)\n  three: two(1)\n  four: three\n"
    problem = refused(spec(f"head_dim: 64{used}", define))
    assert problem.message == "macro `two` uses itself: two -> one -> three -> two"
    assert (problem.line, problem.column) == (5, 3)
    assert refused(spec(f"head_dim: 64{used.replace('one(2)', 'one')}", "define: {one: one}\n")).message.endswith(
        "one -> one"
    )


def test_each_loop_of_macros_is_told_once() -> None:
    define = "define: {ma: mb, mb: ma, mc: mc + ma, md: ma + mb}\n"
    with pytest.raises(SpecError) as caught:
        load_text(spec("head_dim: 64, mask: kv < md", define))
    assert [problem.message.partition(": ")[2] for problem in caught.value.problems] == ["ma -> mb -> ma", "mc -> mc"]


def test_ten_thousand_macros_in_a_row() -> None:
    lines = "".join(f"  m{i}: m{i + 1}\n" for i in range(10_000))
    load_text(spec("head_dim: 64", f"define:\n{lines}  m10000: 1\n"))


def test_what_a_target_cannot_do_has_its_place() -> None:
    made = load_text(spec("head_dim: 2000").replace("- {", "-   {"), "x.yaml")
    with pytest.raises(PlanError) as caught:
        plan_spec(made, expand(made))
    assert [problem.message.partition(" is not")[0] for problem in caught.value.problems] == [
        "a: head_dim 2000",
        "a: value_dim 2000",
    ]
    assert {(problem.path, problem.line, problem.column) for problem in caught.value.problems} == {("x.yaml", 5, 14)}


def test_a_target_that_is_not_built_has_its_place() -> None:
    made = load_text(spec("head_dim: 64").replace("target: cpu", "target: [cpu, 9.0a]"), "x.yaml")
    with pytest.raises(PlanError) as caught:
        plan_spec(made, expand(made))
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.column) == ("x.yaml", 3, 15)

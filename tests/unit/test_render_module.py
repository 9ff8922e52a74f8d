"""The rendered files of a module, as text: no compiler, no torch."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys

import pytest

from fagen.render_module import render_module, schemas
from fagen.resources import templates_dir
from fagen.runtime.shapes import argument_names
from fagen.runtime.variant import Expression, Param, Variant

PLAIN = Variant("plain", 64, 64, "f32")
FULL = Variant(
    "full",
    128,
    64,
    "bf16",
    layout="bhsd",
    scale=0.0625,
    align="top_left",
    mask=Expression("causal and ok[b, kv]", "kv <= q and ok[b, kv]"),
    score=Expression("s + bias[b, h, i, j] + shift", "s + bias[b, h, i, j] + shift"),
    sink=True,
    params=(
        Param("bias", "f16", ("B", "H", "Sq", "Skv"), grad=True),
        Param("ok", "bool", ("B", "n")),
        Param("shift", "f32", (), grad=True),
        Param("grid", "i64", (3, "Hk")),
    ),
)
NO_BACKWARD = dataclasses.replace(FULL, name="no_backward", backward=False)


def _render(*variants: Variant, spec_file: str = "mine.yaml") -> dict[str, str]:
    return render_module("mine", variants, namespace="fagen_mine_0", features=("avx2", "fma"), spec_file=spec_file)


def test_schemas() -> None:
    forward, out, counts, backward = schemas(FULL)
    assert forward == (
        "full_forward(Tensor q, Tensor k, Tensor v, Tensor sink, Tensor param_bias, Tensor param_ok, "
        "Tensor param_shift, Tensor param_grid, float scale) -> (Tensor o, Tensor lse)"
    )
    assert out.endswith("float scale, Tensor(a!) out) -> Tensor")
    assert counts.startswith("full_tile_counts(Tensor q, Tensor k, Tensor param_bias, ")
    assert "sink" not in counts
    assert backward.endswith("(Tensor dq, Tensor dk, Tensor dv, Tensor d_sink, Tensor d_bias, Tensor d_shift)")
    assert len(schemas(NO_BACKWARD)) == 3
    assert argument_names(PLAIN) == ()


def test_binding_says_what_a_variant_is() -> None:
    text = _render(PLAIN, FULL, NO_BACKWARD)["binding.cpp"]
    assert '{"plain", Dtype::f32, 64, 64, false, false,' in text
    assert '{"full", Dtype::bf16, 128, 64, true, true,' in text
    for row in (
        '{"bias", Dtype::f16, true, 4, {kB, kH, kSq, kSkv}},',
        '{"ok", Dtype::boolean, false, 2, {kB, kAny}},',
        '{"shift", Dtype::f32, true, 0, {}},',
        '{"grid", Dtype::i64, false, 2, {3, kHk}},',
    ):
        assert text.count(row) == 2  # once a variant
    assert 'if (!__builtin_cpu_supports("fma")) return "fma";' in text
    assert "fagen_no_backward_backward" not in text and "fagen_full_backward" in text


def test_ops_reach_the_machine_through_the_driver_alone() -> None:
    """Another target, or an emulator, brings a file like cpu.h; what checks arguments and fills params stays."""
    host = templates_dir() / "include/fagen/host"
    for name in ("ops.h", "arguments.h", "variant.h", "tensor.h", "driver.h"):
        code = re.sub(r"//.*", "", (host / name).read_text())
        assert not re.search(r"cpu|Pool|workspace|parallel_for\(|memset|mutex|thread[^s]", code), name
    binding = _render(PLAIN, FULL)["binding.cpp"]
    assert binding.count("cpu_driver()") == 1  # every op is handed what this one place gives


def test_namespace_stands_in_a_unit_of_its_own() -> None:
    one, other = (render_module("mine", [PLAIN], namespace=f"fagen_mine_{i}") for i in (1, 2))
    assert {name for name in one if one[name] != other[name]} == {"name.cpp"}


@pytest.mark.parametrize(
    "text", ['kv <= q """ + boom + """', "kv \\", "kv */ <= q", "kv\n<= q", "é\u2028\x00{{ 7 * 7 }}{% x %}"]
)
def test_user_text_stays_text(text: str) -> None:
    """What a user wrote stands in comments and docstrings, and can neither end them nor be rendered."""
    variant = dataclasses.replace(PLAIN, mask=Expression(text, "kv <= q"))
    files = _render(variant, spec_file=text)
    for name in ("__init__.py", "__init__.pyi", "__main__.py"):
        tree = ast.parse(files[name])
        assert not any(isinstance(node, ast.Name) and node.id == "boom" for node in ast.walk(tree))
    for line in files["binding.cpp"].splitlines() + files["name.cpp"].splitlines():
        assert line.isascii() and not line.endswith("\\")
    assert "49" not in files["__init__.py"]


def test_python_is_what_a_person_would_write() -> None:
    files = _render(PLAIN, FULL, NO_BACKWARD)
    for name in ("__init__.py", "__init__.pyi", "__main__.py"):
        assert files[name].endswith("\n") and not files[name].endswith("\n\n")
        assert max(map(len, files[name].splitlines())) <= 120
        assert not any(line != line.rstrip() for line in files[name].splitlines())
    tree = ast.parse(files["__init__.py"])
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    call = next(node for node in classes["_variant_full"].body if isinstance(node, ast.FunctionDef))
    assert [argument.arg for argument in call.args.kwonlyargs[:5]] == ["sink", "bias", "ok", "shift", "grid"]
    doc = ast.get_docstring(classes["_variant_full"]) or ""
    for words in (
        "value_dim 64",
        "mask ``causal and ok[b, kv]``",
        "query row i at position i",
        "q: [B, H, Sq, 128] torch.bfloat16",
        "v: [B, Hk, Skv, 64]",
        "None means 0.0625",
        "ok: [B, n] torch.bool; no gradient",
    ):
        assert words in doc


def test_same_bytes_under_any_hash_seed() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests/unit'); import test_render_module as t\n"
        "print(t._render(t.PLAIN, t.FULL))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
                       capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] and len(runs[0]) > 1000


def test_imports_no_torch() -> None:
    script = "import sys, fagen.render_module; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""What users hold of a module: copied, pickled, typed, described, listed."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import naive
import pytest
import torch
from torch import Tensor


class Layer(torch.nn.Module):
    """A user's module with a variant, and the module's front, among its attributes."""

    def __init__(self, module: ModuleType):
        super().__init__()
        self.kernel = module.causal_d16
        self.attention = module.attention
        self.project = torch.nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(*[self.project(x)] * 3) + self.attention(x, x, x, scale=0.5)


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_pickles(small: ModuleType, again: Any) -> None:
    assert again(small.causal_d16) is small.causal_d16
    x = torch.randn(1, 3, 2, 16)
    layer = Layer(small)
    other = again(layer)
    assert torch.equal(other(x), layer(x))
    assert again(small.attention)(x, x, x, scale=0.5).shape == x.shape
    assert again(small.causal_d16.variant) == small.causal_d16.variant


def test_unpickled_elsewhere(small: ModuleType, small_folder: Path, tmp_path: Path) -> None:
    """By the name of its module, as any function is."""
    path = tmp_path / "held.pkl"
    path.write_bytes(pickle.dumps([small.alibi_d16, small.attention]))
    script = (
        f"import sys, pickle; sys.path.insert(0, {str(small_folder.parent)!r})\n"
        f"kernel, attention = pickle.load(open({str(path)!r}, 'rb'))\n"
        "import small\n"
        "assert kernel is small.alibi_d16 and attention == small.attention\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_signature_and_docs(small: ModuleType) -> None:
    signature = inspect.signature(small.alibi_d16)
    assert list(signature.parameters) == ["q", "k", "v", "slope", "scale", "return_lse", "out"]
    assert signature.parameters["slope"].kind is inspect.Parameter.KEYWORD_ONLY
    assert signature.parameters["slope"].default is inspect.Parameter.empty
    text = small.alibi_d16.__doc__
    for words in (
        "q: [B, Sq, H, 16] torch.float32",
        "k: [B, Skv, Hk, 16]",
        "slope: [H] torch.float32; differentiable",
        "natural-log units; None means 1/sqrt(head_dim)",
        "ValueError and TypeError",
    ):
        assert words in text
    assert "v: [B, Skv, Hk, 8]" in small.sink_d16.__doc__ and "None means 0.5" in small.plain_d16.__doc__
    assert "q: [B, H, Sq, 16]" in small.bare_d16.__doc__ and "without backward" in small.bare_d16.__doc__
    assert repr(small.causal_d16) == "<small.causal_d16, small.yaml:4>"
    assert small.causal_d16.spec_line == "small.yaml:4"


def test_variants_in_the_order_of_the_spec(small: ModuleType) -> None:
    assert [variant.to_json() for variant in small.variants()] == [variant.to_json() for variant in naive.VARIANTS]
    assert small.causal_d16.variant is small.variants()[0]


@pytest.mark.parametrize("name", [variant.name for variant in naive.VARIANTS])
def test_reference_has_the_calls_form(small: ModuleType, name: str) -> None:
    kernel = getattr(small, name)
    qkv, named = naive.draw(kernel.variant)
    o = kernel.reference(*qkv, **named)
    assert o.dtype == torch.float64 and o.shape == kernel(*qkv, **named).shape
    _, lse = kernel.reference(*qkv, **named, return_lse=True, dtype=torch.float32)
    assert lse.dtype == torch.float32 and lse.shape == (2, 4, 5)


def test_command_line_lists(small_folder: Path) -> None:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "small", *arguments], capture_output=True, text=True, cwd=small_folder.parent,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert [line.split()[0] for line in run("list").splitlines()] == [variant.name for variant in naive.VARIANTS]
    assert json.loads(run("list", "--json")) == json.loads(json.dumps([v.to_json() for v in naive.VARIANTS]))


USER = """
import small
from torch import Tensor, zeros

q = zeros(1, 2, 3, 16)
o: Tensor = small.causal_d16(q, q, q)
pair: tuple[Tensor, Tensor] = small.alibi_d16(q, q, q, slope=zeros(3), scale=0.1, return_lse=True)
o = small.causal_d16(q, q, q, out=o)
o = small.attention(q, q, q, mask="causal", fallback="reference")
o = small.attention(q, q, q, mask="causal", align="top_left")
o, lse = small.attention(q, q, q, "causal", return_lse=True, slope=zeros(3))
o = small.sink_d16.reference(q, q, q, sink=zeros(3))
empty: int = small.tile_counts("causal_d16", q, q).empty
good: bool = small.check("alibi_d16", q, q, q, slope=zeros(3), seed=1).verdict == "passed"
names: list[str] = [variant.name for variant in small.variants()]
line: str = small.causal_d16.spec_line
"""
WRONG = {
    "small.alibi_d16(q, q, q)": "call-overload",
    "small.causal_d16(q, q, q, slope=q)": "call-overload",
    "pair = small.causal_d16(q, q, q)": "assignment",
    "small.causal_d16(q, q, q, scale='x')": "call-overload",
    "small.attention(q, q, q, fallback='slow')": "call-overload",
    "small.attention(q, q, q, align='left')": "call-overload",
    "small.nothing": "attr-defined",
}


def test_types(small_folder: Path, tmp_path: Path) -> None:
    """mypy passes a user's file, and finds the mistakes in another."""
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(USER + "\n".join(WRONG) + "\n")
    environment = {"MYPYPATH": str(small_folder.parent), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    first = USER.count("\n") + 1
    expected = {(f"wrong.py:{first + i}", code) for i, code in enumerate(WRONG.values())}
    found = {(line.split(": error:")[0], line.rsplit("[", 1)[1][:-1]) for line in lines if ": error:" in line}
    assert found == expected, done.stdout + done.stderr

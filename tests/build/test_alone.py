"""A published module where there is torch, and nothing of what building it took."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fagen.build import build

SPEC = """\
fagen: 1
name: built
target: cpu
variants: [{name: a, head_dim: 16, dtype: f32, mask: causal}]
"""
# What `import torch` imports.
TORCH = ("torch", "torchgen", "functorch", "typing_extensions")
ABSENT = ("fagen", "jinja2", "sympy", "pydantic", "yaml", "typer", "rich", "ninja", "numpy")

USE = f"""
import importlib.util, sys, torch
for name in {ABSENT}:
    assert importlib.util.find_spec(name) is None, name
import built
q, k, v = (torch.randn(1, 5, 2, 16, requires_grad=True) for _ in range(3))
o = built.a(q, k, v)
want = built.a.reference(q, k, v)
assert torch.equal(built.attention(q, k, v, mask="kv <= q"), o)
assert (o - want).abs().max() < 1e-5
for got, exact in zip(*(torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (o, want))):
    assert got.any() and (got - exact).abs().max() < 1e-5
assert built.__file__ == sys.argv[1]
"""
CHECK = f"""
import importlib.util, torch
assert not any(importlib.util.find_spec(name) for name in {ABSENT})
import built
print(built.check("a", *torch.randn(3, 1, 5, 2, 16)).verdict)
"""


def _link(folder: Path, names: tuple[str, ...]) -> None:
    """Put links to installed packages, and to no others, into ``folder``."""
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        place = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        (folder / place.name).symlink_to(place)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with torch alone."""
    folder = tmp_path_factory.mktemp("alone") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    _link(next((folder / "lib").glob("python*")) / "site-packages", TORCH)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published folder, copied to where nothing else is."""
    work = tmp_path_factory.mktemp("work")
    (work / "built.yaml").write_text(SPEC)
    folder = build(work / "built.yaml", out=work / "generated", check="off").folder
    target = tmp_path_factory.mktemp("server") / "built"
    shutil.copytree(folder, target)
    shutil.rmtree(work)
    return target


def _run(python: Path, *arguments: str, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(python), *arguments], cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_copied_module_computes_with_torch_alone(python: Path, copied: Path) -> None:
    _run(python, "-c", USE, str(copied / "__init__.py"), cwd=copied.parent)


def test_a_copied_module_checks_itself(python: Path, copied: Path) -> None:
    """On the caller's tensors, and from the command line."""
    assert _run(python, "-c", CHECK, cwd=copied.parent).strip() == "passed"
    arguments = ("-m", "built", "check", "a", "--json", "--case", "several-tiles")
    report = json.loads(_run(python, *arguments, cwd=copied.parent))
    assert '"passed"' in json.dumps(report)

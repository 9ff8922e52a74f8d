"""`fagen build` on a spec of two small variants, run as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
fagen: 1
name: tiny
target: cpu
isa: portable
defaults: {dtype: f32, backward: false}
variants:
  - {name: full, head_dim: 8}
  - {name: causal, head_dim: 8, mask: causal}
"""
USE = (
    "import torch; from {out} import tiny\n"
    "q = torch.zeros(1, 4, 1, 8); v = torch.eye(8)[:4].view(1, 4, 1, 8)\n"
    "print(tiny.causal(q, q, v)[0, :, 0, :4].tolist())"
)
ROWS = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0], [0.25, 0.25, 0.25, 0.25]]


def fagen(
    *words: str | Path, cwd: Path, cache: Path, root: Path = ROOT, code: int = 0, **environ: str
) -> tuple[Any, str]:
    """Run a command with --json; its value and what it wrote to stderr."""
    full = {**os.environ, "PYTHONPATH": str(root), "FAGEN_CACHE_DIR": str(cache), **environ}
    command = [sys.executable, "-m", "fagen", *map(str, words), "--json"]
    done = subprocess.run(command, check=False, cwd=cwd, env=full, capture_output=True, text=True)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout), done.stderr


def use(folder: Path) -> None:
    """Import the module in a process that knows fagen not, and see that it computes."""
    code = USE.format(out="generated")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [pytest.approx(row) for row in ROWS]


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder: inode, time of last change, size. Equal if nothing at all was written there."""
    paths = [folder, *folder.rglob("*")]
    status = {path: path.stat(follow_symlinks=False) for path in paths if "__pycache__" not in path.parts}
    return {str(path): (s.st_ino, s.st_ctime_ns, 0 if path.is_dir() else s.st_size) for path, s in status.items()}

"""`python3 -m fagen.bench` on a real card. Needs what test_module_on_card.py needs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("FAGEN_CARD_MODULE") or ROOT / "generated" / "a100").resolve()

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def card() -> None:
    """Skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("there is no card that torch can use")
    if not (FOLDER / "manifest.json").is_file():
        pytest.skip(f"{FOLDER} is no built module: name one by FAGEN_CARD_MODULE")
    if importlib.util.find_spec("fagen") is None:
        pytest.skip("fagen cannot be imported")


def test_a_cell(tmp_path: Path) -> None:
    """The rates of an attention and of its peers are none that no card reaches, nor those of an idle one."""
    manifest = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    variants = [entry["variant"] for entry in manifest["variants"]]
    name = next(each["name"] for each in variants if each["mask"] is None and each["head_dim"] in (64, 128))
    command = [sys.executable, "-m", "fagen.bench", str(FOLDER), "-v", name, "--length", "2048", "--rounds", "5"]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == "cuda" and found["against"] == "flash" and "driver" in found["machine"]
    forward = found["cells"][0]
    assert {"fagen", "flash"} <= set(forward["seconds"])
    for seconds in forward["seconds"].values():
        assert 1e12 < forward["operations"] / seconds < 3e15

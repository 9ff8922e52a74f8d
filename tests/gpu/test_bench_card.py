"""`python3 -m fagen.bench` on a real card. Needs what test_module_on_card.py needs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def bench(*words: str) -> dict[str, Any]:
    """What `--json` prints, of a variant without a mask."""
    manifest = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    variants = [entry["variant"] for entry in manifest["variants"]]
    name = next(each["name"] for each in variants if each["mask"] is None and each["head_dim"] in (64, 128))
    command = [sys.executable, "-m", "fagen.bench", str(FOLDER), "-v", name, *words, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_cell() -> None:
    """The rates of an attention and of its peers are none that no card reaches, nor those of an idle one; nor are those
    of their gradients, if there are any."""
    found = bench("--length", "2048", "--rounds", "5")
    assert found["device"] == "cuda" and found["against"] == "flash" and "driver" in found["machine"]
    for cell in found["cells"]:
        assert {"fagen", "flash"} <= set(cell["seconds"])
        for seconds in cell["seconds"].values():
            assert 1e12 < cell["operations"] / seconds < 3e15


def test_memory_of_a_step() -> None:
    """One float32 dQ and notes, beyond what cannot be spared; nothing by the driver behind torch's back."""
    manifest = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    if not any(entry["variant"]["backward"] for entry in manifest["variants"]):
        pytest.skip("the module has no gradients")
    (step,) = bench("--memory", "--length", "4096")["steps"]
    assert step["needed"] <= step["fagen"] < step["unfused"] and step["outside"] == 0
    assert 0.9 < step["beyond"] < 1.1

"""Checks in processes: kernels that crash, hang and print take only themselves down."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fagen.runtime
from fagen.build.cache import Cache
from fagen.build.check import check_folder, check_module
from fagen.errors import CheckError, SpecError
from fagen.runtime.check.drive import Wish, check_variants
from fagen.runtime.check.report import FAILED, PASSED

# A module as the worker sees one, its kernels planted: each variant's name says what it does.
INIT = f"""
import ctypes, json, os, sys, time
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent), str(Path(fagen.__file__).parents[1])]!r}
import planted, torch
from .runtime.variant import Variant

class Kernel(planted.Planted):
    def __call__(self, *args, **kwargs):
        name = self.variant.name
        Path(__file__).with_name("calls").open("a").write(name + "\\n")
        if name == "crashes":
            ctypes.string_at(0)
        if name == "exits":
            os._exit(3)
        if name == "hangs":
            time.sleep(1000)
        if name == "prints":
            print("hello from a kernel")
        return super().__call__(*args, **kwargs)

class _module:
    manifest = json.loads(Path(__file__).with_name("manifest.json").read_text())
    kernels = {{
        entry["variant"]["name"]: Kernel(
            Variant.from_json(entry["variant"]), "zero-row" if entry["variant"]["name"] == "wrong" else None
        )
        for entry in manifest["variants"]
    }}
"""


def publish(folder: Path, *names: str) -> Path:
    from planted import variant

    folder.mkdir()
    shutil.copytree(Path(fagen.runtime.__file__).parent, folder / "runtime")
    (folder / "__init__.py").write_text(INIT)
    tiles = {"tile_q": 16, "tile_kv": 16}
    entries = [
        {
            "variant": variant(name, mask="causal", backward=False).to_json(),
            "plan": {"forward": tiles, "backward": None},
            "objects": [f"key of {name}"],
        }
        for name in names
    ]
    (folder / "manifest.json").write_text(json.dumps({"variants": entries}))
    return folder


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_one_kernel_s_end_is_not_another_s(tmp_path):
    names = ("good", "crashes", "exits", "prints", "wrong")
    folder = publish(tmp_path / "module", *names)
    reports = {report.variant: report for report in check_variants(folder, names, Wish(0, command="again -v"), jobs=2)}
    verdicts = {name: report.verdict for name, report in reports.items()}
    assert verdicts == {"good": PASSED, "crashes": FAILED, "exits": FAILED, "prints": PASSED, "wrong": FAILED}
    crash = reports["crashes"].failures[0]
    assert (crash.measure, crash.case) == ("crash", "several-tiles")
    assert "SIGSEGV" in crash.message and "outside its tensors" in crash.message
    assert reports["crashes"].command == "again -v crashes --seed 0 --case several-tiles"
    assert "exit code 3" in reports["exits"].failures[0].message


def test_a_kernel_that_hangs_fails_in_time(tmp_path):
    folder = publish(tmp_path / "module", "hangs", "good")
    hung, good = check_variants(folder, ("hangs", "good"), Wish(0), jobs=1, hang=15.0)
    assert (hung.verdict, hung.failures[0].measure) == (FAILED, "hang")
    assert good.verdict == PASSED, good.failures


def test_a_module_that_cannot_be_imported_fails_every_variant(tmp_path):
    folder = publish(tmp_path / "module", "good")
    (folder / "__init__.py").write_text("raise ImportError('no such instruction')")
    (report,) = check_variants(folder, ("good",), Wish(0))
    assert report.verdict == FAILED
    assert "no such instruction" in report.failures[0].message


def test_a_build_keeps_what_passed_and_looks_it_up_without_torch(tmp_path):
    folder = publish(tmp_path / "module", "good")
    cache = Cache(tmp_path / "cache")
    added = check_module(folder, cache=cache)
    assert added["check"]["verdict"] == PASSED
    assert added["check"]["killed"] == added["check"]["mutants"] > 0
    (entry,) = added["variants"]
    assert entry["check"]["verdict"] == PASSED and "seconds" not in entry["check"]
    before = calls(folder)
    assert before
    assert check_module(folder, cache=cache) == added
    assert calls(folder) == before
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from fagen.build.cache import Cache\nfrom fagen.build.check import check_module\n"
        f"check_module(Path({str(folder)!r}), cache=Cache(Path({str(cache.root)!r})))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["variants"][0]["objects"] = ["another key"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    check_module(folder, cache=cache)
    assert len(calls(folder)) > len(before)


def test_a_build_with_a_wrong_variant_is_an_error_that_says_what_and_how_to_repeat_it(tmp_path):
    folder = publish(tmp_path / "module", "good", "wrong")
    with pytest.raises(CheckError) as caught:
        check_module(folder, cache=Cache(tmp_path / "cache"), command="fagen check kept -v")
    (problem,) = caught.value.problems
    assert "wrong computes a wrong number: several-tiles: " in problem.message
    assert "query tile 0" in problem.message
    assert problem.hint == "repeat: fagen check kept -v wrong --seed 0 --case several-tiles"
    # What failed is not kept, what passed is.
    before = calls(folder)
    with pytest.raises(CheckError):
        check_module(folder, cache=Cache(tmp_path / "cache"))
    assert set(calls(folder)[len(before) :]) == {"wrong"}


def test_variants_can_be_chosen_and_unknown_ones_are_errors(tmp_path):
    folder = publish(tmp_path / "module", "good", "prints")
    report = check_folder(folder, names=["prints"], case="tile", seed=3)
    assert [(entry.variant, entry.cases, entry.seed) for entry in report.variants] == [("prints", ("tile",), 3)]
    with pytest.raises(SpecError, match="no variant 'nothing'; there are good, prints"):
        check_folder(folder, names=["nothing"])

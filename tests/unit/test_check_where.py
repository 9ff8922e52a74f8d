"""Where kernels for cards are checked, what is said where that cannot be, and the orders the emulator runs cases in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fagen.build import planning, published
from fagen.errors import PlanError
from fagen.runtime.cards import Card
from fagen.runtime.check import where
from fagen.runtime.check.cases import Case, Tiling, cases
from fagen.runtime.check.machine import Machine
from fagen.runtime.check.memory import PLACES, place
from fagen.runtime.check.report import PASSED, CheckReport, VariantReport, repeat, table
from fagen.runtime.check.where import Where, find_where
from fagen.runtime.variant import Variant
from fagen.spec import expand, load

T4, A100, H200 = (Card(n, *card) for n, card in enumerate((("T4", "sm_75"), ("A100", "sm_80"), ("H200", "sm_90"))))
B200 = Card(0, "B200", "sm_100")
VARIANT = Variant("a", 64, 64)


def test_what_runs_on_which_card() -> None:
    assert A100.runs("sm_80") and A100.runs("sm_75") and not A100.runs("sm_86")
    assert H200.runs("sm_80") and H200.runs("sm_90a") and not B200.runs("sm_90a")
    assert str(A100) == "A100 (sm_80)"


# cards, target, --on, torch with CUDA -> device and title, or what is said
PLACES_TO_RUN = [
    ((), "cpu", None, False, ("cpu", "")),
    ((), "sm_80", None, True, ("cpu", "emulator")),
    ((T4,), "sm_80", None, True, ("cpu", "emulator")),
    ((T4, H200), "sm_80", None, True, ("cuda:2", "H200 (sm_90)")),
    ((H200, A100), "sm_80", None, True, ("cuda:1", "A100 (sm_80)")),
    ((A100,), "sm_80", None, False, ("cpu", "emulator")),
    ((A100,), "sm_80", "emulator", True, ("cpu", "emulator")),
    ((A100,), "sm_80", "device", True, ("cuda:1", "A100 (sm_80)")),
    ((A100,), "cpu", "device", True, "built for the CPU, and is checked on it"),
    ((A100,), "sm_80", "device", False, r"A100 \(sm_80\) would run sm_80, but torch is installed without CUDA"),
    ((T4,), "sm_80", "device", True, r"no card here runs sm_80: there are T4 \(sm_75\); --on emulator needs none"),
    ((), "sm_80", "device", False, "no card here runs sm_80: there is none at all"),
]


@pytest.mark.parametrize(("there", "target", "on", "cuda", "expected"), PLACES_TO_RUN)
def test_where(
    there: tuple[Card, ...],
    target: str,
    on: str | None,
    cuda: bool,
    expected: tuple[str, str] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, "cards", lambda: there)
    if isinstance(expected, tuple):
        found = find_where(target, on, cuda=cuda, emulator="/fagen")
        assert (found.device, found.title) == expected
        assert found.emulator == ("/fagen" if found.title == "emulator" else "")
    else:
        with pytest.raises(LookupError, match=expected):
            find_where(target, on, cuda=cuda, emulator="/fagen")


@pytest.mark.parametrize(("on", "words"), [(None, "no card here that runs sm_80, and no fagen"), ("emulator", "fagen")])
def test_where_there_is_no_fagen(on: str | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "cards", tuple)
    with pytest.raises(LookupError, match=words):
        find_where("sm_80", on, cuda=False, emulator=None)


class Recorder:
    """An emulator that only listens."""

    folder = Path()

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.orders: list[tuple[str, int]] = []

    def prepare(self, unit: str) -> None:
        raise RuntimeError("later, too")

    def order(self, completions: str, seed: int) -> None:
        self.orders.append((completions, seed))

    def lines(self, unit: str) -> dict[int, int]:
        return {}


def test_orders_of_a_case() -> None:
    """Early, late and at random; ten random ones where a case is small; the same again for the same seed."""
    emulator = Recorder()
    machine = Machine("cpu", "emulator", emulator)
    machine.prepare(VARIANT)
    names = list(machine.orders(Case("uniform", 1, 1), 5))
    assert emulator.orders == [("earliest", 5), ("latest", 6), ("random", 7)]
    assert names[1] == "completions latest, order 6"
    emulator.orders.clear()
    emulator.fault = RuntimeError("of the case before")
    assert len(list(machine.orders(Case("ring", 1, 1), 5))) == 12
    assert machine.fault() == ""
    assert len(set(emulator.orders)) == 12
    assert list(Machine().orders(Case("ring", 1, 1), 5)) == [""]


def test_a_card_counts_no_lines_and_a_full_check_there_says_so() -> None:
    note = "lines not counted: that takes a check in the emulator"
    assert Machine("cuda:0", "A100 (sm_80)").unrun(VARIANT) == (0, (), note)
    assert Machine().unrun(VARIANT) == (0, (), "")  # the build counts those


def test_cases_for_slow_kernels_and_for_rings() -> None:
    plan = {"forward": {"tile_q": 64, "tile_kv": 32, "stages": 3}, "backward": None}
    slow, fast = (cases(Tiling.of(plan, slow=slow)) for slow in (True, False))
    longest = [max(case.q_len + case.kv_len for case in each) for each in (slow, fast)]
    assert longest[0] < longest[1] / 4
    assert [case.name for case in slow] == [case.name for case in fast]
    ring = next(case for case in slow if case.name == "ring")
    assert ring.kv_len == 2 * 3 * 32 + 1
    assert not any(case.name == "ring" for case in cases(Tiling(((64, 32),))))


@pytest.mark.parametrize("name", [each for each in PLACES if each != "fence"])
def test_tensors_on_a_device_lie_as_they_did(name: str) -> None:
    guarded = place(torch.arange(24.0).view(2, 3, 4), name)
    there = guarded.on("cpu:0")
    assert torch.equal(there.tensor, guarded.tensor) and there.tensor.stride() == guarded.tensor.stride()
    assert not there.changed()
    memory = there.base.view(-1)
    around = memory.isnan().nonzero()
    assert len(around) == memory.numel() - 24
    if len(around):
        memory[around[0]] = 7.0
        assert there.spilled()


def test_reports_say_where_a_check_ran() -> None:
    emulated, card = (VariantReport("a", PASSED, 1, "auto", on=on) for on in ("emulator", "A100 (sm_80)"))
    assert table(CheckReport((emulated,), 1, "auto")).endswith("; in the emulator, not yet on a card")
    assert table(CheckReport((card,), 1, "auto")).endswith("; on A100 (sm_80)")
    assert VariantReport.from_json(emulated.to_json()) == emulated
    assert repeat("fagen check x -v", "a", 1, "auto", "tile", "emulator").endswith("--case tile --on emulator")
    assert "--on" not in repeat("fagen check x -v", "a", 1, "auto", "tile", "A100 (sm_80)")
    assert Where().title == ""


def spec(folder: Path, target: str) -> Path:
    path = folder / "a.yaml"
    path.write_text(
        f"fagen: 1\nname: a\ntarget: {target}\ndefaults: {{dtype: f16, backward: false}}\n"
        "variants: [{name: a, head_dim: 64}]\n"
    )
    return path


# target, the machine's cards -> the plan's target, or what is said
TARGETS = [
    ("native", (A100, T4), "sm_80"),
    ("native", (Card(0, "RTX 5090", "sm_120"),), "sm_120"),
    ("native", (H200,), "sm_90a"),
    ("native", (B200,), r"(?s)target native, sm_100a: its schedule.*of these, B200 \(sm_100\) runs .*sm_80"),
    ("native", (Card(0, "V100", "sm_70"),), "target native, sm_70: its schedule is not built yet"),
    ("native", (), "target native: no GPU is visible here"),
    ("[sm_80, sm_86]", (), "a module is built for one target so far"),
]


@pytest.mark.parametrize(("target", "there", "expected"), TARGETS)
def test_targets(
    target: str, there: tuple[Card, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "cards", lambda: there)
    loaded = load(spec(tmp_path, target))
    if expected.startswith("sm_"):
        assert [plan.target for plan in planning.plan_spec(loaded, expand(loaded))] == [expected]
    else:
        with pytest.raises(PlanError, match=expected):
            planning.plan_spec(loaded, expand(loaded))


def test_what_only_the_emulator_ran_is_checked_again_where_there_is_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    build = {"inputs": "1", "check": "auto"}
    manifest = {"fagen": "0", "name": "a", "target": "sm_80", "build": build, "check": {"on": "emulator"}}
    published.write_manifest(folder, manifest)
    monkeypatch.setattr(published, "cards", lambda: (A100,))
    monkeypatch.setattr(published, "find_torch", lambda: type("Torch", (), {"cuda": "13.0"}))
    assert not published.is_current(folder, "1", "auto")
    assert published.is_current(folder, "1", "off")
    monkeypatch.setattr(published, "cards", lambda: (T4,))
    assert published.is_current(folder, "1", "auto")

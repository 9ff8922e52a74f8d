"""`fagen tune`: what is compiled, checked, measured, kept and written, with stand-ins for compiler and card."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner
from variants import variant

from fagen.bench.run import Options
from fagen.build.progress import Silent
from fagen.cli import app, tuning
from fagen.costs import ProblemSize
from fagen.errors import CompileError, PlanError, Problem, UsageError
from fagen.runtime.check.report import Failure, VariantReport
from fagen.runtime.check.where import Where
from fagen.size import parse_size, size_text
from fagen.spec import expand, load, load_text
from fagen.tune import __main__ as alone
from fagen.tune import command, measure, sweep
from fagen.tune.folder import Candidate, Sweep, Swept, read_sweep
from fagen.tune.measure import Bench, Measuring
from fagen.tune.results import Results
from fagen.tune.sweep import compile_sweep, spec_text
from fagen.tune.winners import table, winners

ROOT = Path(__file__).parents[2]
SPEC = """fagen: 1
name: mine
target: sm_90a
defaults: {dtype: bf16, backward: false, head_dim: 128}
variants:
  - {name: causal, mask: causal}
  - {name: full}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC)
    return path


# ---- compiling ----


class Compiler:
    """In the place of `fagen.build`: publishes a manifest. It refuses variants of ``refused``; those of ``spilling``
    spill."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.now = 0.0
        self.refused: set[str] = set()
        self.spilling: set[str] = set()

    def __call__(self, path: Path, *, out: Path, check: str, jobs: int | None, progress: Any) -> None:
        assert check == "off" and path.parent == out
        found = expand(load(path))
        for each in found:
            if each.name in self.refused:
                raise CompileError(Problem(f"too many resources (compiling {each.name} forward)"))
        self.built.append(path.stem)
        self.now += 10.0
        folder = out / path.stem
        folder.mkdir(exist_ok=True)
        taken = {"spill_stores": 8, "spill_loads": 12}
        entries = [
            {
                "variant": each.to_json(),
                "objects": [each.name],
                "resources": {"kernel": taken if each.name in self.spilling else dict.fromkeys(taken, 0)},
            }
            for each in found
        ]
        (folder / "manifest.json").write_text(json.dumps({"fagen": "0", "variants": entries}))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(sweep, "build", found)
    monkeypatch.setattr(sweep, "_MODULE", 8)
    monkeypatch.setattr(sweep.time, "monotonic", lambda: found.now)
    return found


def compiled(spec: Path, folder: Path, **options: Any) -> Sweep:
    return compile_sweep(spec, folder, progress=Silent, tell=lambda line: None, **options)


def test_variants_take_turns_and_the_nearest_candidates_are_first(
    spec: Path, tmp_path: Path, compiler: Compiler
) -> None:
    found = compiled(spec, tmp_path / "c", most=10)
    assert compiler.built == ["causal_0", "full_0", "causal_1", "full_1"]
    causal = found.variants[0]
    assert causal.own == causal.candidates[0].name == "q128_kv128_s2_scores"
    assert len(causal.candidates) == 10 and causal.waiting == 0
    assert causal.pruned["{q: 192, kv: 256, stages: 4, turns: sums}"].startswith("its tiles need")
    assert "10 are nearer to the planner's own choice" in causal.pruned.values()
    assert read_sweep(tmp_path / "c") == found


def test_a_budget_ends_between_modules_and_the_next_run_goes_on(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    found = compiled(spec, tmp_path / "c", most=20, budget=15.0)
    assert compiler.built == ["causal_0", "full_0"]
    assert [(len(each.candidates), each.waiting) for each in found.variants] == [(8, 12), (8, 12)]
    compiler.built.clear()
    again = compiled(spec, tmp_path / "c", most=20, budget=25.0)
    assert compiler.built[:3] == ["causal_0", "full_0", "causal_1"] and len(compiler.built) == 3
    assert [each.waiting for each in again.variants] == [4, 12]


def test_what_does_not_compile_or_spills_is_pruned(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    compiler.refused, compiler.spilling = {"q128_kv144_s2_scores"}, {"q128_kv112_s2_scores"}
    (found,) = compiled(spec, tmp_path / "c", most=8, names=["causal"]).variants
    names = [each.name for each in found.candidates]
    assert len(names) == 6 and not set(names) & (compiler.refused | compiler.spilling)
    assert "it does not compile: too many" in found.pruned["{q: 128, kv: 144, stages: 2, turns: scores}"]
    assert found.pruned["{q: 128, kv: 112, stages: 2, turns: scores}"] == (
        "by ptxas it spills 8 bytes a thread and reads 12 back"
    )


def test_one_variant_leaves_what_is_known_of_the_others(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    compiled(spec, tmp_path / "c", most=2)
    found = compiled(spec, tmp_path / "c", most=3, names=["full"])
    assert {each.variant: len(each.candidates) for each in found.variants} == {"full": 3, "causal": 2}
    (tmp_path / "c" / "sweep.json").write_text("{")
    with pytest.raises(UsageError, match=r"sweep.json cannot be read"):
        read_sweep(tmp_path / "c")
    assert len(compiled(spec, tmp_path / "c", most=2).variants) == 2  # it costs nothing that was compiled


def test_what_there_is_nothing_to_tune_of(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    told: list[str] = []
    spec.write_text(SPEC.replace("mask: causal", "mask: causal, tiles: {q: 128}") + "  - {name: again}\n")
    found = compile_sweep(spec, tmp_path / "c", most=1, progress=Silent, tell=told.append)
    assert [each.variant for each in found.variants] == ["full"]
    assert told == [
        "causal: its tiles are the spec's own; there is nothing to tune",
        "again: as fast as full, whose tiles it gets",
    ]
    spec.write_text(SPEC.replace("head_dim: 128", "head_dim: 128, tiles: {q: 128}"))
    with pytest.raises(PlanError, match="nothing to tune"):
        compiled(spec, tmp_path / "c")
    with pytest.raises(UsageError, match="--variant: no variant other"):
        compiled(spec, tmp_path / "c", names=["other"])


@pytest.mark.parametrize("ready", ["zoo", "h100", "cpu"])
def test_a_spec_of_candidates_means_the_same(ready: str) -> None:
    """With macros, constants and scales written out, every variant is as it was."""
    for each in expand(load(ROOT / "specs" / f"{ready}.yaml")):
        text = spec_text("again", "cpu", each.isa, [each])
        (found,) = expand(load_text(text))
        for key, value in vars(each).items():
            if key in ("mask", "score"):
                assert (value and value.resolved) == (getattr(found, key) and getattr(found, key).resolved)
            elif key not in ("line", "column"):
                assert getattr(found, key) == value, (each.name, key)


# ---- measuring ----


class Card:
    """Machine, timer, modules and check in one. ``milliseconds`` are those of each candidate, by name; ``wrong`` fails
    its first case, ``subtle`` only the whole check."""

    title = "a card"
    device = "cpu"

    def __init__(self, milliseconds: dict[str, float]):
        self.milliseconds = milliseconds
        self.wrong: set[str] = set()
        self.subtle: set[str] = set()
        self.now = 0.0
        self.samples: list[str] = []
        self.checks: list[tuple[str | None, list[str]]] = []
        self.stop_after: int | None = None

    def kernel(self, name: str) -> Any:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
            return name

        kernel: Any = SimpleNamespace(variant=variant(name=name, backward=False))
        return type("Kernel", (), {"variant": kernel.variant, "__call__": lambda self, *tensors: call(*tensors)})()

    def load(self, folder: Path) -> Any:
        kernels = {name: self.kernel(name) for name in self.milliseconds}
        return SimpleNamespace(kernels=kernels, variant=lambda name: kernels[name].variant)

    def timer(self, how: object) -> Card:
        return self

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        name = str(call())
        assert name not in self.wrong, "it was run before it was checked"

        def sample() -> float:
            if self.stop_after is not None:
                self.stop_after -= 1
                if self.stop_after < 0:
                    raise KeyboardInterrupt
            self.samples.append(name)
            self.now += 1.0
            return self.milliseconds[name] / 1e3

        return sample

    def sizes(self, which: object) -> Sequence[ProblemSize]:
        return [parse_size("B1,H2,S16"), parse_size("B1,H2,S32")]

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def check(self, folder: Path, names: Sequence[str], wish: Any) -> list[VariantReport]:
        self.checks.append((wish.case, list(names)))
        self.now += len(names)
        bad = self.wrong | (self.subtle if wish.case is None else set())
        failure = (Failure("several-tiles", "o is wrong"),)
        return [
            VariantReport(name, "failed" if name in bad else "passed", 1, "auto", failures=failure * (name in bad))
            for name in names
        ]

    def bench(self) -> Bench:
        return Bench(machine_for=lambda module: self, load=self.load, check=self.check, clock=lambda: self.now)  # type: ignore[arg-type, return-value]


TIMES = {"own": 2.0, "fast": 1.0, "faster": 0.5, "slow": 4.0}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card(dict(TIMES))
    monkeypatch.setattr(measure, "find_where", lambda *arguments, **options: Where())
    return found


def swept(name: str = "causal", version: int = 1) -> Sweep:
    candidates = [Candidate(each, f"{name}_0", f"key {each} {name}", {"q": 64, "kv": 16}) for each in TIMES]
    return Sweep("mine", version, (Swept(name, f"shape of {name}", "sm_90a", "own", candidates),))


def run(card: Card, path: Path, which: Sweep | None = None, budget: float | None = None, **options: Any) -> bool:
    wanted = Options(rounds=3, **options)
    return Measuring(path.parent, which or swept(), Results(path), wanted, budget, bench=card.bench()).run()


def test_the_fastest_that_is_right_wins_and_candidates_take_turns(card: Card, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert run(card, path)
    assert card.checks == [("several-tiles", ["own", "fast", "faster", "slow"]), (None, ["faster"])]
    assert card.samples[:8] == ["own", "fast", "faster", "slow", "fast", "faster", "slow", "own"]
    (winner,) = winners(Results(path))
    assert (winner.name, winner.gain, winner.tried) == ("faster", 4.0, 4)
    assert winner.milliseconds == {"B1,H2,S16": 0.5, "B1,H2,S32": 0.5}
    assert "causal   faster   4   4.000×" in table([winner])


def test_what_fails_a_case_is_never_run_beside_others(card: Card, tmp_path: Path) -> None:
    card.wrong = {"faster"}
    assert run(card, tmp_path / "r")
    assert "faster" not in card.samples
    assert winners(Results(tmp_path / "r"))[0].name == "fast"


def test_what_fails_the_whole_check_never_wins(card: Card, tmp_path: Path) -> None:
    card.subtle = {"faster", "fast"}
    assert run(card, tmp_path / "r")
    assert [names for case, names in card.checks if case is None] == [["faster"], ["fast"], ["own"]]
    (winner,) = winners(Results(tmp_path / "r"))
    assert winner.name == "own" and winner.gain == 1
    card.wrong, card.checks = set(TIMES), []
    assert run(card, tmp_path / "none") and winners(Results(tmp_path / "none")) == []


def test_without_the_whole_check_nobody_wins(card: Card, tmp_path: Path) -> None:
    assert run(card, tmp_path / "r")
    lines = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    (tmp_path / "r").write_text("".join(json.dumps(line) + "\n" for line in lines if not line.get("complete")))
    assert winners(Results(tmp_path / "r")) == [] and len(Results(tmp_path / "r").timed) == 2


def test_less_than_a_hundredth_is_nothing(card: Card, tmp_path: Path) -> None:
    card.milliseconds = {"own": 1.0, "fast": 0.995, "faster": 0.992, "slow": 2.0}
    assert run(card, tmp_path / "r")
    assert winners(Results(tmp_path / "r"))[0].name == "own"


def test_a_second_run_does_nothing(card: Card, tmp_path: Path) -> None:
    run(card, tmp_path / "r")
    before = (tmp_path / "r").read_bytes()
    card.samples, card.checks = [], []
    assert run(card, tmp_path / "r")
    assert card.samples == card.checks == [] and (tmp_path / "r").read_bytes() == before


def test_an_interruption_loses_one_measurement(card: Card, tmp_path: Path) -> None:
    card.stop_after = 15  # in the second size
    with pytest.raises(KeyboardInterrupt):
        run(card, tmp_path / "r")
    assert len(Results(tmp_path / "r").timed) == 1 and len(Results(tmp_path / "r").checked) == 4
    card.stop_after, card.samples, card.checks = None, [], []
    assert run(card, tmp_path / "r")
    assert len(card.samples) == 12 and card.checks == [(None, ["faster"])]
    assert winners(Results(tmp_path / "r"))[0].name == "faster"


def test_a_budget_begins_nothing_more(card: Card, tmp_path: Path) -> None:
    assert not run(card, tmp_path / "r", budget=5.0)
    assert len(Results(tmp_path / "r").timed) == 1
    assert winners(Results(tmp_path / "r")) == []  # who leads has not been checked to the end
    assert run(card, tmp_path / "r", budget=50.0)
    assert winners(Results(tmp_path / "r"))[0].name == "faster"


def test_a_budget_that_ends_among_the_checks(card: Card, tmp_path: Path) -> None:
    two = swept()
    two.variants[0].candidates[3] = Candidate("slow", "causal_1", "key slow causal", {})
    assert not run(card, tmp_path / "r", two, budget=2.0)
    assert card.checks == [("several-tiles", ["own", "fast", "faster"])] and card.samples == []
    assert run(card, tmp_path / "r", two) and card.checks[1] == ("several-tiles", ["slow"])


def test_figures_of_two_cards_are_not_mixed(card: Card, tmp_path: Path) -> None:
    run(card, tmp_path / "r")
    card.title, card.stop_after = "another card", 15  # in the second size
    card.milliseconds |= {"fast": 0.25}
    with pytest.raises(KeyboardInterrupt):
        run(card, tmp_path / "r")
    card.stop_after = None
    assert run(card, tmp_path / "r", sizes=(parse_size("B1,H2,S16"),))
    (winner,) = winners(Results(tmp_path / "r"))
    assert (winner.name, winner.card, list(winner.milliseconds)) == ("fast", "another card", ["B1,H2,S16"])


def test_lines_that_cannot_be_read_are_measured_again(card: Card, tmp_path: Path) -> None:
    run(card, tmp_path / "r")
    *lines, last = (tmp_path / "r").read_text().splitlines()
    (tmp_path / "r").write_text("\n".join(['{"kind": "check"}', "[]", "\x00", *lines, last[:20]]))
    kept = Results(tmp_path / "r")
    assert kept.damaged == 4 and len(kept.timed) == 2
    card.checks = []
    assert run(card, tmp_path / "r")
    assert card.checks == [(None, ["faster"])]
    assert Results(tmp_path / "r").damaged == 4 and winners(Results(tmp_path / "r"))[0].name == "faster"


def test_another_object_or_card_is_another_measurement(card: Card, tmp_path: Path) -> None:
    run(card, tmp_path / "r")
    other = swept()
    other.variants[0].candidates[0] = Candidate("own", "causal_0", "another key", {})
    card.checks, card.samples = [], []
    assert run(card, tmp_path / "r", other)
    assert card.checks[0] == ("several-tiles", ["own"]) and len(card.samples) == 24
    card.title, card.samples = "another card", []
    assert run(card, tmp_path / "r", other)
    assert len(card.samples) == 24 and winners(Results(tmp_path / "r"))[0].card == "another card"


def test_of_new_candidates_only_the_first_case_is_new(card: Card, tmp_path: Path) -> None:
    fewer = swept()
    del fewer.variants[0].candidates[2:]
    run(card, tmp_path / "r", fewer)
    assert winners(Results(tmp_path / "r"))[0].name == "fast"
    card.checks = []
    run(card, tmp_path / "r")
    assert card.checks == [("several-tiles", ["faster", "slow"]), (None, ["faster"])]
    assert winners(Results(tmp_path / "r"))[0].name == "faster"


def test_mistakes_of_the_measuring_step(card: Card, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no variant other"):
        run(card, tmp_path / "r", variants=("other",))
    assert alone.main([str(tmp_path)]) == 2 and "holds no candidates" in capsys.readouterr().err
    swept().write(tmp_path)
    assert alone.main([str(tmp_path), "--rounds", "1"]) == 2 and "--rounds" in capsys.readouterr().err


def test_where_there_is_no_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    swept().write(tmp_path)
    assert alone.main([str(tmp_path)]) == 2
    assert "no card here runs sm_90a" in capsys.readouterr().err


def test_measuring_needs_torch_alone() -> None:
    absent = ("pydantic", "typer", "click", "rich", "jinja2", "yaml", "ninja", "matplotlib")
    program = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport fagen.tune.__main__"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


# ---- writing ----


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, ["tune", *map(str, words)])


@pytest.fixture
def measured(spec: Path, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of the candidates of the variant `causal`, as another machine wrote them."""
    from fagen.plan.tuned import shape_class

    found = swept()
    found.variants[0].shape = shape_class(expand(load(spec))[0])
    path = tmp_path / "elsewhere" / "results.jsonl"
    assert run(card, path, found)
    return path


def test_results_from_elsewhere_become_the_file_that_the_planner_reads(spec: Path, measured: Path) -> None:
    result = invoke(spec, "--read", measured)
    assert result.exit_code == 0, result.output
    assert "mine.tuning.yml: 1 variant; `fagen build" in result.stdout
    text = spec.with_suffix(".tuning.yml").read_text()
    assert "tiles: {q: 64, kv: 16}" in text and "gain: 4.000" in text and 'card: "a card"' in text
    explained = CliRunner().invoke(app, ["explain", "causal", "--spec", str(spec)]).stdout
    assert "mine.tuning.yml: the fastest of 4 candidates, {q: 64, kv: 16}, on a card" in explained


def test_entries_of_other_variants_stay_and_a_damaged_file_is_kept(spec: Path, measured: Path, card: Card) -> None:
    run(card, measured, swept("full"))
    assert invoke(spec, "--read", measured, "-v", "full").exit_code == 0
    assert invoke(spec, "--read", measured, "-v", "causal").exit_code == 0
    path = spec.with_suffix(".tuning.yml")
    assert path.read_text().count("  - variant: ") == 2
    path.write_text(path.read_text().replace("tried: 4", "tried: four", 1) + "# mine\n")
    result = invoke(spec, "--read", measured, "-v", "causal")
    assert result.exit_code == 0 and "`tried` cannot be 'four'" in result.stderr
    assert "# mine" in path.with_name("mine.tuning.yml.damaged").read_text()
    assert path.read_text().count("  - variant: ") == 1 + ("variant: full" in path.read_text())


def test_results_of_another_planner_are_left_aside(spec: Path, card: Card, tmp_path: Path) -> None:
    run(card, tmp_path / "r", swept(version=0))
    result = invoke(spec, "--read", tmp_path / "r")
    assert result.exit_code == 0 and "another version of the planner: causal" in result.stderr
    assert not spec.with_suffix(".tuning.yml").exists()


def test_both_steps_at_once(
    spec: Path, tmp_path: Path, compiler: Compiler, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "cards", lambda: [SimpleNamespace(runs=lambda target: True)])
    monkeypatch.setattr(command, "Measuring", lambda *arguments: Measuring(*arguments, bench=card.bench()))
    names = ["q128_kv128_s2_scores", "q128_kv144_s2_scores"]
    card.milliseconds = dict(zip(names, (2.0, 1.0), strict=True))
    result = invoke(spec, "-v", "causal", "--most", 2, "--out", tmp_path, "--json", "--rounds", 3)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["entries"][0]["tiles"] == "{q: 128, kv: 144, stages: 2, turns: scores}"
    assert (tmp_path / ".fagen" / "tune" / "mine" / "results.jsonl").is_file()


def test_without_a_card_nothing_is_compiled_in_vain(
    spec: Path, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "cards", lambda: ())
    result = invoke(spec, "--out", tmp_path)
    assert result.exit_code == 2 and "--compile-only" in result.stderr and compiler.built == []
    result = invoke(spec, "--compile-only", "--most", 1, "--folder", tmp_path / "c")
    assert result.exit_code == 0 and f"python3 -m fagen.tune {tmp_path / 'c'}" in result.stdout
    result = invoke(spec, "--compile-only", "--budget", 5, "--most", 20, "--json", "--folder", tmp_path / "d")
    assert [each["waiting"] for each in json.loads(result.stdout)["variants"]] == [12, 20]


def test_mistakes_of_the_command(spec: Path, tmp_path: Path) -> None:
    assert "give one of them" in invoke(spec, "--compile-only", "--read", tmp_path / "r").stderr
    assert "there is no file" in invoke(spec, "--read", tmp_path / "r").stderr
    Sweep("other", 1, ()).write(tmp_path)
    assert "of another spec" in invoke(spec, "--measure", tmp_path).stderr


def test_a_size_is_read_as_it_is_written() -> None:
    for text in ("B1,H8,S1024", "B2,H8,Hk2,S16", "B1,H1,Sq5,Skv7"):
        assert size_text(parse_size(text)) == text

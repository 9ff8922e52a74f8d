"""`fagen tune`: what is checked, measured, kept and written, with stand-ins for compiler and card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tuned import ROOT, TIMES, Card, Compiler, run, swept
from typer.testing import CliRunner

from fagen.cli import app, tuning
from fagen.errors import UsageError
from fagen.size import parse_size, size_text
from fagen.spec import expand, load
from fagen.tune import __main__ as alone
from fagen.tune import command
from fagen.tune.folder import Candidate, Sweep
from fagen.tune.measure import Measuring
from fagen.tune.results import Results
from fagen.tune.winners import table, winners

# ---- measuring ----


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

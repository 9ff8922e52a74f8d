"""The check finds mistakes in kernels: two that are in print, and a sample of those that a program makes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "mutation"))

import run as program  # noqa: E402  of tests/cpu/mutation
from mutate import mutants  # noqa: E402
from trial import OTHER_TILES, SAME_CODE, SURVIVED, try_change, try_mutant  # noqa: E402

SAMPLE = int(os.environ.get("FAGEN_MUTANTS", "30"))
SEED = 2


def replaced(text: str, pattern: str, after: str) -> str:
    """``text`` with the one match of ``pattern`` replaced."""
    changed, count = re.subn(pattern, after, text)
    assert count == 1, f"{count} matches of {pattern}"
    return changed


def test_o_that_is_not_rescaled_on_a_new_maximum_is_found():
    outcome = try_change(
        "cpu/softmax.h",
        lambda text: replaced(text, r"\n *for \(int d = 0; d < kWidth; d \+= kLanes\) store\(o .*decay\);", ""),
    )
    assert outcome == "several-tiles"


def test_weights_against_the_maximum_before_the_tile_are_found():
    def stale(text: str) -> str:
        text = replaced(
            text, r"(?<=\n)( *)const float now = max_lanes", r"\1stale[r] = largest[r];\n\1const float now = max_lanes"
        )
        text = replaced(text, r"(\n *for \(int r = 0; r < rows; \+\+r\) \{  // apart)", r"\n  float stale[64];\1")
        return replaced(text, r"\? 0\.0f : largest\[r\];", "? 0.0f : stale[r] == -__builtin_inff() ? 0.0f : stale[r];")

    assert try_change("cpu/softmax.h", stale) == "several-tiles"


def test_kernels_without_a_mistake_are_not_found():
    assert try_change("cpu/softmax.h", lambda text: text + "\n") == SAME_CODE
    # The same numbers by other code.
    same = try_change(
        "cpu/softmax.h", lambda text: replaced(text, r"if \(now > largest\[r\]\)", "if (now >= largest[r])")
    )
    assert same == SURVIVED


def test_mutants_of_a_line():
    text = "inline void f(int n) {\n  for (int i = 0; i < n; i += kLanes) store(o + i, load(o + i) * decay);\n}"
    found = {mutant.after.strip() for mutant in mutants("x.h", text)}
    assert "for (int i = 0; i <= n; i += kLanes) store(o + i, load(o + i) * decay);" in found
    assert "for (int i = 0; i < n; i += kLanes) store(o + i, load(o + i));" in found
    assert "for (int i = 0; i < n; i += kLanes) store(o - i, load(o + i) * decay);" in found
    assert "for (int i = 0 + 1; i < n; i += kLanes) store(o + i, load(o + i) * decay);" in found
    assert all(mutant.function == "f" and mutant.number == 2 for mutant in mutants("x.h", text))


def test_equivalent_mutants_are_listed_once_each_with_a_reason():
    listed = program.equivalents()
    assert all(reason.strip() for reason in listed.values())
    unknown = listed.keys() - {mutant.key for mutant in every}
    assert not unknown, f"no such mutants any more: {sorted(unknown)}"


@pytest.mark.nightly  # two places of a kernel that read alike still share a key
def test_every_mutant_is_counted_once():
    keys = [mutant.key for mutant in every]
    assert len(keys) == len(set(keys)) > 1000


@pytest.mark.nightly
def test_every_mutant_is_found_or_known_to_be_equivalent():
    count, wrong = program.judge(every, every, os.cpu_count() or 1)
    assert not wrong, f"{count}\n" + "\n".join(wrong)


every = program.all_mutants()
chosen = program.sample(every, SAMPLE, SEED)


@pytest.mark.nightly  # until those that survive in kernels have their reasons in equivalent.toml
@pytest.mark.parametrize("mutant", chosen, ids=[f"{m.file}:{m.function}:{n}" for n, m in enumerate(chosen)])
def test_a_mutant_is_found_or_known_to_be_equivalent(mutant):
    trial = try_mutant(mutant)
    if mutant.key in program.equivalents():
        assert trial.outcome in (SURVIVED, SAME_CODE)
    else:
        assert trial.outcome != SURVIVED, mutant.key
        assert trial.outcome != OTHER_TILES or "cpu/" not in mutant.file

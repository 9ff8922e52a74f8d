"""The check finds mistakes in kernels: two that are in print, and a sample of those that a program makes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import pytest
import torch
from mutation import listed as lists
from mutation import mutate, program
from mutation.cpu.mutants import KIND, PROGRAM, text_of
from mutation.mutate import Mutant
from mutation.outcomes import SAME_CODE, SURVIVED, over_all
from mutation.workers import Worker, copied_headers

SAMPLE = int(os.environ.get("FAGEN_MUTANTS", "25"))
SEED = 2


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    # Threads that a fork of this process would wait for.
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).sum()
    torch.set_num_threads(threads)
    with PROGRAM.worker() as worker:
        yield worker


def mutants(file: str, text: str) -> list[Mutant]:
    return mutate.mutants(file, text, KIND)


def replaced(text: str, pattern: str, after: str) -> str:
    """``text`` with the one match of ``pattern`` replaced."""
    changed, count = re.subn(pattern, after, text)
    assert count == 1, f"{count} matches of {pattern}"
    return changed


def test_o_that_is_not_rescaled_on_a_new_maximum_is_found(worker):
    text = replaced(
        text_of("cpu/softmax.h"), r"\n *for \(int d = 0; d < kWidth; d \+= kLanes\) store\(o .*decay\);", ""
    )
    assert worker.try_change("cpu/softmax.h", text) == "several-tiles"


def test_weights_against_the_maximum_before_the_tile_are_found(worker):
    text = replaced(
        text_of("cpu/softmax.h"),
        r"(?<=\n)( *)const float now = max_lanes",
        r"\1stale[r] = largest[r];\n\1const float now = max_lanes",
    )
    text = replaced(text, r"(\n *for \(int r = 0; r < rows; \+\+r\) \{  // apart)", r"\n  float stale[64];\1")
    text = replaced(text, r"\? 0\.0f : largest\[r\];", "? 0.0f : stale[r] == -__builtin_inff() ? 0.0f : stale[r];")
    assert worker.try_change("cpu/softmax.h", text) == "several-tiles"


def test_kernels_without_a_mistake_are_not_found(worker):
    assert worker.faults_of_the_unchanged(["plain"]) == []
    text = text_of("forward:plain")
    assert worker.try_change("forward:plain", text + "\n") == SAME_CODE
    # The same numbers by other code.
    same = replaced(text, r"rows == kRows(?=\) \{\n *multiply<Product, kRows, kKeyVectors)", "false")
    assert worker.try_change("forward:plain", same) == SURVIVED


def test_kernels_that_fail_as_they_are_are_no_measure(tmp_path):
    shutil.copytree(copied_headers(), tmp_path / "include")
    header = tmp_path / "include" / "fagen" / "cpu" / "softmax.h"
    header.write_text(replaced(header.read_text(), r"largest\[r\] = now;", ""))
    with PROGRAM.worker(tmp_path / "include") as worker:
        assert worker.faults_of_the_unchanged(["plain"]) == ["plain, with no mistake in it: several-tiles"]


def test_mutants_of_a_line():
    text = "inline void f(int n) {\n  for (int i = 0; i < n; i += kLanes) store(o + i, load(o + i) * decay);\n}"
    found = {mutant.after.strip() for mutant in mutants("x.h", text)}
    assert "for (int i = 0; i <= n; i += kLanes) store(o + i, load(o + i) * decay);" in found
    assert "for (int i = 0; i < n; i += kLanes) store(o + i, load(o + i));" in found
    assert "for (int i = 0; i < n; i += kLanes) store(o - i, load(o + i) * decay);" in found
    assert "for (int i = 0 + 1; i < n; i += kLanes) store(o + i, load(o + i) * decay);" in found
    assert all(mutant.function == "f" and mutant.number == 2 for mutant in mutants("x.h", text))


def test_lengths_of_arrays_are_left_alone():
    lines = (
        "  Word keys[kTileKv * kRows];  // of a tile",
        "  typename Product::Vector bt[kRows];",
        "  float a[kRows][kLanes], b[kLanes];",
        "inline void transpose(V (&v)[kLanes]) {",
    )
    assert [mutants("x.h", line) for line in lines] == [[]] * len(lines)
    (mutant,) = mutants("x.h", "  T lanes[kLanes] = {0.0f};")
    assert mutant.after == "  T lanes[kLanes] = {1.0f};"
    assert "  return lanes[n + 1];" in [mutant.after for mutant in mutants("x.h", "  return lanes[n];")]


def test_a_list_of_equivalent_mutants(tmp_path):
    (tmp_path / "some.toml").write_text(
        """
        [[equivalent]]
        reason = "one"
        mutants = ['x.h: f: a => b']
        patterns = ['x\\.h: g: .* => .*']
        """
    )
    found = lists.listed(tmp_path)
    assert found.named("x.h: f: a => b") and found.reason("x.h: f: a => b") == "one"
    assert not found.named("x.h: g: a => b") and found.reason("x.h: g: a => b") == "one"
    assert found.reason("y.h: x.h: g: a => b") is None
    assert found.matching_nothing(["x.h: g: a => b"]) == ["x.h: f: a => b"]
    assert found.matching_nothing(["x.h: f: a => b"]) == [r"x\.h: g: .* => .*"]


@pytest.mark.parametrize(
    "fault", ["reason = ''\nmutants = ['a']", "reason = 'r'\nmutants = ['a', 'a']", "mutant = ['a']"]
)
def test_a_wrong_list_of_equivalent_mutants_is_refused(tmp_path, fault):
    (tmp_path / "some.toml").write_text(f"[[equivalent]]\n{fault}\n")
    with pytest.raises(ValueError, match=r"listed twice: a|some.toml: a group has a reason"):
        lists.listed(tmp_path)


def test_a_change_of_several_kernels_is_found_if_one_shows_it():
    tried = iter([SAME_CODE, SURVIVED, SAME_CODE, "huge", "tile"])
    assert over_all(tried) == "huge" and next(tried) == "tile"
    assert over_all([SAME_CODE, SURVIVED, SAME_CODE]) == SURVIVED
    assert over_all([SAME_CODE, SAME_CODE]) == SAME_CODE
    shared = next(mutant for mutant in every if mutant.function == "attend_block" and mutant.also)
    assert shared.file == "forward:rich"
    assert all(also.file.startswith("forward:") and also.after == shared.after for also in shared.also)


def test_what_is_listed_as_equivalent_exists():
    unknown = PROGRAM.known.matching_nothing(mutant.key for mutant in every)
    assert not unknown, f"no such mutants: {unknown}"


def test_every_mutant_is_counted_once():
    keys = [mutant.key for mutant in every]
    assert len(keys) == len(set(keys)) > 1000


@pytest.mark.nightly
def test_every_mutant_is_found_or_known_to_be_equivalent():
    count, wrong = program.judge_all(PROGRAM, os.cpu_count() or 1)
    assert not wrong, f"{count}\n" + "\n".join(wrong)


every = PROGRAM.every
# Of those that must be found: nightly, listed ones are tried as well, each on every subject.
chosen = program.sample(PROGRAM.unlisted(), SAMPLE, SEED)


@pytest.mark.parametrize("mutant", chosen, ids=[f"{m.file}:{m.function}:{n}" for n, m in enumerate(chosen)])
def test_a_mutant_is_found(worker, mutant):
    assert worker.try_mutant(mutant).outcome != SURVIVED, mutant.key

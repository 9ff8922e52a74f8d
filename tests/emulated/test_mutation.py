"""The emulator and the check find mistakes in CUDA kernels, with no card: a sample of those that a program makes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from mutation.cuda.mutants import HEADERS, KIND, PROGRAM, text_of
from mutation.cuda.trial import headers_of
from mutation.mutate import Mutant, mutants
from mutation.outcomes import NOT_CPP, SAME_CODE, SURVIVED
from mutation.program import judge_all, sample
from mutation.workers import Worker

from fagen.errors import ToolchainError
from fagen.toolchain import find_nvcc

SAMPLE = int(os.environ.get("FAGEN_CUDA_MUTANTS", "6"))
SEED = 1


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    try:
        find_nvcc()
    except ToolchainError as error:
        pytest.skip(f"mutants of CUDA kernels are compiled to PTX by nvcc: {error}")
    with PROGRAM.worker() as worker:
        yield worker


TRIED = ("window", "warpgroups")  # here; all of them at night, and before the program tries any mutant


@pytest.mark.parametrize(
    "subject",
    [name if name in TRIED else pytest.param(name, marks=pytest.mark.nightly) for name in PROGRAM.subjects],
)
def test_a_kernel_without_a_mistake_is_not_found(subject: str, worker: Worker) -> None:
    assert worker.faults_of_the_unchanged([subject]) == []


def test_the_same_code_is_told(worker: Worker) -> None:
    assert worker.try_change("forward:window", text_of("forward:window") + "\n") == SAME_CODE


@pytest.mark.parametrize(
    ("pattern", "after", "kinds"),
    [
        (r"wait_for_copies<\d>", "wait_for_copies<7>", ("race", "uninitialised")),
        (r"\b(ptx::sync_block|__syncthreads)\(\);", ";", ("race", "uninitialised")),
        (r"\bhk = [^;]+;", "hk = block.h;", ("out of bounds",)),
        (r"\bkTileKv = 16;", "kTileKv = ;", (NOT_CPP,)),
    ],
    ids=["waits", "barriers", "head", "not C++"],
)
def test_mistakes_are_told_apart(worker: Worker, pattern: str, after: str, kinds: tuple[str, ...]) -> None:
    text, count = re.subn(pattern, after, text_of("forward:window"))
    assert count, pattern
    outcome = worker.try_change("forward:window", text)
    assert any(kind in outcome for kind in kinds), outcome


@pytest.mark.parametrize(
    ("pattern", "after", "kinds"),
    [
        (r"\.wait_full\(values_\);", ".wait_empty(values_);", ("race", "uninitialised", "wrong o")),
        (r"ptx::fence_products\(\);", ";", ("wgmma",)),
        (r"ptx::mbarrier_arrive_if\(lane_id\(\) == 0, shared_\.of_keys\(\)[^;]+;", ";", ("deadlock",)),
        (r"\btile\.hk, tile\.b\b", "tile.b, tile.hk", ("wrong o", "uninitialised")),
    ],
    ids=["waits", "fences", "arrivals", "head"],
)
def test_mistakes_with_warpgroups_are_told_apart(
    worker: Worker, pattern: str, after: str, kinds: tuple[str, ...]
) -> None:
    text, count = re.subn(pattern, after, text_of("forward:warpgroups"))
    assert count, pattern
    outcome = worker.try_change("forward:warpgroups", text)
    assert any(kind in outcome for kind in kinds), outcome


def test_the_kernels_of_the_subjects_are_of_every_kind() -> None:
    texts = [text_of(f"forward:{name}") for name in PROGRAM.subjects]
    assert {"constexpr int kStages = 1;", "constexpr int kStages = 2;"} <= {
        line.partition("  //")[0] for text in texts for line in text.splitlines()
    }


def test_each_header_is_tried_on_a_subject() -> None:
    tried = frozenset().union(*map(headers_of, PROGRAM.subjects))
    assert set(HEADERS) <= tried
    assert "cuda/ring.h" in headers_of("warpgroups") and "cuda/ring.h" not in headers_of("window")
    assert "params.h" in headers_of("window")  # which the headers include that it names


@pytest.mark.parametrize(
    ("line", "mistakes"),
    [
        ("ptx::wait_for_copies<1>();  // of K", ["ptx::wait_for_copies<2>();  // of K", ";  // of K"]),
        ("ptx::commit_copies();", [";"]),
        ("ptx::sync_block();", [";", "__syncwarp();"]),
        ("__syncthreads();", [";", "__syncwarp();"]),
        ("found = ptx::sync_block_or(any);", ["found = (any);"]),
        ('asm volatile("bar.sync 0;" ::: "memory");', ['asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");']),
        ("if (after >= 0) load_k(after, stage ^ 1);", ["if (after >= 0) load_k(after, stage);"]),
        ("use(tile, stage);", ["use(tile, 0);"]),
        ("return chunk ^ (row & 7);", ["return chunk;", "return chunk ^ (row & 3);", "return chunk + (row & 7);"]),
        ("return lane % 8 + lane / 16 * 8;", ["return lane % 4 + lane / 16 * 8;", "return lane % 8 + lane / 16;"]),
        ("return of(view, b, hk);", ["return of(view, b, block.h);"]),
        ("int hk = block.h / group;", ["int hk = block.b / group;"]),
        ("rings.of_keys().wait_full(keys_);", [";", "rings.of_keys().wait_empty(keys_);"]),
        ("keys_.next();", [";"]),
        ("wait(ring.empty(group), turn.parity() ^ 1);", ["wait(ring.full(group), turn.parity() ^ 1);"]),
        ("wait(ring.empty(group), turn.parity() ^ 1);", ["wait(ring.empty(group), turn.parity());"]),
        ("ptx::wait_for_products<1>();", [";", "ptx::wait_for_products<2>();"]),
        ('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', ['asm volatile("" ::: "memory");']),
        ('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ['asm volatile("" ::: "memory");']),
        ("ring.make(1, 4 * kGroups);", ["ring.make(2, 4 * kGroups);", "ring.make(1, 4);", "ring.make(1, kGroups);"]),
        ("return copy(map, tile.hk, tile.b);", ["return copy(map, 0, tile.b);", "return copy(map, tile.hk, tile.hk);"]),
    ],
)
def test_mutants_of_a_line_of_cuda(line: str, mistakes: list[str]) -> None:
    text = "__device__ void f(int n) {\n  " + line + "\n}"
    found = {mutant.after.strip() for mutant in mutants("x.h", text, KIND)}
    assert set(mistakes) <= found


def test_what_is_listed_as_equivalent_exists() -> None:
    unknown = PROGRAM.known.matching_nothing(mutant.key for mutant in PROGRAM.every)
    assert not unknown, f"no such mutants: {unknown}"


def test_every_mutant_is_counted_once() -> None:
    keys = [mutant.key for mutant in PROGRAM.every]
    assert len(keys) == len(set(keys)) > 1000


@pytest.mark.nightly
def test_every_mutant_is_found_or_known_to_be_equivalent(worker: Worker) -> None:
    count, wrong = judge_all(PROGRAM, os.cpu_count() or 1)
    assert not wrong, f"{count}\n" + "\n".join(wrong)


chosen = sample(PROGRAM.unlisted(), SAMPLE, SEED)


@pytest.mark.parametrize("mutant", chosen, ids=[f"{m.file}:{m.function}:{n}" for n, m in enumerate(chosen)])
def test_a_mutant_is_found(worker: Worker, mutant: Mutant) -> None:
    assert worker.try_mutant(mutant).outcome != SURVIVED, mutant.key

"""How many compilers run at once, on machines described by files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fagen.build.budget import free_memory_mb, job_limit, usable_cores
from fagen.errors import UsageError


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("MAX_JOBS", raising=False)


def machine(root: Path, available_mb: int, files: dict[str, str] | None = None) -> Path:
    content = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {available_mb * 1024} kB\n", **(files or {})}
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_plenty(tmp_path: Path) -> None:
    assert job_limit([500] * 40, root=machine(tmp_path, 64_000)) == 16


def test_free_memory_limits(tmp_path: Path) -> None:
    """4 GB free and 1 GB a unit, with a margin: 3 at once."""
    assert job_limit([1000] * 40, root=machine(tmp_path, 4000)) == 3


def test_the_largest_may_run_together(tmp_path: Path) -> None:
    assert job_limit([100] * 30 + [1500, 1500], root=machine(tmp_path, 4000)) == 2 + 2


def test_one_always_runs(tmp_path: Path) -> None:
    assert job_limit([9000], root=machine(tmp_path, 100)) == 1
    assert job_limit([9000], root=tmp_path / "no such machine") == 1


def test_no_more_jobs_than_units(tmp_path: Path) -> None:
    assert job_limit([1, 1, 1], root=machine(tmp_path, 64_000)) == 3


@pytest.mark.parametrize("value, expected", [("3", 3), ("1", 1), ("200", 40), ("", 16)])
def test_max_jobs_is_obeyed(tmp_path: Path, value: str, expected: int) -> None:
    assert job_limit([1] * 40, environ={"MAX_JOBS": value}, root=machine(tmp_path, 64_000)) == expected


def test_max_jobs_does_not_undo_the_memory_limit(tmp_path: Path) -> None:
    assert job_limit([1000] * 40, environ={"MAX_JOBS": "40"}, root=machine(tmp_path, 4000)) == 3


def test_jobs_option_replaces_max_jobs(tmp_path: Path) -> None:
    assert job_limit([1] * 40, asked=5, environ={"MAX_JOBS": "3"}, root=machine(tmp_path, 64_000)) == 5


@pytest.mark.parametrize("value", ["0", "-2", "many", "2.5"])
def test_bad_max_jobs(value: str) -> None:
    with pytest.raises(UsageError, match="MAX_JOBS"):
        job_limit([1], environ={"MAX_JOBS": value})


def test_cgroup_2(tmp_path: Path) -> None:
    """The nearest limit may be an outer group's; inactive file pages can be dropped."""
    root = machine(
        tmp_path,
        64_000,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/memory.max": str(3000 << 20),
            "sys/fs/cgroup/outer/memory.current": str(2000 << 20),
            "sys/fs/cgroup/outer/memory.stat": f"anon 5\ninactive_file {500 << 20}\n",
            "sys/fs/cgroup/outer/cpu.max": "max 100000",
            "sys/fs/cgroup/outer/inner/memory.max": "max",
            "sys/fs/cgroup/outer/inner/cpu.max": "250000 100000",
        },
    )
    assert free_memory_mb(root) == 1500
    assert usable_cores(root) == 2
    assert job_limit([400] * 9, root=root) == 2


def test_cgroup_1_in_a_container(tmp_path: Path) -> None:
    """The path is the host's; what can be seen is the mount."""
    root = machine(
        tmp_path,
        64_000,
        {
            "proc/self/cgroup": "5:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(1000 << 20),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(400 << 20),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert free_memory_mb(root) == 600
    assert usable_cores(root) == 4

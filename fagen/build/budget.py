"""How many compilers may run at once: as many as cores, memory and MAX_JOBS allow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import Problem, UsageError

DEFAULT_PEAK_MB = 500.0  # of a unit never compiled before; CPU kernels measured so far stay below 400
MEMORY_SHARE = 0.8  # of what is free now: others need memory too while compilers run


def job_limit(
    peaks_mb: Iterable[float],
    *,
    asked: int | None = None,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> int:
    """The number of compilers to run at once, at least 1.

    ``peaks_mb`` are the expected peaks of the units to compile; the limit holds even if the largest run together.
    ``asked`` (``--jobs``) replaces MAX_JOBS, and either replaces the number of cores, but not the memory limit.
    ``root`` is where /proc and /sys are found. Raises :class:`UsageError` for a MAX_JOBS that is no number.
    """
    wanted = asked if asked is not None else _max_jobs(os.environ if environ is None else environ)
    limit = wanted if wanted is not None else usable_cores(root)
    budget = MEMORY_SHARE * free_memory_mb(root)
    jobs = 0
    for peak in sorted(peaks_mb, reverse=True):
        budget -= peak
        if budget < 0 or jobs == limit:
            break
        jobs += 1
    return max(1, jobs)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on: its affinity mask, cut by the cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return max(1, cores)


def free_memory_mb(root: Path = Path("/")) -> float:
    """Memory in MiB that can be used without swapping: the machine's, cut by every enclosing cgroup's limit."""
    free = float("inf")
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) / 1024
    for folder in _cgroups(root):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            # Cached file pages count as used, but the kernel drops them before it kills anything.
            inactive = dict(line.split() for line in _read(folder / "memory.stat").splitlines()).get(
                "inactive_file", "0"
            )
            free = min(free, (int(limit) - int(used) + int(inactive)) / 2**20)
    return max(0.0, free)


def _cgroups(root: Path) -> list[Path]:
    """The folders of this process's cgroup and of those around it, for version 2 and version 1."""
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controllers:
            mount = mount / controllers
        folder = mount / path.lstrip("/")
        # In a container the path may be the host's, and only the mount itself is visible.
        found += [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def _max_jobs(environ: Mapping[str, str]) -> int | None:
    text = environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(Problem(f"MAX_JOBS is {text!r}", hint="set it to a number of compilers, as MAX_JOBS=4"))
    return int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""The program that ninja runs for each object. Standard library only; started as a script, never imported.

    compile_unit.py UNITS_JSON INDEX      compile one unit into the object cache
    compile_unit.py --ninja PARENT ...    become ninja, and stop when process PARENT ends

Under a lock per key, so that builders that need the same object compile it once. The object goes into the cache by
rename as soon as it is made: a killed build keeps what it had finished.
"""

import fcntl
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main(units_json: str, index: str) -> int:
    """Compile unit ``index``; returns the exit status."""
    plan = json.loads(Path(units_json).read_bytes())
    unit = plan["units"][int(index)]
    target = Path(unit["object"])
    # A fixed number of lock files, so that they can stay: a lock file that is deleted is no lock.
    lock = Path(plan["cache"]) / "locks" / unit["key"][:3]
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    if is_whole(target):
        tell(plan, index, "cached")
        return 0
    tell(plan, index, "start")
    started = time.monotonic()
    with open(unit["log"], "wb") as log:
        status = subprocess.call(unit["command"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    if status != 0:
        tell(plan, index, "failed", status=status)
        return 1
    data = Path(unit["output"]).read_bytes()
    record = {"sha256": hashlib.sha256(data).hexdigest(), "seconds": round(seconds, 3), "peak_mb": round(peak_mb, 1)}
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if unit["notes"]:
        notes = Path(unit["output"]).with_suffix(".gcno").read_bytes()
        record["notes_sha256"] = hashlib.sha256(notes).hexdigest()
        put(target.with_suffix(".gcno"), notes)
    put(target, data)
    put(target.with_suffix(".json"), json.dumps(record).encode())
    tell(plan, index, "done", seconds=record["seconds"], peak_mb=record["peak_mb"])
    return 0


def is_whole(target: Path) -> bool:
    """Whether another builder has put the object there meanwhile."""
    try:
        record = json.loads(target.with_suffix(".json").read_bytes())
        files = {"sha256": target, "notes_sha256": target.with_suffix(".gcno")}
        return all(
            hashlib.sha256(path.read_bytes()).hexdigest() == record[name]
            for name, path in files.items()
            if name == "sha256" or name in record
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def put(path: Path, data: bytes) -> None:
    """Write a file by rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def tell(plan: dict, index: str, event: str, **facts: object) -> None:
    """Add one line to the events file; a single small append is atomic."""
    line = json.dumps({"unit": int(index), "event": event, **facts}) + "\n"
    handle = os.open(plan["events"], os.O_WRONLY | os.O_APPEND)
    os.write(handle, line.encode())
    os.close(handle)


def become_ninja(parent: str, command: list[str]) -> None:
    """Replace this process by ninja, which gets SIGTERM (and stops its compilers) when the builder ends."""
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the call above
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "--ninja":
        become_ninja(sys.argv[2], sys.argv[3:])
    sys.exit(main(sys.argv[1], sys.argv[2]))

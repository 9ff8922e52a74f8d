"""The program that ninja runs for each object, and the form of an entry of the object cache. Standard library only.

    compile_unit.py UNITS_JSON INDEX      compile one unit into the object cache
    compile_unit.py --ninja PARENT ...    become ninja, and stop when process PARENT ends

Under a lock per key, so that builders that need the same object compile it once. The object goes into the cache by
rename as soon as it is made: a killed build keeps what it had finished. It is in the builder's own folder, too: another
builder may trim the cache at any time. So are the files beside it that a unit asks for, each named by its suffix
(``.txt``: all that its commands printed).

A disk that is full is said on stderr, which ninja passes on: the files of this builder may be on that disk.
"""

import errno
import fcntl
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What compilers, linkers and ninja say of these, run with LC_ALL=C.
NO_ROOM_WORDS = ("No space left on device", "Disk quota exceeded")


def main(units_json: str, index: str) -> int:
    """Compile unit ``index``; returns the exit status."""
    plan = json.loads(Path(units_json).read_bytes())
    try:
        return make(plan, index)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        place = os.path.abspath(error.filename or plan["units"][int(index)]["output"])
        print(f"{place}: {NO_ROOM_WORDS[NO_ROOM.index(error.errno)]}", file=sys.stderr)
        return 1


def make(plan: dict, index: str) -> int:
    """Bring the object of unit ``index`` into this folder and the cache."""
    unit = plan["units"][int(index)]
    output = Path(unit["output"])
    target = Path(unit["object"])
    # A fixed number of lock files, so that they can stay: a lock file that is deleted is no lock.
    lock = Path(plan["cache"]) / "locks" / unit["key"][:3]
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    found = read_entry(target, unit["beside"])  # another builder may have put it there meanwhile
    if found is not None:
        record, data, beside = found
        write_object(output, data, beside)
        tell(plan, index, "cached", seconds=record["seconds"], peak_mb=record["peak_mb"])
        return 0
    tell(plan, index, "start")
    started = time.monotonic()
    printed = b""
    for step, command in enumerate(unit["commands"]):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False
        )
        printed += done.stdout
        if done.returncode != 0:
            line = no_room_line(done.stdout.decode(errors="replace"))
            if line is not None:
                print(line, file=sys.stderr)
                return 1
            Path(unit["log"]).write_bytes(done.stdout)
            tell(plan, index, "failed", status=done.returncode, step=step)
            return 1
    seconds = time.monotonic() - started
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    output.with_suffix(".txt").write_bytes(printed)
    data = output.read_bytes()
    beside = {suffix: output.with_suffix(suffix).read_bytes() for suffix in unit["beside"]}
    record = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "seconds": round(seconds, 3),
        "peak_mb": round(peak_mb, 1),
        "beside": {suffix: hashlib.sha256(content).hexdigest() for suffix, content in beside.items()},
    }
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix, content in beside.items():
        put(target.with_suffix(suffix), content)
    put(target, data)
    put(target.with_suffix(".json"), json.dumps(record).encode())
    tell(plan, index, "done", seconds=record["seconds"], peak_mb=record["peak_mb"])
    return 0


def read_entry(target: Path, beside: Iterable[str]) -> "tuple[dict, bytes, dict[str, bytes]] | None":
    """What the cache holds at ``target``: the record, the object and, by suffix, the files ``beside`` it, if all are
    there and whole."""
    try:
        record = json.loads(target.with_suffix(".json").read_bytes())
        record["seconds"], record["peak_mb"] = float(record["seconds"]), float(record["peak_mb"])
        data = target.read_bytes()
        if hashlib.sha256(data).hexdigest() != record["sha256"]:
            return None
        found = {suffix: target.with_suffix(suffix).read_bytes() for suffix in beside}
        for suffix, content in found.items():
            if hashlib.sha256(content).hexdigest() != record["beside"][suffix]:
                return None
        return record, data, found
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_object(output: Path, data: bytes, beside: Mapping[str, bytes]) -> None:
    """Put an object, and the files beside it, into a builder's own folder."""
    output.write_bytes(data)
    for suffix, content in beside.items():
        output.with_suffix(suffix).write_bytes(content)


def put(path: Path, data: bytes) -> None:
    """Write a file by rename, so that a reader sees the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise


def no_room_line(output: str) -> "str | None":
    """The line of a program's output that says that a disk is full, if one does."""
    return next((line.strip() for line in output.splitlines() if any(words in line for words in NO_ROOM_WORDS)), None)


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

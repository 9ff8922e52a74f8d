"""Where the cache is, who may own it, and what it forgets."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from pathlib import Path

import pytest

from fagen.build.cache import Cache, Cost, locate_cache, write_atomically
from fagen.errors import LockError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for /tmp."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"fagen-{os.getuid()}"


def put(cache: Path, key: str, data: bytes, seconds_ago: float = 0.0) -> None:
    path = Cache(cache).object_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    record = {"sha256": hashlib.sha256(data).hexdigest(), "seconds": 1.5, "peak_mb": 90.0}
    path.with_suffix(".json").write_text(json.dumps(record))
    then = path.stat().st_mtime - seconds_ago
    os.utime(path, (then, then))


def test_named(tmp_path: Path) -> None:
    assert locate_cache({"FAGEN_CACHE_DIR": str(tmp_path / "x"), "HOME": "/root"}).root == tmp_path / "x"
    assert not (tmp_path / "x").exists()


def test_in_home(tmp_path: Path) -> None:
    assert locate_cache({"HOME": str(tmp_path)}).root == tmp_path / ".cache" / "fagen"


@pytest.mark.parametrize("home", [None, "", "relative", "/proc/1/nobody", "/dev/null"])
def test_without_a_usable_home(home: str | None, temporary: Path) -> None:
    """A folder of this user in /tmp, closed to others."""
    cache = locate_cache({} if home is None else {"HOME": home})
    assert cache.root == temporary
    cache.require_writable()
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert locate_cache({}).root == temporary


def test_a_folder_in_tmp_that_others_can_write(temporary: Path) -> None:
    temporary.mkdir()
    temporary.chmod(0o777)
    with pytest.raises(LockError, match="not a folder that you alone can write"):
        locate_cache({})


def test_a_link_in_tmp(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    temporary.symlink_to(tmp_path / "theirs")
    with pytest.raises(LockError, match="FAGEN_CACHE_DIR"):
        locate_cache({})


def test_a_folder_in_tmp_of_another_user(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: temporary.stat().st_uid + 1)
    (temporary.parent / f"fagen-{os.getuid()}").mkdir(mode=0o700)
    with pytest.raises(LockError, match="not a folder that you alone"):
        locate_cache({})


def test_lookup(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.lookup("ab" * 32) is None
    put(tmp_path, "ab" * 32, b"object")
    entry = cache.lookup("ab" * 32)
    assert entry is not None
    assert entry.data == b"object"
    assert entry.cost == Cost(1.5, 90.0)
    for damaged in (b"objec", b""):
        cache.object_path("ab" * 32).write_bytes(damaged)
        assert cache.lookup("ab" * 32) is None
    for record in ("", "[]", '{"sha256": 3}'):
        put(tmp_path, "cd" * 32, b"object")
        cache.object_path("cd" * 32).with_suffix(".json").write_text(record)
        assert cache.lookup("cd" * 32) is None


def test_lookups_write_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.lookup("ab" * 32)
    cache.verdict("ab" * 32)
    cache.history()
    cache.touch(["ab" * 32])
    assert list(tmp_path.iterdir()) == []


def test_verdicts(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.store_verdict("ab" * 32, {"verdict": "passed"})
    assert cache.verdict("ab" * 32) == {"verdict": "passed"}
    (tmp_path / "verdicts" / "ab" / f"{'ab' * 32}.json").write_text("{")
    assert cache.verdict("ab" * 32) is None
    Cache(Path("/proc/fagen")).store_verdict("ab" * 32, {})


def test_history(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.remember({"a.cpp": Cost(2.0, 300.0)})
    cache.remember({"b.cpp": Cost(1.0, 100.0)})
    assert cache.history() == {"a.cpp": Cost(2.0, 300.0), "b.cpp": Cost(1.0, 100.0)}
    (tmp_path / "history.json").write_text('{"a.cpp": 3}')
    assert cache.history() == {}


def test_trim_forgets_what_was_not_used_longest(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for n, ago in enumerate((400, 300, 200, 100)):
        put(tmp_path, f"{n}" * 64, bytes(1000), seconds_ago=ago)
    abandoned = tmp_path / "objects" / "00" / ".tmp-1"
    abandoned.write_bytes(b"")
    os.utime(abandoned, (0, 0))
    young = tmp_path / "objects" / "00" / ".tmp-2"
    young.write_bytes(b"")
    cache.touch(["0" * 64])
    cache.trim(limit_bytes=2500)
    assert [cache.lookup(f"{n}" * 64) is not None for n in range(4)] == [True, False, False, True]
    assert not abandoned.exists()
    assert young.exists()


def test_atomic_writes(tmp_path: Path) -> None:
    """Readers see one whole value or another, whoever writes."""
    path = tmp_path / "folder" / "file"
    values = [bytes([n]) * 100_000 for n in range(4)]
    write_atomically(path, values[0])
    threads = [
        threading.Thread(target=lambda value=value: [write_atomically(path, value) for _ in range(50)])
        for value in values
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in values
    assert [file.name for file in path.parent.iterdir()] == ["file"]

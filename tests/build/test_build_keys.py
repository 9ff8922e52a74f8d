"""Object keys: everything that changes an object changes its key, and nothing else does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from small_job import FLAGS, HEADERS, assert_whole, build_small, small_job

from fagen.build.cache import Cache
from fagen.build.compile import compile_commands
from fagen.build.keys import Headers, digest, object_key, read_headers, tree_digest
from fagen.build.published import damaged_file, read_manifest
from fagen.errors import LockError
from fagen.resources import templates_dir
from fagen.toolchain import find_compiler

SOURCE = '#include "a.h"\nint f() { return A; }\n'
FILES = {
    "a.h": b'#pragma once\n#include "deep/b.h"\n# define A B\n',
    "deep/b.h": b'  #  include <c.h>\n#include "beside.h"\n#define B C\n',
    "deep/beside.h": b"",
    "c.h": b"#define C 3\n",
    "unused.h": b"",
}


def key(
    source: str = SOURCE, flags: tuple[str, ...] = ("-O2", "-g0"), files: dict[str, bytes] = FILES, **more: object
) -> str:
    return object_key(source, flags, Headers(files), **{"compiler": "gcc 12", **more})  # type: ignore[arg-type]


CHANGES = {
    "source": lambda: key(source=SOURCE + " "),
    "flag": lambda: key(flags=("-O3", "-g0")),
    "flag order": lambda: key(flags=("-g0", "-O2")),
    "one flag less": lambda: key(flags=("-O2",)),
    "compiler": lambda: key(compiler="gcc 13"),
    "torch": lambda: key(extra=["torch 2.14"]),
    "included header": lambda: key(files={**FILES, "a.h": FILES["a.h"] + b"\n"}),
    "header of a header": lambda: key(files={**FILES, "c.h": b"#define C 4\n"}),
    "header beside a header": lambda: key(files={**FILES, "deep/beside.h": b"\n"}),
    "header renamed": lambda: key(files={name: data for name, data in FILES.items() if name != "c.h"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_input_changes_the_key(change: str) -> None:
    assert CHANGES[change]() != key()


def test_changes_differ_from_each_other() -> None:
    assert len({change() for change in CHANGES.values()}) == len(CHANGES)


def test_what_must_not_matter() -> None:
    """A header that is not included, and the order in which files were found."""
    assert key(files={**FILES, "unused.h": b"x", "new.h": b""}) == key()
    assert key(files=dict(reversed(FILES.items()))) == key()
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest([1, 2]) != digest([2, 1])


def test_folder_and_times_do_not_matter(tmp_path: Path) -> None:
    """The same headers elsewhere, older, behind a link: the same key."""
    first, second = tmp_path / "a", tmp_path / "ünïcode and space" / "b"
    for folder in (first, second):
        for name, data in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    os.utime(second / "a.h", (0, 0))
    (tmp_path / "link").symlink_to(second)
    keys = {object_key(SOURCE, FLAGS, read_headers(f), compiler="x") for f in (first, second, tmp_path / "link")}
    assert len(keys) == 1
    assert tree_digest([first], (".h",)) == tree_digest([second], (".h",))
    (second / "deep" / "b.h").write_bytes(b"")
    os.utime(second / "deep" / "b.h", (0, 0))
    assert tree_digest([first], (".h",)) != tree_digest([second], (".h",))


def test_include_cycles_end() -> None:
    assert Headers({"a.h": b'#include "b.h"', "b.h": b'#include "a.h"'}).used_by(b'#include "a.h"') == ("a.h", "b.h")


def test_scan_finds_every_header_that_the_compiler_reads(tmp_path: Path) -> None:
    """The headers counted are at least those in the compiler's own dependency file."""
    headers = read_headers(templates_dir() / "include")
    names = [name for name in headers.files if name.startswith("fagen/") and "/host/" not in name]
    source = "".join(f'#include "{name}"\n' for name in names)
    (tmp_path / "all.cpp").write_text(source)
    headers.write(tmp_path / "include")
    command = [*find_compiler().command, "-std=c++17", "-Iinclude", "-MM", "-MG", "all.cpp"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    read = {word.removeprefix("include/") for word in done.stdout.split() if word.startswith("include/")}
    assert read and read <= set(headers.used_by(source.encode()))


def test_an_edited_header_rebuilds_what_includes_it_and_nothing_else(tmp_path: Path) -> None:
    """By content: times play no part, the header's is years old."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    first = build_small(out, cache, small_job(7))
    assert set(first.compiled.made) == {"value", "more0", "more1", "more2"}
    edited = Headers({"part.h": HEADERS.files["part.h"].replace(b"return x", b"return 0 + x")})
    second = build_small(out, cache, small_job(8, headers=edited))
    assert set(second.compiled.made) == {"value"} and set(second.compiled.cached) == {"more0", "more1", "more2"}
    # What was there before is still in the cache.
    third = build_small(out, cache, small_job(7))
    assert not third.compiled.made and assert_whole(out / "small") == 7


def test_a_damaged_object_is_compiled_again(tmp_path: Path) -> None:
    """Cut short, as a power failure may leave it."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    build_small(out, cache, small_job(1))
    for unit in small_job(1).units[:2]:
        path = Cache(cache).object_path(unit.key)
        path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(out)
    again = build_small(out, cache, small_job(1))
    assert len(again.compiled.made) == 2 and assert_whole(out / "small") == 1


def test_a_damaged_module_is_published_again(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    build_small(out, cache, small_job(1))
    assert build_small(out, cache, small_job(1)).up_to_date
    (out / "small" / "value.txt").write_text("2")
    assert not build_small(out, cache, small_job(1)).up_to_date
    assert assert_whole(out / "small") == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = build_small(tmp_path / "out", tmp_path / "cache", small_job(1)).folder
    manifest = read_manifest(folder)
    assert manifest is not None and damaged_file(folder, manifest) is None
    for damage in (lambda path: path.write_text("2"), lambda path: path.unlink()):
        damage(folder / "value.txt")
        assert damaged_file(folder, manifest) == "value.txt"


def test_a_module_without_its_manifest_is_still_a_build_s(tmp_path: Path) -> None:
    """A power cut may cut the manifest: the next build needs no hand. A folder of anybody else's is left alone."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    folder = build_small(out, cache, small_job(1)).folder
    manifest = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(manifest[:20])
    with pytest.raises(LockError, match="no build of fagen made"):
        build_small(out, cache, small_job(1))
    (folder / "__init__.py").write_text('"""small: fused attention, rendered by fagen from small.yaml."""')
    build_small(out, cache, small_job(1))
    assert assert_whole(folder) == 1


def test_the_command_has_no_absolute_path_of_the_build() -> None:
    """So a failing source can be compiled again where it is kept."""
    unit = small_job(1).units[0]
    [command] = compile_commands(unit, find_compiler(), "0.o")
    assert [word for word in command[1:] if word.startswith("/")] == []

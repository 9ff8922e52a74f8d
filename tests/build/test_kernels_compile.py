"""Rendered kernels as compilers see them: no warning, no unused name, and nothing that other objects could meet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from golden_plans import golden_plans

from fagen.render import Source, render
from fagen.resources import templates_dir
from fagen.toolchain import find_compiler

SOURCES = [source for planned in golden_plans() for source in render(planned)]
INCLUDE = f"-I{templates_dir() / 'include'}"
EXPORTS = {
    "forward": ("forward", "forward_workspace", "tile_counts"),
    "backward": ("backward", "backward_workspace"),
}


def compiled(source: Source, folder: Path, *flags: str) -> Path:
    path = folder / source.name
    path.write_text(source.text, encoding="utf-8")
    command = [*find_compiler().command, *source.flags, "-Werror", *flags, INCLUDE, "-c", str(path)]
    result = subprocess.run([*command, "-o", str(path.with_suffix(".o"))], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return path.with_suffix(".o")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_no_warnings_and_no_unused_names(source: Source, tmp_path: Path) -> None:
    compiled(source, tmp_path, "-O0", "-Wunused-const-variable=1", "-Wunused-macros", "-Wcast-qual", "-Wvla")


@pytest.mark.parametrize("name", ["t5_d64_forward.cpp", "documents_d64_backward.cpp"])
def test_only_the_entry_points_are_visible(name: str, tmp_path: Path) -> None:
    """Objects for several instruction sets may be linked into one process: a shared inline function would crash it."""
    source = next(each for each in SOURCES if each.name == name)
    listing = subprocess.run(
        ["nm", "--extern-only", "--defined-only", str(compiled(source, tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    )
    defined = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert defined == {f"fagen_{source.variant}_{entry}" for entry in EXPORTS[source.direction]}


def test_no_vector_register_is_spilled_while_multiplying(tmp_path: Path) -> None:
    """The accumulators of a product stay in registers: no loop that multiplies touches the stack."""
    for name in ("full_d64_forward.cpp", "causal_d128_forward.cpp", "alibi_d128_forward.cpp"):
        source = next(each for each in SOURCES if each.name == name)
        loops = product_loops(compiled(source, tmp_path, "-S").read_text())
        assert len(loops) >= 2, name  # q · k and weights · v
        assert not [loop for loop in loops if re.search(r"\(%rsp.*mm|mm.*\(%rsp", loop)], name


def product_loops(assembly: str) -> list[str]:
    """Innermost loops with a register tile's twelve multiply-adds or more."""
    found = []
    block: list[str] = []
    for line in assembly.splitlines():
        if line.startswith("."):
            block = [] if line.endswith(":") else block
        elif line.startswith("\tj"):
            if sum("fmadd" in each or "dpbf16" in each for each in block) >= 12:
                found.append("\n".join(block))
            block = []
        else:
            block.append(line)
    return found

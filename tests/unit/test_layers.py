"""Who may import what: the order of the stages, held by the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "fagen").rglob("*.py"))
RUNTIME = ROOT / "fagen" / "runtime"

# Package -> the folders or files of fagen/ that may import it, anywhere in their code.
MAY_IMPORT = {
    "yaml": ("spec",),
    "pydantic": ("spec",),
    "torch": ("runtime", "bench", "tune", "emulate"),
    "sympy": ("costs.py",),
    "jinja2": ("render.py", "render_module.py", "build"),
    "typer": ("cli",),
    "rich": ("cli", "bench"),
    "matplotlib": ("bench",),
}
WITHOUT_TORCH = ("language", "shapes.py", "variant.py")  # of fagen/runtime: the compiler imports these


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, and how many dots stand before it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def within(path: Path, folder: Path, names: tuple[str, ...]) -> bool:
    return path.relative_to(folder).parts[0] in names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_only_these_import(package: str) -> None:
    importers = {
        path for path in FILES if any(name.split(".")[0] == package for name, level in imports(path) if not level)
    }
    assert {str(path) for path in importers if not within(path, ROOT / "fagen", MAY_IMPORT[package])} == set()


@pytest.mark.parametrize("name", ["runtime", "emulate"])
def test_it_stands_alone(name: str) -> None:
    """What a module carries with it, and the emulator, which knows nothing of specs, plans and builds."""
    root = ROOT / "fagen" / name
    for path in root.rglob("*.py"):
        depth = len(path.relative_to(root).parts)
        for package, level in imports(path):
            assert level <= depth, f"{path} reaches out of fagen/{name}"
            if level == 0:
                assert package.split(".")[0] in {*sys.stdlib_module_names, "torch"}, f"{path} imports {package}"


def test_within_the_package_imports_are_relative() -> None:
    """One way for all, and the way that lets a published module carry its part of it."""
    absolute = {
        str(path) for path in FILES for name, level in imports(path) if not level and name.split(".")[0] == "fagen"
    }
    assert absolute == set()


def test_the_compilers_part_of_it_needs_no_torch() -> None:
    for path in RUNTIME.rglob("*.py"):
        if within(path, RUNTIME, WITHOUT_TORCH):
            assert not any(name.split(".")[0] == "torch" for name, level in imports(path) if level == 0)


def test_no_two_modules_import_each_other() -> None:
    """Neither directly nor through others, nor for types alone, nor within functions."""
    wants = {path: set(imported(path)) - {path} for path in FILES}
    while True:  # who imports nothing that is left is in no circle
        free = {path for path, others in wants.items() if not others & wants.keys()}
        if not free:
            break
        wants = {path: others for path, others in wants.items() if path not in free}
    assert {str(path): sorted(map(str, others & wants.keys())) for path, others in wants.items()} == {}


def imported(path: Path) -> Iterator[Path]:
    """The files of fagen that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in (*(alias.name for alias in node.names), None):
                place = folder if name is None else folder / name
                if place.with_suffix(".py") in FILES:
                    yield place.with_suffix(".py")
                elif name is None and place / "__init__.py" in FILES and node.module:
                    yield place / "__init__.py"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("fagen.spec", ("torch", "sympy", "jinja2", "numpy", "rich", "typer")),
        ("fagen.spec, fagen.expr, fagen.target, fagen.plan, fagen.render", ("torch", "sympy", "numpy")),
        ("fagen.build, fagen.cli, fagen.toolchain", ("torch", "sympy", "numpy")),
    ],
)
def test_left_of_build_nothing_heavy_is_imported(modules: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {modules}; print([name for name in {absent!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def test_the_checks_above_see_an_import(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def f():\n    import torch.nn\nfrom ..plan import x\n")
    assert set(imports(file)) == {("plan", 2), ("torch.nn", 0)}


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest collects those that are in no package as modules of their own names: the second is an error."""
    files = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(files) == sorted(set(files))

"""The wheel holds all that fagen needs, and works where the checkout is not."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from fagen import __version__

ROOT = Path(__file__).parents[2]
SPEC = """\
fagen: 1
name: small
target: cpu
variants: [{name: a, head_dim: 16, dtype: f32, mask: causal, backward: false}]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, which is left as it was."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and with this one's other packages."""
    folder = tmp_path_factory.mktemp("with wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    interpreter = folder / "bin" / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(interpreter),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
    # A path added so is searched, but the .pth files in it, such as the one of an editable fagen, are not read.
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return interpreter


def run(python: Path, *arguments: str, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(python), *arguments], cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_the_package_its_templates_and_its_specs(wheel: Path) -> None:
    assert wheel.name == f"fagen-{__version__}-py3-none-any.whl"
    held = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    for file in filter(None, listed):
        top = file.split("/")[0]
        if top == "fagen":
            assert file in held
        elif top in ("templates", "specs"):
            assert f"fagen/_data/{file}" in held
    packages = {name.split("/")[0] for name in held}
    assert packages == {"fagen", f"fagen-{__version__}.dist-info"}
    assert not any(name.endswith((".pyc", ".so")) for name in held)
    assert f"fagen-{__version__}.dist-info/licenses/LICENSE" in held


def test_installed_package_is_the_wheels(python: Path, tmp_path: Path) -> None:
    program = "import fagen.resources as r; print(r.__file__); print(r.templates_dir()); print(r.specs_dir())"
    for line in run(python, "-c", program, cwd=tmp_path).splitlines():
        assert str(python.parents[1]) in line
        assert str(ROOT) not in line


def test_ready_specs_load_from_the_wheel(python: Path, tmp_path: Path) -> None:
    program = (
        "from fagen.resources import specs_dir; from fagen.spec import expand, load\n"
        "print(len([expand(load(path)) for path in specs_dir().glob('*.yaml')]))"
    )
    assert int(run(python, "-c", program, cwd=tmp_path)) == len(list((ROOT / "specs").glob("*.yaml")))


def test_a_module_is_built_and_used_far_from_the_checkout(python: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SPEC)
    fagen = python.parent / "fagen"
    run(python, str(fagen), "build", "small.yaml", "--check", "off", cwd=tmp_path)
    program = (
        "import torch; from generated import small\n"
        "q, k, v = torch.randn(3, 1, 5, 2, 16)\n"
        "print((small.a(q, k, v) - small.a.reference(q, k, v)).abs().max().item() < 1e-5)"
    )
    assert run(python, "-c", program, cwd=tmp_path).strip() == "True"


def test_checkout_finds_its_own_folders() -> None:
    from fagen import resources

    if Path(resources.__file__).parents[1] == ROOT:
        assert resources.templates_dir() == ROOT / "templates"
        assert resources.specs_dir() == ROOT / "specs"

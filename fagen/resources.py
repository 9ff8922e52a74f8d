"""Where templates and ready specs are, inside the package in a wheel, beside it in a checkout; and a spec's tuning."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _find(name: str) -> Path:
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"fagen's {name}/ folder is missing from {_PACKAGE}; reinstall fagen")


def templates_dir() -> Path:
    """The folder of Jinja templates; C++ headers are in its ``include/``."""
    return _find("templates")


def specs_dir() -> Path:
    """The folder of ready specs."""
    return _find("specs")


def tuning_file(spec: str | Path) -> Path:
    """What `fagen tune` writes for a spec: beside it, and no `*.yaml`, which would be taken for a spec."""
    return Path(spec).with_suffix(".tuning.yml")

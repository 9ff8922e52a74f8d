"""PTX of the CUDA sources in kernels/, which lies beside them so that no test needs nvcc.

    PYTHONPATH=tests python -m emulated.compiled

makes it anew. The first line of a source has the architecture, as `// compute_80`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "kernels"


def ptx_of(name: str) -> Path:
    """The PTX of kernels/NAME.cu."""
    return FOLDER / f"{name}.ptx"


def line_of(name: str, mark: str) -> str:
    """ "NAME.cu:LINE" of the one line of the source that has the comment `// MARK`."""
    lines = (FOLDER / f"{name}.cu").read_text().split("\n")
    (found,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"// {mark}"))
    return f"{name}.cu:{found}"


def compiled(source: Path) -> str:
    """What nvcc makes of ``source``, without what differs between machines."""
    nvcc = shutil.which("nvcc")
    assert nvcc is not None
    architecture = source.read_text().split("\n")[0].removeprefix("// ")
    with tempfile.TemporaryDirectory() as folder:
        for each in (source, *source.parent.glob("*.cuh")):
            shutil.copy(each, folder)
        command = [nvcc, "-ptx", "-lineinfo", "-std=c++17", f"-arch={architecture}", source.name, "-o", "out.ptx"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        text = Path(folder, "out.ptx").read_text()
    text = text.replace(f"{Path(folder).resolve()}/", "")
    text = re.sub(r'"/[^"]*/include/', '"', text)
    text = re.sub(r"\t\.section\t\.debug_str\n\t\{.*?\n\t\}\n", "", text, flags=re.S)
    text = re.sub(r"(\d+)(_INTERNAL_\w+)", _named_alike, text)
    text = re.sub(r"_GLOBAL__N__[0-9a-f]{8}_", "_GLOBAL__N__00000000_", text)
    return re.sub(r"^//\n// Generated.*?^//\n\n", "", text, flags=re.S | re.M)


def _named_alike(name: re.Match[str]) -> str:
    """A name within what is internal to a unit, without the unit's hashes and the compiler's process."""
    unit, rest = name[2][: int(name[1])], name[2][int(name[1]) :]
    known = "_INTERNAL_" + re.sub(r".*?_\d+_(\w+)_cu_.*", r"\1", unit.removeprefix("_INTERNAL_"))
    return f"{len(known)}{known}{rest}"


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("*.cu")):
        ptx_of(each.stem).write_text(compiled(each))
        print(each.stem, file=sys.stderr)

"""Takes this machine's paths out of what a PTX text says of its sources. Standard library only; a program, as
compile_unit.py is.

    relative_lines.py PTX      in the folder where nvcc was run

A source keeps the name it has below that folder or its include/, a header of the toolkit that below the toolkit's
include folder.
"""

import os
import re
import sys
from pathlib import Path

_FILE = re.compile(r'^(\s*\.file\s+\d+\s+")([^"]+)"', re.MULTILINE)


def relative(text: str, folder: str) -> str:
    """``text`` with names for paths."""
    return _FILE.sub(lambda match: f'{match[1]}{_name(match[2], folder)}"', text)


def _name(path: str, folder: str) -> str:
    path = os.path.normpath(path)
    if path.startswith(folder + os.sep):
        return path[len(folder) + 1 :].removeprefix("include/")
    return path.rpartition("/include/")[2]


if __name__ == "__main__":
    ptx = Path(sys.argv[1])
    ptx.write_text(relative(ptx.read_text(encoding="utf-8"), os.getcwd()), encoding="utf-8")

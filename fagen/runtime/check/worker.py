"""A process that runs checks one after another, so that a kernel that crashes or hangs takes only it down.

Requests are lines of JSON on stdin: the keyword arguments of :func:`.run.run` besides the kernel, with ``variant``
naming it. Answers are lines of JSON: ``{"case": name}`` as each case begins, then ``{"report": ...}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

# Imports the module in folder argv[1] under a name of its own, wherever it lies, and serves it. argv[2] is torch's name
# of the device to use, argv[3] what to call it, argv[4] the folder to import fagen.emulate from, or empty.
START = """
import importlib.util, sys
from pathlib import Path
folder = Path(sys.argv[1])
spec = importlib.util.spec_from_file_location(
    "fagen_checked", folder / "__init__.py", submodule_search_locations=[str(folder)]
)
package = importlib.util.module_from_spec(spec)
sys.modules["fagen_checked"] = package
spec.loader.exec_module(package)
from fagen_checked.runtime.check.worker import serve
serve(package._module, *sys.argv[2:])
"""


def serve(module: Any, device: str = "cpu", title: str = "", emulator: str = "") -> None:
    """Answer requests about ``module`` (a runtime Module) until stdin ends, running its kernels where ``device``,
    ``title`` and ``emulator`` say (see :class:`.where.Where`)."""
    from .machine import Machine

    if not emulator:
        _serve(module, Machine(device, title))
        return
    sys.path.append(emulator)
    with importlib.import_module("fagen.emulate.driver").use(module) as found:
        _serve(module, Machine(device, title, found))


def _serve(module: Any, machine: Any) -> None:
    import torch

    from .cases import Tiling
    from .run import run

    torch.set_num_threads(1)
    # Kernels, or torch, may print: keep the answers apart from that.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    tell({"ready": True})
    plans = {entry["variant"]["name"]: entry["plan"] for entry in module.manifest["variants"]}
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("variant")
        machine.prepare(module.kernels[name].variant)
        tiling = Tiling.of(plans[name], slow=machine.emulator is not None)
        report = run(
            module.kernels[name], tiling, machine=machine, started=lambda case: tell({"case": case}), **request
        )
        tell({"report": report.to_json()})

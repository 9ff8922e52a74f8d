"""The translation units of a module, with their keys."""

from __future__ import annotations

from ..render import Source
from ..render_module import HOST_FLAGS, LINK_FLAGS
from ..toolchain import Compiler, Torch
from .compile import Unit
from .keys import Headers, object_key

HOST = "binding.cpp"


def kernel_unit(source: Source, headers: Headers, compiler: Compiler) -> Unit:
    """The unit of one direction of a variant."""
    key = object_key(source.text, source.flags, headers, compiler=compiler.identity)
    return Unit(source.name, f"{source.variant} {source.direction}", source.text, tuple(source.flags), key)


def host_unit(text: str, headers: Headers, compiler: Compiler, torch: Torch) -> Unit:
    """The unit of a module's ``binding.cpp``."""
    # torch's headers are known by its version; where they are is this machine's business.
    key = object_key(
        text, HOST_FLAGS, headers, compiler=compiler.identity, extra=[f"torch {torch.version}", *LINK_FLAGS]
    )
    local = [f"-isystem{folder}" for folder in torch.include_dirs]
    local.append(f"-fmacro-prefix-map={torch.root}=torch")  # its headers put their own paths into messages
    return Unit(HOST, "binding", text, HOST_FLAGS, key, tuple(local))

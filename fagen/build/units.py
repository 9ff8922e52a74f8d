"""The translation units of a module, with their keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from ..plan import Plan
from ..render import Source
from ..render_module import HOST_FLAGS, LINK_FLAGS, BackwardImage, Image
from ..target import TARGETS
from ..toolchain import Compiler, Nvcc, Torch, find_nvcc
from .compile import Unit
from .cuda import cuda_unit, image_symbol
from .keys import Headers, object_key

HOST = "binding.cpp"


@runtime_checkable
class OnDevice(Protocol):
    """What a schedule for cards chose for a kernel, as far as its launches depend on it."""

    @property
    def tile_q(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def boxes(self) -> tuple[int, int]: ...
    @property
    def draws(self) -> bool: ...
    @property
    def word_bytes(self) -> int: ...
    @property
    def by_head(self) -> bool: ...


@runtime_checkable
class BackwardOnDevice(Protocol):
    """The same of its backward kernels; see BackwardImage."""

    @property
    def tile_q(self) -> int: ...
    @property
    def tile_kv(self) -> int: ...
    @property
    def kernels(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def note_bytes(self) -> int: ...
    @property
    def sum_bytes(self) -> int: ...
    @property
    def turns(self) -> bool: ...
    @property
    def boxes(self) -> tuple[int, int]: ...
    @property
    def word_bytes(self) -> int: ...
    @property
    def by_head(self) -> bool: ...


def nvcc_for(plans: Iterable[Plan]) -> Nvcc | None:
    """The CUDA compiler, if any of the plans needs it. Raises :class:`ToolchainError` where there is none then."""
    return find_nvcc() if any(TARGETS[plan.target].device is not None for plan in plans) else None


def kernel_unit(source: Source, plan: Plan, headers: Headers, compiler: Compiler, nvcc: Nvcc | None) -> Unit:
    """The unit of one direction of a variant."""
    if nvcc is not None:
        return cuda_unit(source, plan.target, headers, nvcc, compiler)
    key = object_key(source.text, source.flags, headers, compiler=compiler.identity)
    return Unit(source.name, f"{source.variant} {source.direction}", source.text, tuple(source.flags), key)


def images_of(plans: Iterable[Plan]) -> dict[str, Image]:
    """By variant, what the host unit must know of the kernels of those that are for cards."""
    return {
        plan.variant.name: Image(
            target=plan.target,
            symbol=image_symbol(plan.variant.name, "forward"),
            tile_q=plan.forward.tile_q,
            threads=plan.forward.threads,
            shared_bytes=plan.forward.shared_bytes,
            box_q=plan.forward.boxes[0],
            box_kv=plan.forward.boxes[1],
            draws=plan.forward.draws,
            word_bytes=plan.forward.word_bytes,
            by_head=plan.forward.by_head,
        )
        for plan in plans
        if isinstance(plan.forward, OnDevice)
    }


def backward_images_of(plans: Iterable[Plan]) -> dict[str, BackwardImage]:
    """The same of backward kernels, where there are some."""
    return {plan.variant.name: image for plan in plans if (image := _backward_image(plan)) is not None}


def _backward_image(plan: Plan) -> BackwardImage | None:
    chosen: object = plan.backward
    if not isinstance(chosen, BackwardOnDevice):
        return None
    return BackwardImage(
        symbol=image_symbol(plan.variant.name, "backward"),
        kernels=chosen.kernels,
        tile_q=chosen.tile_q,
        tile_kv=chosen.tile_kv,
        note_bytes=chosen.note_bytes,
        sum_bytes=chosen.sum_bytes,
        turns=chosen.turns,
        box_q=chosen.boxes[0],
        box_kv=chosen.boxes[1],
        word_bytes=chosen.word_bytes,
        by_head=chosen.by_head,
    )


def host_unit(text: str, headers: Headers, compiler: Compiler, torch: Torch) -> Unit:
    """The unit of a module's ``binding.cpp``."""
    # torch's headers are known by its version; where they are is this machine's business.
    key = object_key(
        text, HOST_FLAGS, headers, compiler=compiler.identity, extra=[f"torch {torch.version}", *LINK_FLAGS]
    )
    local = [f"-isystem{folder}" for folder in torch.include_dirs]
    local.append(f"-fmacro-prefix-map={torch.root}=torch")  # its headers put their own paths into messages
    return Unit(HOST, "binding", text, HOST_FLAGS, key, tuple(local))

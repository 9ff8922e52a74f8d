"""Calls a variant on a case's inputs as its users do, with every byte around them watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ..variant import Variant
from .cases import Case
from .inputs import Inputs
from .memory import place, poisoned_memory
from .pull import pull


class Function(Protocol):
    """A variant's public function: runtime.kernel.Kernel, or anything that takes the same arguments."""

    variant: Variant

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        out: Tensor | None = None,
        **extras: Any,
    ) -> Any: ...


class MemoryFault(Exception):
    """A kernel wrote where it must not."""


def forward(
    kernel: Function, case: Case, inputs: Inputs, device: str = "cpu", *, into_out: bool = True
) -> dict[str, Tensor]:
    """o and lse, with o written into memory that is laid out as the case's inputs are. Raises MemoryFault.

    ``device`` is where the kernel wants its tensors; the outputs are on the CPU again. Without ``into_out`` the op
    makes o itself.
    """
    inputs = inputs.on(device)
    shape = (*inputs.q.shape[:-1], kernel.variant.value_dim)
    # Not NaN, which fresh memory has: a kernel may take it for a result that is still to be mended.
    largest = torch.full(shape, torch.finfo(inputs.q.dtype).max, dtype=inputs.q.dtype)
    out = place(largest, "plain" if case.where == "broadcast" else case.where).on(device)
    given = {"out": out.tensor} if into_out else {}
    with _watched(case, inputs), torch.no_grad():
        o, lse = kernel(
            inputs.q,
            inputs.k,
            inputs.v,
            scale=inputs.scale,
            return_lse=True,
            **given,
            **inputs.extras(),
            **inputs.dropout(),
        )
    if out.spilled():
        raise MemoryFault("it wrote outside out=")
    return {"o": o.cpu(), "lse": lse.cpu()}


def forward_and_backward(kernel: Function, case: Case, inputs: Inputs, device: str = "cpu") -> dict[str, Tensor]:
    """o, lse and every gradient that the case asks for, by autograd, named as in ``compare.expect``.

    Raises MemoryFault.
    """
    inputs = inputs.on(device)
    leaves = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    if not case.few:
        leaves |= {} if inputs.sink is None else {"sink": inputs.sink}
        leaves |= {param.name: inputs.params[param.name] for param in kernel.variant.params if param.grad}
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
    with _watched(case, inputs):
        extras = {name: leaves.get(name, tensor) for name, tensor in inputs.extras().items()}
        o, lse = kernel(
            leaves["q"], leaves["k"], leaves["v"], scale=inputs.scale, return_lse=True, **extras, **inputs.dropout()
        )
        outputs, seeds = [o], [inputs.d_o]
        if inputs.d_lse is not None:
            outputs.append(lse)
            seeds.append(inputs.d_lse)
        gradients = pull(outputs, list(leaves.values()), seeds)
    found = {"o": o.detach().cpu(), "lse": lse.detach().cpu()}
    for name, gradient in zip(leaves, gradients, strict=True):
        found[f"d{name}" if name in ("q", "k", "v") else f"d_{name}"] = gradient.cpu()
    return found


@contextmanager
def _watched(case: Case, inputs: Inputs) -> Iterator[None]:
    """Fresh memory is NaN, the case's number of threads runs, and inputs come out as they went in."""
    threads = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    try:
        with poisoned_memory():
            yield
    finally:
        torch.set_num_threads(threads)
    for name, guarded in inputs.guarded.items():
        if guarded.changed():
            raise MemoryFault(f"it wrote into {name}, or beside it")

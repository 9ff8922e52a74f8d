"""A variant as its users hold it: a callable that knows what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import formula, transforms
from .dropout import fresh_state, probability
from .failures import explain, forward_mode, no_backward, no_gradient, no_out_gradient
from .fakes import DTYPES
from .folding import foldable
from .owner import Owner, autocast_device
from .variant import Variant


class Kernel:
    """One variant. A rendered module subclasses it with the variant's own signature.

    ``variant`` is what it computes, ``spec_line`` where its spec says so (``cpu.yaml:12``).
    """

    def __init__(self, module: Owner, name: str):
        self.name = name
        self.variant: Variant = module.variant(name)
        self.spec_file = module.spec_file
        self.device = module.device
        self.spec_line = f"{module.spec_file}:{self.variant.line}"
        self.ops = module.ops[name]
        self.scale = self.variant.head_dim**-0.5 if self.variant.scale is None else self.variant.scale
        self.formula = None if self.ops.backward is None else formula.Formula(self.variant, self.ops.backward)
        self.dropout = self.variant.dropout
        params = tuple(param.name for param in self.variant.params)
        # Of the tensors after v.
        self.arguments = ("sink",) * self.variant.sink + params + ("rng_state",) * self.dropout
        # Places among the tensors after v that have no gradient.
        self._constants = tuple(self.variant.sink + i for i, param in enumerate(self.variant.params) if not param.grad)
        # Which of them have the batch as their first dim.
        self.batch_like = (
            *(False,) * self.variant.sink,
            *(param.shape[:1] == ("B",) for param in self.variant.params),
            *(False,) * self.dropout,
        )
        self.foldable = foldable(self.variant)
        self._dtype = DTYPES[self.variant.dtype]
        module.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{self.name}, {self.spec_line}>"

    def __reduce__(self) -> str:
        return self.name  # pickled and copied as the name it has in its module

    def compute(self, q: Tensor, k: Tensor, v: Tensor, rest: tuple[Tensor, ...], numbers: tuple[float, ...]) -> Any:
        """(o, lse) straight from the kernel, below autograd."""
        if torch.compiler.is_compiling():
            return self.ops.forward(q, k, v, *rest, *numbers)
        with torch._C._AutoDispatchBelowAutograd():
            return self.ops.forward(q, k, v, *rest, *numbers)

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rest: tuple[Tensor, ...],
        scale: float | None,
        return_lse: bool,
        out: Tensor | None,
        dropout_p: float = 0.0,
        rng_state: Tensor | None = None,
    ) -> Any:
        numbers: tuple[float, ...] = (self.scale if scale is None else _number(scale, self.name),)
        if self.dropout:
            dropout_p = probability(self.name, dropout_p)
            numbers = (*numbers, dropout_p)
            rest = (*rest, self._state(q, dropout_p, rng_state))
        if torch.compiler.is_compiling():
            return self._trace(q, k, v, rest, numbers, return_lse, out)
        try:
            if torch._C._is_any_autocast_enabled():
                q, k, v = self._cast(q, k, v)
            wants_grad = torch.is_grad_enabled() and self._requires_grad(q, k, v, rest)
            if out is not None:
                lse = self._write(q, k, v, rest, numbers, out, wants_grad)
                return (out, lse) if return_lse else out
            if torch._C._are_functorch_transforms_active():
                o, lse = transforms.Forward.apply(self, numbers, q, k, v, *rest)
            else:
                if forward_ad._current_level >= 0:
                    self._refuse_duals(q, k, v, *rest)
                if wants_grad:
                    o, lse = formula.Eager.apply(self, numbers, q, k, v, *rest)
                else:
                    with torch._C._AutoDispatchBelowAutograd():
                        o, lse = self.ops.forward(q, k, v, *rest, *numbers)
        except (ValueError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
            tensors = zip(("q", "k", "v", *self.arguments), (q, k, v, *rest), strict=True)
            better = explain(error, self.name, tensors, self.device)
            if better is None:
                raise
            try:
                raise better from None
            finally:
                del better  # else its traceback, which holds this frame, would keep the tensors until a collection
        return (o, lse) if return_lse else o

    def _trace(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rest: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        return_lse: bool,
        out: Tensor | None,
    ) -> Any:
        """The call as torch.compile and torch.export see it: the op itself, its formula registered with torch."""
        q, k, v = self._cast(q, k, v)
        wants_grad = torch.is_grad_enabled() and self._requires_grad(q, k, v, rest)
        if out is not None:
            lse = self._write(q, k, v, rest, numbers, out, wants_grad)
            return (out, lse) if return_lse else out
        if forward_ad._current_level >= 0:
            self._refuse_duals(q, k, v, *rest)
        if torch._C._are_functorch_transforms_active():
            o, lse = transforms.Forward.apply(self, numbers, q, k, v, *rest)
        else:
            o, lse = self.ops.forward(q, k, v, *rest, *numbers)
        return (o, lse) if return_lse else o

    def _write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rest: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        out: Tensor,
        wants_grad: bool,
    ) -> Tensor:
        if wants_grad:
            raise no_out_gradient(self.variant)
        return self.ops.forward_out(q, k, v, *rest, *numbers, out)

    def _state(self, q: Tensor, dropout_p: float, rng_state: Tensor | None) -> Tensor:
        """The seed and the offset of a call: ``rng_state``, or new ones if any are needed."""
        if rng_state is not None:
            return rng_state
        if not isinstance(q, Tensor):
            raise TypeError(f"{self.name}: q: expected a torch.Tensor, found {type(q).__name__}")
        return fresh_state(q.device) if dropout_p else q.new_zeros(2, dtype=torch.int64)

    def _requires_grad(self, q: Tensor, k: Tensor, v: Tensor, rest: tuple[Tensor, ...]) -> bool:
        """Whether a gradient is wanted of any argument; an error where there is none to have."""
        wanted = q.requires_grad or k.requires_grad or v.requires_grad
        if rest:
            for place in self._constants:
                if rest[place].requires_grad:
                    raise no_gradient(self.variant, self.arguments[place], self.spec_file)
            wanted = wanted or any(tensor.requires_grad for tensor in rest)
        if wanted and self.formula is None:
            raise no_backward(self.variant, self.spec_file)
        return wanted

    def _cast(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Autocast: q, k and v in the variant's dtype, which the caller chose by name. Params stay as they are."""
        if not torch.is_autocast_enabled(autocast_device(q, self.device)):
            return q, k, v
        return q.to(self._dtype), k.to(self._dtype), v.to(self._dtype)

    def _refuse_duals(self, *tensors: Tensor) -> None:
        # Seen through torch.compile no tensor has a tangent; after this error the compiler calls again without it.
        if torch.compiler.is_compiling() or any(
            forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
        ):
            raise forward_mode(self.name)

    def _refer(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rest: tuple[Tensor, ...],
        scale: float | None,
        return_lse: bool,
        dtype: torch.dtype,
        dropout_p: float = 0.0,
        rng_state: Tensor | None = None,
    ) -> Any:
        from .reference import reference

        named = dict(zip(self.arguments, rest, strict=False))
        sink = named.pop("sink") if self.variant.sink else None
        if dropout_p and rng_state is None:
            rng_state = fresh_state(q.device)
        o, lse = reference(
            self.variant, q, k, v, scale=scale, sink=sink, params=named, dropout_p=dropout_p, rng_state=rng_state,
            dtype=dtype,
        )  # fmt: skip
        return (o, lse) if return_lse else o


def _number(scale: float | Tensor, name: str) -> float:
    """``scale`` as the kernel takes it. One that wants a gradient is refused: it would never get it."""
    if isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{name}: scale: expected a number, found a tensor that wants a gradient; multiply q by it")
    return float(scale)

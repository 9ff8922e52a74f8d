"""What a call can go wrong with, as Python exceptions that say what to do."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .variant import Variant


class DtypeError(TypeError, ValueError):
    """An argument has the wrong dtype. Both a TypeError and a ValueError, so either may be caught."""


class SecondOrderError(RuntimeError):
    """A gradient of a gradient was asked for."""


class ForwardModeError(NotImplementedError):
    """A forward-mode derivative (torch.func.jvp, dual tensors) was asked for."""


def explain(error: Exception, name: str, tensors: Iterable[tuple[str, object]], wanted: str) -> Exception | None:
    """A better error for what torch or the library raised from a call of variant ``name``; None if that is good.

    ``wanted`` is the device that the module is built for.
    """
    if isinstance(error, (SecondOrderError, ForwardModeError)):
        return None
    devices = {}
    for argument, tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            return TypeError(f"{name}: {argument}: expected a torch.Tensor, found {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            return TypeError(f"{name}: {argument}: expected a dense tensor, found layout {tensor.layout}")
        devices[argument] = str(tensor.device)
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{argument} on {device}" for argument, device in devices.items())
        return ValueError(f"{name}: expected all tensors on one device, found {places}")
    argument, device = next(iter(devices.items()))
    if isinstance(error, NotImplementedError) and device.partition(":")[0] != wanted:
        return ValueError(
            f"{name}: {argument}: expected device {wanted}, as the module is built for it, found {device}"
        )
    if isinstance(error, ValueError) and ": expected dtype " in str(error):
        return DtypeError(str(error))
    return None


def no_gradient(variant: Variant, argument: str, spec_file: str) -> ValueError:
    """For a param that requires grad while the spec declares it without."""
    return ValueError(
        f"{variant.name}: no gradient for {argument}: add `grad: true` to the param in {spec_file} and build again, "
        f"or pass {argument}.detach()"
    )


def no_backward(variant: Variant, spec_file: str) -> ValueError:
    """For a variant built without backward whose arguments require grad."""
    return ValueError(
        f"{variant.name}: built without backward, but an argument requires grad: set `backward: true` in {spec_file} "
        "and build again, if kernels of its target have gradients, or call it under torch.no_grad()"
    )


def no_out_gradient(variant: Variant) -> ValueError:
    """For ``out=`` with arguments that require grad."""
    return ValueError(
        f"{variant.name}: out= has no gradient, but an argument requires grad: call it without out=, "
        "or under torch.no_grad()"
    )


def second_order(name: str) -> SecondOrderError:
    """For a second derivative."""
    return SecondOrderError(
        f"{name}: double backward is not supported: its gradients have no gradients; "
        f"use {name}.reference(...) where second derivatives are needed"
    )


def forward_mode(name: str) -> ForwardModeError:
    """For a forward-mode derivative."""
    return ForwardModeError(
        f"{name}: forward-mode derivatives (torch.func.jvp, jacfwd, dual tensors) are not supported; "
        f"use reverse mode (torch.func.vjp, grad, jacrev) or {name}.reference(...)"
    )

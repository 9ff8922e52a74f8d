"""Picks the variant that computes what a call of ``attention`` asks for, or says what to add to the spec."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .dropout import fresh_state, probability
from .fakes import DTYPES
from .language import LanguageError, canonical, parse, unparse
from .language.nodes import Name, walk
from .owner import Owner, autocast_device
from .request import Request
from .suggest import describe, nearest, spec_entry, with_extents
from .variant import Expression, Param, Variant

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Dispatcher:
    """``attention`` of one module."""

    def __init__(self, module: Owner):
        self._module = module
        self._declared = {param.name: param for variant in module.variants() for param in variant.params}
        self._canonical: dict[str, tuple[str | None, str | None]] = {}
        self._chosen: dict[tuple[Any, ...], tuple[tuple[str, int, int], ...]] = {}
        self._usual: dict[tuple[Any, ...], Any] = {}
        self._warned: set[Request] = set()
        self._some_deterministic = any(variant.deterministic for variant in module.variants())

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: str | None,
        score: str | None,
        params: Mapping[str, Tensor],
        *,
        scale: float | None,
        sink: Tensor | None,
        dropout_p: float,
        rng_state: Tensor | None,
        return_lse: bool,
        out: Tensor | None,
        align: str,
        layout: str | None,
        fallback: str | None,
    ) -> Any:
        # A call that is like one before, of q, k and v alone, takes less time to be known than to be looked through.
        usual: tuple[Any, ...] | None = None
        deterministic = self._some_deterministic and torch.are_deterministic_algorithms_enabled()
        dropout = bool(dropout_p) or rng_state is not None
        if not params and sink is None and not dropout and _are_usual(q, k, v) and not torch.compiler.is_compiling():
            backward = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
            emulated = self._module.emulator is not None
            usual = (mask, score, scale is None, align, layout, fallback, q.dtype, q.device.type, emulated, backward)
            usual = (*usual, q.shape[3], v.shape[3], deterministic)
            if (known := self._usual.get(usual)) is not None:
                return known._run(q, k, v, (), scale, return_lse, out)
        if fallback not in (None, "reference"):
            raise ValueError(f"attention: fallback: expected None or 'reference', found {fallback!r}")
        if layout not in (None, "bshd", "bhsd"):
            raise ValueError(f"attention: layout: expected 'bshd' or 'bhsd', found {layout!r}")
        if align not in ("bottom_right", "top_left"):
            raise ValueError(f"attention: align: expected 'bottom_right' or 'top_left', found {align!r}")
        _check_tensors({"q": q, "k": k, "v": v, **({} if sink is None else {"sink": sink}), **params})
        wanted = self._module.device
        place = autocast_device(q, wanted)
        dtype = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else q.dtype
        # The emulator computes on the CPU what is built for cards.
        device = wanted if self._module.emulator is not None and q.device.type == "cpu" else q.device.type
        drops = False
        if probability("attention", dropout_p) > 0:  # a branch, since torch.compile has symbols for numbers
            drops = True
        tensors = (q, k, v, *params.values()) if sink is None else (q, k, v, sink, *params.values())
        backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        shapes = tuple((name, p.dtype, p.dim(), p.requires_grad) for name, p in params.items())
        asked = (sink is not None, shapes, layout, backward, align, scale is not None, drops)
        key: tuple[Any, ...] = (mask, score, dtype, device, *asked)
        dims = (q.shape[-1], v.shape[-1])
        found = [name for name, head_dim, value_dim in self.choose(*key) if (head_dim, value_dim) == dims]
        # A call that drops nothing is for a variant without dropout, if there is one.
        names = [name for name in found if drops or not self._module.variant(name).dropout] or found
        # One that gives the same bits each time is for who asks PyTorch for that, if there is another.
        names = [name for name in names if self._module.variant(name).deterministic == deterministic] or names
        if not names:
            request = self._request(*dims, *key)
            if fallback is None:
                raise ValueError(self._refusal(request))
            return self._fall_back(request, q, k, v, params, scale, sink, dropout_p, rng_state, return_lse, out)
        if len(names) > 1:
            raise ValueError(self._ambiguity(names))
        kernel = self._module.kernels[names[0]]
        if usual is not None and not kernel.variant.dropout:
            self._usual[usual] = kernel
        rest = (*(() if sink is None else (sink,)), *(params[param.name] for param in kernel.variant.params))
        if kernel.variant.dropout:
            return kernel._run(q, k, v, rest, scale, return_lse, out, dropout_p, rng_state)
        return kernel._run(q, k, v, rest, scale, return_lse, out)

    def choose(self, *key: Any) -> tuple[tuple[str, int, int], ...]:
        """(name, head_dim, value_dim) of the variants that do what ``key`` asks, but for their head dims.

        Those are left to the caller, since torch.compile may know them as symbols only, and ``key`` is of constants.
        """
        if key not in self._chosen:
            self._chosen[key] = self._search(self._request(0, 0, *key))
        return self._chosen[key]

    # What torch.compiler.assume_constant_result does, without importing the compiler for it (2 s): the search runs
    # while a graph is traced, and the graph holds its answer.
    choose._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _request(
        self,
        head_dim: int,
        value_dim: int,
        mask: str | None,
        score: str | None,
        dtype: torch.dtype,
        device: str,
        sink: bool,
        shapes: tuple[tuple[str, torch.dtype, int, bool], ...],
        layout: str | None,
        backward: bool,
        align: str,
        scaled: bool,
        dropout: bool,
    ) -> Request:
        params = tuple(
            self._declared.get(name) or Param(name, _DTYPE_NAMES.get(kind, str(kind)), ("n",) * rank, grad)
            for name, kind, rank, grad in shapes
        )
        kind = _DTYPE_NAMES.get(dtype, str(dtype))
        return Request(
            mask, score, head_dim, value_dim, kind, device, sink, params, layout, backward, align, scaled, dropout
        )

    def _search(self, request: Request) -> tuple[tuple[str, int, int], ...]:
        wanted = self._meaning(request)
        return tuple(
            (variant.name, variant.head_dim, variant.value_dim)
            for variant in self._module.variants()
            if {"head_dim", "value_dim"}.issuperset(self._differences(request, wanted, variant))
        )

    def _ambiguity(self, names: Sequence[str]) -> str:
        layouts = {self._module.variant(name).layout for name in names}
        hint = "pass layout=" if len(layouts) == len(names) else "call the one you mean by name"
        return f"attention: {len(names)} variants of {self._module.name} do this: {', '.join(names)}; {hint}"

    def _meaning(self, request: Request) -> tuple[str | None, str | None]:
        params = {param.name: param for param in request.params}
        return (_canonical(request.mask, params, "mask"), _canonical(request.score, params, "score"))

    def _meaning_of(self, variant: Variant) -> tuple[str | None, str | None]:
        if variant.name not in self._canonical:
            params = {param.name: param for param in variant.params}
            mask = variant.mask.resolved if variant.mask else None
            score = variant.score.resolved if variant.score else None
            self._canonical[variant.name] = (_canonical(mask, params, "mask"), _canonical(score, params, "score"))
        return self._canonical[variant.name]

    def _differences(self, request: Request, wanted: tuple[str | None, str | None], variant: Variant) -> list[str]:
        """Why ``variant`` does not do what ``request`` asks; empty where it does."""
        mask, score = self._meaning_of(variant)
        pairs = [
            ("head_dim", request.head_dim, variant.head_dim),
            ("value_dim", request.value_dim, variant.value_dim),
            ("dtype", request.dtype, variant.dtype),
            ("device", request.device, self._module.device),
            ("sink", request.sink, variant.sink),
            ("params", {param.name for param in request.params}, {param.name for param in variant.params}),
        ]
        if request.layout is not None:
            pairs.append(("layout", request.layout, variant.layout))
        differences = [what for what, asked, there in pairs if asked != there]
        if wanted[0] != mask:
            differences.append("mask")
        if wanted[1] != score:
            differences.append("score")
        if request.dropout and not variant.dropout:
            differences.append("dropout")
        if request.backward and not variant.backward:
            differences.append("backward")
        if request.align != variant.align and _reads_position(variant):
            differences.append("align")
        if not request.scaled and not _scaled_by_default(variant):
            differences.append("scale")
        return differences

    def _with_extents(self, request: Request) -> list[Param]:
        """The params of a request; of those that no spec declares, extents are told from the expressions."""
        params = {param.name: param for param in request.params}
        texts = ((request.mask, "mask"), (request.score, "score"))
        trees = [_parsed(text, params, what) for text, what in texts if text is not None]
        return [param if param.name in self._declared else with_extents(param, trees) for param in request.params]

    def _refusal(self, request: Request) -> str:
        wanted = self._meaning(request)
        variants = self._module.variants()
        lines = [f"attention: no variant of {self._module.name} computes {describe(request)}"]
        if request.device != self._module.device:
            lines.append(
                f"the module is built for {self._module.manifest['target']}, the tensors are on {request.device}"
            )
        elif request.dtype not in ("f32", "bf16", "f16"):
            lines.append("q, k and v may be torch.float32, torch.bfloat16 or torch.float16")
        else:
            new = [param for param in self._with_extents(request) if param.name not in self._declared]
            lines.append(f"add to {self._module.spec_file} and build again:")
            lines += spec_entry(request, {variant.name for variant in variants}, new)
        near = nearest([(variant, self._differences(request, wanted, variant)) for variant in variants])
        return "\n  ".join([*lines, *near, 'or pass fallback="reference" to compute it slowly in plain torch'])

    def _fall_back(
        self,
        request: Request,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: Mapping[str, Tensor],
        scale: float | None,
        sink: Tensor | None,
        dropout_p: float,
        rng_state: Tensor | None,
        return_lse: bool,
        out: Tensor | None,
    ) -> Any:
        from .reference import reference

        layout = request.layout or self._only_layout()
        if request not in self._warned:
            self._warned.add(request)
            warnings.warn(
                f"attention: no variant of {self._module.name} computes {describe(request)}; "
                "falling back on the reference, in plain torch and O(Sq * Skv) memory",
                stacklevel=4,
            )
        declared = tuple(
            param if param.name in self._declared else _sized(param, params[param.name])
            for param in self._with_extents(request)
        )
        named = {param.name: param for param in declared}
        variant = Variant(
            name="attention",
            head_dim=request.head_dim,
            value_dim=request.value_dim,
            layout=layout,
            align=request.align,
            mask=_expression(request.mask, named, "mask"),
            score=_expression(request.score, named, "score"),
            sink=request.sink,
            params=declared,
            dropout=request.dropout,
        )
        drawn: dict[str, Any] = {}
        if request.dropout:
            drawn = {"dropout_p": dropout_p, "rng_state": fresh_state(q.device) if rng_state is None else rng_state}
        o, lse = reference(variant, q, k, v, scale=scale, sink=sink, params=dict(params), dtype=torch.float64, **drawn)
        o = o.to(DTYPES.get(request.dtype, q.dtype))
        if out is not None:
            o = out.copy_(o)
        return (o, lse.to(torch.float32)) if return_lse else o

    def _only_layout(self) -> str:
        layouts = {variant.layout for variant in self._module.variants()}
        if len(layouts) > 1:
            raise ValueError(
                f"attention: {self._module.name} has variants of layout bshd and of layout bhsd, and tensors do not "
                'tell which of the two they are in: pass layout= with fallback="reference"'
            )
        return layouts.pop()


def _are_usual(q: object, k: object, v: object) -> bool:
    """Whether they are tensors of four dims, of sizes that are numbers (a trace may have symbols), without autocast."""
    return (
        isinstance(q, Tensor)
        and isinstance(k, Tensor)
        and isinstance(v, Tensor)
        and q.dim() == k.dim() == v.dim() == 4
        and type(q.shape[3]) is type(v.shape[3]) is int
        and not torch._C._is_any_autocast_enabled()
    )


def _sized(param: Param, tensor: Tensor) -> Param:
    """``param`` with a number for each extent "n"."""
    sizes = zip(param.shape, tensor.shape, strict=True)
    return replace(param, shape=tuple(size if extent == "n" else extent for extent, size in sizes))


def _check_tensors(tensors: Mapping[str, object]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"attention: {name}: expected a torch.Tensor, found {type(tensor).__name__}")
        if name in ("q", "k", "v") and tensor.dim() != 4:
            raise ValueError(f"attention: {name}: expected 4 dims, found shape {list(tensor.shape)}")


def _parsed(text: str, params: Mapping[str, Param], what: str) -> Any:
    try:
        return parse(text, params=params, expect=what)
    except LanguageError as error:
        raise ValueError(f"attention: {what}: {error}") from None


def _canonical(text: str | None, params: Mapping[str, Param], what: str) -> str | None:
    """What an expression means, as a text that is equal for equal meanings; None for one that changes nothing."""
    if text is None:
        return None
    meaning = canonical(_parsed(text, params, what))
    return None if meaning == _NEUTRAL[what] else meaning


def _reads_position(variant: Variant) -> bool:
    """Whether the positions of queries, and so ``align``, have a say in what the variant computes."""
    params = {param.name: param for param in variant.params}
    parts = ((variant.mask, "mask"), (variant.score, "score"))
    trees = [_parsed(part.resolved, params, what) for part, what in parts if part is not None]
    return any(isinstance(node, Name) and node.id == "q" for tree in trees for node in walk(tree))


def _scaled_by_default(variant: Variant) -> bool:
    """Whether the variant's own scale is 1/sqrt(head_dim), as far as float32 can tell."""
    return variant.scale is None or math.isclose(variant.scale, variant.head_dim**-0.5, rel_tol=2**-24)


def _expression(text: str | None, params: Mapping[str, Param], what: str) -> Expression | None:
    return None if text is None else Expression(text, unparse(_parsed(text, params, what)))


_NEUTRAL = {"mask": "true", "score": "s"}

"""The size of the terms that make up each number of a result: what the rule's ``unit`` is a share of.

A first-order account of where an honest kernel rounds, terms added as independent errors add (root of the sum of
squares), in units of one rounding in the variant's dtype; float32 roundings count by the ratio of the two units.

    x     float32: as large as the scores, the products summed for them, and the derivative of the user's expression;
          nothing where all of these are exact
    o     weights rounded to the dtype, then o; and what an error of x moves: P_ij δx_ij (v_j - o_i)
    dx    P_ij (dP_ij - δ_i + d_lse_i), where δ_i = d_o_i · o_i is computed from an o that was rounded
    dq    Σ_j dx_ij dx/ds_ij k_j, each dx rounded to the dtype; dk, dv, d_sink and params likewise

Float32 is enough where squares fit it: a size decides how much error is allowed, and two digits of it would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import Arguments, arguments
from ..dropout import checked as checked_dropout
from ..dropout import kept_pairs
from ..evaluate import Evaluator
from ..fakes import DTYPES
from ..reference import BLOCK, names_of, trees
from ..variant import Variant
from .inputs import Inputs
from .pull import pull
from .rule import UNITS

_DRAWS = 4  # of random signs, to size the sums that make up a param's gradient
# A float32 sum of n terms, one after another, errs by less than sqrt(n) times this share of the unit for float32.
_SUMMING = 0.125
# A kernel makes up for the rounding of an lse that is as large as this.
_COARSE = 2.0**10
# A score that is not exact errs by a few roundings of its own size, of the 32 that the unit for float32 stands for.
_SCORING = 0.25
_LEAST = 2.0**-60  # what float32 squares can tell from 0


@dataclass(frozen=True)
class _Block:
    """Rows ``rows`` of the heads ``heads`` (both slices, heads of [B * H]): names and tensors [heads, rows, ...]."""

    heads: slice
    rows: slice
    names: dict[str, Tensor]
    q: Tensor
    k: Tensor
    v: Tensor


class Sizes:
    """Sizes of every output of one call, by output name, in the outputs' shapes.

    ``o`` and ``lse`` are the reference's outputs. With ``gradients``, sizes of dq, dk, dv, d_sink and the gradients of
    params (by param name) are there too.
    """

    def __init__(self, variant: Variant, inputs: Inputs, o: Tensor, lse: Tensor, *, gradients: bool):
        self.variant, self.gradients = variant, gradients
        # How much smaller than the dtype's unit a float32 rounding is.
        self.fine = UNITS["f32"] / UNITS[variant.dtype]
        self.tiny = torch.finfo(DTYPES[variant.dtype]).tiny
        self.dtype = dtype = _dtype_for(inputs.q, inputs.k, inputs.v, inputs.d_o, *inputs.extras().values())
        self.args = args = arguments(
            variant, inputs.q, inputs.k, inputs.v, inputs.scale, inputs.sink, inputs.params, dtype, None,
            checked_dropout(variant.name, variant.dropout, inputs.dropout_p, inputs.rng_state),
        )  # fmt: skip
        self.draws = torch.Generator().manual_seed(0)
        self.o = _by_head(variant, o.to(dtype))
        self.lse = lse.to(dtype).flatten(0, 1)[..., None]
        self.d_o = _clean(_by_head(variant, inputs.d_o.to(dtype)))
        self.d_lse: Any = 0.0 if inputs.d_lse is None else inputs.d_lse.to(dtype).flatten(0, 1)[..., None]
        width = {"o": args.v, "dq": args.q, "dk": args.k, "dv": args.v}
        rows = {"o": args.q, "dq": args.q, "dk": args.k, "dv": args.k}
        self.squares = {
            name: tensor.new_zeros(*rows[name].shape[:2], tensor.shape[2]) for name, tensor in width.items()
        }
        self.squares["lse"] = torch.zeros_like(self.lse)
        self.squares["d_sink"] = torch.zeros_like(self.lse)
        self.params: dict[str, Tensor] = {
            param.name: torch.zeros_like(args.params[param.name]) for param in variant.params if param.grad
        }
        for block in _blocks(variant, args):
            self._add(block)

    def size(self, output: str, want: Tensor) -> Tensor:
        """The size, in float64, of ``output``, whose reference value is ``want``. 0 where it is too large to tell."""
        least = _LEAST if self.dtype == torch.float32 else 0.0
        return _clean(self._size(output, want).double() + least)

    def _size(self, output: str, want: Tensor) -> Tensor:
        want = want.to(self.dtype)
        # Rounding the result itself costs half a unit in the last place at most, a quarter of the rule's unit.
        wanted, extents = _clean(want).square() / 4.0, self.args.extents
        if output == "lse":
            return self.squares["lse"].reshape(want.shape).sqrt() + 1.0 + _clean(want).abs()
        if output == "d_sink":
            square = self.squares["d_sink"].reshape(extents["B"], extents["H"], extents["Sq"]).sum((0, 2))
            return (self._summed(extents["B"] * extents["Sq"]) * (square + self.fine**2 * wanted)).sqrt()
        if output.removeprefix("d_") in self.params:
            name = output.removeprefix("d_")
            square = self.params[name]
            # Few draws can miss an entry: it is at least half as large as an entry of the tensor usually is.
            square = square + square.mean() / 4.0
            own = max(self.fine, UNITS.get(_dtype(self.variant, name), 0.0) / UNITS[self.variant.dtype])
            pairs = self.args.q.shape[0] * extents["Sq"] * extents["Skv"]
            return (self._summed(pairs / max(want.numel(), 1)) * (square + own**2 * wanted)).sqrt()
        square = self.squares[output].unflatten(0, (extents["B"], extents["H"]))
        if output in ("dk", "dv"):
            square = square.unflatten(1, (extents["Hk"], extents["H"] // extents["Hk"])).sum(2)
        square = square.transpose(1, 2) if self.variant.layout == "bshd" else square
        terms = extents["Sq"] * extents["H"] // extents["Hk"] if output in ("dk", "dv") else extents["Skv"]
        return (self._summed(terms) * (square + wanted)).sqrt() + self.tiny

    def _summed(self, terms: float) -> float:
        """What summing ``terms`` terms in float32 adds to the square of a size, as a factor."""
        return 1.0 + (_SUMMING * self.fine) ** 2 * terms

    def _add(self, block: _Block) -> None:
        variant, args, fine = self.variant, self.args, self.fine
        mask, score = trees(variant)
        q, k, v = _clean(block.q), _clean(block.k), _clean(block.v)
        here = block.heads, block.rows
        o, lse = _clean(self.o[here]), self.lse[here]
        products, allowed = block.q @ block.k.mT, None
        if mask is not None:
            allowed = Evaluator(block.names, args.params, self.dtype)(mask).expand(products.shape)
            # What is no number in an excluded pair is none in its derivatives, and 0 times that none in sums of them.
            products = torch.where(allowed | products.isfinite(), products, 0.0)
        with torch.enable_grad():
            s = (args.scale * products).requires_grad_()
            params = {
                name: tensor.detach().requires_grad_(name in self.params and self.gradients)
                for name, tensor in args.params.items()
            }
            x = s
            if score is not None:
                x = Evaluator({**block.names, "s": s}, params, self.dtype)(score).to(self.dtype).expand(s.shape)
            slope = torch.ones_like(s)
            if score is not None and x.requires_grad:
                (steepness,) = torch.autograd.grad(x.sum(), s, retain_graph=True, allow_unused=True)
                slope = torch.zeros_like(s) if steepness is None else _clean(steepness)
        p = torch.exp(x.detach() - lse)
        least = torch.full_like(p, self.tiny)  # of a weight; none where the mask admits none
        if allowed is not None:
            p, least = torch.where(allowed, p, 0.0), torch.where(allowed, least, 0.0)
        p = torch.where(p.isfinite(), p, 0.0)
        gathered = args.scale * (q.square() @ k.square().mT).sqrt()
        noise = _SCORING * (_clean(x.detach()).abs() + slope.abs() * (_clean(s.detach()).abs() + gathered))
        noise = torch.where(p > 0, noise, 0.0)
        if self._exact(block, s.detach(), x.detach(), p > 0):
            noise = torch.zeros_like(noise)

        moved = (p * noise).square()
        kept = self._kept(block)
        around = (
            (moved * kept**2) @ v.square() - 2 * o * ((moved * kept) @ v) + o.square() * moved.sum(-1, keepdim=True)
        )
        size_o = ((p + least) * kept).square() @ v.square() + fine**2 * around.clamp(min=0.0)
        self.squares["o"][here] += size_o
        self.squares["lse"][here] += moved.sum(-1, keepdim=True)
        if not self.gradients:
            return

        d_o = self.d_o[here]
        d_lse: Any = self.d_lse if isinstance(self.d_lse, float) else _clean(self.d_lse[here])
        delta = (d_o * o).sum(-1, keepdim=True)
        products_rounded = kept * (d_o.square() @ v.square().mT).sqrt()
        # One number a row, so it does not average out: three times, as a sum of many roundings has no sharp bound.
        delta_rounded = 3.0 * (d_o.square() * (size_o + o.square() / 4.0)).sum(-1, keepdim=True).sqrt()
        # What the weights of a row have in common: how lse moves with the scores, and how it is rounded.
        rounded = torch.where(lse.abs() < _COARSE, lse.abs(), 0.0)
        common = moved.sum(-1, keepdim=True).sqrt() + rounded
        drift = 1.0 + fine * (noise + common)
        exact = (kept * (d_o @ v.mT) - delta + d_lse).abs()
        steep = p * (slope.abs() + fine)
        of_pair = exact * drift + fine * (products_rounded + delta.abs() + abs(d_lse))
        d_s = steep * of_pair + self.tiny
        of_row = delta_rounded.square() * ((p * slope) @ k).square()
        self.squares["dq"][here] += args.scale**2 * (d_s.square() @ k.square() + of_row)
        self.squares["dk"][block.heads] += args.scale**2 * ((d_s + steep * delta_rounded).square().mT @ q.square())
        self.squares["dv"][block.heads] += (kept * (p * drift + self.tiny)).square().mT @ d_o.square()
        if args.sink is not None:
            weight = torch.exp(args.sink[block.heads][..., None] - lse)
            weight = torch.where(weight.isfinite(), weight, 0.0)
            lost = delta_rounded + fine * (1.0 + common) * (delta.abs() + abs(d_lse))
            self.squares["d_sink"][here] += (weight * lost).square()
        wanted = [name for name in self.params if params[name].requires_grad]
        if wanted and x.requires_grad and x.numel():
            for _ in range(_DRAWS):
                errors = p * (of_pair * self._signs(x.shape) + delta_rounded * self._signs(delta_rounded.shape))
                found = pull([x], [params[name] for name in wanted], [errors], retain_graph=True, allow_unused=True)
                for name, gradient in zip(wanted, found, strict=True):
                    if gradient is not None:
                        self.params[name] += _clean(gradient).square() / _DRAWS

    def _kept(self, block: _Block) -> Any:
        """What dropout multiplies each weight by."""
        if self.args.dropout is None:
            return 1.0
        heads, rows = (torch.arange(part.start, part.stop) for part in (block.heads, block.rows))
        kept = kept_pairs(self.args.dropout, heads, rows, block.k.shape[1])
        return kept.to(self.dtype) * self.args.dropout.factor

    def _exact(self, block: _Block, s: Tensor, x: Tensor, counted: Tensor) -> bool:
        """Whether no score that counts was rounded on the way: whole numbers that float32 holds, of which float64 makes
        the very same scores."""
        q, k = block.q, block.k
        if not (q == q.round()).all() or not (k == k.round()).all() or (q.abs() @ k.abs().mT >= 2.0**24).any():
            return False
        _, score = trees(self.variant)
        products = self.args.scale * (q.double() @ k.double().mT)
        exact = products
        if score is not None:
            params = {name: t.double() if t.is_floating_point() else t for name, t in self.args.params.items()}
            names = {**block.names, "s": products}
            exact = Evaluator(names, params, torch.float64)(score).double().expand(s.shape)
        same = (products.float() == products) & (exact.float() == exact) & (exact == x)
        return bool((same | ~counted).all())

    def _signs(self, shape: torch.Size) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.draws) * 2.0 - 1.0


def _blocks(variant: Variant, args: Arguments) -> Iterator[_Block]:
    """All rows of all heads, in blocks of at most BLOCK pairs where a row is not longer."""
    count, length, keys = args.q.shape[0], args.q.shape[1], args.k.shape[1]
    heads_at_once = max(1, min(count, BLOCK // max(length * keys, 1)))
    rows_at_once = max(1, min(length, BLOCK // max(keys, 1)))
    total = args.extents["H"]
    for head in range(0, count, heads_at_once):
        heads = slice(head, min(head + heads_at_once, count))
        numbers = torch.arange(heads.start, heads.stop)
        for row in range(0, length, rows_at_once):
            rows = slice(row, min(row + rows_at_once, length))
            i = torch.arange(rows.start, rows.stop)
            b, h = (numbers // total)[:, None, None], (numbers % total)[:, None, None]
            names = names_of(variant, args.extents, b, h, i[:, None])
            yield _Block(heads, rows, names, args.q[heads, rows], args.k[heads], args.v[heads])


def _by_head(variant: Variant, tensor: Tensor) -> Tensor:
    """[B * H, S, D]."""
    return (tensor.transpose(1, 2) if variant.layout == "bshd" else tensor).flatten(0, 1)


def _clean(tensor: Tensor) -> Tensor:
    """Zero where a number is not finite: such elements are judged by what they are, not by size."""
    return torch.where(tensor.isfinite(), tensor, torch.zeros_like(tensor))


def _dtype_for(*tensors: Tensor) -> torch.dtype:
    """One in which the squares of these tensors' products neither overflow nor vanish."""
    for tensor in tensors:
        if not tensor.is_floating_point():
            continue
        most = float(_clean(tensor).abs().max()) if tensor.numel() else 0.0
        if most > 2.0**24 or 0.0 < most < 2.0**-24:
            return torch.float64
    return torch.float32


def _dtype(variant: Variant, name: str) -> str:
    return next(param.dtype for param in variant.params if param.name == name)

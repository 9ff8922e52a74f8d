"""A small transformer that learns to write Python, with fagen's attention or with PyTorch's.

    fagen build specs/cpu.yaml && python examples/train.py                                 # 200 steps on the CPU
    fagen build specs/a100.yaml && python examples/train.py --module a100 --control        # on a card, in bfloat16

Its text is the standard library of the Python that runs it, its tokens are bytes. It is trained from one seed with
fagen's op, with PyTorch's unfused attention (the math backend) and with PyTorch's fused one (flash):

- What rounding does to the losses is seen by how far the two of PyTorch's come apart, and fagen's are to come no
  further. In 16 bits they come apart by chance: there the whole run is compared, not each step.
- On the way, with the weights and the batch of every tenth step, gradients of the weights that make q, k and v are
  compared with those of unfused attention of twice the bits: fagen's are to err no more than twice as much as flash.

--control does the same with gradients of k that are a fiftieth too small, which has to be told from this. In 16 bits it
is by the gradients alone: an optimizer that divides them by their size makes little of a factor.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # generated/ is in the project's root

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention: q, k, v and what comes out are [B, S, H, D]."""

WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
LOOK_EVERY = 10  # steps
MOST_APART = 3.0  # times as far as PyTorch's own losses, in 16 bits, by the root of the mean square over all steps
MOST_ERROR = 2.0  # times that of flash
LEAST_FALL = 1.5  # nats that a loss is to fall by


@dataclass(frozen=True)
class Size:
    """Of the model, and of what it is shown a step."""

    layers: int = 4
    heads: int = 4
    head_dim: int = 64
    batch: int = 8
    length: int = 256
    steps: int = 200

    @property
    def width(self) -> int:
        """Numbers a token is, between layers."""
        return self.heads * self.head_dim


class Layer(nn.Module):
    """Attention, then two products with a GELU between them; each on normalised inputs, and added to them."""

    def __init__(self, size: Size, attention: Attention, dtype: torch.dtype):
        super().__init__()
        self.size, self.attention, self.dtype = size, attention, dtype
        self.before_attention, self.before_mlp = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).to(self.dtype)
        q, k, v = qkv.view(batch, length, 3, self.size.heads, self.size.head_dim).unbind(2)
        x = x + self.out(self.attention(q, k, v).to(x.dtype).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    """Logits of the next byte: [B, S] bytes to [B, S, 256]."""

    def __init__(self, size: Size, attention: Attention, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, size.width), nn.Embedding(size.length, size.width)
        self.layers = nn.Sequential(*(Layer(size, attention, dtype) for _ in range(size.layers)))
        self.head = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, 256))

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.layers(self.bytes(text) + self.places(places)))


def library_text(most: int = 4 << 20) -> Tensor:
    """Bytes of the standard library's sources, [n] int64."""
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in sources)[:most]), dtype=torch.uint8).long()


def train(
    attention: Attention, size: Size, *, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[float]:
    """The loss of each step, in nats a byte. Weights and batches are those of ``seed``, whatever the attention; it is
    given q, k and v of ``dtype``, all else is float32."""
    return [loss for _, _, loss in steps(attention, size, device=device, dtype=dtype, seed=seed)]


def steps(
    attention: Attention, size: Size, *, device: str, dtype: torch.dtype, seed: int
) -> Iterator[tuple[Transformer, Tensor, float]]:
    """Each step's model, batch and loss, once the step is taken."""
    torch.manual_seed(seed)
    text = library_text()
    model = Transformer(size, attention, dtype).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    starts = torch.randint(len(text) - size.length - 1, (size.steps, size.batch))
    for start in starts:
        shown = torch.stack([text[place : place + size.length + 1] for place in start.tolist()]).to(device)
        loss = loss_of(model, shown)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        yield model, shown, loss.item()


def loss_of(model: Transformer, shown: Tensor) -> Tensor:
    """The mean over a batch's bytes, in nats."""
    return cross_entropy(model(shown[:, :-1]).flatten(0, 1), shown[:, 1:].flatten())


def torchs(backend: SDPBackend) -> Attention:
    """Attention by one of PyTorch's backends."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attention


class ScaledGradient(torch.autograd.Function):
    """What passes is left alone, and its gradient comes back times 0.98."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 0.98


def control(attention: Attention) -> Attention:
    """The same with a gradient of k that is a fiftieth too small."""
    return lambda q, k, v: attention(q, ScaledGradient.apply(k), v)


def apart(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """How far two runs' losses have come apart, at each step."""
    return [abs(x - y) for x, y in zip(a, b, strict=True)]


def allowed(torch_apart: Sequence[float], losses: Sequence[float]) -> list[float]:
    """How far another run may come apart at each step: as far as PyTorch's own have until then, and no less than two
    units in the last place of a float32 loss."""
    eps = torch.finfo(torch.float32).eps
    return [max(*torch_apart[: n + 1], 2 * eps * loss) for n, loss in enumerate(losses)]


def gradient_errors(
    attentions: Mapping[str, Attention], size: Size, *, device: str, dtype: torch.dtype, seed: int
) -> dict[str, Tensor]:
    """How far gradients of the weights that make q, k and v are from those of unfused attention of twice the bits, as a
    part of these, by the root of the mean square over steps: [layers, 3] for each of ``attentions``. All see the
    weights and batches of one run, which the math backend trains."""
    math = torchs(SDPBackend.MATH)
    errors: dict[str, list[Tensor]] = {name: [] for name in attentions}
    for n, (model, shown, _) in enumerate(steps(math, size, device=device, dtype=dtype, seed=seed), 1):
        if n % LOOK_EVERY and n != size.steps:
            continue
        exact = weight_gradients(model, shown, math, WIDER[dtype])
        for name, attention in attentions.items():
            found = weight_gradients(model, shown, attention, dtype)
            errors[name].append((found - exact).norm(dim=-1) / exact.norm(dim=-1))
        _use(model, math, dtype)
    return {name: torch.stack(each).square().mean(0).sqrt() for name, each in errors.items()}


def weight_gradients(model: Transformer, shown: Tensor, attention: Attention, dtype: torch.dtype) -> Tensor:
    """Of the weights that make q, k and v of each layer, by another attention: [layers, 3, numbers], in float64."""
    _use(model, attention, dtype)
    found = torch.autograd.grad(loss_of(model, shown), [layer.qkv.weight for layer in model.layers])
    return torch.stack([gradient.double().view(3, -1) for gradient in found])


def _use(model: Transformer, attention: Attention, dtype: torch.dtype) -> None:
    for layer in model.layers:
        layer.attention, layer.dtype = attention, dtype


class Trial:
    """Runs of one size and dtype by PyTorch's own attention, and what another is judged by beside them."""

    def __init__(self, size: Size, *, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0):
        self.size = size
        self.place: dict[str, Any] = {"device": device, "dtype": dtype, "seed": seed}
        self.short = dtype != torch.float32
        self.flash = torchs(SDPBackend.FLASH_ATTENTION)
        self.plain, fused = (train(each, size, **self.place) for each in (torchs(SDPBackend.MATH), self.flash))
        self.apart = apart(fused, self.plain)
        self.allowed = allowed(self.apart, self.plain)

    def losses(self, attention: Attention) -> list[float]:
        """With another attention."""
        return train(attention, self.size, **self.place)

    def strays(self, losses: Sequence[float]) -> str:
        """How losses come too far from PyTorch's own; "" if they do not."""
        strayed = apart(losses, self.plain)
        if self.short:
            ratio = _mean_square(strayed) / max(_mean_square(self.apart), torch.finfo(torch.float32).eps)
            return "" if ratio <= MOST_APART else f"losses are {ratio:.2f} times as far apart as PyTorch's own"
        out = [n for n, (x, most) in enumerate(zip(strayed, self.allowed, strict=True)) if not x <= most]
        many = f"{len(out)} of {len(losses)} steps"
        return f"losses are further apart than PyTorch's own at {many}, first at {out[0]}" if out else ""

    def errors(self, attentions: Mapping[str, Attention]) -> dict[str, Tensor]:
        """See gradient_errors; of flash, too."""
        return gradient_errors({"flash": self.flash, **attentions}, self.size, **self.place)


def errs(found: Tensor, flash: Tensor) -> str:
    """How gradients err more than they may beside those of flash; "" if they do not."""
    ratio = (found / flash).flatten()
    # Written so that NaN is an error.
    worst = int(torch.where(ratio.isnan(), torch.inf, ratio).argmax())
    if bool((ratio <= MOST_ERROR).all()):
        return ""
    what = f"the gradient of {'qkv'[worst % 3]} in layer {worst // 3}"
    return f"{what} errs {ratio[worst]:.2f} times as much as by flash"


def _mean_square(numbers: Sequence[float]) -> float:
    return (sum(x * x for x in numbers) / len(numbers)) ** 0.5


def main() -> int:
    """Trains, and prints what came of it; 1 where fagen's losses stray or do not fall, gradients err, or the control is
    not told from them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="cpu", help="of generated/")
    parser.add_argument("--variant", default="causal_d64", help="of the module: a causal one of head dim 64")
    parser.add_argument("--steps", type=int, default=Size.steps)
    parser.add_argument("--control", action="store_true", help="the same with wrong gradients has to fail")
    options = parser.parse_args()
    try:
        module = importlib.import_module(f"generated.{options.module}")
    except ImportError as error:
        sys.exit(f"{error}\nfirst build it: fagen build specs/{options.module}.yaml")
    kernel = getattr(module, options.variant)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[kernel.variant.dtype]
    trial = Trial(Size(steps=options.steps), device=module._module.device, dtype=dtype)

    def fagens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel(q, k, v)

    weights = sum(parameter.numel() for parameter in Transformer(trial.size, fagens).parameters())
    print(f"{weights / 1e6:.1f} million weights; attention by {kernel!r}, {dtype}")
    losses = trial.losses(fagens)
    strayed = apart(losses, trial.plain)
    print("step    loss, nats a byte    apart from the unfused formula    PyTorch's flash")
    for n in sorted({*range(0, options.steps, max(options.steps // 10, 1)), options.steps - 1}):
        print(f"{n:4}    {losses[n]:17.4f}    {strayed[n]:29.1e}    {trial.apart[n]:15.1e}")
    fell = losses[0] - losses[-1]
    print(f"the loss fell by {fell:.2f} nats")

    errors = trial.errors({"fagen": fagens, **({"control": control(fagens)} if options.control else {})})
    print("errors of gradients of the weights that make q, k and v, over layers: most / median")
    for name, found in errors.items():
        print(f"  {name:7}", "   ".join(f"{each.max():.2e} / {each.median():.2e}" for each in found.T))
    wrong = list(filter(None, (trial.strays(losses), errs(errors["fagen"], errors["flash"]))))
    if not fell >= LEAST_FALL:
        wrong.append(f"the loss fell by less than {LEAST_FALL} nats")
    if options.control:
        others = trial.losses(control(fagens))
        told = list(filter(None, (trial.strays(others), errs(errors["control"], errors["flash"]))))
        print(f"control, with gradients of k times 0.98: {'; '.join(told) or 'nothing is wrong with it'}")
        if not told:
            wrong.append("the control is not told from what is right")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

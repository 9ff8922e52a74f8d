"""A small transformer that learns to write Python, with fagen's attention or with PyTorch's.

    fagen build specs/cpu.yaml && python examples/train.py                        # 200 steps on the CPU
    fagen build specs/h100.yaml && python examples/train.py --module h100         # on a card; with backward: true

Its text is the standard library of the Python that runs it, its tokens are bytes. It is trained from one seed with
fagen's op, with PyTorch's unfused attention (the math backend) and with PyTorch's fused one: what rounding does to the
losses is seen by how far the two of PyTorch's come apart, and fagen's are to come no further.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # generated/ is in the project's root

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention: q, k, v and what comes out are [B, S, H, D]."""


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
    torch.manual_seed(seed)
    text = library_text()
    model = Transformer(size, attention, dtype).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    starts = torch.randint(len(text) - size.length - 1, (size.steps, size.batch))
    losses = []
    for start in starts:
        shown = torch.stack([text[place : place + size.length + 1] for place in start.tolist()]).to(device)
        loss = cross_entropy(model(shown[:, :-1]).flatten(0, 1), shown[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        losses.append(loss.item())
    return losses


def torchs(backend: SDPBackend) -> Attention:
    """Attention by one of PyTorch's backends."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attention


def apart(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """How far two runs' losses have come apart, at each step."""
    return [abs(x - y) for x, y in zip(a, b, strict=True)]


def allowed(torch_apart: Sequence[float], losses: Sequence[float]) -> list[float]:
    """How far another run may come apart at each step: as far as PyTorch's own have until then, and no less than two
    units in the last place of a float32 loss."""
    eps = torch.finfo(torch.float32).eps
    return [max(*torch_apart[: n + 1], 2 * eps * loss) for n, loss in enumerate(losses)]


def compare(
    attention: Attention, size: Size, *, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[list[float], list[float], list[float]]:
    """Trains thrice. The losses with ``attention``, how far they come apart from those of PyTorch's math backend, and
    how far they may, by its flash backend."""
    ours, plain, fused = (
        train(each, size, device=device, dtype=dtype, seed=seed)
        for each in (attention, torchs(SDPBackend.MATH), torchs(SDPBackend.FLASH_ATTENTION))
    )
    return ours, apart(ours, plain), allowed(apart(fused, plain), plain)


def main() -> int:
    """Trains, and prints what came of it; 1 where fagen's losses stray or do not fall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="cpu", help="of generated/; its causal variant of head dim 64 is used")
    parser.add_argument("--steps", type=int, default=Size.steps)
    options = parser.parse_args()
    try:
        module = importlib.import_module(f"generated.{options.module}")
    except ImportError as error:
        sys.exit(f"{error}\nfirst build it: fagen build specs/{options.module}.yaml")
    device, dtype = ("cpu", torch.float32) if options.module == "cpu" else ("cuda", torch.bfloat16)

    def fagens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return module.attention(q, k, v, mask="causal")

    losses, strayed, may = compare(fagens, Size(steps=options.steps), device=device, dtype=dtype)
    print("step    loss, nats a byte    apart from the unfused formula    may be")
    for n in sorted({*range(0, options.steps, max(options.steps // 10, 1)), options.steps - 1}):
        print(f"{n:4}    {losses[n]:17.4f}    {strayed[n]:29.1e}    {may[n]:6.1e}")
    out = [n for n in range(options.steps) if not strayed[n] <= may[n]]
    if out:
        print(f"further apart than PyTorch's own backends at {len(out)} of {options.steps} steps, first at {out[0]}")
    fell = losses[0] - losses[-1]
    print(f"the loss fell by {fell:.2f} nats")
    return 1 if out or not fell >= 1.5 else 0


if __name__ == "__main__":
    sys.exit(main())

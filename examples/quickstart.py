"""The kernels of specs/cpu.yaml at work, and what they computed. Run after `fagen build specs/cpu.yaml`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # generated/ is in the project's root

try:
    from generated import cpu
except ImportError as error:
    sys.exit(f"{error}\nfirst build it: fagen build specs/cpu.yaml")


def inputs(length: int, heads: int = 8, head_dim: int = 64, key_heads: int | None = None) -> list[Tensor]:
    """q [1, length, heads, head_dim]; k and v [1, length, key_heads, head_dim]; float32."""
    sizes = (heads, key_heads or heads, key_heads or heads)
    return [torch.randn(1, length, count, head_dim) for count in sizes]


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own causal attention, in the layout of q, k, v."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def milliseconds(call: Callable[[], object], times: int = 5) -> float:
    """The median of a few runs."""
    call()
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return 1000 * sorted(spent)[times // 2]


def the_mask_itself() -> None:
    """With q = k = 0 every key a row sees weighs the same, and with a one-hot v the output shows which those are."""
    length = 6
    q = k = torch.zeros(1, length, 1, 64)
    v = torch.zeros(1, length, 1, 64)
    v[0, :, 0, :length] = torch.eye(length)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    causal = cpu.causal_d64(q, k, v)[0, :, 0, :length]
    packed = cpu.documents_d64(q, k, v, doc=documents)[0, :, 0, :length]
    print("keys that each query sees        causal          two documents of three")
    for row in range(length):
        pictures = ["".join(" ■" if weight > 0 else " ·" for weight in line[row]) for line in (causal, packed)]
        print(f"                    query {row}   {pictures[0]}    {pictures[1]}")


def same_as_torch() -> None:
    """Forward and gradients beside PyTorch's."""
    ours = [x.requires_grad_() for x in inputs(300)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    weights = torch.randn(1, 300, 8, 64)
    (cpu.causal_d64(*ours) * weights).sum().backward()
    (sdpa(*theirs) * weights).sum().backward()
    print("\ncausal attention beside PyTorch's own, 8 heads of 64, length 300")
    print(f"  largest difference in o: {(cpu.causal_d64(*ours) - sdpa(*theirs)).abs().max().item():.1e}")
    for name, a, b in zip("qkv", ours, theirs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        print(f"  largest difference in the gradient of {name}: {(a.grad - b.grad).abs().max().item():.1e}")


def learned_slopes() -> None:
    """The compiler differentiates the spec's expressions: s - slope[h] * abs(q - kv)."""
    q, k, v = inputs(200, heads=4, key_heads=2)  # four query heads share two key heads
    slope = torch.tensor([0.5, 0.25, 0.125, 0.0625], requires_grad=True)
    cpu.alibi_d64(q, k, v, slope=slope).square().mean().backward()
    print("\nALiBi with learnable slopes: gradient of slope:", [round(g, 4) for g in slope.grad.tolist()])


def found_by_meaning() -> None:
    """attention() compares expressions by what they mean, and says what to build when there is nothing."""
    q, k, v = inputs(50)
    same = torch.equal(cpu.attention(q, k, v, mask="kv <= q"), cpu.causal_d64(q, k, v))
    print(f'\ncpu.attention(q, k, v, mask="kv <= q") is cpu.causal_d64(q, k, v): {same}')
    try:
        cpu.attention(q, k, v, mask="kv <= q and q - kv < 100")
    except ValueError as error:
        print('cpu.attention(q, k, v, mask="kv <= q and q - kv < 100") says:')
        print("  " + str(error).replace("\n", "\n  "))


def speed() -> None:
    """One length; `fagen bench` measures properly."""
    print(f"\ntime of a forward, 8 heads of 64, float32, {torch.get_num_threads()} threads")
    print("  length    causal    window of 256    PyTorch, causal")
    for length in (1024, 4096):
        with torch.no_grad():
            q, k, v = inputs(length)
            causal = milliseconds(lambda: cpu.causal_d64(q, k, v))  # noqa: B023 (called at once)
            window = milliseconds(lambda: cpu.window_d64(q, k, v))  # noqa: B023
            torchs = milliseconds(lambda: sdpa(q, k, v))  # noqa: B023
        print(f"  {length:6}  {causal:5.1f} ms         {window:5.1f} ms           {torchs:5.1f} ms")


def main() -> None:
    """All of it, from a fixed seed."""
    torch.manual_seed(0)
    the_mask_itself()
    same_as_torch()
    learned_slopes()
    found_by_meaning()
    speed()


if __name__ == "__main__":
    main()

"""What a gradient must be whatever the implementation: finite differences, exact cases, the same bits on every run."""

from __future__ import annotations

import threading

import pytest
import torch
from backward_kernels import backward_kernel
from backward_rule import check_backward
from forward_rule import draw
from kernels import DTYPES, variant
from torch import Tensor

from fagen.runtime.variant import Param, Tiles


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


DOC = Param("doc", "i32", ("B", "n"))
FUNCTIONS = {
    "causal": {"mask": "causal"},
    "softcap_window": {"mask": "window(9, 3)", "score": "softcap(2)"},
    "documents": {"mask": "causal and document(doc)", "params": (DOC,)},
    "alibi": {"score": "alibi(slope)", "params": (Param("slope", "f32", ("B", "H"), grad=True),)},
    "table": {
        "mask": "causal",
        "score": "s * sigmoid(s) + rel[h, q - kv + kv_len]",
        "params": (Param("rel", "f32", ("H", "n"), grad=True),),
    },
    "forgetting": {
        "mask": "causal",
        "score": "s + f[b, h, q] - f[b, h, kv]",
        "params": (Param("f", "f32", ("B", "H", "n"), grad=True),),
    },
    "bias": {
        "score": "tanh(s + bias[b, h, i, j])",
        "params": (Param("bias", "f32", ("B", "H", "Sq", "Skv"), grad=True),),
    },
}
B, H, Hk, S = 2, 4, 2, 33
SHAPES = {"doc": (B, S), "slope": (B, H), "rel": (H, 2 * S), "f": (B, H, S), "bias": (B, H, S, S)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_finite_differences_of_the_forward_kernel(name: str) -> None:
    """Along a random direction of each input alone and of all together; o and lse both count."""
    v = variant(f"differences_{name}", 16, "f32", sink=True, backward=True, **FUNCTIONS[name])
    call = backward_kernel(v)
    q, k, w = draw(v, B=B, H=H, Hk=Hk, Sq=S, Skv=S)
    fixed = {"doc": torch.arange(S).floor_divide(12).int().expand(B, S)} if name == "documents" else {}
    inputs: dict[str, Tensor] = {"q": q, "k": k, "v": w, "sink": torch.randn(H)}
    inputs |= {param.name: torch.randn(SHAPES[param.name]) for param in v.params if param.grad}
    d_o, d_lse = torch.randn(q.shape), torch.randn(B, H, S)

    def forward(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        params = {param.name: given.get(param.name, fixed.get(param.name)) for param in v.params}
        return call.forward(given["q"], given["k"], given["v"], sink=given["sink"], params=params)  # type: ignore[arg-type]

    o, lse = forward(inputs)
    params = {param.name: inputs.get(param.name, fixed.get(param.name)) for param in v.params}
    got = call(q, k, w, o, lse, d_o, d_lse, sink=inputs["sink"], params=params)  # type: ignore[arg-type]
    slopes = {each: got[f"d_{each}" if each not in ("q", "k", "v") else f"d{each}"] for each in inputs}
    for moved in ([each] for each in inputs), [list(inputs)]:
        for names in moved:
            directions = {each: torch.randn(inputs[each].shape) for each in names}
            step = 2.0**-6 / max(direction.abs().max().item() for direction in directions.values())
            loss = []
            for sign in (1.0, -1.0):
                o, lse = forward({**inputs, **{each: inputs[each] + sign * step * directions[each] for each in names}})
                loss.append((o.double() * d_o).sum() + (lse.double() * d_lse).sum())
            found = (loss[0] - loss[1]) / (2 * step)
            terms = torch.stack([(slopes[each].double() * directions[each]).square().sum() for each in names])
            want = sum((slopes[each].double() * directions[each]).sum() for each in names)
            assert abs(found - want) <= 2e-3 * terms.sum().sqrt(), (names, found, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_visible_key(dtype: str) -> None:
    """Its weight is 1 and does not move: dQ = dK = 0 exactly, and dV counts the rows that see it."""
    v = variant("one_key", 16, dtype, backward=True)
    for Sq in (1, 34, 76, 146):
        q, k, w = draw(v, B=1, H=1, Hk=1, Sq=Sq, Skv=1, spread=3.0)
        k, w = k * 3, w * 3
        call = backward_kernel(v)
        o, lse = call.forward(q, k, w)
        got = call(q, k, w, o, lse, torch.ones_like(o))
        assert (got["dq"] == 0).all() and (got["dk"] == 0).all() and (got["dv"] == Sq).all()


def test_a_diagonal_of_keys() -> None:
    v = variant("diagonal", 32, "f16", mask="kv == q", backward=True)
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=100, Skv=100, spread=9.0)
    d_o = torch.randn(q.shape).half()
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    got = call(q, k, w, o, lse, d_o)
    assert (got["dq"] == 0).all() and (got["dk"] == 0).all() and torch.equal(got["dv"], d_o)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_magnitudes(dtype: str) -> None:
    """Powers of two moved between q and k move the gradients and nothing else; logits up to 1e7 keep the rule."""
    v = variant("magnitude", 32, dtype, mask="causal", backward=True)
    q, k, w = draw(v, Sq=70, Skv=90)
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    d_o, d_lse = torch.randn(q.shape).to(q.dtype), torch.randn(lse.shape)
    want = call(q, k, w, o, lse, d_o, d_lse)
    for power in (-20, 20):
        up, down = 2.0**power, 2.0**-power
        got = call(q * up, k * down, w, o, lse, d_o, d_lse)
        assert torch.equal(got["dq"], want["dq"] * down) and torch.equal(got["dk"], want["dk"] * up)
        assert torch.equal(got["dv"], want["dv"])
    for spread in (1e3, 1e6):
        check_backward(v, *draw(v, Sq=70, Skv=90, spread=spread))


def test_products_beyond_f16() -> None:
    v = variant("large", 64, "f16", backward=True)
    q, k = torch.full((1, 1, 1, 64), 256.0).half(), torch.full((1, 8, 1, 64), 256.0).half()
    got = check_backward(v, q, k, torch.randn(1, 8, 1, 64).half())
    assert all(gradient.isfinite().all() for gradient in got.values())


def test_the_gradient_of_lse_alone() -> None:
    """dQ = scale · P K, dK = scale · Pᵀ Q, dV = 0."""
    v = variant("lse_alone", 32, "f32", mask="causal", backward=True)
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=50, Skv=60)
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    got = call(q, k, w, o, lse, torch.zeros_like(o), torch.ones_like(lse))
    scores = q[0, :, 0].double() @ k[0, :, 0].double().T / 32**0.5
    weights = scores.masked_fill(torch.arange(60) > torch.arange(50)[:, None] + 10, -torch.inf).softmax(-1)
    assert torch.allclose(got["dq"][0, :, 0].double(), weights @ k[0, :, 0].double() / 32**0.5, atol=1e-5)
    assert torch.allclose(got["dk"][0, :, 0].double(), weights.T @ q[0, :, 0].double() / 32**0.5, atol=1e-5)
    assert (got["dv"] == 0).all()


def test_the_same_bits_on_every_run_and_for_any_number_of_threads() -> None:
    rel = Param("rel", "f32", ("H", "n"), grad=True)
    t = Param("t", "f32", (), grad=True)
    v = variant(
        "repeated", 32, "bf16", mask="causal", score="s * t + rel[h, q - kv + kv_len]", params=(rel, t), backward=True
    )
    for heads, kv_heads in ((4, 2), (1, 1)):
        q, k, w = draw(v, B=1, H=heads, Hk=kv_heads, Sq=700, Skv=700)
        params = {"rel": torch.randn(heads, 1500), "t": torch.tensor(0.9)}
        call = backward_kernel(v)
        o, lse = call.forward(q, k, w, params=params)
        d_o, d_lse = torch.randn(o.shape).bfloat16(), torch.randn(lse.shape)
        want = call(q, k, w, o, lse, d_o, d_lse, params=params, threads=1)
        for threads in (2, 2, 2, 3, 3, 7, 16):
            got = call(q, k, w, o, lse, d_o, d_lse, params=params, threads=threads)
            assert all(torch.equal(got[name], want[name]) for name in want), (heads, threads)


def test_items_wait_for_a_slow_one() -> None:
    """The first keys' mask is slow and the next keys see few rows, so that later items would overtake both."""
    slow = "(q * q + kv * 7) % 11 % 7 % 5 % 3 != 1 and (q + kv * kv) % 13 % 11 % 7 % 5 % 3 != 1"
    few = "kv >= 64 and (kv >= 128 or h == 0 and q < 400)"
    v = variant("awaited", 16, "f32", mask=f"{few} or kv < 64 and {slow}", tiles=Tiles(q=8, kv=64), backward=True)
    q, k, w = draw(v, B=1, H=2, Hk=1, Sq=8000, Skv=300)
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    want = call(q, k, w, o, lse, q, threads=1)
    for threads in (2, 3, 5):
        got = call(q, k, w, o, lse, q, threads=threads)
        assert all(torch.equal(got[name], want[name]) for name in want), threads


def test_calls_at_the_same_time() -> None:
    """More threads than cores, all of them in lines that wait for each other."""
    v = variant("crowded", 16, "f32", mask="causal", tiles=Tiles(q=8, kv=64), backward=True)
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=600, Skv=600)
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    want = call(q, k, w, o, lse, q, threads=1)
    wrong: list[str] = []

    def run() -> None:
        for _ in range(3):
            got = call(q, k, w, o, lse, q, threads=4)
            wrong.extend(name for name in want if not torch.equal(got[name], want[name]))

    crowd = [threading.Thread(target=run) for _ in range(4)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    assert not wrong


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    for dtype in ("f32", "bf16"):
        v = variant("memory", 64, dtype, mask="causal", backward=True)
        call = backward_kernel(v)
        sizes = []
        for S in (4096, 8192, 16384):
            q = torch.empty(1, 1, 1, 64, dtype=DTYPES[dtype]).expand(1, S, 8, 64)
            sizes.append(call.workspace(q, q, q))
        assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
        # dQ in float32, and a few numbers for each row.
        assert sizes[1] - sizes[0] <= 4096 * 8 * (64 * 4 + 32)

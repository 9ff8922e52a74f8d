"""Gradients by backward kernels for cards, beside the check's cases: of each way that a param's gradient is summed, of
grouped heads and of values of another width, for each size of shared memory; with `deterministic`, bit by bit.

Each variant takes a minute or two, most of them to compile: but for one of sm_75 and the deterministic one they are
nightly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fagen.emulate import driver

from .modules import built

SPEC = """
fagen: 1
name: {name}
target: {target}
defaults: {{dtype: f16}}
params:
  slope: {{dtype: f32, shape: [H], grad: true}}
  bias: {{dtype: f32, shape: [B, H, Sq, Skv], grad: true}}
  row: {{dtype: f32, shape: [B, H, Sq], grad: true}}
  rel: {{dtype: f32, shape: [H, n], grad: true}}
variants:
"""
VARIANTS = {
    "sm_75": """
  - {name: causal, head_dim: 64, mask: causal}
  - {name: wide, head_dim: 72, value_dim: 40, sink: true, mask: "causal and q - kv < 40"}
""",
    "sm_80": """
  - {name: biased, head_dim: 64, layout: bhsd, mask: causal, score: "s + bias[b, h, i, j]"}
  - {name: sloped, head_dim: 64, mask: causal, score: "s - slope[h] * (q - kv) + row[b, h, i]"}
  - {name: fixed, head_dim: 64, deterministic: true, sink: true, mask: "q - kv < 90",
     score: "s - slope[h] * abs(q - kv) + rel[h, q - kv + 100] + row[b, h, i]"}
""",
    "sm_120": """
  - {name: distant, head_dim: 128, score: "softcap(20) + rel[h, q - kv + 100]"}
""",
}


def of_target(target: str, folder: Path) -> Iterator[ModuleType]:
    yield from built(SPEC.format(name=f"backward_{target}", target=target) + VARIANTS[target], folder)


@pytest.fixture(scope="module")
def turing(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from of_target("sm_75", tmp_path_factory.mktemp("turing"))


@pytest.fixture(scope="module")
def ampere(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from of_target("sm_80", tmp_path_factory.mktemp("ampere"))


@pytest.fixture(scope="module")
def blackwell(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from of_target("sm_120", tmp_path_factory.mktemp("blackwell"))


def drawn(module: ModuleType, name: str, q_len: int, kv_len: int, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """The arguments of a call, two sequences of them."""
    variant = module._module.kernels[name].variant
    sizes = {"q": (q_len, heads, variant.head_dim), "k": (kv_len, kv_heads, variant.head_dim)}
    sizes["v"] = (kv_len, kv_heads, variant.value_dim)
    found = {}
    for tensor, (length, count, dim) in sizes.items():
        shape = (2, count, length, dim) if variant.layout == "bhsd" else (2, length, count, dim)
        found[tensor] = torch.randn(shape).half()
    extents = {"B": 2, "H": heads, "Sq": q_len, "Skv": kv_len, "n": 200}
    for param in variant.params:
        found[param.name] = 0.1 * torch.randn([extents[str(extent)] for extent in param.shape])
    if variant.sink:
        found["sink"] = torch.randn(heads)
    return found


def gradients(
    function: Callable[..., tuple[torch.Tensor, ...]],
    given: dict[str, torch.Tensor],
    seeds: tuple[torch.Tensor, ...],
) -> list[torch.Tensor]:
    """Of all arguments."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    q, k, v, *rest = leaves
    extras = {name: leaves[name] for name in rest}
    outputs = function(leaves[q], leaves[k], leaves[v], return_lse=True, **extras)
    wanted = [seed.to(output.dtype) for seed, output in zip(seeds, outputs, strict=True)]
    return list(torch.autograd.grad(outputs, list(leaves.values()), wanted))


def close(given: dict[str, torch.Tensor], got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    """The gradients of all arguments."""
    for tensor, one, other in zip(given, got, want, strict=True):
        most = other.abs().max().item()
        difference = (one.double() - other.double()).abs().max().item()
        assert difference <= 8e-3 * most, f"d{tensor}: {difference} of {most}"


LONGER = [("turing", "wide"), ("ampere", "biased"), ("ampere", "sloped"), ("ampere", "fixed"), ("blackwell", "distant")]


@pytest.mark.parametrize(
    ("card", "name"), [("turing", "causal"), *(pytest.param(*call, marks=pytest.mark.nightly) for call in LONGER)]
)
def test_gradients_are_those_of_the_formula(card: str, name: str, request: pytest.FixtureRequest) -> None:
    """Heads in groups of two, several tiles and the rest of one, lse's own gradient too."""
    module = request.getfixturevalue(card)
    given = drawn(module, name, 150, 140, 4, 2)
    function = getattr(module, name)
    with driver.use(module, seed=1):
        o, lse = function(*list(given.values())[:3], return_lse=True, **dict(list(given.items())[3:]))
        seeds = (torch.randn_like(o), torch.randn_like(lse))
        got = gradients(function, given, seeds)
    wide = {tensor: value.double() for tensor, value in given.items()}
    close(given, got, gradients(function.reference, wide, seeds))


@pytest.mark.nightly
def test_only_what_is_asked_for_is_summed(ampere: ModuleType) -> None:
    given = drawn(ampere, "sloped", 20, 20, 2, 2)
    q = given["q"].requires_grad_()
    with driver.use(ampere) as emulator:
        ampere.sloped(**given).sum().backward()
    assert emulator.launches == 4  # forward, then notes, gradients, and dq from its sums
    assert q.grad is not None and given["slope"].grad is None


def test_the_same_bits_in_any_order(ampere: ModuleType) -> None:
    """Blocks of keys that add to the same rows of dQ, threads that add to the same elements of params; and the
    formula's numbers."""
    given = drawn(ampere, "fixed", 140, 300, 4, 2)
    found = []
    for seed, completions in enumerate(("earliest", "latest", "random", "random")):
        with driver.use(ampere, completions=completions, seed=seed):
            o, lse = ampere.fixed(*list(given.values())[:3], return_lse=True, **dict(list(given.items())[3:]))
            seeds = (torch.ones_like(o), torch.ones_like(lse))
            found.append(gradients(ampere.fixed, given, seeds))
    wide = {tensor: value.double() for tensor, value in given.items()}
    close(given, found[0], gradients(ampere.fixed.reference, wide, seeds))
    for each in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], each, strict=True))

"""A module that `fagen build` made, kernels and all, held to what the host side promises."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import naive
import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from views import elsewhere

from fagen.runtime.check.cases import Tiling, cases
from fagen.runtime.fakes import DTYPES

SPEC = """
fagen: 1
name: built
target: cpu
defaults: {backward: true}
params:
  slope: {dtype: f32, shape: [H], grad: true}
  temper: {dtype: f32, shape: [], grad: true}
  bias: {dtype: f16, shape: [B, H, Sq, Skv], grad: true}
  doc: {dtype: i32, shape: [B, n]}
variants:
  - {name: causal_f32, head_dim: 16, dtype: f32, mask: causal}
  - {name: packed_bf16, head_dim: 24, value_dim: 8, dtype: bf16, layout: bhsd, sink: true,
     mask: "causal and document(doc)", score: alibi(slope)}
  - {name: bias_f16, head_dim: 16, dtype: f16, score: "s * temper + bias[b, h, i, j]"}
"""
NAMES = ("causal_f32", "packed_bf16", "bias_f16")
EVERY = pytest.mark.parametrize("name", NAMES)
TOLERANCE = {"f32": 2e-5, "bf16": 3e-2, "f16": 4e-3}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> ModuleType:
    from fagen.build import build

    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "shared_built"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "built/manifest.json").exists():
            (root / "built.yaml").write_text(SPEC)
            build(root / "built.yaml", out=root, check="off")
    return naive.load(root / "built")


def _draw(kernel: Any, **sizes: int) -> dict[str, Tensor]:
    """All tensors of a call by name; those that may require grad do."""
    variant = kernel.variant
    qkv, named = naive.draw(variant, **sizes)
    tensors = {name: t.to(DTYPES[variant.dtype]) for name, t in zip("qkv", qkv, strict=True)} | named
    return {name: t.requires_grad_(t.is_floating_point()) for name, t in tensors.items()}


def _run(kernel: Any, tensors: dict[str, Tensor], seeds: tuple[Tensor, Tensor], **options: Any) -> dict[str, Tensor]:
    o, lse = kernel(**tensors, return_lse=True, **options)
    leaves = {name: t for name, t in tensors.items() if t.requires_grad}
    gradients = torch.autograd.grad([o, lse], list(leaves.values()), seeds)
    return {"o": o.detach(), "lse": lse.detach(), **dict(zip(leaves, gradients, strict=True))}


def _seeds(kernel: Any, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    o, lse = kernel(**{name: t.detach() for name, t in tensors.items()}, return_lse=True)
    return torch.randn_like(o), torch.randn_like(lse)


@EVERY
def test_is_the_formula(built: ModuleType, name: str) -> None:
    kernel = getattr(built, name)
    tensors = _draw(kernel, Sq=70, Skv=90)
    seeds = _seeds(kernel, tensors)
    got = _run(kernel, tensors, seeds)
    doubles = {n: t.detach().double().requires_grad_() if t.is_floating_point() else t for n, t in tensors.items()}
    want = _run(kernel.reference, doubles, (seeds[0].double(), seeds[1].double()))
    for what, value in want.items():
        error = (got[what].double() - value).abs().max() / value.abs().max()
        assert error <= TOLERANCE[kernel.variant.dtype], f"{what}: {error}"
        assert got[what].dtype == (torch.float32 if what == "lse" else tensors.get(what, tensors["q"]).dtype)


@pytest.mark.parametrize("seed", range(8))
@EVERY
def test_any_memory(built: ModuleType, name: str, seed: int) -> None:
    """Every tensor of a call, the output's gradient and out= too, as a random view: the same bits."""
    kernel = getattr(built, name)
    tensors = _draw(kernel, Sq=33, Skv=40)
    seeds = _seeds(kernel, tensors)
    want = _run(kernel, tensors, seeds)
    moved = {n: elsewhere(t, 100 * seed + i) for i, (n, t) in enumerate(tensors.items())}
    got = _run(kernel, moved, (elsewhere(seeds[0], seed), elsewhere(seeds[1], seed)))
    for what, value in want.items():
        assert torch.equal(got[what], value), what
    out = elsewhere(torch.zeros_like(want["o"]), seed)
    around = out._base.clone()
    with torch.no_grad():
        kernel(**moved, out=out)
        assert torch.equal(out, want["o"])
        out.zero_()
    torch.testing.assert_close(out._base, around, equal_nan=True, rtol=0, atol=0)


@EVERY
def test_opcheck(built: ModuleType, name: str) -> None:
    kernel = getattr(built, name)
    tensors = [t.detach() for t in _draw(kernel, Sq=9, Skv=11).values()]
    opcheck(kernel.ops.forward, (*tensors, 0.25))
    o, lse = kernel.ops.forward(*tensors, 0.25)
    opcheck(kernel.ops.forward_out, (*tensors, 0.25, torch.empty_like(o)))
    needs = sum(bit for bit, _ in kernel.formula.slots)
    opcheck(
        kernel.ops.backward,
        (torch.randn_like(o), torch.randn_like(lse), *tensors[:3], o, lse, *tensors[3:], 0.25, needs),
    )
    params = tensors[3 + kernel.variant.sink :]
    opcheck(kernel.ops.tile_counts, (*tensors[:2], *params))


@pytest.mark.parametrize("sizes", [{"B": 0}, {"Sq": 0}, {"Skv": 0}, {"Sq": 0, "Skv": 0}, {"Sq": 1, "Skv": 1}])
@EVERY
def test_least_sizes(built: ModuleType, name: str, sizes: dict[str, int]) -> None:
    """Empty outputs, and gradients of everything."""
    kernel = getattr(built, name)
    tensors = _draw(kernel, **sizes)
    got = _run(kernel, tensors, _seeds(kernel, tensors))
    assert not any(value.isnan().any() for value in got.values())
    if sizes.get("Skv") == 0 or 0 in (sizes.get("B"), sizes.get("Sq")):
        assert not any(got[what].any() for what in ("o", "q", "k", "v"))


def test_lse_alone_has_a_gradient(built: ModuleType) -> None:
    """dQ = scale * P K, dK = scale * P^T Q, dV = 0."""
    q, k, v = (torch.randn(1, 6, 1, 16, requires_grad=True) for _ in range(3))
    _, lse = built.causal_f32(q, k, v, return_lse=True)
    lse.sum().backward()
    scores = (q[0, :, 0] @ k[0, :, 0].T * 0.25).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    p = scores.detach().softmax(1)
    torch.testing.assert_close(q.grad[0, :, 0], 0.25 * p @ k.detach()[0, :, 0])
    torch.testing.assert_close(k.grad[0, :, 0], 0.25 * p.T @ q.detach()[0, :, 0])
    assert not v.grad.any()


def test_compiled_over_lengths(built: ModuleType) -> None:
    graphs: list[object] = []

    def count(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda q, k, v: built.causal_f32(q, k, v), fullgraph=True, dynamic=True, backend=count)
    for length in (128, 129, 1000, 1):
        qkv = [t.requires_grad_() for t in torch.randn(3, 1, length, 2, 16)]
        assert torch.equal(compiled(*qkv), built.causal_f32(*qkv))
    assert len(graphs) <= 2
    torch._dynamo.reset()


def test_manifest_says_what_the_front_shows(built: ModuleType) -> None:
    assert [variant.name for variant in built.variants()] == list(NAMES)
    assert built.causal_f32.spec_line == "built.yaml:12"
    folder = Path(built.__file__ or "").parent
    assert (folder / "py.typed").exists() and (folder / "__init__.pyi").exists()


def test_checks_itself(built: ModuleType) -> None:
    """On the caller's tensors, and from the command line in processes of its own."""
    tensors = _draw(built.packed_bf16, Sq=70, Skv=90)
    report = built.check("packed_bf16", **tensors)
    assert report.verdict == "passed" and report.variant == "packed_bf16"
    with pytest.raises(ValueError, match="no variant 'nothing' in built; it has causal_f32"):
        built.check("nothing", **tensors)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        root = Path(built.__file__ or "").parents[1]
        command = [sys.executable, "-m", "built", "check", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=300)

    case = cases(Tiling.of(built._module.manifest["variants"][0]["plan"]))[0].name
    done = run("causal_f32", "--seed", "7", "--case", case, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seed"] == 7 and found["variants"][0]["cases"] == [case]
    done = run("nothing")
    assert done.returncode == 2 and "no variant 'nothing'" in done.stderr

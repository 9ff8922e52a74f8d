"""The kernels of specs/zoo.yaml against each attention's definition written out by hand: values and gradients."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import ModuleType

import naive
import pytest
import torch
from oracles import ORACLES, Sizes, draw

from fagen.resources import specs_dir


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> ModuleType:
    from fagen.build import build

    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "shared_zoo"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(root / "zoo/manifest.json").exists():
            build(specs_dir() / "zoo.yaml", out=root, check="off")
    return naive.load(root / "zoo")


@pytest.mark.parametrize(
    "name, sizes", [(name, sizes) for name, oracle in ORACLES.items() for sizes in oracle.sizes], ids=str
)
def test_kernel_means_the_definition(zoo: ModuleType, name: str, sizes: Sizes) -> None:
    kernel, oracle = getattr(zoo, name), ORACLES[name]
    given = draw(name, sizes, kernel.variant.head_dim, kernel.variant.value_dim)
    extra = {**({} if given.sink is None else {"sink": given.sink}), **given.params}
    learned = given.learned()
    exact = oracle.attend(given.q, given.k, given.v, **extra)
    single = {name: _single(tensor) for name, tensor in {"q": given.q, "k": given.k, "v": given.v, **extra}.items()}
    with torch.set_grad_enabled(kernel.variant.backward):
        found = kernel(**single, return_lse=True)
    for what, got, want in zip(("o", "lse"), found, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5, msg=lambda m, what=what: f"{what}: {m}")
    if not kernel.variant.backward:
        return
    seeds = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) for x in exact]
    wanted = torch.autograd.grad(exact, list(learned.values()), seeds)
    gradients = torch.autograd.grad(found, [single[name] for name in learned], [seed.float() for seed in seeds])
    for what, got, want in zip(learned, gradients, wanted, strict=True):
        size = want.abs().max().item()
        torch.testing.assert_close(
            got.double(), want, rtol=1e-4, atol=2e-5 * max(size, 1.0), msg=lambda m, what=what: f"d {what}: {m}"
        )


def _single(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a kernel takes it: float32 where it is real, a leaf of its own."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().float().requires_grad_(tensor.requires_grad)

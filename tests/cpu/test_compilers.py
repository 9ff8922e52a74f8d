"""Kernels made by each compiler that the README names, oldest first, as far as it is installed."""

from __future__ import annotations

import shutil

import pytest
import torch
from backward_kernels import BackwardKernel
from backward_rule import check_backward
from forward_rule import check, draw
from kernels import compile_source, variant

from fagen.plan import plan
from fagen.render import render
from fagen.runtime.variant import Param
from fagen.target import ISAS, native_isa
from fagen.toolchain import OLDEST_COMPILER

OLDEST = (f"g++-{OLDEST_COMPILER['gcc']}", f"clang++-{OLDEST_COMPILER['clang']}")
COMPILERS = (*OLDEST, "g++-12", "g++-13", "g++-14", "clang++-16", "clang++-18", "clang++-19")
DTYPES = {"avx512_bf16": "bf16", "avx512": "f16", "avx2": "f32", "portable": "f32"}
RUNNABLE = list(ISAS)[list(ISAS).index(native_isa()) :]


def plain(compiler: str) -> str:
    """Its name, fit for that of a variant: kernels are remembered by variant."""
    return compiler.replace("+", "p").replace("-", "")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_kernels_of(compiler: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directions compile without a warning and, where this machine can run them, hold the rule."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CXX", compiler)
    params = (Param("slope", "f32", ("H",), grad=True), Param("rel", "f32", ("H", "n"), grad=True))
    v = variant(
        f"made_by_{plain(compiler)}",
        24,
        DTYPES[isa],
        value_dim=40,
        backward=True,
        sink=True,
        params=params,
        mask="causal and (q - kv) % 5 != 3",
        score="softcap(20) + slope[h] * (kv - q) + rel[h, q - kv] + sigmoid(s)",
    )
    if isa not in RUNNABLE:
        for source in render(plan(v, "cpu", isa)):
            compile_source(source)
        pytest.skip(f"compiles; {isa} does not run here")
    torch.manual_seed(0)
    extras = {"params": {"slope": torch.rand(4), "rel": torch.randn(4, 150)}, "sink": torch.randn(4)}
    check(v, *draw(v, B=1, Sq=130, Skv=301, H=4), isa=isa, **extras)
    check_backward(v, *draw(v, B=1, Sq=130, Skv=301, H=4), isa=isa, **extras)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_product_is_rounded_before_lse_is_subtracted(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one key the weight is 1, and dV is dO: a product fused with the subtraction would give e to what it rounds."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CXX", compiler)
    v = variant(f"rounded_by_{plain(compiler)}", 1, "f32", backward=True)
    kernel = BackwardKernel(v)
    torch.manual_seed(0)
    q, k, d_o = (torch.rand(8, 1, 1, 1) + 1 for _ in range(3))
    q, k = q * 5001.7, k * 6007.3
    o, lse = kernel.forward(q, k, k, scale=1.1)
    dv = kernel(q, k, k, o, lse, d_o, None, scale=1.1)["dv"]
    assert torch.equal(dv, d_o)

"""torch.compile, torch.export and torch.library's own checks of what is registered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import naive
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.export import Dim
from torch.library import opcheck

from fagen.runtime.variant import Variant

EVERY = pytest.mark.parametrize("variant", naive.VARIANTS, ids=lambda variant: variant.name)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="aot_eager", **{"fullgraph": True, **options})


@EVERY
def test_opcheck(small: ModuleType, variant: Variant) -> None:
    """Schemas, fakes (sizes, strides, dtypes), autograd registration, compiled = eager; every op."""
    kernel = getattr(small, variant.name)
    for sizes in ({}, {"Sq": 0}, {"Skv": 0}) if variant.name == "causal_d16" else ({},):
        qkv, named = naive.draw(variant, **sizes)
        opcheck(kernel.ops.forward, (*qkv, *named.values(), 0.25))
        # Other strides for q than for k and v, and a leaf that requires grad.
        moved = (qkv[0].transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(variant.backward), *qkv[1:])
        opcheck(kernel.ops.forward, (*moved, *named.values(), 0.25))
        o, lse = kernel(*qkv, **named, return_lse=True)
        opcheck(kernel.ops.forward_out, (*qkv, *named.values(), 0.25, torch.empty_like(o)))
        opcheck(kernel.ops.tile_counts, (*qkv[:2], *(named[param.name] for param in variant.params)))
        if variant.backward:
            every = sum(bit for bit, _ in kernel.formula.slots)
            for d_lse, needs in ((torch.randn_like(lse), every), (None, 0)):
                opcheck(kernel.ops.backward, (torch.randn_like(o), d_lse, *qkv, o, lse, *named.values(), 0.25, needs))


@EVERY
def test_compiled_is_eager(small: ModuleType, variant: Variant) -> None:
    kernel = getattr(small, variant.name)
    qkv, named = naive.draw(variant)
    compiled = _compiled(lambda qkv, named: kernel(*qkv, **named, return_lse=True))
    if variant.backward:
        qkv = tuple(t.requires_grad_() for t in qkv)
        named = {
            name: t.requires_grad_(name == "sink" or any(p.grad for p in variant.params if p.name == name))
            for name, t in named.items()
        }
    for got, want in zip(compiled(qkv, named), kernel(*qkv, **named, return_lse=True), strict=True):
        assert torch.equal(got, want)
    leaves = [t for t in (*qkv, *named.values()) if t.requires_grad]
    if leaves:
        o, lse = compiled(qkv, named)
        want = kernel(*qkv, **named, return_lse=True)
        got_gradients = torch.autograd.grad(o.square().sum() + lse.sum(), leaves)
        for g, w in zip(
            got_gradients, torch.autograd.grad(want[0].square().sum() + want[1].sum(), leaves), strict=True
        ):
            torch.testing.assert_close(g, w)


def test_inductor(small: ModuleType) -> None:
    """The default backend, with a transposed input and output; nothing that it would compile C++ for."""
    leaves = [t.mT.contiguous().requires_grad_() for t in naive.draw(small.causal_d16.variant)[0]]

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return small.causal_d16(q.mT, k.mT, v.mT).mT

    d_o = torch.randn(2, 5, 16, 4)
    want = torch.autograd.grad(block(*leaves), leaves, d_o)
    for g, w in zip(torch.autograd.grad(torch.compile(block, fullgraph=True)(*leaves), leaves, d_o), want, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", ["causal_d16", "doc_d16"])
def test_at_most_two_compilations(small: ModuleType, name: str, requires_grad: bool) -> None:
    """Lengths and batch sizes that change cost one more graph, and no other does."""
    kernel = getattr(small, name)
    graphs: list[object] = []

    def count(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda qkv, named: kernel(*qkv, **named), fullgraph=True, dynamic=True, backend=count)
    for length in (128, 129, 1000, 1):
        qkv, named = naive.draw(kernel.variant, B=1, Sq=length, Skv=length)
        qkv = tuple(t.requires_grad_(requires_grad) for t in qkv)
        assert torch.equal(compiled(qkv, named), kernel(*qkv, **named))
    assert len(graphs) <= 2


def test_compiled_out(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.causal_d16.variant)
    out = torch.full_like(qkv[0], torch.nan)

    def write(out: Tensor, *qkv: Tensor) -> Tensor:
        small.causal_d16(*qkv, out=out)
        return out + 1

    got = _compiled(write)(out, *qkv)
    assert torch.equal(out, small.causal_d16(*qkv)) and torch.equal(got, out + 1)


def test_compiled_autocast(small: ModuleType) -> None:
    qkv = tuple(t.bfloat16() for t in naive.draw(small.causal_d16.variant)[0])

    def call(*qkv: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return small.causal_d16(*qkv)

    assert torch.equal(_compiled(call)(*qkv), call(*qkv))


def test_compiled_attention(small: ModuleType) -> None:
    """The variant is picked while tracing; the graph holds its op."""
    compiled = _compiled(lambda *qkv: small.attention(*qkv, mask="kv <= q"), dynamic=True)
    for length in (5, 6):
        qkv = [t.requires_grad_() for t in naive.draw(small.causal_d16.variant, Sq=length)[0]]
        assert torch.equal(compiled(*qkv), small.causal_d16(*qkv))
    slope = torch.rand(4)
    got = _compiled(lambda *qkv: small.attention(*qkv, score="s - slope[h]*abs(q - kv)", slope=slope))(*qkv)
    assert torch.equal(got, small.alibi_d16(*qkv, slope=slope))


def test_compiled_errors(small: ModuleType) -> None:
    qkv, named = naive.draw(small.scalar_d16.variant)
    with pytest.raises(Exception, match="expected dtype torch.float32, found torch.float64"):
        _compiled(small.causal_d16)(*(t.double() for t in qkv))
    with pytest.raises(ValueError, match="found 3 query heads and 2 key heads"):
        _compiled(small.causal_d16)(qkv[0][:, :, :3], *qkv[1:])
    with pytest.raises(ValueError, match="no gradient for bias"):
        _compiled(small.scalar_d16, fullgraph=False)(*qkv, bias=named["bias"].requires_grad_())


def test_compiled_second_order_is_an_error(small: ModuleType) -> None:
    qkv = [t.requires_grad_() for t in naive.draw(small.causal_d16.variant)[0]]
    (gradient,) = torch.autograd.grad(_compiled(small.causal_d16)(*qkv).sum(), qkv[0], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_transforms_are_right_or_an_error(small: ModuleType, fullgraph: bool) -> None:
    """torch.compile over torch.func: never zeros, never a dropped tangent."""
    q, k, v = naive.draw(small.causal_d16.variant)[0]

    def loss(q: Tensor) -> Tensor:
        return small.causal_d16(q, k, v).square().sum()

    def tangent_of(function: Callable[[Tensor], Tensor]) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(q, torch.ones_like(q)))).tangent

    many = torch.stack([q, -q])
    for function, argument in (
        (torch.func.grad(loss), q),
        (lambda q: torch.func.grad(loss)(q), q),
        (torch.vmap(lambda q: small.causal_d16(q, k, v)), many),
        (torch.vmap(torch.func.grad(loss)), many),
    ):
        try:
            got = _compiled(function, fullgraph=fullgraph)(argument)
        except (RuntimeError, NotImplementedError):
            assert fullgraph
        else:
            torch.testing.assert_close(got, function(argument))
    torch.testing.assert_close(torch.func.grad(_compiled(loss, fullgraph=False))(q), torch.func.grad(loss)(q))
    call = _compiled(lambda q: small.causal_d16(q, k, v), fullgraph=fullgraph)
    call(q)  # compiled before it meets a dual tensor
    refused = (RuntimeError, NotImplementedError)
    with pytest.raises(refused):
        tangent_of(call)
    with pytest.raises(refused):
        _compiled(lambda q: tangent_of(lambda q: small.causal_d16(q, k, v)), fullgraph=fullgraph)(q)
    with pytest.raises(refused):
        _compiled(lambda q: torch.func.jvp(lambda q: small.causal_d16(q, k, v), (q,), (q,)), fullgraph=fullgraph)(q)
    with pytest.raises(refused):
        torch.func.jvp(call, (q,), (q,))


class Layer(torch.nn.Module):
    """A user's module that holds a variant."""

    def __init__(self, kernel: Any):
        super().__init__()
        self.kernel = kernel
        self.slope = torch.nn.Parameter(torch.rand(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel(q, k, v, slope=self.slope, return_lse=True)


@pytest.mark.parametrize("strict", [False, True])
def test_export_save_load_run(small: ModuleType, small_folder: Path, tmp_path: Path, strict: bool) -> None:
    """Dynamic lengths and batch; the saved program names this build, and runs where the module is imported."""
    layer = Layer(small.alibi_d16)
    B, Sq, Skv = Dim("B"), Dim("Sq"), Dim("Skv")
    shapes = {"q": {0: B, 1: Sq}, "k": {0: B, 1: Skv}, "v": {0: B, 1: Skv}}
    program = torch.export.export(layer, naive.draw(layer.kernel.variant)[0], dynamic_shapes=shapes, strict=strict)
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    qkv, _ = naive.draw(layer.kernel.variant, B=3, Sq=33, Skv=41)
    want = layer(*qkv)
    for got, expected in zip(torch.export.load(path).module()(*qkv), want, strict=True):
        assert torch.equal(got, expected)
    if strict:
        return
    torch.save((qkv, want), tmp_path / "numbers.pt")
    script = (
        "import sys, torch\n"
        f"sys.path.insert(0, {str(small_folder.parent)!r})\n"
        "import small\n"
        f"qkv, want = torch.load({str(tmp_path / 'numbers.pt')!r})\n"
        f"got = torch.export.load({str(path)!r}).module()(*qkv)\n"
        "assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_exported_program_trains(small: ModuleType) -> None:
    layer = Layer(small.alibi_d16)
    qkv, _ = naive.draw(layer.kernel.variant)
    exported = torch.export.export(layer, qkv).module()
    exported(*qkv)[0].square().sum().backward()
    layer(*qkv)[0].square().sum().backward()
    torch.testing.assert_close(exported.slope.grad, layer.slope.grad)


def test_make_fx_and_fake_tensors(small: ModuleType) -> None:
    """Tracing without torch.compile: the eager way in, under modes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    qkv = [t.requires_grad_() for t in naive.draw(small.causal_d16.variant)[0]]
    with FakeTensorMode():
        fakes = [torch.empty(2, 5, 4, 16, requires_grad=True) for _ in range(3)]
        o = small.causal_d16(*fakes)
        assert o.shape == (2, 5, 4, 16) and o.requires_grad

    def gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.autograd.grad(small.causal_d16(q, k, v).square().sum(), q)[0]

    graph = make_fx(gradient)(*qkv)
    assert torch.equal(graph(*qkv), gradient(*qkv))


def test_compiled_autograd(small: ModuleType) -> None:
    leaves = [t.requires_grad_() for t in naive.draw(small.causal_d16.variant)[0]]
    want = torch.autograd.grad(small.causal_d16(*leaves).square().sum(), leaves)
    total = small.causal_d16(*leaves).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        total.backward()
    for t, w in zip(leaves, want, strict=True):
        torch.testing.assert_close(t.grad, w)

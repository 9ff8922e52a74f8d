"""Whole runs of `fagen bench` on the CPU: what is measured, and what becomes of what fails."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from variants import variant

from fagen.bench import machines, measure, peers
from fagen.bench.peers import Peer
from fagen.bench.report import BenchReport, Cell
from fagen.bench.run import Options, bench
from fagen.bench.tables import rates, summary
from fagen.bench.twins import deterministic_twin
from fagen.costs import ProblemSize, operations
from fagen.errors import UsageError
from fagen.runtime.variant import Variant

SMALL = ProblemSize(batch=2, heads=4, kv_heads=2, q_len=33, kv_len=70)
SQUARE = ProblemSize(batch=1, heads=2, kv_heads=2, q_len=40, kv_len=40)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of one call, and no peak."""
    monkeypatch.setattr(machines, "peak_flops", lambda isa, threads: {"f32": 1e12})
    monkeypatch.setattr(measure, "_calls_for", lambda call, at_least: 1)


def _cell(cells: Any, name: str, direction: str) -> Cell:
    return next(cell for cell in cells if (cell.variant, cell.direction) == (name, direction))


def test_a_run(small: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variant forward, those with gradients backward; peers where they have the function and the gradient."""

    def flex(of: Variant, size: ProblemSize, params: Any, device: str) -> Peer:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            assert not (q.requires_grad or k.requires_grad or v.requires_grad)
            return v

        return Peer(call, differentiable=False)

    monkeypatch.setattr(peers, "flex", flex)
    told: list[str] = []
    report = bench(small._module, Options(sizes=(SMALL,), flex=True, rounds=3), told.append)
    names = [of.name for of in small.variants()]
    assert [line.split(":")[0] for line in told] == names
    assert report.isa == "portable" and report.threads == torch.get_num_threads() and report.peers() == ["sdpa", "flex"]
    for of in small.variants():
        plain = of.score is None and not of.sink
        forward = _cell(report.cells, of.name, "forward")
        assert set(forward.seconds) == {"fagen", "flex"} | ({"sdpa"} if plain else set())
        directions = [cell.direction for cell in report.cells if cell.variant == of.name]
        assert directions == (["forward", "backward"] if of.backward else ["forward"])
        if of.backward:
            backward = _cell(report.cells, of.name, "backward")
            assert set(backward.seconds) == {"fagen"} | ({"sdpa"} if plain else set())
    # 33 rows that see 38, 39, ... 70 keys, of 8 heads in all.
    causal = _cell(report.cells, "causal_d16", "forward")
    assert causal.operations == operations(small.variants()[0], 8 * sum(range(38, 71)), "forward")
    assert causal.operations == 2 * 8 * sum(range(38, 71)) * 32


def test_only_what_is_asked_for(small: ModuleType, quick: None) -> None:
    report = bench(small._module, Options(sizes=(SQUARE,), variants=("plain_d16",), backward=False, rounds=3))
    assert [(cell.variant, cell.direction) for cell in report.cells] == [("plain_d16", "forward")]
    with pytest.raises(ValueError, match="no variant 'nothing' in small; it has causal_d16"):
        bench(small._module, Options(variants=("nothing",)))


def _failing(monkeypatch: pytest.MonkeyPatch, *turns: int) -> None:
    """Measuring ends with an error at these turns, from 0 on."""
    honest, count = measure.interleave, itertools.count()

    def interleave(*arguments: Any, **options: Any) -> Any:
        if next(count) in turns:
            raise RuntimeError("a fault\nand more of it")
        return honest(*arguments, **options)

    monkeypatch.setattr("fagen.bench.run.interleave", interleave)


def test_a_cell_that_fails_loses_no_other(small: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [of.name for of in small.variants()]
    _failing(monkeypatch, 0, 2)
    kept: list[BenchReport] = []
    report = bench(small._module, Options(sizes=(SQUARE,), backward=False, rounds=3), keep=kept.append)
    assert [cell.variant for cell in report.cells] == [name for n, name in enumerate(names) if n not in (0, 2)]
    assert [line.split(":")[0] for line in report.failed] == [names[0], names[2]]
    assert all(line.endswith(": a fault") for line in report.failed)
    # What is known is kept as it comes, and a cell that failed overwrites nothing.
    assert [len(each.cells) for each in kept] == list(range(1, len(names) - 1))


def test_a_machine_that_is_lost_ends_a_run(small: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before is there; where there is nothing of it, the error is."""
    monkeypatch.setattr(machines.Cpu, "survives", lambda self: False)
    _failing(monkeypatch, 2)
    report = bench(small._module, Options(sizes=(SQUARE,), backward=False, rounds=3))
    count = len(small.variants())
    assert len(report.cells) == 2 and len(report.failed) == 2
    assert report.failed[1].endswith(f"of no more use to this process: {count - 3} more are not measured")
    _failing(monkeypatch, 0)
    with pytest.raises(RuntimeError, match="a fault"):
        bench(small._module, Options(sizes=(SQUARE,), backward=False, rounds=3))


def test_gradients_alone(small: ModuleType, quick: None) -> None:
    report = bench(small._module, Options(sizes=(SQUARE,), forward=False, rounds=3))
    assert {cell.direction for cell in report.cells} == {"backward"}
    assert {cell.variant for cell in report.cells} == {of.name for of in small.variants() if of.backward}
    without = next(of.name for of in small.variants() if not of.backward)
    with pytest.raises(UsageError, match="--backward-only: small has no gradients"):
        bench(small._module, Options(sizes=(SQUARE,), variants=(without,), forward=False, rounds=3))


def test_a_peer_without_the_gradient_is_left_out(
    small: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the backward pass alone, whatever the reason; so is one that cannot be made."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            raise RuntimeError("no such gradient")

    def flex(*arguments: Any) -> Peer:
        raise RuntimeError("no such mask")

    monkeypatch.setattr(peers, "sdpa", lambda *arguments: Peer(lambda q, k, v: Refusing.apply(v), differentiable=True))
    monkeypatch.setattr(peers, "flex", flex)
    told: list[str] = []
    options = Options(sizes=(SQUARE,), variants=("causal_d16",), flex=True, rounds=3)
    forward, backward = bench(small._module, options, told.append).cells
    assert set(forward.seconds) == {"fagen", "sdpa"} and set(backward.seconds) == {"fagen"}
    assert [line.partition(": without ")[2] for line in told[1:]] == [
        "flex: no such mask",
        "sdpa backward: no such gradient",
    ]


def test_the_price_of_a_fixed_order(small: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward, kernels that sum in a fixed order take turns with the others: here, it is the same one again."""
    monkeypatch.setattr("fagen.bench.run.deterministic_twin", lambda variant, variants: variant)
    report = bench(small._module, Options(sizes=(SQUARE,), variants=("causal_d16",), rounds=3))
    forward, backward = report.cells
    assert "deterministic" not in forward.seconds and set(backward.seconds) == {"fagen", "sdpa", "deterministic"}
    assert report.peers() == ["sdpa"]
    backward.seconds.update(fagen=9.0, deterministic=10.0)
    assert "deterministic" in rates(report)[0] and "0.90×" in rates(report)[2]
    assert "–" in rates(report)[1]
    assert report.geometric_mean("deterministic", "backward") == pytest.approx(0.9)
    assert not report.short_of({"cell/deterministic": 0.9})
    assert report.short_of({"cell/deterministic": 0.91}) == [
        "causal_d16 backward 40×40: 0.900× deterministic, asked for 0.91×"
    ]
    line = "backward: deterministic at 0.90× the rate without (geometric mean), 0.90× at least (causal_d16 B1,H2,S40)"
    assert line in summary(report)
    assert "backward / deterministic" in report.to_json()["geometric_mean"]
    assert [each["peer"] for each in report.measurements()][2:] == ["fagen", "sdpa", "deterministic"]


def test_which_variant_is_the_deterministic_one() -> None:
    free = variant("kv <= q", name="free")
    twin = replace(variant("causal", name="twin"), deterministic=True, line=9)
    others = [replace(twin, head_dim=8), replace(twin, dropout=True), replace(twin, backward=False), free]
    assert deterministic_twin(free, [*others, twin]) is twin
    assert deterministic_twin(free, others) is None and deterministic_twin(twin, [twin]) is None
    assert deterministic_twin(replace(free, backward=False), [twin]) is None
    assert deterministic_twin(variant("kv < q"), [twin]) is None


def test_a_module_for_several_instruction_sets(small: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    isa = {**small._module.manifest["isa"], "name": "portable, avx2"}
    monkeypatch.setitem(small._module.manifest, "isa", isa)
    options = Options(sizes=(SQUARE,), variants=("plain_d16",), backward=False, rounds=3)
    assert bench(small._module, options).isa == "avx2"

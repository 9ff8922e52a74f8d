"""Measuring on a card, with a stand-in for the card: what is launched in which order, and who is measured.

On a card itself: tests/gpu/test_bench_card.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from variants import variant

from fagen.bench import events, grids, machines, measure, peers
from fagen.bench.events import CardTimer, GraphTimer, HostTimer, SustainedTimer
from fagen.bench.grids import Entry, Function
from fagen.bench.measure import How
from fagen.bench.run import Options, bench
from fagen.bench.tables import rates
from fagen.costs import ProblemSize
from fagen.errors import UsageError
from fagen.runtime.variant import Variant

SQUARE = ProblemSize(batch=2, heads=4, kv_heads=4, q_len=32, kv_len=32)


class Card:
    """torch.cuda and a tensor in one: writes down what is asked of it. Its events tell the time that calls took.

    Of the ``late`` first samples the host is too slow: the spin is over before the call is in the queue.
    """

    def __init__(self, late: int = 0):
        self.now = 0.0
        self.late = late
        self.did: list[str] = []
        self.spins: list[int] = []
        self.events = 0

    def call(self, name: str, *milliseconds: float) -> Callable[[], None]:
        left = list(milliseconds)

        def run() -> None:
            self.did.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run

    def synchronize(self) -> None:
        self.did.append("wait")

    def zero_(self) -> None:
        self.did.append("flush")
        self.now += 100.0

    def _sleep(self, cycles: int) -> None:
        self.did.append("spin")
        self.spins.append(cycles)
        self.now += 1000.0

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802, as torch.cuda has it
        assert enable_timing
        return Event(self)

    # Streams are told apart by name; what is captured is written down and run by replay() alone.

    stream_now = "usual"

    def Stream(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(name="other", wait_stream=lambda other: self.did.append(f"other waits for {other.name}"))

    def current_stream(self) -> SimpleNamespace:
        return SimpleNamespace(
            name=self.stream_now, wait_stream=lambda other: self.did.append(f"{self.stream_now} waits for {other.name}")
        )

    @contextlib.contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        self.stream_now = stream.name
        yield
        self.stream_now = "usual"

    def CUDAGraph(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(replay=self.call("replay", 3.0))

    @contextlib.contextmanager
    def graph(self, graph: SimpleNamespace) -> Iterator[None]:
        self.did.append("capture")
        yield
        self.did.append("captured")


class Event:
    def __init__(self, card: Card):
        self.card = card

    def record(self) -> None:
        self.at = self.card.now
        self.card.did.append("event")

    def query(self) -> bool:
        self.card.late -= 1
        return self.card.late >= 0

    def synchronize(self) -> None:
        self.card.did.append("wait")

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_each_call_stands_alone_between_events() -> None:
    """Behind a write that empties the cache and a spin; neither is in the time."""
    card = Card()
    sample = CardTimer(card, card).ready(card.call("a", 7.0))
    warm = len(card.did)
    assert card.did == ["a", "a", "a", "wait", "a", "wait"]
    assert sample() == pytest.approx(7e-3)
    assert card.did[warm:] == ["flush", "spin", "event", "a", "event", "wait"]


def test_they_take_turns_and_medians_count() -> None:
    card = Card()
    slow = [9.0] * 4  # as it warms up
    calls = {"a": card.call("a", *slow, 1.0, 5.0, 2.0), "b": card.call("b", 3.0), "c": card.call("c", 4.0)}
    found = measure.interleave(calls, CardTimer(card, card), rounds=3)
    assert "".join(name for name in card.did if name in calls)[12:] == "abcbcacab"
    assert {name: timing.median for name, timing in found.items()} == pytest.approx({"a": 2e-3, "b": 3e-3, "c": 4e-3})
    assert card.did.count("flush") == card.did.count("spin") == 9


def test_a_sample_that_the_host_was_late_for_is_taken_again() -> None:
    card = Card(late=2)
    sample = CardTimer(card, card).ready(card.call("a", *[9.0] * 4, 50.0, 50.0, 7.0))
    assert sample() == pytest.approx(7e-3)
    first, second, third = card.spins
    assert second == pytest.approx(2 * first, rel=1e-3) and third == pytest.approx(2 * second, rel=1e-3)
    sample()
    assert card.spins[3:] == [third]  # and the next ones are as long at once


def test_a_call_that_waits_for_the_card_is_measured_as_it_is() -> None:
    card = Card(late=10**6)
    sample = CardTimer(card, card).ready(card.call("a", 7.0))
    assert sample() == pytest.approx(7e-3) and len(card.spins) == events._TRIES
    for _ in range(10):
        sample()
    assert max(card.spins) <= events._LONGEST * events._CYCLES


def test_sustained_calls_follow_each_other() -> None:
    """Nothing between them, for as long as was asked for; a sample is the time of one."""
    card = Card()
    sample = SustainedTimer(card, 0.05).ready(card.call("a", *[9.0] * 3, *[2.0] * 5, 2.5))
    warm = len(card.did)
    assert card.did == ["a"] * 3 + ["wait", "event"] + ["a"] * 5 + ["event", "wait"]
    assert sample() == pytest.approx(2.5e-3)
    assert card.did[warm:] == ["event"] + ["a"] * 25 + ["event", "wait"]


def test_a_graph_is_replayed_in_a_calls_place() -> None:
    """Captured once, after warming up on a stream of its own; timed as a call is."""
    card = Card()
    sample = GraphTimer(card, CardTimer(card, card)).ready(card.call("a", 7.0))
    assert card.did[:7] == ["other waits for usual", "a", "a", "a", "usual waits for other", "capture", "a"]
    assert card.did[7] == "captured" and "a" not in card.did[8:]
    warm = len(card.did)
    assert sample() == pytest.approx(3e-3)
    assert card.did[warm:] == ["flush", "spin", "event", "replay", "event", "wait"]


def test_the_hosts_time_is_that_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that still works is waited for before a sample, and not in it."""
    card = Card()
    monkeypatch.setattr(events.time, "thread_time", lambda: card.now)
    sample = HostTimer(card).ready(card.call("a", *[9.0] * 3, 2.0))
    assert sample() == pytest.approx(2.0)
    assert card.did == ["a"] * 3 + ["wait"] + ["a"] * events._HOST_CALLS


def test_entering_a_context_is_in_no_sample() -> None:
    card = Card()

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        card.did.append("enter")
        card.now += 50.0
        yield
        card.did.append("leave")

    found = measure.interleave(
        {"a": card.call("a", 1.0)}, CardTimer(card, card), rounds=3, contexts={"a": lambda: context()}
    )
    assert found["a"].median == pytest.approx(1e-3)
    assert card.did.count("enter") == card.did.count("leave") == 4
    assert all(card.did[at - 1] == "leave" for at, name in enumerate(card.did) if name == "enter" and at)


def test_how_a_card_is_timed() -> None:
    card = object.__new__(machines.Gpu)
    card.flushed = None
    assert type(card.timer(How())) is CardTimer and type(card.timer(How(host=True))) is HostTimer
    graph = card.timer(How(sustained=0.25, graph=True))
    assert isinstance(graph, GraphTimer) and isinstance(graph.timer, SustainedTimer) and graph.timer.seconds == 0.25


def test_what_a_cpu_has_not() -> None:
    cpu = machines.Cpu({"isa": {"name": "portable"}})
    assert cpu.timer(How(sustained=0.5)) == measure.WallTimer(0.5)
    for how in (How(graph=True), How(host=True)):
        with pytest.raises(UsageError, match=f"--{how} is of modules for cards"):
            cpu.timer(how)


# ---- peers ----


def test_what_fused_kernels_are_asked_for() -> None:
    """No mask and the causal one; scores, sinks and other masks they have no kernels for."""
    for of in (variant(), variant("kv <= q"), variant("causal", scale=0.5)):
        assert peers.fused(of, SQUARE, "flash") is not None
    others = (variant("window(5, 2)"), variant("causal", "softcap(20)"), variant("causal", sink=True))
    for of in others:
        assert peers.fused(of, SQUARE, "flash") is None
    oblong = ProblemSize(q_len=16, kv_len=32)
    assert peers.fused(variant("causal"), oblong, "flash") is None
    assert peers.fused(variant("causal", align="top_left"), oblong, "flash") is not None


def test_a_refusal_is_told_and_no_other_mistake() -> None:
    def refuse() -> None:
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    def forget() -> None:
        raise torch.OutOfMemoryError("too large")

    assert peers.refusal(lambda: None) == ""
    assert peers.refusal(refuse) == "No available kernel. Aborting execution."
    with pytest.raises(torch.OutOfMemoryError):
        peers.refusal(forget)


# ---- a whole run ----


class Stand(machines.Gpu):
    """A card whose kernels are the CPU's. torch has a flash backend there, too, and no cuDNN."""

    def __init__(self) -> None:
        self.isa, self.device, self.title, self.card = "sm_80", "cpu", "a card (sm_80), driver 1.2", Card()

    def timer(self, how: measure.How) -> measure.Timer:
        return measure.WallTimer(1e-3) if str(how) else CardTimer(Clocked(self.card), self.card)

    def peak(self, dtypes: Sequence[str]) -> dict[str, float]:
        return dict.fromkeys(dtypes, 1e12)

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def survives(self) -> bool:
        return True


class Clocked:
    """Events between which a millisecond passes, whatever happens."""

    def __init__(self, card: Card):
        self.synchronize, self._sleep = card.synchronize, card._sleep
        self.card = card

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802
        event = self.card.Event(enable_timing=enable_timing)
        event.elapsed_time = lambda other: 1.0  # type: ignore[method-assign]
        return event


def test_a_run(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flash where it has the function, cuDNN left out where it refuses; peers as in training, fagen as it can."""
    wants: dict[str, bool] = {}
    fused = peers.fused

    def watched(of: Variant, size: ProblemSize, backend: str) -> peers.Peer | None:
        peer = fused(of, size, backend)
        if peer is None:
            return None

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            assert q.shape == (2, 4, 32, of.head_dim) and q.is_contiguous()
            wants[f"{of.name} {backend}"] = q.requires_grad and k.requires_grad and v.requires_grad
            return peer.call(q, k, v)

        return replace(peer, call=call)

    monkeypatch.setattr(peers, "fused", watched)
    told: list[str] = []
    report = bench(small._module, Options(sizes=(SQUARE,), rounds=3), told.append, Stand())
    assert report.device == "cuda" and report.against == "flash" and report.threads is None
    assert report.peers() == ["flash"] and wants and all(wants.values())
    assert any("without cudnn: " in line for line in told)
    cells = {(cell.variant, cell.direction): cell for cell in report.cells}
    assert set(cells["causal_d16", "forward"].seconds) == {"fagen", "flash"}
    for of in small.variants():
        assert ((of.name, "backward") in cells) == of.backward
    assert cells["causal_d16", "forward"].seconds["fagen"] == pytest.approx(1e-3)
    assert not report.short_of({"forward": 1.0, "cell": 0.9}) and report.short_of({"cell": 1.1})


def test_a_run_of_a_grid(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by what it computes, called by `attention`, beside what is aligned; what the module lacks is told."""
    full, causal = Function(16, None, dtype="f32", scale=0.5), Function(16, "kv <= q", dtype="f32")
    odd = replace(SQUARE, q_len=33, kv_len=33)
    mine = [
        Entry(causal, SQUARE),
        Entry(causal, odd, aligned=Entry(causal, SQUARE)),
        Entry(full, SQUARE, How(graph=True)),
        Entry(causal, SQUARE, How(host=True)),
        Entry(Function(17, "causal"), SQUARE),
    ]
    monkeypatch.setitem(grids.GRIDS, "mine", lambda: iter(mine))
    asked: list[tuple[Any, ...]] = []
    attention = small._module.attention

    def watched(q: torch.Tensor, *rest: Any, **options: Any) -> Any:
        asked.append((q.shape[1], options["mask"], q.requires_grad))
        return attention(q, *rest, **options)

    monkeypatch.setattr(small._module, "attention", watched)
    told: list[str] = []
    report = bench(small._module, Options(grids=("mine",), rounds=3), told.append, Stand())
    assert "without bf16 D 17, mask causal: the module has no such variant" in told
    cells = [(cell.case, cell.direction) for cell in report.cells]
    plain, long = "causal_d16 B2,H4,S32", "causal_d16 B2,H4,S33"
    assert cells == [
        *((case, way) for case in (plain, long) for way in ("forward", "backward")),
        ("plain_d16 B2,H4,S32 graph", "forward"),
        (f"{plain} host", "forward"),
    ]
    assert report.cells[2].aligned == plain and "aligned" in rates(report)[0]
    assert set(report.cells[-1].seconds) == {"fagen", "attention", "flash"}
    assert {each for each in asked if each[0] == 33} == {(33, "kv <= q", True)}
    assert (32, None, False) in asked and (32, "kv <= q", False) in asked  # without gradients for graph and host
    only = bench(small._module, Options(grids=("mine",), lengths=(33,), rounds=3), machine=Stand())
    assert {cell.case for cell in only.cells} == {long}
    with pytest.raises(UsageError, match="--grid: the module computes nothing of host"):
        bench(small._module, Options(grids=("host",)), machine=Stand())


def test_a_card_that_a_fault_took_is_told_from_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def lost(index: int) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    card = object.__new__(machines.Gpu)
    card.index = 0
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: did.append("empty"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: did.append("wait"))
    assert card.survives() and did == ["wait", "empty"]
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert not card.survives()


def test_a_grid_of_a_module_with_deterministic_kernels(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sums in any order is what is compared, by `attention`; the other stands beside it."""
    [causal] = [of for of in small.variants() if of.name == "causal_d16"]
    twin = replace(causal, deterministic=True)  # its kernel is the same
    monkeypatch.setattr(small._module, "variants", lambda: (twin, causal))
    asked: list[str] = []

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: str, **given: Any) -> Any:
        asked.append(mask)
        return small.causal_d16(q, k, v)

    monkeypatch.setattr(small._module, "attention", attention)
    monkeypatch.setitem(grids.GRIDS, "mine", lambda: iter([Entry(Function(16, "kv <= q", dtype="f32"), SQUARE)]))
    report = bench(small._module, Options(grids=("mine",), rounds=3), machine=Stand())
    assert [cell.direction for cell in report.cells] == ["forward", "backward"]
    assert set(report.cells[1].seconds) == {"fagen", "flash", "deterministic"} and set(asked) == {causal.mask.resolved}


def test_generations(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unfused formula, another module's kernel where it has the same, and one's own; no backward pass."""
    kernels = small._module.kernels
    old = SimpleNamespace(
        name="old", kernels=kernels, variants=lambda: [of for of in small.variants() if of.name == "causal_d16"]
    )
    for module, schedule in ((old, "mma"), (small._module, "wgmma")):
        monkeypatch.setattr(module, "manifest", {"variants": [{"plan": {"schedule": schedule}}]}, raising=False)
    told: list[str] = []
    options = Options(sizes=(SQUARE,), variants=("causal_d16", "plain_d16"), rounds=3)
    report = bench(small._module, options, told.append, Stand(), [old])  # type: ignore[list-item]
    assert report.schedules == ("unfused", "mma", "wgmma")
    assert [list(cell.seconds) for cell in report.cells] == [["unfused", "mma", "wgmma"], ["unfused", "wgmma"]]

    def full(*arguments: Any) -> peers.Peer:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("too large")

        return peers.Peer(call, differentiable=True)

    monkeypatch.setattr(peers, "unfused", full)
    monkeypatch.setattr(old, "manifest", {"variants": [{"plan": {"schedule": "wgmma"}}]})
    report = bench(small._module, options, told.append, Stand(), [old])  # type: ignore[list-item]
    assert report.schedules == ("unfused", "wgmma (old)", "wgmma (small)")
    assert list(report.cells[0].seconds) == ["wgmma (old)", "wgmma (small)"]
    assert any(line.endswith("without unfused: it does not fit into the card's memory") for line in told)


def test_the_standard_grid_is_what_is_usual_on_a_card() -> None:
    of, card = variant(), Stand()
    usual = [ProblemSize(16384 // n, 2048 // of.head_dim, 2048 // of.head_dim, n, n) for n in (512, 2048, 8192, 16384)]
    assert Options().sizes_of(of, card) == usual == Options(tokens=16384).sizes_of(of, card)
    assert Options(lengths=(2048,)).sizes_of(of, card) == usual[1:2]
    assert [size.batch for size in Options(tokens=1024).sizes_of(of, card)] == [2]
    assert [size.q_len for size in Options(tokens=100).sizes_of(of, card)] == [100]
    assert Options(sizes=(SQUARE,)).sizes_of(of, card) == [SQUARE]
    assert Options(sizes=(SQUARE,), lengths=(512,)).sizes_of(of, card) == [SQUARE, usual[0]]
    with pytest.raises(UsageError):
        Options(tokens=1000, lengths=(512,)).sizes_of(of, card)


def test_the_peak_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_ORDER", 64)
    found: Mapping[str, float] = machines.Gpu.peak(Stand(), ("bf16", "f16"))
    assert found == pytest.approx({"bf16": 2 * 64**3 / 1e-3, "f16": 2 * 64**3 / 1e-3})

"""`fagen bench`: how it times, what it compares with, and what it prints, writes and draws."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._functorch.config as functorch_config
from expressions import PARAMS, masks, points, scores
from hypothesis import HealthCheck, given, settings
from variants import variant

from fagen.bench import measure, peak, peers
from fagen.bench.closure import closure
from fagen.bench.plot import draw
from fagen.bench.report import BenchReport, Cell
from fagen.bench.tables import rates, summary
from fagen.costs import ProblemSize
from fagen.errors import FagenError, LockError, ToolchainError
from fagen.runtime.evaluate import Evaluator
from fagen.runtime.fakes import DTYPES
from fagen.runtime.language import Node
from fagen.runtime.reference import reference
from fagen.runtime.variant import Param, Variant
from fagen.target import Isa

SMALL = ProblemSize(batch=2, heads=4, kv_heads=2, q_len=33, kv_len=70)
SQUARE = ProblemSize(batch=1, heads=2, kv_heads=2, q_len=40, kv_len=40)
DOC = {"doc": Param("doc", "i32", ("B", "n"))}
HEADS = {"from_head": Param("from_head", "i32", ("Hk",))}


# ---- timing ----


class Clock:
    """Time that passes only while a candidate runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        self.ran: list[str] = []
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)

    def candidate(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes each of ``seconds`` in turn, the last again and again."""
        left = list(seconds)

        def call() -> None:
            self.ran.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_medians_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two calls before the rounds (a warm-up, a first look) count for nothing; nor does one slow round."""
    clock = Clock(monkeypatch)
    found = measure.interleave(
        {"steady": clock.candidate("steady", 0.5), "noisy": clock.candidate("noisy", 9, 1, 1, 2, 7, 3, 2, 2)},
        measure.WallTimer(),
        rounds=5,
    )
    assert found["steady"] == measure.Timing(0.5, 0.5, 0.5)
    noisy = found["noisy"]
    assert (noisy.median, noisy.p20, noisy.p80) == pytest.approx((2, 1.8, 3.8))  # of 1, 2, 2, 3, 7


def test_candidates_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    measure.interleave({name: clock.candidate(name, 1.0) for name in "abc"}, measure.WallTimer(), rounds=4)
    assert "".join(clock.ran[6:]) == "abcbcacababc"


def test_short_calls_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = measure.interleave({"short": clock.candidate("short", 1e-3)}, measure.WallTimer(0.02), rounds=3)
    assert len(clock.ran) == 2 + 3 * 20
    assert found["short"].median == pytest.approx(1e-3)


# ---- peers ----


def _inputs(of: Variant, size: ProblemSize) -> tuple[torch.Tensor, ...]:
    """q, k, v in [B, H, S, D]."""
    heads, lengths = (size.heads, size.kv_heads, size.kv_heads), (size.q_len, size.kv_len, size.kv_len)
    dims = (of.head_dim, of.head_dim, of.value_dim)
    sizes = zip(heads, lengths, dims, strict=True)
    return tuple(torch.randn(size.batch, *each).to(DTYPES[of.dtype]) for each in sizes)


def _expected(of: Variant, qkv: tuple[torch.Tensor, ...], params: dict[str, torch.Tensor]) -> torch.Tensor:
    q, k, v = (tensor.double() if of.layout == "bhsd" else tensor.double().transpose(1, 2) for tensor in qkv)
    o, _ = reference(of, q, k, v, params=params)
    return o if of.layout == "bhsd" else o.transpose(1, 2)


SAME = {
    "everything": (variant(), SMALL),
    "causal": (variant("causal"), SQUARE),
    "causal by another name": (variant("q - kv >= 0"), SQUARE),
    "the last query sees the last key": (variant("causal"), SMALL),
    "the first query sees the first key": (variant("causal", align="top_left"), SMALL),
    "window": (variant("window(5, 2)"), SMALL),
    "documents": (variant("causal and document(doc)", params=DOC), SQUARE),
    "key heads": (variant("kv < 20 + 30 * hk and kv < 60 + from_head[hk]", params=HEADS), SMALL),
    "scale and wide values": (variant("causal", scale=0.5, value_dim=24, layout="bhsd"), SQUARE),
}


@pytest.mark.parametrize("name", SAME)
def test_sdpa_is_the_same_function(name: str) -> None:
    torch.manual_seed(0)
    of, size = SAME[name]
    params = {"doc": torch.arange(size.kv_len).div(15, rounding_mode="floor").int()[None].repeat(size.batch, 1)}
    params["from_head"] = torch.tensor([3, -30], dtype=torch.int32)
    params = {param.name: params[param.name] for param in of.params}
    peer = peers.sdpa(of, size, params)
    assert peer is not None and peer.differentiable
    qkv = _inputs(of, size)
    torch.testing.assert_close(peer.call(*qkv).double(), _expected(of, qkv, params), rtol=1e-4, atol=1e-5)


def test_what_sdpa_cannot_do_it_is_not_asked_for() -> None:
    for of in (variant("causal", "softcap(20)"), variant("causal", sink=True), variant(score="s * 2")):
        assert peers.sdpa(of, SQUARE, {}) is None
    assert peers.flex(variant(sink=True), SQUARE, {}) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile does not work from a path with a space")
def test_flex_is_the_same_function() -> None:
    """Positions, key heads, a table read outside its extent, a function: compiled, once."""
    torch.manual_seed(0)
    table = {"rel": Param("rel", "f32", ("H", "n"))}
    of = variant("window(30, 4) or hk == 1", "softcap(3) + rel[h, q - kv + 10]", params=table)
    params = {"rel": torch.randn(SMALL.heads, 25)}
    peer = peers.flex(of, SMALL, params)
    assert peer is not None and not peer.differentiable
    qkv = _inputs(of, SMALL)
    torch.testing.assert_close(peer.call(*qkv).double(), _expected(of, qkv, params), rtol=1e-4, atol=1e-5)


def test_gradients_of_flex_are_taken_again_and_again() -> None:
    """torch would give tensors of the graph away after the first time, and refuse the second."""
    peer = peers.flex(variant("causal"), SQUARE, {})
    assert peer is not None and functorch_config.donated_buffer
    with peer.context():
        assert not functorch_config.donated_buffer


def test_flex_is_refused_where_torch_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/opt/my torch/torch/__init__.py")
    with pytest.raises(FagenError, match="a path with a space, /opt/my torch/torch"):
        peers.flex(variant("causal"), SMALL, {})


POINTS = points(40)
NAMES = {
    name: torch.tensor([point.names[name] for point in POINTS], dtype=torch.float32 if name == "s" else torch.int64)
    for name in ("s", "b", "h", "hk", "i", "j", "q", "kv", "q_len", "kv_len")
}


def _params() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    found = {}
    for name, param in PARAMS.items():
        shape = (4,) * len(param.shape)
        real, whole = torch.randn(shape, generator=source), torch.randint(-2, 6, shape, generator=source)
        found[name] = real if param.dtype == "f32" else whole > 1 if param.dtype == "bool" else whole
    return found


TENSORS = _params()


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(masks(2) | scores(2))
def test_a_closure_is_the_expression(node: Node) -> None:
    want = Evaluator(NAMES, TENSORS, torch.float32)(node).expand(len(POINTS))
    got = closure(node, TENSORS)(NAMES).expand(len(POINTS))
    if node.type == "real":
        torch.testing.assert_close(got.float(), want, rtol=1e-5, atol=1e-6, equal_nan=True)
    else:
        assert torch.equal(got, want)


# ---- the peak ----


def test_peak_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "ISAS", {"odd": Isa("odd", ("-mno-such-thing",), (), 4, 16)})
    with pytest.raises(ToolchainError, match=r"peak\.cpp does not compile: .*no-such-thing"):
        peak.peak_flops("odd", 1)


# ---- the report ----


def _report() -> BenchReport:
    def cell(name: str, direction: str, seconds: dict[str, float], dtype: str = "f32", kv_heads: int = 8) -> Cell:
        p20, p80 = ({who: factor * each for who, each in seconds.items()} for factor in (0.98, 1.01))
        return Cell(name, dtype, direction, 1, 8, kv_heads, 128, 256, 64, 64, 1e9, seconds, p20, p80)

    cells = (
        cell("a", "forward", {"fagen": 0.01, "sdpa": 0.02}),
        cell("a", "backward", {"fagen": 0.02, "sdpa": 0.03}),
        cell("b", "forward", {"fagen": 0.01, "sdpa": 0.08, "flex": 0.03}, "bf16", 2),
        cell("b", "backward", {"fagen": 0.05}, "bf16", 2),
    )
    return BenchReport("a machine", "2.0", 2, "avx2", {"f32": 400e9}, cells)


def test_means_are_geometric() -> None:
    report = _report()
    assert report.peers() == ["sdpa", "flex"]
    assert report.geometric_mean("sdpa", "forward") == pytest.approx(4.0)
    assert report.geometric_mean("sdpa", "backward") == pytest.approx(1.5)
    assert report.geometric_mean("flex", "backward") is None
    assert summary(report) == [
        "forward: 4.00× sdpa (geometric mean)",
        "forward: 3.00× flex (geometric mean)",
        "backward: 1.50× sdpa (geometric mean)",
        "on a machine, 2 threads, torch 2.0",
        "peak, of 2 threads that multiply and add in registers: f32 400 GFLOP/s",
    ]


def test_rows() -> None:
    head, *rows = rates(_report())
    assert head == ["variant", "pass", "B H/Hk Sq×Skv", "GFLOP/s", "of peak", "±", "sdpa", "ratio", "flex", "ratio"]
    assert rows[0] == ["a", "forward", "1 8 128×256", "100.0", "25 %", "3 %", "50.0", "2.00×", "–", "–"]
    assert rows[2][2] == "1 8/2 128×256" and rows[2][6:] == ["12.5", "8.00×", "33.3", "3.00×"]
    assert rows[3][6:] == ["–"] * 4
    assert [row[:2] for row in rows[4:]] == [["geometric mean", "forward"], ["geometric mean", "backward"]]
    assert rows[4][6:] == ["", "4.00×", "", "3.00×"] and rows[5][6:] == ["", "1.50×", "", "–"]
    assert all(len(row) == len(head) for row in rows)


def test_a_file_is_a_list_of_times(tmp_path: Path) -> None:
    """One a line, so that two runs can be compared by eye."""
    report = _report()
    report.write_json(tmp_path / "bench.json")
    text = (tmp_path / "bench.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert found == report.measurements() and len(found) == 8 == len(text.splitlines()) - 2
    first = {"case": "a B1,H8,Sq128,Skv256", "dir": "forward", "peer": "fagen"}
    assert found[0] == {**first, "ms": 10.0, "p20": 9.8, "p80": 10.1, "tflops": 0.1}
    assert [each["peer"] for each in found[4:7]] == ["fagen", "sdpa", "flex"]
    assert found[4]["case"] == "b B1,H8,Hk2,Sq128,Skv256" and found[7]["dir"] == "backward"


def test_json_holds_every_figure() -> None:
    found = json.loads(json.dumps(_report().to_json()))
    assert found["cells"][2]["seconds"] == {"fagen": 0.01, "sdpa": 0.08, "flex": 0.03}
    assert found["cells"][2]["case"] == "b B1,H8,Hk2,Sq128,Skv256"
    assert found["peak"] == {"f32": 400e9} and found["threads"] == 2
    assert set(found["geometric_mean"]) == {"forward / sdpa", "forward / flex", "backward / sdpa"}
    assert math.isclose(found["geometric_mean"]["forward / sdpa"], 4.0)


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(_report(), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FagenError, match=r"pip install 'fagen\[plot\]'"):
        draw(_report(), tmp_path / "bench.png")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    for write in (_report().write_json, lambda path: draw(_report(), path)):
        with pytest.raises(LockError, match="no/folder cannot be written"):
            write(tmp_path / "no" / "folder")


# ---- the command ----


def test_the_command(small_folder: Path, tmp_path: Path) -> None:
    """A table, a line each for the means and the limit, a file of figures and a picture."""
    command = [sys.executable, "-m", "fagen", "bench", str(small_folder), "-v", "causal_d16", "--rounds", "3"]
    command += ["--size", "B1,H2,S64", "--write", str(tmp_path / "bench.json"), "--plot", str(tmp_path / "bench.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "causal_d16: B1 H2/2 S64x64\n"
    head, forward, backward, *_, limit = done.stdout.splitlines()
    assert head.startswith("variant") and head.endswith("sdpa  ratio")
    assert forward.split()[:5] == ["causal_d16", "forward", "1", "2", "64×64"] and forward.endswith("×")
    assert backward.split()[1] == "backward" and backward.endswith("×")
    assert limit.startswith("peak, of ") and "f32" in limit
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    peers = [(each["case"], each["dir"], each["peer"]) for each in found]
    case = "causal_d16 B1,H2,S64"
    assert peers == [(case, way, who) for way in ("forward", "backward") for who in ("fagen", "sdpa")]
    assert all(0 < each["p20"] <= each["ms"] <= each["p80"] and each["tflops"] > 0 for each in found)
    assert (tmp_path / "bench.png").exists()
    unknown = subprocess.run([*command[:4], str(small_folder), "-v", "nothing"], capture_output=True, text=True)
    assert unknown.returncode == 2 and "no variant nothing" in unknown.stderr

"""Modules for cards on the emulator: their own host code launches, numbers are right, faults are found and said."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fagen.build import build
from fagen.build.check import check_folder
from fagen.emulate import EmulationError, Fault, driver
from fagen.runtime.check.report import FAILED, PARTIAL, PASSED, explain
from fagen.toolchain import find_nvcc

from .modules import load, needs_nvcc

ROOT = Path(__file__).parents[2]
SPEC = """
fagen: 1
name: emu
target: sm_80
defaults: {dtype: bf16, backward: false}
params:
  slope: {dtype: f32, shape: [H]}
  doc: {dtype: i32, shape: [B, n]}
variants:
  - {name: causal_d64, head_dim: 64, mask: causal}
  - {name: full_f16, head_dim: 16, dtype: f16}
  - {name: rich_d64, head_dim: 64, value_dim: 40, layout: bhsd, sink: true, mask: document(doc), score: alibi(slope)}
"""


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str, one_cache: None) -> Path:
    """The module, built once for all workers and not checked."""
    needs_nvcc()
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "emulated"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (root / "emu.yaml").write_text(SPEC)
        return build(root / "emu.yaml", out=root / "generated", check="off").folder


@pytest.fixture(scope="package")
def emu(folder: Path) -> ModuleType:
    return load(folder, "emu")


def tensors(q_len: int = 70, kv_len: int = 90, batch: int = 2) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((batch, q_len, 2, 64), (batch, kv_len, 1, 64), (batch, kv_len, 1, 64))
    return tuple(torch.randn(shape).bfloat16() for shape in shapes)


def test_a_built_module_holds_what_the_emulator_needs(folder: Path, emu: ModuleType) -> None:
    manifest = emu._module.manifest
    assert (manifest["target"], manifest["device"]) == ("sm_80", "cuda")
    entry = manifest["variants"][0]
    assert set(entry["resources"]) == {"fagen_causal_d64_forward", "fagen_causal_d64_tile_counts"}
    ptx = (folder / "ptx" / "causal_d64_forward.ptx").read_text()
    assert str(folder.parent) not in ptx
    assert (
        "libcuda"
        not in subprocess.run(["ldd", folder / manifest["library"]], capture_output=True, text=True, check=True).stdout
    )


def test_without_the_emulator_cpu_tensors_are_refused(emu: ModuleType) -> None:
    q, k, v = tensors()
    words = r"emu is built for CUDA cards \(sm_80\), and these tensors are on the CPU: .* fagen.emulate.driver.use"
    for call in (lambda: emu.causal_d64(q, k, v), lambda: emu.tile_counts("causal_d64", q, k)):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(ValueError, match="the module is built for sm_80, the tensors are on cpu"):
        emu.attention(q, k, v, mask="causal")
    with torch.no_grad():
        meta = emu.causal_d64(*(tensor.to("meta") for tensor in (q, k, v)))
    assert meta.shape == q.shape


@pytest.mark.parametrize("completions", ["earliest", "latest", "random"])
def test_numbers_are_right(completions: str, emu: ModuleType) -> None:
    q, k, v = tensors()
    want, want_lse = emu.causal_d64.reference(q, k, v, return_lse=True)
    with driver.use(emu, completions=completions, seed=3) as emulator:
        o, lse = emu.causal_d64(q, k, v, return_lse=True)
        same = emu.attention(q, k, v, mask="kv <= q")
        out = torch.empty_like(o)
        emu.causal_d64(q, k, v, out=out)
        counts = emu.tile_counts("causal_d64", q, k)
    assert emulator.launches == 4
    torch.testing.assert_close(o.double(), want, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-4, rtol=1e-5)
    assert torch.equal(o, same) and torch.equal(o, out)
    assert counts.total > 0 and counts.full + counts.partial <= counts.total


@pytest.mark.parametrize("size", [1e9, 1e10, 1e30])
def test_scores_as_low_as_those_that_shut_keys_out_leave_the_others_alone(size: float, emu: ModuleType) -> None:
    # A row's first tile has such scores only: what is summed of it has to vanish beside the next tile's.
    q, k, v = (x.transpose(1, 2) for x in tensors(300, 300, 1))  # the first rows are far from the last keys
    v = v[..., :40]
    more = {"sink": torch.tensor([-size, 0.0]), "slope": torch.full((2,), size), "doc": torch.zeros(1, 300).int()}
    with driver.use(emu):
        o, lse = emu.rich_d64(q, k, v, return_lse=True, **more)
    expected, expected_lse = emu.rich_d64.reference(q, k, v, return_lse=True, **more)
    torch.testing.assert_close(o.double(), expected, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-6)


@pytest.mark.parametrize("way", ["call", "attention", "compiled"])
def test_autocast_of_the_cpu_is_that_of_cpu_tensors(way: str, emu: ModuleType) -> None:
    q, k, v = tensors(5, 9, 1)

    def call(*qkv: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return emu.attention(*qkv, mask="causal") if way == "attention" else emu.causal_d64(*qkv)

    if way == "compiled":
        torch._dynamo.reset()
        call = torch.compile(call, backend="eager", fullgraph=True)
    with driver.use(emu):
        expected = emu.causal_d64(q, k, v)
        assert torch.equal(call(q.float(), k.float(), v.float()), expected)
        with pytest.raises(TypeError, match="q: expected dtype torch.bfloat16"):
            emu.causal_d64(q.float(), k.float(), v.float())


@pytest.mark.parametrize("bad", [0.0, torch.inf, torch.nan])
def test_sinks_that_are_no_numbers(bad: float, emu: ModuleType) -> None:
    """Inf takes all weight, NaN all rows of its head; rows that see no key among them, and no keys at all."""
    q, k, v = (x.transpose(1, 2) for x in tensors(70, 90, 1))
    v = v[..., :40].clone()
    v[:, :, 50, 3] = bad
    doc = (torch.arange(90) // 30)[None].int()
    doc[:, 25:28] = 9 + torch.arange(3)  # queries 5 to 7 ...
    for sink in ([torch.inf, torch.nan], [torch.nan, torch.inf]):
        for keys in (90, 0):
            more = {"sink": torch.tensor(sink), "slope": torch.tensor([0.1, 0.2]), "doc": doc}
            given = (q, k[:, :, :keys], v[:, :, :keys])
            with driver.use(emu):
                o, lse = emu.rich_d64(*given, return_lse=True, **more)
            expected, expected_lse = emu.rich_d64.reference(*given, return_lse=True, **more)
            torch.testing.assert_close(o.double(), expected, atol=0, rtol=0, equal_nan=True)
            torch.testing.assert_close(lse.double(), expected_lse, atol=0, rtol=0, equal_nan=True)
            whole = sink.index(torch.inf)
            assert (lse[:, whole] == torch.inf).all() and o[:, 1 - whole].isnan().all()
            assert bool(o[:, whole].isnan().any()) == (bad != 0.0 and keys > 0)


@pytest.mark.parametrize("name", ["causal_d64", "full_f16"])
def test_the_mean_of_the_largest_number_is_that(name: str, emu: ModuleType) -> None:
    """However weights, their sum and the division are rounded: never infinite, and an infinite value still is."""
    kernel = getattr(emu, name)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[kernel.variant.dtype]
    dim, largest = kernel.variant.head_dim, torch.finfo(dtype).max
    for keys in (1, 3, 200):
        q, k = torch.zeros(1, 200, 1, dim), torch.zeros(1, keys, 1, dim)
        q[..., 0], k[..., 0] = torch.linspace(4.0, 0.0, 200)[:, None], (torch.arange(keys) % 8 == 0)[:, None]
        v = torch.full((1, keys, 1, dim), largest, dtype=dtype)
        v[..., ::2] *= -1.0
        with driver.use(emu):
            o = kernel(q.to(dtype), k.to(dtype), v, scale=1.0)
            v[:, -1, :, :2] = torch.tensor([-torch.inf, torch.inf])
            infinite = kernel(q.to(dtype), k.to(dtype), v, scale=1.0)[:, -1, 0]
        seen = o[:, max(200 - keys, 0) :] if name == "causal_d64" else o
        assert o.isfinite().all()
        torch.testing.assert_close(seen.abs().double(), torch.full(seen.shape, largest).double(), atol=0, rtol=2**-7)
        assert torch.equal(infinite[:, :2], torch.tensor([[-torch.inf, torch.inf]], dtype=dtype))
        assert infinite[:, 2:].isfinite().all()


def test_nothing_to_do_launches_nothing(emu: ModuleType) -> None:
    with driver.use(emu) as emulator:
        assert emu.causal_d64(*tensors(q_len=0)).shape == (2, 0, 2, 64)
        o, lse = emu.causal_d64(*tensors(kv_len=0), return_lse=True)
    assert emulator.launches == 1
    assert (o == 0).all() and (lse == -torch.inf).all()


def test_emulators_nest_and_leave_nothing_behind(emu: ModuleType) -> None:
    q, k, v = tensors(5, 5, 1)
    with driver.use(emu) as outer:
        with driver.use(emu) as inner:
            emu.causal_d64(q, k, v)
        emu.causal_d64(q, k, v)
    assert (outer.launches, inner.launches) == (1, 1)
    with pytest.raises(ValueError, match="built for CUDA cards"):
        emu.causal_d64(q, k, v)


@pytest.mark.parametrize("what", ["emu", None, torch, torch.zeros(3), "variant"])
def test_what_is_no_module_cannot_be_emulated(what: object, emu: ModuleType) -> None:
    given = emu.causal_d64 if what == "variant" else what
    words = r"driver\.use: expected a module that fagen built for cards, as `from generated import a100` gives, found "
    with pytest.raises(TypeError, match=words), driver.use(given):
        pass


def test_a_unit_that_a_module_has_not(emu: ModuleType) -> None:
    with (
        driver.use(emu) as emulator,
        pytest.raises(EmulationError, match="causal_forward: no unit of this module.*d64"),
    ):
        emulator.lines("causal_forward")


def test_other_copies_of_a_module_share_its_library(folder: Path, emu: ModuleType, tmp_path: Path) -> None:
    """Their library is not loaded twice, which would end the process."""
    shutil.copytree(folder, tmp_path / "copy")
    copy = load(tmp_path / "copy", "emu_copy")
    with driver.use(copy) as emulator:
        copy.causal_d64(*tensors(5, 5, 1))
    assert emulator.launches == 1


def broken(folder: Path, to: Path, pattern: str, text: str) -> Path:
    """A copy whose forward kernel has the first instruction of its loop's kind changed."""
    shutil.copytree(folder, to)
    path = to / "ptx" / "causal_d64_forward.ptx"
    before = path.read_text()
    start = before.index(".entry fagen_causal_d64_forward")
    changed, count = re.subn(pattern, text, before[start:])
    assert count, pattern
    path.write_text(before[:start] + changed)
    return to


def test_a_fault_is_raised_with_its_place(folder: Path, emu: ModuleType, tmp_path: Path) -> None:
    module = load(broken(folder, tmp_path / "no_barriers", r"bar\.sync\s+0;", ""), "emu_no_barriers")
    with pytest.raises(Fault) as caught, driver.use(module):
        module.causal_d64(*tensors())
    assert caught.value.kind in ("race", "uninitialised")
    assert caught.value.at is not None and caught.value.at.source.partition(":")[0].endswith((".cu", ".h"))


def checked(folder: Path, **how: object) -> object:
    return check_folder(folder, names=["causal_d64"], seed=1, on="emulator", **how).variants[0]  # type: ignore[arg-type]


def test_the_check_tells_faults_from_wrong_numbers(folder: Path, tmp_path: Path) -> None:
    no_wait = broken(folder, tmp_path / "no_wait", r"cp\.async\.wait_group\s+\d+;", "")
    report = checked(no_wait, case="tile")
    assert report.verdict == FAILED and report.failures[0].measure == "fault"
    message = report.failures[0].message
    assert message.startswith(("race", "uninitialised")) and "PTX line" in message and "(completions" in message
    assert report.command.endswith("--seed 1 --case tile --on emulator")
    wrong = broken(
        folder, tmp_path / "wrong", r"ex2\.approx(\.ftz)?\.f32\s+(%\w+), (%\w+);", r"add.f32 \2, \3, 0f3F800000;"
    )
    report = checked(wrong, case="tile")
    assert report.verdict == FAILED and report.failures[0].measure in ("max", "rms", "nan")


@pytest.mark.nightly
def test_a_check_in_the_emulator(folder: Path) -> None:
    """Within a minute on an idle machine, every case in several orders. Nightly: the full check below has the same
    cases, and test_targets.py checks other kernels."""
    report = check_folder(folder, names=["rich_d64"], seed=1, on="emulator")
    [entry] = report.variants
    assert entry.verdict == PASSED, "\n".join(explain(entry))
    assert entry.on == "emulator" and entry.killed == entry.mutants > 0
    assert report.summary().endswith("in the emulator, not yet on a card")


def test_lines_run_as_their_inputs_have_it(folder: Path, emu: ModuleType) -> None:
    with driver.use(emu) as emulator:
        emu.causal_d64(*tensors(5, 5, 1))
        few = emulator.lines("causal_d64_forward")
        emu.causal_d64(*tensors(70, 300, 1))
        more = emulator.lines("causal_d64_forward")
    text = (folder / "sources" / "causal_d64_forward.cu").read_text().splitlines()
    assert few.keys() == more.keys() and max(few) <= len(text)
    assert 0 < sum(count > 0 for count in few.values()) < sum(count > 0 for count in more.values())


def test_a_full_check_runs_every_line_and_names_one_that_no_case_runs(folder: Path, tmp_path: Path) -> None:
    with_more = tmp_path / "more"
    shutil.copytree(folder, with_more)
    source = with_more / "sources" / "full_f16_forward.cu"
    text = source.read_text()
    before = "  const uint32_t shared = ptx::shared_address(memory);\n"
    more = "  if (p.shape.kv_len > 1000000)\n    p.lse[0] = static_cast<float>(clock());\n"
    assert text.count(before) == 1
    source.write_text(text.replace(before, before + more))
    ptx = with_more / "ptx" / "full_f16_forward.ptx"
    # As docs/emulator.md has it.
    command = [str(find_nvcc().path), "-ptx", "-lineinfo", "-std=c++17", "-arch=compute_80", "-Iinclude", source.name]
    subprocess.run([*command, "-o", str(ptx)], cwd=source.parent, check=True)
    report = check_folder(with_more, names=["full_f16"], level="full", seed=1, on="emulator")
    [entry] = report.variants
    assert 50 < entry.lines < text.count("\n")
    (line,) = entry.unrun
    assert (line.file, line.text) == (source.name, "p.lse[0] = static_cast<float>(clock());")
    assert source.read_text().splitlines()[line.line - 1].strip() == line.text
    assert report.verdict == entry.verdict == PARTIAL and not entry.failures
    assert f"  no case runs {line}" in explain(entry)


def test_a_modules_own_command_checks_it(folder: Path) -> None:
    command = [sys.executable, "-m", "emu", "check", "causal_d64", "--on", "emulator", "--case", "tile", "--seed", "3"]
    environ = {**os.environ, "PYTHONPATH": f"{folder.parent}:{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "in the emulator" in done.stdout


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an emulator behind."""
    yield
    if "emu" in request.fixturenames:
        assert request.getfixturevalue("emu")._module.emulator is None

"""A built module on a real card: its check, streams, CUDA graphs, torch.compile, strides, many blocks, large tensors.

Needs a folder that `fagen build` made for cards, torch with CUDA, and a card that runs it; neither fagen nor what it is
built with. FAGEN_CARD_MODULE names the folder, if it is not generated/a100.

    python3 -m pytest tests/gpu/test_module_on_card.py        or, where there is no pytest,
    python3 tests/gpu/test_module_on_card.py
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(os.environ.get("FAGEN_CARD_MODULE") or Path(__file__).parents[2] / "generated" / "a100").resolve()
NAME = FOLDER.name


@cache
def module() -> ModuleType:
    """The module, from wherever it lies."""
    spec = importlib.util.spec_from_file_location(
        NAME, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = found
    spec.loader.exec_module(found)
    return found


def missing() -> str:
    """Why nothing here can run; "" if it can."""
    if not torch.cuda.is_available():
        return "there is no card that torch can use"
    if not (FOLDER / "manifest.json").is_file():
        return f"{FOLDER} is no built module: name one by FAGEN_CARD_MODULE"
    target = module()._module.manifest["target"]
    first = importlib.import_module(f"{NAME}.runtime.cards").cards()[0]
    return "" if first.runs(target) else f"{first} does not run {target}"


try:
    import pytest
except ImportError:
    pass
else:
    pytestmark = pytest.mark.gpu

    @pytest.fixture(autouse=True)
    def card() -> None:
        """Skips where there is none."""
        if why := missing():
            pytest.skip(why)


def plain() -> Any:
    """A variant with a mask that takes nothing besides q, k and v; of those, the one with the smallest heads."""
    fitting = [v for v in module().variants() if v.mask is not None and not v.params and not v.sink]
    assert fitting, "the module has no variant with a mask alone"
    return getattr(module(), min(fitting, key=lambda v: v.head_dim).name)


def tensors(
    q_len: int, kv_len: int, batch: int = 2, heads: int = 4, kv_heads: int = 2, seed: int = 0, device: str = "cuda:0"
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v for :func:`plain`."""
    variant = plain().variant
    source = torch.Generator(device).manual_seed(seed)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[variant.dtype]

    def made(length: int, own: int, dim: int) -> Tensor:
        sizes = (batch, own, length, dim) if variant.layout == "bhsd" else (batch, length, own, dim)
        return torch.randn(sizes, generator=source, device=device).to(dtype)

    return (
        made(q_len, heads, variant.head_dim),
        made(kv_len, kv_heads, variant.head_dim),
        made(kv_len, kv_heads, variant.value_dim),
    )


many = partial(tensors, batch=8, heads=32, kv_heads=8)


def near(o: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """That ``o`` is the formula's, within the roundings of a small dtype."""
    torch.testing.assert_close(o.double(), plain().reference(q, k, v), atol=0.03, rtol=0.03)


def run_apart(*command: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, *command], cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_check_passes_on_the_card() -> None:
    """Every variant, on inputs of its own."""
    said = run_apart("-m", NAME, "check", "--on", "device", "--seed", "1")
    assert f"on {torch.cuda.get_device_name(0)}" in said, said
    assert "failed" not in said and "partial" not in said, said


def test_a_call_comes_after_what_its_stream_was_given_before() -> None:
    q, k, v = tensors(300, 500)
    late = tensors(300, 500, seed=1)
    plain()(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second
        for tensor, other in zip((q, k, v), late, strict=True):
            tensor.copy_(other)
        o = plain()(q, k, v)
        after = o.clone()
    stream.synchronize()
    near(after, *late)
    assert torch.equal(after, plain()(*late))


def test_two_streams_do_not_wait_for_each_other() -> None:
    calls = [tensors(200, 300, seed=seed) for seed in (1, 2)]
    want = [plain()(*call) for call in calls]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            plain()(*calls[0])  # so that there is memory for its results: to ask the card for some may wait for all
    torch.cuda.synchronize()
    slow, fast = streams
    with torch.cuda.stream(slow):
        torch.cuda._sleep(2_000_000_000)
    found = []
    for stream, call in zip(streams, calls, strict=True):
        with torch.cuda.stream(stream):
            found.append(plain()(*call))
    fast.synchronize()
    assert not slow.query(), "the call on the slow stream has ended already: the other says nothing"
    assert torch.equal(found[1], want[1])
    slow.synchronize()
    assert torch.equal(found[0], want[0])


def capture(warm: bool) -> None:
    """A graph of a call, replayed on other inputs. Not ``warm``: its kernel's first launch is the captured one. There
    is more work than the card takes at once: thread blocks that draw it do so in the graph, too."""
    q, k, v = many(300, 500)
    if warm:
        plain()(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = plain()(q, k, v, return_lse=True)
    for seed in (1, 2):
        for tensor, other in zip((q, k, v), many(300, 500, seed=seed), strict=True):
            tensor.copy_(other)
        o.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        want, want_lse = plain()(q, k, v, return_lse=True)
        near(want, q, k, v)
        assert torch.equal(o, want) and torch.equal(lse, want_lse)


def test_a_graph_replays_what_a_call_computes() -> None:
    capture(warm=True)


def test_branches_of_a_graph_do_not_take_work_from_each_other() -> None:
    """Two calls that a graph runs side by side."""
    q, k, v = many(300, 500)
    want = plain()(q, k, v)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        found = [plain()(q, k, v) for _ in range(3)]
        with torch.cuda.stream(side):
            found += [plain()(q, k, v) for _ in range(3)]
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(5):
        for o in found:
            o.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(o, want) for o in found)


def test_the_first_launch_of_a_process_can_be_captured() -> None:
    assert run_apart(str(Path(__file__).resolve()), "capture") == "captured\n"


def test_compiled_code_computes_what_eager_code_does() -> None:

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain_op(q, k, v) * 2

    plain_op = plain()
    backends = ["aot_eager", "cudagraphs"]
    if importlib.util.find_spec("triton") and shutil.which("cc"):
        backends.append("inductor")
    for backend in backends:
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        for seed in (1, 2, 3):
            q, k, v = tensors(130, 200, seed=seed)
            assert torch.equal(compiled(q, k, v).clone(), function(q, k, v)), backend


def test_any_strides_give_the_same_bits() -> None:
    q, k, v = tensors(150, 210)
    want = plain()(q, k, v)
    near(want, q, k, v)
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda t: torch.stack([t, torch.full_like(t, torch.nan)], -1)[..., 0],
        lambda t: torch.nn.functional.pad(t, (1, 7), value=torch.nan)[..., 1:-7],
        lambda t: torch.nn.functional.pad(t, (0, 8), value=torch.nan)[..., :-8],
    ]
    for layout in layouts:
        moved = [layout(tensor) for tensor in (q, k, v)]
        assert torch.equal(plain()(*moved), want)
        out = layout(torch.zeros_like(want))
        assert plain()(*moved, out=out) is out and torch.equal(out, want)


def test_more_blocks_than_the_other_axes_of_a_grid_hold() -> None:
    q, k, v = tensors(1, 40, batch=1024, heads=80, kv_heads=8)
    o = plain()(q, k, v)
    for batch in (0, 500, 1023):
        part = [tensor[batch : batch + 1] for tensor in (q, k, v)]
        near(o[batch : batch + 1], *part)
        assert torch.equal(o[batch : batch + 1], plain()(*part))


def test_elements_further_apart_than_32_bits_count() -> None:
    small = tensors(70, 90, batch=2)
    stride = 2**31 + 2**20
    try:
        room, apart = (torch.empty(stride + 2**20, dtype=small[0].dtype, device="cuda:0") for _ in range(2))
    except torch.cuda.OutOfMemoryError:
        return print("no room on the card for two times 2^31 elements")
    taken = 0
    large = []
    for tensor in small:
        view = room[taken:].as_strided(tensor.shape, (stride, *tensor.stride()[1:]))
        view.copy_(tensor)
        large.append(view)
        taken += tensor[0].numel()
    want = plain()(*small)
    assert torch.equal(plain()(*large), want)
    out = apart.as_strided(want.shape, (stride, *want.stride()[1:]))
    assert torch.equal(plain()(*large, out=out), want)


REPEATS = 1000


def test_deterministic_gradients_have_the_same_bits_each_time() -> None:
    """Rows of 4096 and grouped heads, while another stream keeps the card busy now and then."""
    ordered = [v for v in module().variants() if v.backward and v.deterministic]
    if not ordered:
        return print("the module has no deterministic variant")
    parts = ("check.cases", "check.inputs", "check.pull", "reference")
    cases, inputs, pull, reference = (importlib.import_module(f"{NAME}.runtime.{part}") for part in parts)
    case = cases.Case("repeated", 4096, 4096, batch=1, heads=8, kv_heads=2)
    side = torch.cuda.Stream()
    noise = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
    side.wait_stream(torch.cuda.current_stream())
    for variant in ordered:
        kernel = getattr(module(), variant.name)
        trees = [tree for tree in reference.trees(variant) if tree is not None]
        drawn = inputs.draw(variant, trees, case, 0).on("cuda:0")
        wanted = {param.name for param in variant.params if param.grad} | ({"sink"} if variant.sink else set())
        extras = {name: x.requires_grad_() if name in wanted else x for name, x in drawn.extras().items()}
        leaves = [drawn.q.requires_grad_(), drawn.k.requires_grad_(), drawn.v.requires_grad_()]
        leaves += [extras[name] for name in sorted(wanted)]
        o = kernel(*leaves[:3], scale=drawn.scale, **extras, **drawn.dropout())
        first = pull.pull([o], leaves, [drawn.d_o], retain_graph=True)
        assert all(x.isfinite().all() and x.any() for x in first), variant.name
        apart = torch.zeros((), dtype=torch.int64, device="cuda:0")
        for turn in range(REPEATS):
            if turn % 3 == 0:
                with torch.cuda.stream(side):
                    for _ in range(turn % 4 + 1):
                        noise @ noise
            again = pull.pull([o], leaves, [drawn.d_o], retain_graph=True)
            for one, other in zip(again, first, strict=True):
                whole = {2: torch.int16, 4: torch.int32}[one.element_size()]
                apart += (one.view(whole) != other.view(whole)).sum()
        assert int(apart) == 0, f"{variant.name}: {int(apart)} numbers differ in {REPEATS} runs"
    side.synchronize()


def test_a_call_runs_where_its_tensors_are() -> None:
    if torch.cuda.device_count() < 2:
        return print("there is one card only")
    torch.cuda.set_device(0)
    call = tensors(100, 100)
    there = [tensor.to("cuda:1") for tensor in call]
    o = plain()(*there)
    assert o.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    assert torch.equal(o.cpu(), plain()(*call).cpu())
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):  # makes it the current one, and its card too
        again = plain()(*call), plain()(*there)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    assert torch.equal(again[0].cpu(), again[1].cpu())


def test_what_cannot_be_is_said() -> None:
    q, k, v = tensors(5, 5)
    for wrong, words in (((q.cpu(), k.cpu(), v.cpu()), "CPU"), ((q, k.cpu(), v), "cpu"), ((q[..., :8], k, v), "q")):
        try:
            plain()(*wrong)
        except (ValueError, TypeError) as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"nothing was said of {words}")


def main() -> int:
    """All tests, without pytest."""
    if why := missing():
        print(f"skipped: {why}")
        return 0
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test()
                print(f"{name}: passed", flush=True)
            except Exception as error:
                failed += 1
                print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["capture"]:
        capture(warm=False)
        print("captured")
    else:
        raise SystemExit(main())

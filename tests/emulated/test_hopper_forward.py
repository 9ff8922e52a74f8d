"""What Hopper's forward kernels do besides the check's cases: a block of threads that goes from one block of rows to
another, copies of tensors that boxes cannot be cut from, tiles found beforehand or when they are scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fagen.emulate import driver

from .modules import built

SPEC = """
fagen: 1
name: hopper
target: sm_90a
defaults: {dtype: f16, backward: false, tiles: {q: 64, kv: 32}}
params:
  left: {dtype: i32, shape: [H]}
  bias: {dtype: f32, shape: [H, n]}
  step: {dtype: i32, shape: [n]}
  near: {dtype: bool, shape: [n]}
  edge: {dtype: i32, shape: []}
variants:
  - {name: plain, head_dim: 72, value_dim: 40}
  - {name: heads, head_dim: 64, layout: bhsd, mask: "causal and q - kv < left[h]"}
  - {name: groups, head_dim: 64, tiles: {q: 192, kv: 32}, mask: "causal and q - kv < 40 and q != 70"}
  - {name: far, head_dim: 64, tiles: {q: 64, kv: 16}, mask: "kv < edge"}
  - {name: spread, head_dim: 64, tiles: {q: 64, kv: 16}, mask: "kv < 16 or causal and q - kv < 600"}
  - {name: squares, head_dim: 64, tiles: {q: 128, kv: 16},
     mask: "abs(q // 9 - kv // 9) <= 2 and abs(q % 9 - kv % 9) <= 2"}
  - {name: wide, head_dim: 64, dtype: bf16, tiles: {q: 64, kv: 128}}
  - {name: diagonals, head_dim: 64, tiles: {q: 128, kv: 48}, score: "s + bias[h, q - kv + 40]"}
  - {name: turned, head_dim: 64, tiles: {q: 64, kv: 80}, align: top_left, mask: "causal and q - kv < 150 and q != 70",
     score: "s + 0.25 * step[kv - q + 90] if near[i - j] else s - left[h]"}
"""


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from built(SPEC, tmp_path_factory.mktemp("hopper"))


def drawn(q_len: int, kv_len: int, dim: int, value_dim: int, heads: int = 4) -> tuple[torch.Tensor, ...]:
    shapes = ((2, q_len, heads, dim), (2, kv_len, 2, dim), (2, kv_len, 2, value_dim))
    return tuple(torch.randn(shape).half() for shape in shapes)


def close(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...]) -> None:
    torch.testing.assert_close(got[0].double(), want[0], atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(got[1].double(), want[1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("completions", ["earliest", "latest", "random"])
def test_blocks_go_from_one_to_the_next(completions: str, hopper: ModuleType) -> None:
    """24 blocks of rows on three multiprocessors, of one to five tiles each."""
    for kv_len in (20, 33, 150):
        q, k, v = drawn(130, kv_len, 72, 40)
        with driver.use(hopper, completions=completions, seed=kv_len) as emulator:
            got = hopper.plain(q, k, v, return_lse=True)
        assert emulator.launches == 1
        close(got, hopper.plain.reference(q, k, v, return_lse=True))


def test_tensors_that_no_box_can_be_cut_from_are_copied(hopper: ModuleType) -> None:
    q, k, v = drawn(70, 90, 72, 40)
    want = hopper.plain.reference(q, k, v, return_lse=True)
    odd = torch.empty(2 * 90 * 2 * 72 + 1, dtype=torch.half)[1:].view(k.shape)  # at no multiple of 16 bytes
    odd.copy_(k)
    spread = v.repeat_interleave(2, -1)[..., ::2]  # elements that are not adjacent
    one_for_all = q[:1].expand(2, -1, -1, -1)  # steps of nothing
    with driver.use(hopper):
        close(hopper.plain(q, odd, spread, return_lse=True), want)
        shared = hopper.plain(one_for_all, k, v, return_lse=True)
    close(shared, hopper.plain.reference(one_for_all, k, v, return_lse=True))


def test_tiles_are_found_for_each_head_that_the_mask_tells_apart(hopper: ModuleType) -> None:
    q, k, v = (x.transpose(1, 2) for x in drawn(300, 1100, 64, 64))
    left = torch.tensor([1, 40, 700, 5000]).int()
    with driver.use(hopper) as emulator:
        got = hopper.heads(q, k, v, left=left, return_lse=True)
        counts = hopper.tile_counts("heads", q, k, left=left)
    assert emulator.launches == 4  # tiles are found for the count, too
    close(got, hopper.heads.reference(q, k, v, left=left, return_lse=True))
    assert counts.total == 2 * 4 * 5 * 35 and counts.empty == 0


def test_no_keys_and_no_queries(hopper: ModuleType) -> None:
    with driver.use(hopper):
        o, lse = hopper.plain(*drawn(5, 0, 72, 40), return_lse=True)
        assert hopper.plain(*drawn(0, 5, 72, 40)).shape == (2, 0, 4, 40)
    assert (o == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("completions", ["earliest", "latest", "random"])
def test_warpgroups_rest_where_their_rows_see_nothing(completions: str, hopper: ModuleType) -> None:
    """Of a window, three warpgroups see other tiles, at the beginning of a block and at its end; one row sees none, and
    of the last block one warpgroup has no rows."""
    q, k, v = drawn(330, 330, 64, 64, heads=2)
    with driver.use(hopper, completions=completions, seed=5):
        got = hopper.groups(q, k, v, return_lse=True)
    close(got, hopper.groups.reference(q, k, v, return_lse=True))
    assert (got[0][:, 70] == 0).all() and (got[1][:, :, 70] == -torch.inf).all()


def test_a_tile_is_found_behind_a_thousand_empty_ones(hopper: ModuleType) -> None:
    """They are looked for by words of 32 tiles, 32 words at a time: the one that counts is in the 33rd."""
    q, k, v = drawn(3, 16 * 32 * 32 + 16, 64, 64, heads=2)
    edge = torch.tensor(16).int()
    with driver.use(hopper):
        got = hopper.far(q, k, v, edge=edge, return_lse=True)
    close(got, hopper.far.reference(q, k, v, edge=edge, return_lse=True))


@pytest.mark.parametrize(
    ("name", "lengths", "completions"),
    [
        (
            "spread",
            (70, 1400),
            "random",
        ),  # more than 32 tiles in a row, and a range behind empty ones
        ("squares", (150, 190), "latest"),
        ("squares", (200, 60), "earliest"),  # blocks of rows that see no key at all
    ],
)
def test_a_scheduler_asks_the_mask(name: str, lengths: tuple[int, int], completions: str, hopper: ModuleType) -> None:
    """Twice: the first time blocks of rows are drawn, the second time there is no counter, and each has its share."""
    q, k, v = drawn(*lengths, 64, 64)
    variant = getattr(hopper, name)
    want = variant.reference(q, k, v, return_lse=True)
    with driver.use(hopper, completions=completions, seed=sum(lengths)) as emulator:
        for launches in (1, 2):
            close(variant(q, k, v, return_lse=True), want)
            assert emulator.launches == launches
        counts = hopper.tile_counts(name, q, k)
    if name == "spread":  # its conditions are decided exactly
        assert counts.empty == 0 and counts.full > 0


@pytest.mark.parametrize("logit", [40.0, 64.0, 80.0, 87.5, 88.5, 120.0, 700.0])
def test_a_key_that_outweighs_all_before_it_is_not_lost(logit: float, hopper: ModuleType) -> None:
    """Its tile is weighed against a reference of scores around 0: as far as float32 goes, and beyond."""
    kv_len = 1 << 14
    q, k, v = (torch.zeros(1, length, 1, 64).bfloat16() for length in (20, kv_len, kv_len))
    v.normal_()
    q[..., 0] = 16.0
    k[:, kv_len // 2, :, 0] = logit / 2  # times 16 / 8
    with driver.use(hopper):
        o, lse = hopper.wide(q, k, v, return_lse=True)
    torch.testing.assert_close(o, v[:, kv_len // 2 : kv_len // 2 + 1].expand_as(o), atol=0.01, rtol=0.01)
    assert (lse - logit).abs().max() < 1e-3


@pytest.mark.parametrize(("spike", "completions"), [(0.0, "earliest"), (30.0, "latest"), (300.0, "random")])
def test_what_is_read_along_diagonals(spike: float, completions: str, hopper: ModuleType) -> None:
    """Two warpgroups with odd lengths, and indices outside the array on both sides. A spike asks for other references
    in tiles that are whole, or for their scores again."""
    q, k, v = drawn(201, 333, 64, 64)
    bias = torch.randn(4, 230)
    bias[1::2, 77] = spike
    with driver.use(hopper, completions=completions, seed=3):
        got = hopper.diagonals(q, k, v, bias=bias, return_lse=True)
    close(got, hopper.diagonals.reference(q, k, v, bias=bias, return_lse=True))


def test_integers_and_truth_along_diagonals_the_other_way(hopper: ModuleType) -> None:
    for lengths in ((90, 211), (211, 90), (257, 257)):  # one after the other: most of the time is the compiler's
        q, k, v = drawn(*lengths, 64, 64)
        step, near, left = torch.randint(-8, 8, (75,)).int(), torch.rand(75) < 0.5, torch.tensor([0, 1, 2, 3]).int()
        with driver.use(hopper, completions="random", seed=7):
            got = hopper.turned(q, k, v, step=step, near=near, left=left, return_lse=True)
        close(got, hopper.turned.reference(q, k, v, step=step, near=near, left=left, return_lse=True))


def test_a_kernel_that_begins_early_waits_for_the_one_before(hopper: ModuleType) -> None:
    """The emulator runs launches one after the other, and cannot tell."""
    for name, waits in (("heads", 1), ("groups", 1), ("squares", 0), ("plain", 0)):
        ptx = (Path(hopper.__file__).parent / "ptx" / f"{name}_forward.ptx").read_text()
        assert [ptx.count(f"griddepcontrol.{what};") for what in ("wait", "launch_dependents")] == [waits, waits], name
        assert ptx.count("_find_tiles(") == waits

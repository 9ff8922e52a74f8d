"""Every attention of specs/zoo.yaml: its expression means what its definition, written out by hand, says."""

from __future__ import annotations

import math

import pytest
import torch
from oracles import ORACLES, Sizes, causal, draw, lower_triangle, output
from torch import Tensor
from variants import variant

from fagen.resources import specs_dir
from fagen.runtime.language import canonical, parse
from fagen.runtime.reference import mask_matrix, reference
from fagen.runtime.variant import Param
from fagen.spec import expand, load

SPEC = load(specs_dir() / "zoo.yaml")
ZOO = {entry.name: entry for entry in expand(SPEC)}


def test_every_attention_has_its_oracle() -> None:
    assert set(ORACLES) == set(ZOO)
    waiting = {name for name, _ in SPEC.skipped}
    assert waiting <= {"mla_decode", "sigmoid", "paged_decode"}


@pytest.mark.parametrize(
    "name, sizes", [(name, sizes) for name, oracle in ORACLES.items() for sizes in oracle.sizes], ids=str
)
def test_value_and_gradients(name: str, sizes: Sizes) -> None:
    entry, oracle = ZOO[name], ORACLES[name]
    given = draw(name, sizes, entry.head_dim, entry.value_dim)
    generator = torch.Generator().manual_seed(1)
    learned = given.learned()
    results = []
    for attend in (
        lambda: oracle.attend(given.q, given.k, given.v, **_sink(given.sink), **given.params),
        lambda: reference(entry, given.q, given.k, given.v, params=given.params, **_sink(given.sink)),
    ):
        o, lse = attend()
        if not results:
            d_o, d_lse = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (o, lse))
        gradients = torch.autograd.grad([o, lse], list(learned.values()), [d_o, d_lse])
        results.append({"o": o, "lse": lse, **dict(zip(learned, gradients, strict=True))})
    for key, expected in results[0].items():
        torch.testing.assert_close(results[1][key], expected, rtol=1e-9, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}")
    assert all(param.grad == (param.name in learned) for param in entry.params)


def _sink(sink: Tensor | None) -> dict[str, Tensor]:
    return {} if sink is None else {"sink": sink}


@pytest.mark.parametrize("name", ORACLES)
def test_the_sizes_show_the_mask(name: str) -> None:
    """An oracle that could not tell the mask from a causal one, or from none, would test nothing."""
    entry = ZOO[name]
    if entry.mask is None:
        return
    parsed = parse(entry.mask.resolved, params={param.name: param for param in entry.params}, expect="mask")
    is_causal = canonical(parsed) == canonical(parse("causal", expect="mask"))
    params = draw(name, ORACLES[name].sizes[0], 4, 4).params
    sizes = ORACLES[name].sizes[0]
    mask = mask_matrix(entry, sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len, params)
    shown = mask.expand(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    assert shown.any() and not shown.all()
    assert (shown == lower_triangle(sizes.q_len, sizes.kv_len)).all() == is_causal


def test_t5_with_its_buckets() -> None:
    """T5's own bias: distances fall in 32 buckets; the table of distances is gathered from a table of buckets."""

    def bucket(relative: int) -> int:
        """Of key minus query position, as the model defines it: bidirectional, 32 buckets, up to 128."""
        side, n = (16, relative) if relative > 0 else (0, -relative)
        if n < 8:
            return side + n
        return side + min(15, 8 + int(math.log(n / 8) / math.log(128 / 8) * 8))

    heads, length = 3, 150
    torch.manual_seed(0)
    table = torch.randn(32, heads).double().requires_grad_()
    q, k, v = (torch.randn(1, length, heads, 64).double() / 8 for _ in range(3))
    buckets = torch.tensor([bucket(-distance) for distance in range(-length, length)])
    entry = ZOO["t5"]
    o, _ = reference(entry, q, k, v, params={"rel": table[buckets].T})
    bias = torch.stack([torch.stack([table[bucket(j - i)] for j in range(length)]) for i in range(length)])
    expected, _ = output(torch.einsum("bihd,bjhd->bhij", q, k) + bias.permute(2, 0, 1), v)
    torch.testing.assert_close(o, expected, rtol=1e-10, atol=1e-10)
    d_o = torch.randn_like(o)
    one, other = (torch.autograd.grad(x, table, d_o)[0] for x in (o, expected))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ring_parts_merge_to_the_whole(ranks: int) -> None:
    """Zigzag context parallelism: each rank's queries against each rank's keys, merged by lse."""
    length, entry = 8 * ranks, ZOO["ring"]
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, length, 2, 128).double() for _ in range(3))
    whole, whole_lse = causal(q, k, v)
    pieces = torch.arange(length).reshape(2 * ranks, -1)
    owned = [pieces[[rank, 2 * ranks - 1 - rank]].flatten() for rank in range(ranks)]
    for mine in owned:
        parts = [
            reference(entry, q[:, mine], k[:, theirs], v[:, theirs], params={"qpos": mine.int(), "kpos": theirs.int()})
            for theirs in owned
        ]
        lse = torch.stack([part_lse for _, part_lse in parts]).logsumexp(0)
        o = sum(part * (part_lse - lse).exp().transpose(1, 2)[..., None] for part, part_lse in parts)
        torch.testing.assert_close(o, whole[:, mine], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(lse, whole_lse[..., mine], rtol=1e-10, atol=1e-12)


def test_differential_attention_is_two_calls() -> None:
    torch.manual_seed(0)
    q1, q2, k1, k2 = (torch.randn(1, 9, 2, 64).double() for _ in range(4))
    v = torch.randn(1, 9, 2, 128).double()
    entry = ZOO["diff"]
    one, other = reference(entry, q1, k1, v)[0], reference(entry, q2, k2, v)[0]
    maps = []
    for q, k in ((q1, k1), (q2, k2)):
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8
        maps.append(scores.masked_fill(~lower_triangle(9, 9), -math.inf).softmax(-1))
    expected = torch.einsum("bhij,bjhd->bihd", maps[0] - 0.3 * maps[1], v)
    torch.testing.assert_close(one - 0.3 * other, expected, rtol=1e-10, atol=1e-12)


def test_left_padded_alibi_is_alibi_by_distance() -> None:
    """Within a row, ALiBi by key position and by distance differ by a constant: same o, other lse."""
    params = {"slope": Param("slope", "f32", ("H",))}
    by_key = variant("causal", "s + slope[h] * kv", params=params)
    by_distance = variant("causal", "alibi(slope)", params=params)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 7, 3, 16).double() for _ in range(3))
    slope = torch.rand(3).double()
    (o, lse), (o_distance, lse_distance) = (
        reference(w, q, k, v, params={"slope": slope}) for w in (by_key, by_distance)
    )
    torch.testing.assert_close(o, o_distance, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, lse_distance + slope[:, None] * torch.arange(7), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["mla_decode", "sigmoid", "paged_decode"])
def test_masks_of_attentions_whose_keys_come_later(name: str) -> None:
    """Their one expression is the causal mask; a decoding step's single query sees all."""
    text = next(entry for entry in _entries() if entry["name"] == name)["mask"]
    entry = variant(text)
    for q_len, kv_len in ((1, 9), (4, 9), (9, 9)):
        mask = mask_matrix(entry, 1, 1, q_len, kv_len, {}).expand(1, 1, q_len, kv_len)
        assert torch.equal(mask[0, 0], lower_triangle(q_len, kv_len))
    assert parse(text, expect="mask") == parse("causal", expect="mask")


def _entries() -> list[dict[str, str]]:
    import yaml

    entries: list[dict[str, str]] = yaml.safe_load((specs_dir() / "zoo.yaml").read_text())["variants"]
    return entries

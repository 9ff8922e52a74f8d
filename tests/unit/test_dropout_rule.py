"""Which weights dropout drops, in torch: the generator, the place of a pair's number, and what is said of arguments."""

from __future__ import annotations

import re

import pytest
import torch
from planted import variant

from fagen.plan import plan
from fagen.runtime.dropout import Dropout, dropout_mask, fresh_state, kept_pairs, philox, threshold
from fagen.runtime.reference import reference

# Of Random123's kat_vectors: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(int(word, 16)) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_numbers(counter: str, key: str, result: str) -> None:
    low, high = words(key)
    assert philox(words(counter), (low, high)) == words(result)


def test_a_pairs_number_is_where_the_documentation_says() -> None:
    """The definition once more, a pair at a time."""
    seed, offset, batch, heads, rows, keys = -3, 2**40 + 5, 2, 3, 41, 37
    cut = 2**32
    state = torch.tensor([seed, offset])
    first = philox(words(f"{offset % cut:x} {offset // cut:x} 0 0"), words(f"{seed % cut:x} {seed // cut % cut:x}"))  # type: ignore[arg-type]
    mask = dropout_mask(0.3, state, batch=batch, heads=heads, q_len=rows, kv_len=keys)
    for b, h, i, j in [(0, 0, 0, 0), (1, 2, 40, 36), (0, 1, 23, 30), (1, 0, 8, 9), (0, 2, 7, 17), (1, 1, 31, 15)]:
        call = i % 8 * 4 + j % 8 // 2
        numbers = philox(words(f"{call:x} {i // 16:x} {j // 16:x} {b * heads + h:x}"), first[:2])
        word = int(numbers[i // 8 % 2 + j // 8 % 2 * 2])
        number = word >> 16 if j % 2 else word & 0xFFFF
        assert bool(mask[b, h, i, j]) == (number >= round(0.3 * 65536))


def test_any_part_of_the_pairs_is_that_part_of_all() -> None:
    state = torch.tensor([11, 12])
    mask = dropout_mask(0.5, state, batch=2, heads=2, q_len=50, kv_len=70).flatten(0, 1)
    part = kept_pairs(Dropout(0.5, state), torch.tensor([3, 1]), torch.arange(13, 45), 33)
    assert torch.equal(part, mask[[3, 1]][:, 13:45, :33])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_kept_pairs_is_that_asked_for(p: float) -> None:
    kept = dropout_mask(p, torch.tensor([1, 0]), batch=2, heads=4, q_len=256, kv_len=256)
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5
    # Nor does it depend on the place.
    for dims in ((0, 1, 2), (0, 1, 3), (2, 3)):
        share = kept.double().mean(dims)
        assert ((share - (1 - p)).abs() < 6 * (p * (1 - p) * share.numel() / kept.numel()) ** 0.5).all()


def test_streams_of_other_seeds_offsets_heads_and_batches_are_others() -> None:
    def of(*state: int) -> torch.Tensor:
        return dropout_mask(0.5, torch.tensor(state), batch=2, heads=2, q_len=64, kv_len=64)

    masks = [of(0, 0), of(0, 1), of(1, 0), of(-1, 1), of(0, 2**40), of(2**40, 0)]
    parts = [part for mask in masks for part in mask.flatten(0, 1)]
    for n, one in enumerate(parts):
        for other in parts[:n]:
            assert abs(float((one == other).double().mean()) - 0.5) < 6 * 0.5 / 64


def test_probabilities_are_counted_in_16_bits() -> None:
    assert [threshold(p) for p in (0.0, 2**-17, 0.5, 1 - 2**-17, 1 - 2**-53)] == [0, 1, 32768, 65536, 65536]
    assert not dropout_mask(1 - 2**-20, torch.tensor([0, 0]), batch=1, heads=1, q_len=40, kv_len=40).any()
    assert dropout_mask(0.0, torch.tensor([0, 0]), batch=1, heads=1, q_len=40, kv_len=40).all()


def test_fresh_states_follow_the_seed_of_torch() -> None:
    torch.manual_seed(3)
    first, second = fresh_state(torch.device("cpu")), fresh_state(torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(fresh_state(torch.device("cpu")), first) and not torch.equal(first, second)


def test_the_reference_keeps_lse_and_divides_what_is_kept() -> None:
    drops, plain = variant("causal", dropout=True), variant("causal")
    torch.manual_seed(0)
    q, k = torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    v = torch.eye(9, 16)[None, :, None].expand(2, 9, 2, 16)
    state = torch.tensor([4, 4])
    weights, lse = reference(plain, q, k, v)
    o, same = reference(drops, q, k, v, dropout_p=0.25, rng_state=state)
    kept = dropout_mask(0.25, state, batch=2, heads=2, q_len=9, kv_len=9).transpose(1, 2)
    assert torch.equal(lse, same)
    torch.testing.assert_close(o[..., :9], weights[..., :9] * kept / 0.75)
    assert torch.equal(reference(drops, q, k, v)[0], weights)


def test_the_references_gradient_is_that_of_the_mask() -> None:
    drops = variant(head_dim=4, dropout=True)
    torch.manual_seed(0)
    tensors = [torch.randn(1, 3, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    state = torch.tensor([1, 2])
    assert torch.autograd.gradcheck(
        lambda *qkv: reference(drops, *qkv, dropout_p=0.5, rng_state=state), tensors, check_forward_ad=True
    )


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"dropout_p": 1.0}, ValueError, "dropout_p: expected 0 <= dropout_p < 1, found 1.0"),
        ({"dropout_p": -0.1}, ValueError, "dropout_p: expected 0 <="),
        ({"dropout_p": float("nan")}, ValueError, "dropout_p: expected 0 <="),
        ({"dropout_p": 0.5}, ValueError, "rng_state: expected the seed and the offset, found none"),
        ({"dropout_p": 0.5, "rng_state": torch.zeros(2)}, TypeError, "rng_state: expected dtype torch.int64"),
        ({"dropout_p": 0.5, "rng_state": torch.tensor([1])}, ValueError, "rng_state: expected shape [2], found [1]"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], kind: type[Exception], message: str) -> None:
    x = torch.zeros(1, 3, 1, 16)
    with pytest.raises(kind, match=re.escape(message)):
        reference(variant(dropout=True), x, x, x, **given)  # type: ignore[arg-type]


def test_a_variant_without_dropout_takes_none() -> None:
    x = torch.zeros(1, 3, 1, 16)
    with pytest.raises(ValueError, match="this variant has no dropout"):
        reference(variant(), x, x, x, dropout_p=0.5, rng_state=torch.tensor([0, 0]))


def test_what_draws_leaves_fewer_registers_for_tiles() -> None:
    """Else some are kept in memory, which ptxas was seen to do."""
    for target, wide in (("sm_80", 128), ("sm_90a", 64)):
        plain, drops = (
            plan(variant(head_dim=wide, dtype="bf16", dropout=dropout), target) for dropout in (False, True)
        )
        assert plain.backward is not None and drops.backward is not None
        assert drops.forward.tile_kv <= plain.forward.tile_kv and drops.backward.tile_q <= plain.backward.tile_q

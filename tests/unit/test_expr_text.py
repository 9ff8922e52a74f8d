"""The C++ that emit prints: what a person would write, and what each kind of read becomes."""

from __future__ import annotations

import json
import re

import pytest
from expr_grid import variant_of
from expr_random import PARAMS, masks, scores

from fagen.errors import PlanError
from fagen.expr import CUDA_SCALAR, KernelCode, emit
from fagen.runtime.language import NAMES


def score(text: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    snippet = emit(variant_of(PARAMS, score=text)).score
    assert snippet is not None
    return snippet.row, snippet.pair, snippet.results


def test_alibi_with_causal_documents() -> None:
    code = emit(variant_of(PARAMS, mask="causal and document(ids)", score="alibi(slope)"))
    assert tuple(each.text for each in code.declarations) == (
        "const Array<const float, 1> slope_at(p.params[0]);",
        "const Array<const int32_t, 2> ids_at(p.params[1]);",
    )
    (declared,) = code.grad_declarations
    assert declared.text == "const Array<float, 1> slope_at_grad(p.d_params[0]);"
    assert (declared.name, declared.element, declared.rank, declared.param_index) == ("slope_at_grad", "float", 1, 0)
    assert code.score_mask is not None
    assert code.score_mask.row == (
        "const float slope_at_h = slope_at.load(h);",
        "const int32_t ids_at_b_q = ids_at.load(b, q);",
        "const auto ids_at_line1 = ids_at.line<1>(b, 0);",
    )
    assert code.score_mask.pair[-1] == "const vi ids_at_b_kv = ids_at_line1.run(kv[0]);"
    assert code.score_mask.results[-1] == "(kv <= q) & (ids_at_b_q == ids_at_b_kv)"
    assert code.tests_params == ("ids",)


def test_the_tile_test_of_a_causal_mask() -> None:
    code = emit(variant_of(PARAMS, mask="causal"))
    assert code.score is None
    assert code.tile_test == (
        "bool admits = false;",
        "{",
        "  Pairs pairs(q, kv);",
        "  pairs.difference.at_least(0);",
        "  if (pairs.narrow()) admits = true;",
        "}",
        "if (!admits) return Tri::kNone;",
        "bool refuses = false;",
        "{",
        "  Pairs pairs(q, kv);",
        "  pairs.difference.at_most(-1);",
        "  if (pairs.narrow()) refuses = true;",
        "}",
        "return refuses ? Tri::kSome : Tri::kAll;",
    )
    assert code.key_ranges == ("return between(0, least(kv_len, q.hi + 1));",)
    assert code.query_ranges == ("return shifted(between(greatest(kv_len - q_len, kv.lo), kv_len), q_len - kv_len);",)
    top_left = emit(variant_of(PARAMS, mask="causal", align="top_left"))
    assert top_left.query_ranges == ("return between(greatest(0, kv.lo), q_len);",)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("s + slope[h]", "slope_at.load(h)"),
        ("s + bias[b, h, i, j]", "bias_at_line1.run(j[0])"),
        ("s + rel[h, q - kv + kv_len]", "rel_at_line1.reversed_run(q + kv_len - kv[0])"),
        ("s + rel[h, kv - 3]", "rel_at_line1.run(kv[0] - 3)"),
        ("s + rel[h, kv + at[q]]", "rel_at_line1.run(int64_t{kv[0]} + at_at_q)"),
        ("s + rel[h, 2 * kv]", "rel_at.gather(h, 2 * kv)"),
        ("s + rel[h, at[kv]]", "rel_at.gather(h, at_at_kv)"),
        ("s + f[b, h, q]", "f_at.load(b, h, q)"),
    ],
)
def test_how_a_read_moves_with_the_key(text: str, read: str) -> None:
    row, pair, results = score(text)
    assert read in " ".join((*row, *pair, *results))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("s + q // 64", "q >> 6"),
        ("s + kv % 64", "kv & 63"),
        ("s + kv // 5", "floor_div(kv, broadcast(5))"),
        ("s + q % -3", "floor_mod(q, -3)"),
        ("s + kv * kv", "widen(kv)"),
        ("s if kv <= q else -1.5", "select(kv <= q, s, broadcast(-1.5f))"),
        ("s if q > 4 else -s", "const bool t1 = q > 4; t1 ? s : -s"),
        ("min(s, 2)", "min(s, broadcast(2.0f))"),
        ("max(t, 0.5) + s", "max(t_at_0, 0.5f)"),
        ("s - (s + 1)", "s - (s + 1.0f)"),
        ("s - -s", "s - -s"),
        ("s * (t - 1) / 3", "/ 3.0f"),
        ("s + 5000000000", "5000000000.0f"),
        ("s + kv * 5000000000", "int64_t{5000000000}"),
        ("-(-kv) * s", "to_real(kv)"),
    ],
)
def test_operations(text: str, part: str) -> None:
    assert part in " ".join(line for lines in score(text) for line in lines)


def test_what_is_used_twice_is_computed_once_and_what_a_row_shares_once_a_row() -> None:
    row, pair, results = score("tanh(s * slope[h]) * tanh(s * slope[h]) + exp(t) * slope[h] * s")
    text = " ".join((*row, *pair, *results))
    assert text.count("tanh(") == 1
    assert text.count("slope_at.load") == 1
    assert any("exp(" in line for line in row) and not any("exp(" in line for line in pair)


def test_gradients_say_how_entries_are_shared() -> None:
    code = emit(
        variant_of(PARAMS, score="s * t + slope[h] + f[b, h, q] - f[b, h, kv] + rel[h, q - kv] + rel[h, at[kv]]")
    )
    found = [(grad.name, grad.kind, grad.owner) for grad in code.param_grads]
    assert found == [
        ("t", "row", ()),
        ("slope", "row", ("h",)),
        ("f", "row", ("b", "h", "i")),
        ("f", "pair", ("b", "h", "j")),
        ("rel", "pair", ("h",)),
        ("rel", "pair", ("h",)),
    ]
    assert [grad.diagonal for grad in code.param_grads] == [False, False, False, False, True, False]
    assert [grad.scatter[-1] for grad in code.param_grads] == [
        "t_at_grad.add(total);",
        "slope_at_grad.add(total, h);",
        "f_at_grad.add(total, b, h, q);",
        "f_at_grad_line4.add_run(kv[0], g);",
        "rel_at_grad_line5.add_reversed_run(q - kv[0], g);",
        "rel_at_grad.scatter_add(g, h, at_at_kv_g6);",
    ]
    assert [code.score_grad.results[grad.factor] for grad in code.param_grads] == [
        "s",
        "1.0f",
        "1.0f",
        "-1.0f",
        "1.0f",
        "1.0f",
    ]
    assert code.score_grad.results[1] == "t_at_0"


def bands(text: str) -> list[tuple[str, str, str]]:
    """Name, element and access of what pairs have from shared memory."""
    banded = emit(variant_of(PARAMS, score=text), CUDA_SCALAR).banded_score
    return [] if banded is None else [(band.name, band.element, band.load.pair[-1]) for band in banded.bands]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s + rel[h, q - kv + kv_len]", [("rel_at_band1", "float", "rel_at.load(h, q - kv + kv_len)")]),
        ("s + rel[h, kv - q - 3]", [("rel_at_band1", "float", "rel_at.load(h, kv - q - 3)")]),
        ("s + f[b, h, left[b] + i - j]", [("f_at_band1", "float", "f_at.load(b, h, t1 - int64_t{j})")]),
        ("s + half[i - kv]", [("half_at_band1", "float", "half_at.load(i - kv)")]),
        ("s + at[2 * (q - kv)]", [("at_at_band1", "int32_t", "at_at.load(2 * (q - kv))")]),
        ("s if glob[b, q - kv] else 0", [("glob_at_band1", "bool", "glob_at.load(b, q - kv)")]),
        # Numbers of a bucket of distances, as those of T5.
        (
            "s + rel[h, min(abs(q - kv) // 4, 31)]",
            [("rel_at_band1", "float", "rel_at.load(h, min(abs(q - kv) >> 2, 31))")],
        ),
        ("s + rel[h, at[kv - q]]", [("rel_at_band1", "float", "rel_at.load(h, at_at_1)")]),
        (
            "s + half[q - kv] * at[kv - q]",
            [("half_at_band1", "float", "half_at.load(q - kv)"), ("at_at_band2", "int32_t", "at_at.load(kv - q)")],
        ),
        (
            "s + half[q - kv] - half[kv - q]",
            [("half_at_band1", "float", "half_at.load(q - kv)"), ("half_at_band2", "float", "half_at.load(kv - q)")],
        ),
    ],
)
def test_reads_that_are_the_same_along_diagonals(text: str, found: list[tuple[str, str, str]]) -> None:
    assert [(name, element) for name, element, _ in bands(text)] == [(name, element) for name, element, _ in found]
    for (_, _, line), (_, _, access) in zip(bands(text), found, strict=True):
        assert line.endswith(f" = {access};")


@pytest.mark.parametrize(
    "text",
    [
        "s + slope[h]",
        "s * rel[h, q]",
        "s + rel[h, kv]",
        "s + rel[h, q + kv]",
        "s + rel[h, 2 * q - kv]",
        "s + f[b, q % 4, q - kv]",
        "s + rel[h, q - kv + at[q]]",
        "s + rel[h, (q - kv) * q]",
        "s + rel[h, q // 2 - kv // 2]",
        "s + bias[b, h, i, j]",
        "s + ids64[b, q - kv]",  # of two words
        "s + q - kv",
    ],
)
def test_reads_that_are_not(text: str) -> None:
    assert bands(text) == []


def test_a_score_whose_pairs_read_from_shared_memory() -> None:
    banded = emit(variant_of(PARAMS, score="s + rel[h, q - kv + kv_len] * slope[h]"), CUDA_SCALAR).banded_score
    assert banded is not None
    assert banded.score.score.row == ("const float slope_at_h = slope_at.load(h);",)
    assert banded.score.score.pair == ("const float rel_at_1 = rel_at_band1.of(n, c, kRow);",)
    assert banded.score.score.results == ("fma(raw, scale, rel_at_1 * slope_at_h)",)
    assert banded.score.exponent.results == ("fma(raw, t3, fma(rel_at_1, t2, t1))",)
    assert not banded.loads
    mixed = emit(variant_of(PARAMS, score="s + half[q - kv] + rel[h, kv]"), CUDA_SCALAR).banded_score
    assert mixed is not None and mixed.loads
    assert emit(variant_of(PARAMS, score="s + half[q - kv]")).banded_score is None  # CPUs read runs


def test_results_are_vectors_where_they_must_be() -> None:
    code = emit(variant_of(PARAMS, mask="q > 3 or flag", score="slope[h]"))
    assert code.score_mask is not None
    assert code.score_mask.results == ("broadcast(slope_at_h)", "all_lanes(q > 3 || flag_at_0)")
    assert code.score_grad.results[1] == "0.0f"


def test_a_mask_alone_has_no_gradients() -> None:
    code = emit(variant_of(PARAMS, mask="slope[h] * (q - kv) < 3"))
    assert code.param_grads == ()
    assert code.score_grad_mask is not None
    assert code.score_grad_mask.results[:2] == ("s", "1.0f")


@pytest.mark.parametrize("seed", range(3))
def test_every_expression_prints_and_survives_json(seed: int) -> None:
    for mask, text in zip(masks(25, seed), scores(25, seed), strict=True):
        code = emit(variant_of(PARAMS, mask=mask, score=text))
        assert KernelCode.from_json(json.loads(json.dumps(code.to_json()))) == code
        assert code == emit(variant_of(PARAMS, mask=mask, score=text))


@pytest.mark.parametrize("seed", range(3))
def test_names_that_statements_declare_cannot_meet_a_kernels_own(seed: int) -> None:
    declared = re.compile(r"const (?:auto|vf|vi|vl|\w+) (\w+) =")
    for text in scores(40, seed):
        code = emit(variant_of(PARAMS, score=text))
        statements = [*code.score_grad.row, *code.score_grad.pair]
        names = declared.findall("\n".join(statements))
        assert len(names) == len(set(names)) == len(statements)
        assert all((name[-1].isdigit() or "_at" in name) and name not in NAMES for name in names)


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(PlanError, match="dialect 'cuda'"):
        emit(variant_of(PARAMS, mask="causal"), "cuda")


def test_an_integer_past_64_bits_is_refused_but_a_comparison_with_it_is_not_needed() -> None:
    variant = variant_of(PARAMS, score="s + (kv * 4611686018427387904 * 4611686018427387904)")
    assert "int64_t{4611686018427387904}" in str(emit(variant).score)


def test_cards_multiply_by_reciprocals_unless_the_last_bit_decides() -> None:
    def on_a_card(score: str) -> str:
        code = emit(variant_of(PARAMS, score=score), CUDA_SCALAR)
        return str(code.score)

    assert "tanh(s * (1.0f / 50.0f))" in on_a_card("50 * tanh(s / 50)")
    assert "s / 50.0f" in on_a_card("floor(s / 50)")
    assert "s / 50.0f" in on_a_card("s if s / 50 < 1 else 0")
    assert "s / slope_at_h" in on_a_card("s / slope[h]")
    assert "s / 50.0f" in str(emit(variant_of(PARAMS, mask="causal", score="s / 50")).score)  # of a processor

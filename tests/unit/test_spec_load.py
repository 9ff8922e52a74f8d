"""What a right spec becomes: merging, families, names, constants, params, targets, places."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fagen.errors import SpecError
from fagen.resources import specs_dir
from fagen.runtime.variant import Param, Tiles, Variant
from fagen.spec import MAX_PARAMS, MAX_VARIANTS, expand, load, load_text
from fagen.spec.targets import normal_target

HEAD = "fagen: 1\nname: demo\ntarget: cpu\n"


def variants(text: str) -> list[Variant]:
    return expand(load_text(HEAD + text))


def only(text: str) -> Variant:
    (variant,) = variants(text)
    return variant


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_text(text)
    return str(caught.value)


def test_defaults_of_the_language() -> None:
    variant = only("variants: [{name: a, head_dim: 64}]")
    assert variant == Variant(name="a", head_dim=64, value_dim=64, line=4, column=19)
    assert (variant.dtype, variant.layout, variant.backward, variant.scale) == ("bf16", "bshd", True, None)
    assert (variant.mask, variant.score, variant.sink, variant.params) == (None, None, False, ())


def test_every_key_reaches_the_variant() -> None:
    """An option that is accepted is an option that is passed on."""
    variant = only(
        "variants:\n"
        "  - {name: a, head_dim: 40, value_dim: 72, dtype: f16, layout: bhsd, backward: false, mask: causal,\n"
        "     score: softcap(15), scale: 1/16, align: top_left, sink: true, deterministic: true,\n"
        "     nonfinite: contain, tiles: {q: 32, kv: 48, stages: 2}, lengths: dense, normalize: true}\n"
    )
    assert dataclasses.replace(variant, mask=None, score=None) == Variant(
        name="a",
        head_dim=40,
        value_dim=72,
        dtype="f16",
        layout="bhsd",
        backward=False,
        scale=0.0625,
        align="top_left",
        sink=True,
        deterministic=True,
        tiles=Tiles(32, 48, 2),
        line=5,
        column=12,
    )
    assert variant.mask is not None
    assert variant.score is not None
    assert (variant.mask.text, variant.mask.resolved) == ("causal", "kv <= q")
    assert (variant.score.text, variant.score.resolved) == ("softcap(15)", "15 * tanh(s / 15)")


def test_isa_of_the_file_is_the_isa_of_its_variants() -> None:
    assert only("isa: avx2\nvariants: [{name: a, head_dim: 64}]").isa == "avx2"


def test_defaults_are_overridden_and_null_takes_them_back() -> None:
    a, b, c = variants(
        "defaults: {head_dim: 64, dtype: f32, mask: causal, scale: 0.5, tiles: {q: 32}, backward: false}\n"
        "variants:\n"
        "  - {name: a}\n"
        "  - {name: b, head_dim: 128, dtype: bf16, mask: kv < 5, scale: 2, tiles: {kv: 16}, backward: true}\n"
        "  - {name: c, mask: null, scale: ~, tiles: null}\n"
    )
    assert (a.head_dim, a.dtype, a.scale, a.tiles, a.backward) == (64, "f32", 0.5, Tiles(q=32), False)
    assert (b.head_dim, b.dtype, b.scale, b.tiles, b.backward) == (128, "bf16", 2.0, Tiles(kv=16), True)
    assert a.mask is not None
    assert b.mask is not None
    assert (a.mask.resolved, b.mask.resolved) == ("kv <= q", "kv < 5")
    assert (c.mask, c.scale, c.tiles, c.dtype) == (None, None, Tiles(), "f32")


@pytest.mark.parametrize(
    ("written", "scale"),
    [
        ("1/16", 0.0625),
        ("0", 0.0),
        ("0.0", 0.0),
        ("-1", -1.0),
        ("1e-5", 1e-5),
        ("1.0", 1.0),
        ('"1/sqrt(64)"', 0.125),
        ("1/W", 1 / 64),
        ("W**-0.5", 0.125),
        ('"min(W, 3)/6"', 0.5),
    ],
)
def test_scale_is_a_constant_expression_and_zero_is_a_scale(written: str, scale: float) -> None:
    assert only(f"const: {{W: 64}}\nvariants: [{{name: a, head_dim: 64, scale: {written}}}]").scale == scale


@pytest.mark.parametrize("written", [".inf", ".nan", "1e39", "1/0", "q", "slope", "s", "-.inf", "true", "exp(1000)"])
def test_scale_is_finite_and_constant(written: str) -> None:
    refused(
        f"{HEAD}params: {{slope: {{dtype: f32, shape: []}}}}\nvariants: [{{name: a, head_dim: 64, scale: {written}}}]"
    )


def test_matrix_is_a_product_in_order_and_names_its_members() -> None:
    family = variants(
        "variants:\n"
        "  - name: a{head_dim}_{dtype}_{w}_{sink}\n"
        "    matrix: {head_dim: [64, 128], dtype: [f32, bf16], w: [16, 32], sink: [true, false]}\n"
        "    mask: q - kv < w\n"
    )
    assert [v.name for v in family[:5]] == [
        "a64_f32_16_true",
        "a64_f32_16_false",
        "a64_f32_32_true",
        "a64_f32_32_false",
        "a64_bf16_16_true",
    ]
    assert len(family) == 16
    for v in family:
        assert v.mask is not None
        assert v.name == f"a{v.head_dim}_{v.dtype}_{v.mask.resolved.split()[-1]}_{str(v.sink).lower()}"


def test_matrix_keys_are_constants_of_expressions_and_macros() -> None:
    a, b = variants(
        "define: {near(n): abs(q - kv) <= n * head_dim}\n"
        "variants:\n"
        "  - {name: 'a{head_dim}', matrix: {head_dim: [64, 128]}, mask: near(2), scale: 1/head_dim}\n"
    )
    assert a.mask is not None
    assert b.mask is not None
    assert (a.mask.resolved, b.mask.resolved) == ("abs(q - kv) <= 128", "abs(q - kv) <= 256")
    assert (a.scale, b.scale) == (1 / 64, 1 / 128)


def test_matrix_of_expressions_keeps_each_ones_place() -> None:
    text = HEAD + "variants:\n  - name: a{align}\n    head_dim: 64\n    matrix:\n      align: [top_left]\n      mask:\n"
    a = expand(load_text(text + "        - causal\n"))[0]
    assert a.mask is not None
    assert (a.mask.line, a.mask.column) == (10, 11)


def test_constants_may_use_those_before_them() -> None:
    spec = load_text(HEAD + "const: {A: 3, B: A * 2, C: B / 4}\nvariants: [{name: a, head_dim: 64, mask: q < B}]")
    assert dict(spec.consts) == {"A": 3, "B": 6, "C": 1.5}
    assert "unknown name `B`" in refused(HEAD + "const: {A: B, B: 1}\nvariants: [{name: a, head_dim: 64}]")


PARAMS = (
    "params:\n"
    "  slope: {dtype: f32, shape: [H], grad: true}\n"
    "  unused: {dtype: bool, shape: [B, H, Sq, 7]}\n"
    "  doc: {dtype: i64, shape: [B, n]}\n"
    "  t: {dtype: bf16, shape: []}\n"
)


def test_a_variant_holds_the_params_it_reads_in_the_order_of_their_declaration() -> None:
    a, b, c = variants(
        PARAMS + "variants:\n"
        "  - {name: a, head_dim: 64, mask: document(doc), score: 's * t + slope[h]'}\n"
        "  - {name: b, head_dim: 64, score: alibi(slope)}\n"
        "  - {name: c, head_dim: 64}\n"
    )
    slope = Param("slope", "f32", ("H",), True)
    assert a.params == (slope, Param("doc", "i64", ("B", "n")), Param("t", "bf16", ()))
    assert b.params == (slope,)
    assert c.params == ()


def test_sixteen_params_are_allowed_and_seventeen_are_not() -> None:
    def text(count: int) -> str:
        declared = "".join(f"  p{i}: {{dtype: f32, shape: []}}\n" for i in range(20))
        total = " + ".join(f"p{i}" for i in range(count))
        return f"params:\n{declared}variants: [{{name: a, head_dim: 64, score: s + {total}}}]"

    assert len(only(text(MAX_PARAMS)).params) == MAX_PARAMS == 16
    assert "17 params" in refused(HEAD + text(17))


def test_a_thousand_variants_are_allowed() -> None:
    axes = "x: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], y: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], z: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    entry = f"  - {{name: 'a{{x}}_{{y}}_{{z}}', head_dim: 64, matrix: {{{axes}}}, mask: q - kv < x + y * z}}\n"
    assert len(variants("variants:\n" + entry)) == MAX_VARIANTS
    assert "1,001 variants" in refused(HEAD + "variants:\n" + entry + "  - {name: b, head_dim: 64}\n")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("native", "native"),
        ("sm_90a", "sm_90a"),
        ("90a", "sm_90a"),
        ("9.0a", "sm_90a"),
        ("sm90a", "sm_90a"),
        ("SM_90A", "sm_90a"),
        ("compute_90a", "sm_90a"),
        ("8.0", "sm_80"),
        ("80", "sm_80"),
        ("12.0", "sm_120"),
        ("10.0a", "sm_100a"),
        ("'7.5'", "sm_75"),
    ],
)
def test_one_spelling_for_each_target(written: str, name: str) -> None:
    text = f"fagen: 1\nname: demo\ntarget: {written}\nvariants: [{{name: a, head_dim: 64}}]"
    assert load_text(text).targets == (name,)
    assert load_text(text.replace(f": {written}", f": [{written}]")).targets == (name,)


@pytest.mark.parametrize("written", ["sm_70", "130", "sm_90", "9.0", "sm_90b", "gfx942", "'9.0.1'", "cuda", "9"])
def test_other_targets_are_refused_with_the_list(written: str) -> None:
    told = refused(f"fagen: 1\nname: demo\ntarget: {written}\nvariants: [{{name: a, head_dim: 64}}]")
    assert ":3:9: unknown target" in told
    assert "sm_75, sm_80" in told


def test_normal_names_stay_what_they_are() -> None:
    for name in ("cpu", "native", "sm_75", "sm_90a", "sm_121", "nonsense"):
        assert normal_target(name) == name


def test_later_skips_and_says_so() -> None:
    spec = load_text(
        HEAD + "variants:\n"
        "  - {name: now, head_dim: 64}\n"
        "  - {name: 'then{head_dim}', matrix: {head_dim: [64, 128]}, lengths: varlen, later: [lengths]}\n"
    )
    assert [variant.name for variant in expand(spec)] == ["now"]
    assert spec.skipped == (("then64", ("lengths",)), ("then128", ("lengths",)))


def test_anchors_and_aliases_are_plain_reuse() -> None:
    a, b = variants(
        "variants:\n  - {name: a, head_dim: &d 64, mask: &m causal}\n  - {name: b, head_dim: *d, mask: *m}\n"
    )
    assert (b.head_dim, b.mask) == (a.head_dim, a.mask)


def test_the_order_of_keys_changes_nothing() -> None:
    """What a variant is depends on what its spec says, not on how it is laid out."""

    def facts(spec_text: str) -> list[dict]:
        found = [variant.to_json() for variant in expand(load_text(spec_text))]
        for variant in found:
            del variant["line"], variant["column"]
            for key in ("mask", "score"):
                if variant[key]:
                    variant[key] = (variant[key]["text"], variant[key]["resolved"])
        return found

    def shuffled(value: object, rng: random.Random) -> object:
        if isinstance(value, dict):
            items = [(key, shuffled(item, rng)) for key, item in value.items()]
            rng.shuffle(items)
            return dict(items)
        return [shuffled(item, rng) for item in value] if isinstance(value, list) else value

    text = (specs_dir() / "cpu.yaml").read_text()
    expected = facts(text)
    for seed in range(3):
        data = shuffled(yaml.safe_load(text), random.Random(seed))
        assert facts(yaml.safe_dump(data, sort_keys=False)) == expected


def test_bytes_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "sp\xe9c d.yaml"
    text = HEAD + "variants:\n  - name: a\n    head_dim: 64\n    mask: causl\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    with pytest.raises(SpecError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.column) == (str(path), 7, 11)


def test_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "cpu.yaml").write_text("")
    with pytest.raises(SpecError, match="no such file\n  hint: there is .*cpu.yaml"):
        load(tmp_path / "cpv.yaml")
    (tmp_path / "a.yaml").write_text("")
    with pytest.raises(SpecError, match="no such file\n  hint: there are .*a.yaml, .*cpu.yaml"):
        load(tmp_path / "cpv.yaml")
    with pytest.raises(SpecError, match="no such file\n  hint: there is .*cpu.yaml$"):
        load(tmp_path / "cpu")
    with pytest.raises(SpecError, match="is a folder, not a spec file\n  hint: there are .*a.yaml, .*cpu.yaml"):
        load(tmp_path)
    with pytest.raises(SpecError, match="no such file\n  hint: `fagen list` names"):
        load(tmp_path / "elsewhere" / "cpu")


def test_spec_keeps_what_it_was_read_from(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HEAD + "variants: [{name: a, head_dim: 64}]\n")
    spec = load(path)
    assert (spec.name, spec.path, spec.text) == ("demo", str(path), path.read_text())


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HEAD + "variants: [{name: a, head_dim: 64, mask: causal, score: softcap(5)}]\n")
    program = (
        "import sys; from fagen.spec import expand, load; expand(load(sys.argv[1]));"
        "print([m for m in ('torch', 'sympy', 'jinja2', 'numpy', 'rich', 'typer') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", program, str(path)], cwd=root, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr

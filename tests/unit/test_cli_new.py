"""`fagen new`: the starter spec, and specs from Hugging Face configs (as published, cut to what matters here)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fagen.cli import app
from fagen.spec import expand, load

RUN = CliRunner()

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}
GEMMA2 = {
    "model_type": "gemma2",
    "head_dim": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "query_pre_attn_scalar": 256,
    "dtype": "bfloat16",
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "torch_dtype": "bfloat16",
}
GEMMA3 = {
    "model_type": "gemma3",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 1024,
        "query_pre_attn_scalar": 256,
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"},
}
BERT = {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "position_embedding_type": "absolute"}
T5 = {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "is_encoder_decoder": True}
CAUSAL = {"mask": "causal", "score": None, "scale": None, "sink": False}


def spec_of(config: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """The variants, by name, of the spec that `fagen new` writes for a config."""
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    result = RUN.invoke(app, ["new", "model", "--from", str(path), "--out", str(folder / "model.yaml")])
    assert result.exit_code == 0, result.output
    variants = {}
    for variant in expand(load(folder / "model.yaml")):
        fields = variant.to_json()
        for key in ("mask", "score"):
            fields[key] = fields[key] and fields[key]["text"]
        variants[variant.name] = fields
    return variants


# Config -> variants, each with the fields that must be so.
EXPECTED: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    (LLAMA, {"causal": {"head_dim": 128, "dtype": "bf16", "layout": "bhsd", **CAUSAL}}),
    (
        GEMMA2,
        {
            "sliding_4096": {
                "head_dim": 256,
                "scale": 1 / 16,
                "mask": "causal and q - kv < 4096",
                "score": "softcap(50)",
            },
            "causal": {"scale": 1 / 16, "mask": "causal", "score": "softcap(50)"},
        },
    ),
    (
        GPT_OSS,
        {
            "sliding_128": {"head_dim": 64, "sink": True, "mask": "causal and q - kv < 128"},
            "causal": {"sink": True, "mask": "causal"},
        },
    ),
    (
        GEMMA3,
        {
            "sliding_1024": {
                "mask": "(causal and q - kv < 1024) or (image[b, q] == image[b, kv] and image[b, kv] > 0)",
                "dtype": "bf16",
            },
            "causal": {"mask": "(causal) or (image[b, q] == image[b, kv] and image[b, kv] > 0)"},
        },
    ),
    ({**LLAMA, "model_type": "mistral", "sliding_window": None}, {"causal": CAUSAL}),
    (
        {**LLAMA, "model_type": "mistral", "sliding_window": 4096},
        {"sliding_4096": {**CAUSAL, "mask": "causal and q - kv < 4096"}},
    ),
    ({**LLAMA, "model_type": "mistral"}, {"sliding_4096": {**CAUSAL, "mask": "causal and q - kv < 4096"}}),
    ({**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, {"causal": CAUSAL}),
    ({**LLAMA, "model_type": "qwen3", "sliding_window": 4096}, {"causal": CAUSAL}),
    (
        # As it is published: all that its text model has in common with others is left to Transformers.
        {
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "text_config": {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
        },
        {
            "sliding_1024": {"head_dim": 256, "scale": 1 / 16, "mask": "causal and q - kv < 1024"},
            "causal": {"head_dim": 256, "scale": 1 / 16, "mask": "causal"},
        },
    ),
    (
        {"model_type": "gemma2", "torch_dtype": "bfloat16"},
        {"sliding_4096": {"head_dim": 256, "scale": 1 / 16, "score": "softcap(50)"}, "causal": {"mask": "causal"}},
    ),
    ({"model_type": "mpt", "d_model": 512, "n_heads": 8}, {"alibi": {"head_dim": 64}}),
    ({"model_type": "mpt", "d_model": 512, "n_heads": 8, "attn_config": {"alibi": False}}, {"causal": CAUSAL}),
    (
        {
            **LLAMA,
            "model_type": "qwen2",
            "sliding_window": 4096,
            "use_sliding_window": True,
            "max_window_layers": 20,
            "num_hidden_layers": 28,
        },
        {"causal": CAUSAL, "sliding_4096": {}},
    ),
    ({**LLAMA, "model_type": "qwen3", "head_dim": 128, "hidden_size": 1000}, {"causal": {"head_dim": 128}}),
    ({**LLAMA, "model_type": "granite", "attention_multiplier": 0.0078125}, {"causal": {"scale": 0.0078125}}),
    (
        {**LLAMA, "model_type": "llama4_text", "layer_types": ["chunked_attention"], "attention_chunk_size": 8192},
        {"chunked_8192": {"mask": "causal and q // 8192 == kv // 8192"}},
    ),
    (
        {**LLAMA, "model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
        {"causal": CAUSAL},
    ),
    (
        DEEPSEEK,
        {"mla": {"head_dim": 192, "value_dim": 128, "mask": "causal", "scale": 192**-0.5 * 1.3688879454113936**2}},
    ),
    (BERT, {"encoder": {"head_dim": 64, "dtype": "f32", "mask": "kv < length[b]"}}),
    (
        T5,
        {
            "encoder": {"head_dim": 64, "scale": 1.0, "score": "s + rel[h, q - kv + kv_len]"},
            "decoder": {"mask": "causal", "scale": 1.0, "score": "s + rel[h, q - kv + kv_len]"},
            "cross": {"mask": "kv < length[b]", "scale": 1.0, "score": None},
        },
    ),
    (
        {"model_type": "bloom", "hidden_size": 4096, "n_head": 32, "torch_dtype": "float16"},
        {"alibi": {"head_dim": 128, "dtype": "f16", "score": "s + slope[h] * pos[b, kv]"}},
    ),
    (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "attn_config": {"alibi": True}},
        {"alibi": {"head_dim": 128, "score": "s + slope[h] * (kv - kv_len + 1)", "mask": "causal"}},
    ),
    ({"model_type": "gpt2", "n_embd": 768, "n_head": 12}, {"causal": {"head_dim": 64, "dtype": "f32"}}),
    ({"model_type": "vit", "hidden_size": 768, "num_attention_heads": 12}, {"vision": {"head_dim": 64, "mask": None}}),
    (
        {
            "model_type": "clip",
            "vision_config": {"hidden_size": 1024, "num_attention_heads": 16},
            "text_config": {"hidden_size": 768, "num_attention_heads": 12},
        },
        {"vision": {"head_dim": 64, "mask": None}, "text": {"head_dim": 64, "mask": "causal"}},
    ),
    (
        {"model_type": "whisper", "d_model": 1280, "encoder_attention_heads": 20},
        {"encoder": {"mask": None}, "decoder": {"mask": "causal"}, "cross": {"mask": None, "head_dim": 64}},
    ),
]


@pytest.mark.parametrize(
    ("config", "expected"), EXPECTED, ids=[f"{c['model_type']}-{n}" for n, (c, _) in enumerate(EXPECTED)]
)
def test_from_config(config: dict[str, Any], expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    variants = spec_of(config, tmp_path)
    assert list(variants) == list(expected)
    for name, fields in expected.items():
        assert {key: variants[name][key] for key in fields} == pytest.approx(fields), name


REFUSED: list[tuple[Any, str]] = [
    ({**LLAMA, "model_type": "deberta-v2"}, "`model_type` 'deberta-v2' is not known"),
    ({"hidden_size": 4096}, "`model_type` is missing"),
    ({"model_type": ["llama"]}, "is not known"),
    ({"model_type": "llama", "num_attention_heads": 32}, "`hidden_size` is missing"),
    ({**LLAMA, "num_attention_heads": 33}, "not a multiple of 33 heads"),
    ({**LLAMA, "num_attention_heads": True}, "`num_attention_heads` is True, expected a positive integer"),
    ({**LLAMA, "head_dim": -1}, "`head_dim` is -1"),
    ({**LLAMA, "num_key_value_heads": 5}, "32 query heads are not a multiple of 5 key heads"),
    ({**LLAMA, "torch_dtype": "float8_e4m3fn"}, "`torch_dtype` is 'float8_e4m3fn'"),
    ({**LLAMA, "layer_types": ["sideways_attention"]}, "`layer_types` has 'sideways_attention'"),
    ({**LLAMA, "model_type": "llama4_text", "attention_chunk_size": 8192}, "`layer_types` is missing"),
    ({**LLAMA, "model_type": "qwen2", "sliding_window": 9, "use_sliding_window": 1}, "`use_sliding_window` is 1"),
    ({**LLAMA, "layer_types": ["mamba"]}, "none of its layers is softmax attention"),
    ({**LLAMA, "layer_types": ["sliding_attention"]}, "`sliding_window` is missing"),
    ({**GEMMA2, "query_pre_attn_scalar": "256"}, "`query_pre_attn_scalar` is '256'"),
    ({**GEMMA2, "attn_logit_softcapping": "__import__('os')"}, "expected a positive number"),
    (
        {**BERT, "position_embedding_type": "relative_key"},
        "`position_embedding_type: relative_key` adds position terms",
    ),
    ({"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 1, "alibi": True}, "`alibi: True`"),
    ("[1]", "is not a JSON object"),
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ('{"model_type": "llama", "head_dim": 1e999, "num_attention_heads": 8}', "`head_dim` is inf"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused_and_nothing_written(config: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    result = RUN.invoke(app, ["new", "model", "--from", str(path), "--out", str(tmp_path / "model.yaml")])
    assert result.exit_code == 2
    assert message in result.stderr
    assert str(path) in result.stderr
    assert not (tmp_path / "model.yaml").exists()


def test_config_that_is_not_there(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["new", "model", "--from", str(tmp_path / "no.json"), "--out", str(tmp_path / "m.yaml")])
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_starter_loads(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "my_model.yaml"
    result = RUN.invoke(app, ["new", "my_model", "--out", str(path)])
    assert result.exit_code == 0
    assert str(path) in result.stdout
    assert [variant.name for variant in expand(load(path))] == ["causal_d64", "causal_d128", "softcap_d64", "alibi_d64"]


def test_never_overwrites_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    result = RUN.invoke(app, ["new", "mine", "--out", str(path)])
    assert result.exit_code == 7
    assert "--force" in result.stderr
    assert path.read_text() == "precious"
    assert RUN.invoke(app, ["new", "mine", "--out", str(path), "--force"]).exit_code == 0
    assert load(path).name == "mine"


@pytest.mark.parametrize("name", ["../up", "a b", "class", "1st", "x" * 101, "a'b", "a\nb", "{x}", ""])
def test_bad_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUN.invoke(app, ["new", name, "--out", str(tmp_path / "m.yaml")])
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []

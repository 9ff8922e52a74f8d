"""Reading a Hugging Face ``config.json``: which attentions the layers of that model need.

Only what changes the attention itself is read. A model type, layer type or option that is not known here is refused
by name, because a spec that is nearly right computes wrong numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Problem, SpecError

_MAX_BYTES = 4 << 20
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_PADDED = "kv < length[b]"
# What Transformers takes where a config leaves a key out, for keys that decide what attention computes.
_GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0, "num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma3_text": {**_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4},
    "mistral": {"sliding_window": 4096},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "cohere2": {"sliding_window": 4096},
    "granite": {"attention_multiplier": 1.0},
    "qwen2": {"use_sliding_window": False, "max_window_layers": 28},
    "qwen2_moe": {"use_sliding_window": False, "max_window_layers": 28},
    "qwen3": {"use_sliding_window": False, "max_window_layers": 28, "head_dim": 128},
    "qwen3_moe": {"use_sliding_window": False, "max_window_layers": 28},
    "smollm3": {"use_sliding_window": False},
}
_LENGTH = {"length": "{dtype: i32, shape: [B]}"}
_SLOPE = {"slope": "{dtype: f32, shape: [H], grad: true}"}


@dataclass(frozen=True)
class Layer:
    """One kind of attention layer, as a spec's variant; ``why`` becomes its comment."""

    name: str
    head_dim: int
    why: str
    value_dim: int | None = None
    mask: str | None = None
    score: str | None = None
    scale: float | None = None
    sink: bool = False
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """What a config says: its layers, their dtype, head counts (for a comment) and remarks."""

    model_type: str
    dtype: str
    heads: str
    layers: tuple[Layer, ...]
    remarks: tuple[str, ...]


class _Config:
    """Typed access to a config, with errors that name the file and the key."""

    def __init__(self, values: Mapping[str, Any], path: Path):
        self.values, self.path = values, path

    def fail(self, message: str, hint: str | None = None) -> SpecError:
        return SpecError(Problem(message, path=str(self.path), hint=hint))

    def integer(self, *names: str) -> int:
        value = self.maybe_integer(*names)
        if value is None:
            raise self.fail(f"`{names[0]}` is missing", "is this the config.json of a model?")
        return value

    def maybe_integer(self, *names: str) -> int | None:
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 30:
                raise self.fail(f"`{name}` is {value!r}, expected a positive integer")
            return value
        return None

    def maybe_number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fail(f"`{name}` is {value!r}, expected a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(f"`{name}` is {value!r}, expected true or false")
        return value

    def section(self, name: str) -> _Config | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(f"`{name}` is not a mapping")
        return _Config(value, self.path)

    def with_defaults(self, model_type: str) -> _Config:
        """The same, with what the config leaves to Transformers."""
        return _Config({**_DEFAULTS.get(model_type, {}), **self.values}, self.path)

    def text(self) -> _Config:
        """The part about the language model, where there are others."""
        part = self.section("text_config")
        if part is None:
            return self
        model_type = part.values.get("model_type", f"{self.values.get('model_type')}_text")
        return _Config({"model_type": model_type, **part.values}, self.path).with_defaults(str(model_type))

    def refuse(self, name: str, accepted: tuple[Any, ...], why: str) -> None:
        """Refuse the file if option ``name`` is set to something else than one of ``accepted``."""
        value = self.values.get(name)
        if value is not None and value not in accepted:
            raise self.fail(f"`{name}: {value}` {why}, which this command cannot turn into a spec", "write it by hand")


def read_model(path: Path) -> Model:
    """The attentions of the model that ``path`` (a config.json) describes. Raises :class:`SpecError`."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(Problem(f"cannot be read: {error.strerror}", path=str(path))) from None
    if len(data) > _MAX_BYTES:
        raise SpecError(Problem("is larger than 4 MiB, so it is no model's config.json", path=str(path)))
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(Problem(f"is not JSON: {error}", path=str(path))) from None
    if not isinstance(values, dict):
        raise SpecError(Problem("is not a JSON object", path=str(path)))
    config = _Config(values, path)
    model_type = values.get("model_type")
    reader = _READERS.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        raise config.fail(
            f"`model_type` {model_type!r} is not known to this command" if model_type else "`model_type` is missing",
            f"known: {', '.join(sorted(_READERS))}; for others start with `fagen new NAME` and edit the spec",
        )
    config = config.with_defaults(str(model_type))
    text = config.text()
    layers, remarks = reader(config)
    return Model(str(model_type), _dtype(config, text), _heads(text), tuple(layers), tuple(remarks))


_Read = tuple[list[Layer], list[str]]


def _dtype(config: _Config, text: _Config) -> str:
    for source in (text, config):
        for name in ("dtype", "torch_dtype"):
            value = source.values.get(name)
            if value is not None:
                dtype = _DTYPES.get(str(value).removeprefix("torch."))
                if dtype is None:
                    raise config.fail(f"`{name}` is {value!r}, expected one of {', '.join(_DTYPES)}")
                return dtype
    return "f32"  # what Transformers takes where a config names none


def _heads(config: _Config) -> str:
    heads = config.maybe_integer("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads")
    groups = config.maybe_integer("num_key_value_heads", "num_kv_heads")
    if heads is None:
        return "see the config"
    if groups is not None and heads % groups:
        raise config.fail(f"{heads} query heads are not a multiple of {groups} key heads")
    return f"H = {heads}, Hk = {groups or heads}"


def _head_dim(config: _Config) -> int:
    given = config.maybe_integer("head_dim")
    if given is not None:
        return given
    width = config.integer("hidden_size", "d_model", "n_embd", "dim")
    heads = config.integer("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads")
    if width % heads:
        raise config.fail(f"the width {width} is not a multiple of {heads} heads, and `head_dim` is missing")
    return width // heads


def _decoder(config: _Config, *, sink: bool = False, image: bool = False) -> _Read:
    """Decoders whose layers are causal, with or without a sliding window, as most language models are."""
    config = config.text()
    config.refuse("use_bidirectional_attention", (False,), "drops the causal mask")
    head_dim, scale, score = _head_dim(config), _scale(config), None
    cap = config.maybe_number("attn_logit_softcapping")
    if cap is not None:
        score = f"softcap({cap:g})"
    remarks = []
    if score is None and config.maybe_number("final_logit_softcapping"):
        remarks.append("final_logit_softcapping caps the model's logits, not its attention")
    layers = []
    for kind in _layer_kinds(config):
        if kind == "full_attention":
            name, mask, why = "causal", "causal", "full attention"
        elif kind == "sliding_attention":
            window = config.integer("sliding_window")
            name, mask, why = f"sliding_{window}", f"causal and q - kv < {window}", f"each query sees {window} keys"
        elif kind == "chunked_attention":
            chunk = config.integer("attention_chunk_size")
            name, mask, why = f"chunked_{chunk}", f"causal and q // {chunk} == kv // {chunk}", "within one chunk"
        else:
            remarks.append(f"left out: layers of type {kind}, which are not softmax attention")
            continue
        params = {}
        if image:
            mask = f"({mask}) or (image[b, q] == image[b, kv] and image[b, kv] > 0)"
            why += "; the tokens of one image see each other (image: its number from 1, 0 for text)"
            params = {"image": "{dtype: i32, shape: [B, n]}"}
        layers.append(Layer(name, head_dim, why, mask=mask, score=score, scale=scale, sink=sink, params=params))
    if not layers:
        raise config.fail("none of its layers is softmax attention")
    return layers, remarks


def _layer_kinds(config: _Config) -> list[str]:
    """The distinct types of the layers, in order of first use."""
    kinds = config.values.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv", "mamba")
        if not isinstance(kinds, list) or not kinds:
            raise config.fail("`layer_types` is not a list of layer types")
        strange = [kind for kind in kinds if kind not in known]
        if strange:
            raise config.fail(f"`layer_types` has {strange[0]!r}, expected one of {', '.join(known)}")
        return list(dict.fromkeys(kinds))
    if config.values.get("attention_chunk_size") is not None:
        raise config.fail("`layer_types` is missing, so which layers are chunked is not known", "add it to the config")
    if config.maybe_integer("sliding_window") is None or not config.flag("use_sliding_window", True):
        return ["full_attention"]
    model_type = config.values.get("model_type")
    if model_type in ("gemma2", "gemma3_text", "gpt_oss", "cohere2"):  # every second, or n-th, layer sees all keys
        return ["sliding_attention", "full_attention"]
    if model_type in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"):  # the first layers see all keys
        first = config.values.get("max_window_layers")
        count = config.integer("num_hidden_layers")
        if not isinstance(first, int) or isinstance(first, bool):
            raise config.fail(f"`max_window_layers` is {first!r}, expected an integer")
        return [*(["full_attention"] if first > 0 else []), *(["sliding_attention"] if first < count else [])]
    return ["sliding_attention"]


def _scale(config: _Config) -> float | None:
    scalar = config.maybe_number("query_pre_attn_scalar")
    if scalar is not None:
        return scalar**-0.5
    return config.maybe_number("attention_multiplier")  # Granite


def _gemma3(config: _Config) -> _Read:
    return _decoder(config, image=config.values.get("vision_config") is not None)


def _gpt_oss(config: _Config) -> _Read:
    return _decoder(config, sink=True)


def _gpt2(config: _Config) -> _Read:
    config.refuse("scale_attn_by_inverse_layer_idx", (False,), "scales scores by the layer's number")
    config.refuse("scale_attn_weights", (True,), "leaves scores unscaled")
    return [Layer("causal", _head_dim(config), "every layer", mask="causal")], []


def _mla(config: _Config) -> _Read:
    """DeepSeek's multi-head latent attention, as it runs in training and prefill: keys longer than values."""
    key_dim = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
    scale = None
    rope = config.section("rope_scaling") or config.section("rope_parameters")
    if rope is not None and (every := rope.maybe_number("mscale_all_dim")) is not None:
        factor = rope.maybe_number("factor") or 1.0
        mscale = 0.1 * every * math.log(factor) + 1.0 if factor > 1 else 1.0
        scale = key_dim**-0.5 * mscale * mscale
    why = "every layer, keys and values expanded from the latent (prefill and training)"
    return [Layer("mla", key_dim, why, value_dim=config.integer("v_head_dim"), mask="causal", scale=scale)], []


def _bloom(config: _Config) -> _Read:
    layer = Layer(
        "alibi",
        _head_dim(config),
        "pos: each token's position, counted without padding; left: how many padding tokens stand before it",
        mask="causal and kv >= left[b]",
        score="s + slope[h] * pos[b, kv]",
        params={**_SLOPE, "pos": "{dtype: i32, shape: [B, n]}", "left": "{dtype: i32, shape: [B]}"},
    )
    return [layer], ["slope: the ALiBi slope of each head"]


def _mpt(config: _Config) -> _Read:
    attention = config.section("attn_config") or _Config({}, config.path)
    attention.refuse("prefix_lm", (False,), "lets a prefix see itself whole")
    scale = attention.maybe_number("softmax_scale")
    if not attention.flag("alibi", True):
        return [Layer("causal", _head_dim(config), "every layer", mask="causal", scale=scale)], []
    score = "s + slope[h] * (kv - kv_len + 1)"
    layer = Layer("alibi", _head_dim(config), "every layer", mask="causal", score=score, scale=scale, params=_SLOPE)
    return [layer], ["slope: the ALiBi slope of each head"]


def _falcon(config: _Config) -> _Read:
    config.refuse("alibi", (False,), "scales ALiBi with the scores")
    return [Layer("causal", _head_dim(config), "every layer", mask="causal")], []


def _t5(config: _Config) -> _Read:
    head_dim = config.integer("d_kv")
    score = "s + rel[h, q - kv + kv_len]"
    rel = {"rel": "{dtype: f32, shape: [H, n], grad: true}"}
    layers = [
        Layer("encoder", head_dim, "padded batches", mask=_PADDED, score=score, scale=1.0, params={**rel, **_LENGTH}),
        Layer("decoder", head_dim, "self attention", mask="causal", score=score, scale=1.0, params=rel),
        Layer("cross", head_dim, "no position bias", mask=_PADDED, scale=1.0, params=_LENGTH),
    ]
    if config.values.get("is_encoder_decoder") is False:
        layers = layers[:1]
    remark = "rel: the bias of each head at distance q - kv, kv_len added: gather it from the model's buckets"
    return layers, [remark]


def _encoder(config: _Config) -> _Read:
    config.refuse("position_embedding_type", ("absolute",), "adds position terms to the scores")
    config.refuse("is_decoder", (False,), "makes an encoder causal")
    layer = Layer(
        "encoder", _head_dim(config), "padded batches; length: the true length of each", mask=_PADDED, params=_LENGTH
    )
    return [layer], []


def _vision(config: _Config) -> _Read:
    return [Layer("vision", _head_dim(config.section("vision_config") or config), "every patch sees every patch")], []


def _clip(config: _Config) -> _Read:
    layers, _ = _vision(config)
    text = config.text()
    if text is not config:
        causal = config.values.get("model_type") == "clip"
        mask, params = ("causal", {}) if causal else (_PADDED, _LENGTH)
        layers.append(Layer("text", _head_dim(text), "the text tower", mask=mask, params=params))
    return layers, []


def _seq2seq(config: _Config) -> _Read:
    head_dim = _head_dim(config)
    whisper = config.values.get("model_type") == "whisper"  # its input always has one length
    mask, params = (None, {}) if whisper else (_PADDED, _LENGTH)
    return [
        Layer("encoder", head_dim, "self attention", mask=mask, params=params),
        Layer("decoder", head_dim, "self attention", mask="causal"),
        Layer("cross", head_dim, "queries of the decoder, keys of the encoder", mask=mask, params=params),
    ], []


_READERS: dict[str, Callable[[_Config], _Read]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _decoder),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo", "olmo2", "granite", "smollm3"), _decoder),
    **dict.fromkeys(("cohere", "cohere2", "starcoder2", "stablelm", "gpt_neox", "llama4", "llama4_text"), _decoder),
    **dict.fromkeys(("qwen3_next", "opt"), _decoder),
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "gpt2": _gpt2,
    "deepseek_v2": _mla,
    "deepseek_v3": _mla,
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "distilbert", "electra", "camembert"), _encoder),
    **dict.fromkeys(("vit", "deit", "dinov2", "clip_vision_model", "siglip_vision_model"), _vision),
    **dict.fromkeys(("clip", "siglip"), _clip),
    **dict.fromkeys(("bart", "mbart", "marian", "whisper"), _seq2seq),
}

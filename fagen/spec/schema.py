"""The schema of a spec: one pydantic model a level, whose descriptions and examples editors and docs/spec.md show.

The models check the shape of what was written and no more; what a word means (names, expressions, targets) is
checked in ``load.py`` and ``expand.py``, which know more than one key at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ..runtime.variant import DTYPES, PARAM_DTYPES
from ..target import ISAS
from .features import PARTLY_BUILT, status, unbuilt_keys

EXTENTS = ("B", "H", "Hk", "Sq", "Skv", "n")
MAX_RANK = 4
MAX_HEAD_DIM = 4096
MAX_TILE = 4096
MAX_EXTENT = 2**31 - 1


def _expected(what: str, choices: tuple[str, ...] = ()) -> PydanticCustomError:
    """A mistake told as what was expected; what was found is added where it is reported."""
    return PydanticCustomError("expected", "{expected}", {"expected": what, "choices": choices})


class Rule:
    """Marks an annotated type: ``check`` returns the value or raises, ``json`` is what editors are told."""

    def __init__(self, check: Callable[[Any], Any], json: dict[str, Any]):
        self.check, self.json = check, json

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.json)


def _choice(*words: str) -> Rule:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            raise _expected(listed(words), words)
        return value

    return Rule(check, {"type": "string", "enum": list(words)})


def _whole(low: int, high: int) -> Rule:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _expected(f"a whole number from {low} to {high:,}")
        return value

    return Rule(check, {"type": "integer", "minimum": low, "maximum": high})


def _of_types(what: str, *types: type, choices: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Accepts values of just these types; a truth value is a number only where bool is named."""

    def check(value: Any) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _expected(what, choices)
        return value

    return check


def _check_extent(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_EXTENT
    if not whole and value not in EXTENTS:
        raise _expected("B, H, Hk, Sq, Skv, n (any length) or a positive whole number", EXTENTS)
    return value


def _check_target(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not items or any(isinstance(item, bool) or not isinstance(item, (str, int, float)) for item in items):
        raise _expected("a target such as cpu or sm_90a, or a list of targets")
    return value


def _check_dtype(value: Any) -> Any:
    if isinstance(value, dict):
        if value and set(value) <= {"q", "k", "v", "o"} and all(isinstance(item, str) for item in value.values()):
            return value
        raise _expected("a mapping of q, k, v and o to dtypes")
    if not isinstance(value, str) or value not in DTYPES:
        raise _expected(listed(DTYPES), DTYPES)
    return value


def _check_version(value: Any) -> Any:
    if isinstance(value, bool) or value != 1:
        raise _expected("1, the only version of the schema so far")
    return value


_NUMBER_OR_TEXT: dict[str, Any] = {"type": ["number", "string"]}
_TARGETS: dict[str, Any] = {"anyOf": [_NUMBER_OR_TEXT, {"type": "array", "items": _NUMBER_OR_TEXT, "minItems": 1}]}
_EXTENT: dict[str, Any] = {"anyOf": [{"enum": list(EXTENTS)}, {"type": "integer", "minimum": 1}]}
_DTYPE: dict[str, Any] = {
    "anyOf": [{"enum": list(DTYPES)}, {"type": "object", "additionalProperties": {"type": "string"}}]
}

Bool = Annotated[bool, Rule(_of_types("true or false", bool, choices=("true", "false")), {"type": "boolean"})]
Text = Annotated[str | int | float, Rule(_of_types("an expression", str, int, float), _NUMBER_OR_TEXT)]
Constant = Annotated[
    str | int | float,
    Rule(_of_types("a number or a constant expression such as 1/16", str, int, float), _NUMBER_OR_TEXT),
]
Word = Annotated[str, Rule(_of_types("a name", str), {"type": "string"})]
Tile = Annotated[int, _whole(1, MAX_TILE)]
Width = Annotated[int, _whole(1, MAX_HEAD_DIM)]
Extent = Annotated[str | int, Rule(_check_extent, _EXTENT)]
Dtype = Annotated[str | dict[str, str], Rule(_check_dtype, _DTYPE)]
AxisValue = Annotated[
    str | int | float | bool,
    Rule(_of_types("a number, word or truth value", str, int, float, bool), {"type": ["number", "string", "boolean"]}),
]
Axis = Annotated[list[AxisValue], Field(min_length=1)]


def listed(words: Sequence[str]) -> str:
    """ "a, b or c"."""
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _key(description: str, *examples: Any, default: Any = None, shown: str | None = None) -> Any:
    """A key: what it does, examples, and in ``shown`` what leaving it out means."""
    extra: dict[str, Any] = {} if shown is None else {"x-default": shown}
    return Field(default=default, description=description, examples=list(examples), json_schema_extra=extra)


class Level(BaseModel):
    """A level of the schema: unknown keys are errors and nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TileKeys(Level):
    """Tile sizes you insist on; what is left out the planner chooses."""

    q: Tile | None = _key("Query rows of a tile.", 64, shown="the planner's choice")
    kv: Tile | None = _key("Keys of a tile.", 128, shown="the planner's choice")
    stages: Annotated[int, _whole(1, 16)] | None = _key(
        "Tiles in flight between memory and the arithmetic. GPU targets only.", 2, shown="the planner's choice"
    )
    turns: Annotated[str, _choice("scores", "sums", "none")] | None = _key(
        "When a warpgroup lets the next one start its products: after those of its scores, or of its sums; none: they "
        "do not take turns. `sm_90a` only.",
        "scores",
        shown="the planner's choice",
    )


class BackwardTileKeys(Level):
    """Tile sizes of backward kernels that you insist on; what is left out the planner chooses."""

    q: Tile | None = _key("Query rows of a tile.", 64, shown="the planner's choice")
    kv: Tile | None = _key(
        "Keys of a block of threads. `sm_90a` has those that the head dims leave it.", 128, shown="the planner's choice"
    )
    stages: Annotated[int, _whole(1, 16)] | None = _key(
        "Tiles of queries in flight between memory and the arithmetic.", 2, shown="the planner's choice"
    )


class CacheKeys(Level):
    """A paged key-value cache."""

    page: Annotated[int, _whole(1, 2**20)] | None = _key("Keys of a page.", 16)
    dtype: Word | None = _key("The dtype keys and values are stored in.", "e4m3", shown="the variant's dtype")


class ParamKeys(Level):
    """A run-time input that expressions may read."""

    model_config = ConfigDict(json_schema_extra={"required": ["dtype", "shape"]})

    dtype: Annotated[str, _choice(*PARAM_DTYPES)] = Field(
        description="Element type. Integer params may index other params; bool params are truth values.",
        examples=["f32", "i32"],
    )
    shape: list[Extent] = Field(
        max_length=MAX_RANK,
        description="Extents: B (batch), H (query heads), Hk (key heads), Sq, Skv (lengths), n (any length), or a "
        "number. [] is a scalar, written as a bare name in expressions.",
        examples=[["H"], ["B", "n"], ["B", "H", "Sq", "Skv"], []],
    )
    grad: Bool = _key("Whether it takes a gradient; float dtypes only.", True, default=False, shown="false")


class VariantKeys(Level):
    """What a variant may say and ``defaults`` may say for all of them."""

    head_dim: Width | None = _key(
        "Width of a query and of a key.", 64, 128, shown="needed, here, in the matrix or in `defaults`"
    )
    value_dim: Width | None = _key("Width of a value and of the output.", 128, shown="`head_dim`")
    dtype: Dtype | None = _key("Element type of q, k, v and o.", "bf16", "f32", shown="bf16")
    layout: Annotated[str, _choice("bshd", "bhsd")] | None = _key(
        "Order of dims of q, k, v and o: batch, sequence, head, dim. Any strides are accepted at the call.",
        "bshd",
        shown="bshd",
    )
    backward: Bool | None = _key("Whether gradients are built too.", True, shown="true")
    mask: Text | None = _key(
        "Which pairs of query and key take part: a truth-valued expression.",
        "causal",
        "causal and q - kv < 4096",
        shown="every pair",
    )
    score: Text | None = _key(
        "What becomes of the scaled score s before the softmax: a real-valued expression.",
        "softcap(50)",
        "s - slope[h] * abs(q - kv)",
        shown="`s`",
    )
    scale: Constant | None = _key(
        "What q·k is multiplied by: a number or a constant expression. A call may pass its own.",
        "1/16",
        0.125,
        shown="`1/sqrt(head_dim)`",
    )
    align: Annotated[str, _choice("bottom_right", "top_left")] | None = _key(
        "Position of the first query where lengths differ: q = i + (Skv - Sq) with bottom_right, q = i with top_left.",
        "bottom_right",
        shown="bottom_right",
    )
    sink: Bool | None = _key(
        "Adds the input sink [H], float32: one more logit in every row's softmax that no value belongs to.",
        True,
        shown="false",
    )
    deterministic: Bool | None = _key(
        "The same inputs give the same bits, gradients too, whatever the number of threads.", True, shown="false"
    )
    nonfinite: Annotated[str, _choice("contain", "fast")] | None = _key(
        "contain: a NaN or Inf in K or V reaches only the rows whose mask admits that key.", "contain", shown="contain"
    )
    tiles: TileKeys | None = _key(
        "Tile sizes you insist on; forward's, and on `cpu` those of both directions.",
        {"q": 64, "kv": 128},
        shown="the planner's choice",
    )
    backward_tiles: BackwardTileKeys | None = _key(
        "Those of backward kernels for GPU targets.", {"q": 64, "stages": 2}, shown="the planner's choice"
    )
    lengths: Annotated[str, _choice("dense", "varlen")] | None = _key(
        "dense: one length for the whole batch. varlen: sequences packed one behind the other.", "dense", shown="dense"
    )
    multiple_of: Any = _key("Promised divisors of the lengths, which spare their tails.", {"q": 64, "kv": 64})
    cache: CacheKeys | None = _key("Keys and values in a paged cache.", {"page": 16, "dtype": "e4m3"})
    splits: Any = _key("How many parts the keys of a row are split into, to fill a device at decode.", 4, "auto")
    tile_map: Any = _key("A map of the tiles to visit, given at the call.", True)
    value: Text | None = _key("V as a slice of K, as in MLA decode.", "k[:512]", shown="an input v of its own")
    weight: Text | None = _key("What multiplies v, of x, the score after `score`.", "sigmoid(x + b)", shown="`exp(x)`")
    normalize: Bool | None = _key("Whether a row is divided by its sum of weights.", False, shown="true")
    schedule: Any = _key("The kernel's schedule, where a target has several.", "wgmma", shown="the planner's choice")
    group: Any = _key("Query heads of one key head that share a tile.", 8, shown="the planner's choice")
    dropout: Bool | None = _key(
        "Adds the inputs dropout_p and rng_state: weights are dropped at random, the same ones forward and backward.",
        True,
        shown="false",
    )


class VariantEntry(VariantKeys):
    """One attention, or a family of them over a matrix."""

    model_config = ConfigDict(json_schema_extra={"required": ["name"]})

    name: Word = Field(
        description="Names the op and everything made for it. In a family, a template over the matrix: {head_dim}.",
        examples=["gemma2_local", "causal_d{head_dim}"],
    )
    matrix: dict[str, Axis] | None = _key(
        "A list of values for each of some keys: one variant for each combination. Keys that are not variant keys are "
        "constants for the expressions.",
        {"head_dim": [64, 128], "dtype": ["f32", "bf16"]},
        shown="one variant",
    )
    later: list[Word] | None = _key(
        "Keys of this variant that are not built yet: it is checked and then skipped.",
        ["cache", "lengths"],
        shown="none",
    )


class SpecFile(Level):
    """A spec: which attentions to build, for which target."""

    model_config = ConfigDict(title="fagen spec")

    fagen: Annotated[int, Rule(_check_version, {"const": 1})] = Field(
        description="Version of this schema.", examples=[1]
    )
    name: Word = Field(
        description="Names the module: `generated/NAME`, and its ops: `torch.ops.fagen_NAME_HASH`.",
        examples=["cpu", "h100"],
    )
    target: Annotated[Any, Rule(_check_target, _TARGETS)] = Field(
        description="What the kernels run on: cpu, native, a CUDA architecture, or a list of these.",
        examples=["cpu", "sm_90a", ["sm_80", "sm_90a"]],
    )
    isa: Annotated[str, _choice("native", *ISAS)] | None = _key(
        "Instruction set of the cpu target. native: the best of this machine.", "native", "avx2", shown="native"
    )
    defaults: VariantKeys | None = _key(
        "Keys every variant has unless it says otherwise.", {"dtype": "bf16", "backward": True}, shown="none"
    )
    const: dict[str, Constant] | None = _key("Names for numbers, usable in expressions.", {"W": 64}, shown="none")
    params: dict[str, ParamKeys] | None = _key(
        "Run-time inputs that expressions may read. A variant's op takes those that its own expressions read.",
        {"slope": {"dtype": "f32", "shape": ["H"], "grad": True}},
        shown="none",
    )
    define: dict[str, Text] | None = _key(
        "Macros of your own, with or without arguments.", {"near(w)": "abs(q - kv) <= w"}, shown="none"
    )
    variants: list[VariantEntry] = Field(
        description="The attentions.", examples=[[{"name": "causal_d64", "head_dim": 64, "mask": "causal"}]]
    )


LEVELS: dict[str, type[Level]] = {
    "top level": SpecFile,
    "variants": VariantEntry,
    "defaults": VariantKeys,
    "params": ParamKeys,
    "tiles": TileKeys,
    "backward_tiles": BackwardTileKeys,
    "cache": CacheKeys,
}


def variant_keys() -> tuple[str, ...]:
    """The keys a matrix or ``defaults`` may give values to, in the schema's order."""
    return tuple(VariantKeys.model_fields)


def schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, for editors; ``fagen schema`` prints it."""
    result = SpecFile.model_json_schema()
    for level in ("VariantKeys", "VariantEntry"):
        for key in unbuilt_keys():
            entry = result["$defs"][level]["properties"][key]
            note = PARTLY_BUILT.get(key, "not built yet: refused by name until it is")
            entry["description"] += f" ({note[0].upper()}{note[1:]}.)"
            entry["x-status"] = status(key)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tidied(result)}


def _tidied(node: Any) -> Any:
    """Without the noise pydantic adds: titles that repeat a key, null as a default or an alternative."""
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy = {key: _tidied(value) for key, value in node.items() if not (key == "default" and value is None)}
    if "properties" in tidy:
        for entry in tidy["properties"].values():
            entry.pop("title", None)
    choices = [choice for choice in tidy.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1 and "anyOf" in tidy:
        del tidy["anyOf"]
        tidy = {**choices[0], **tidy}
    return tidy

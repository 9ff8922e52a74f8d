"""The variants of golden/*.yaml, planned: each for one instruction set or card, so that all of them are met."""

from __future__ import annotations

from pathlib import Path

from fagen.plan import Plan, plan
from fagen.spec import expand, load

FOLDER = Path(__file__).parent / "golden"
ISAS = {
    "full_d64": "avx512",
    "window_d64": "avx2",
    "alibi_d128": "avx2",
    "gpt_oss_d64": "avx512",
    "t5_d64": "avx512",
    "tree_d128": "portable",
    "natten_d64": "portable",
}
CARDS = {
    "causal_d64_t4": "sm_75",
    "packed_d256": "sm_120",
    "dropout_d64_t4": "sm_75",
    "dropout_d64_h100": "sm_90a",
    "rich_d80": "sm_89",
    "causal_d128_h100": "sm_90a",
    "plain_d72_h100": "sm_90a",
    "relative_d64_h100": "sm_90a",
    "learned_d72_h100": "sm_90a",
    "learned_d192_h100": "sm_90a",
    "dropout_v192_h100": "sm_90a",
    "ordered_d128_h100": "sm_90a",
}


def golden_plans() -> list[Plan]:
    spec = load(FOLDER / "golden.yaml")
    return [plan(variant, isa=ISAS.get(variant.name, "avx512_bf16"), spec=spec.name) for variant in expand(spec)]


def card_plans() -> list[Plan]:
    spec = load(FOLDER / "cards.yaml")
    return [plan(variant, CARDS.get(variant.name, "sm_80"), spec=spec.name) for variant in expand(spec)]

"""No option is taken and then ignored: each changes the kernels or the module, or is refused.

A table of every key of the schema and where it acts; a key that is added to the schema must be added here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fagen.errors import PlanError, SpecError
from fagen.plan import plan
from fagen.render import render
from fagen.render_module import render_module
from fagen.spec import expand, load_text
from fagen.spec.schema import LEVELS, SpecFile

# Key -> a value other than the default, and where it acts:
#   kernel   the text of the kernels is another
#   module   the text around them is another: bindings, signatures
#   call     read at the call from the manifest; the variant of the manifest is another
#   held     the kernels are so in any case
#   cards    the planner refuses it for a CPU; tests/unit/test_tune_planning.py has it on cards
#   refused  "not built yet"
OPTIONS: dict[str, tuple[str, str]] = {
    "head_dim": ("128", "kernel"),
    "value_dim": ("32", "kernel"),
    "dtype": ("bf16", "kernel"),
    "layout": ("bhsd", "module"),
    "backward": ("false", "module"),
    "mask": ("kv < q", "kernel"),
    "score": ("softcap(50)", "kernel"),
    "scale": ("1/16", "call"),
    "align": ("top_left", "kernel"),
    "sink": ("true", "module"),
    "deterministic": ("true", "held"),
    "nonfinite": ("fast", "refused"),
    "tiles": ("{q: 32, kv: 64}", "kernel"),
    "backward_tiles": ("{q: 32}", "cards"),
    "lengths": ("varlen", "refused"),
    "multiple_of": ("{q: 64}", "refused"),
    "cache": ("{page: 16}", "refused"),
    "splits": ("4", "refused"),
    "tile_map": ("true", "refused"),
    "value": ("k[:32]", "refused"),
    "weight": ("sigmoid(x)", "refused"),
    "normalize": ("false", "refused"),
    "schedule": ("mma", "refused"),
    "group": ("8", "refused"),
    "dropout": ("true", "module"),
}
HEAD = "fagen: 1\nname: demo\ntarget: cpu\nisa: {isa}\nvariants:\n  - name: a\n"
BASE = {"head_dim": "64", "dtype": "f32", "mask": "causal"}


def texts(isa: str = "avx2", **changes: str) -> tuple[str, str, object]:
    """The kernels, the module around them, and what the manifest holds of the variant."""
    keys = "".join(f"    {key}: {value}\n" for key, value in {**BASE, **changes}.items())
    (variant,) = expand(load_text(HEAD.format(isa=isa) + keys))
    kernels = "".join(source.text for source in render(plan(variant)))
    comments_aside = "\n".join(line for line in kernels.split("\n") if not line.startswith("//"))
    module = render_module("demo", [variant], namespace="n")
    return comments_aside, "".join(module.values()), variant.to_json()


def test_the_table_has_every_key() -> None:
    assert set(OPTIONS) == set(LEVELS["defaults"].model_fields)


@pytest.mark.parametrize("key", OPTIONS)
def test_the_option_acts_where_the_table_says(key: str) -> None:
    value, where = OPTIONS[key]
    if where == "cards":
        with pytest.raises(PlanError, match=f"{key} is for GPU targets"):
            texts(**{key: value})
        return
    if where == "refused":
        with pytest.raises(SpecError, match="not built yet"):
            texts(**{key: value})
        return
    kernels, module, manifest = texts()
    other_kernels, other_module, other_manifest = texts(**{key: value})
    assert other_manifest != manifest
    assert (other_kernels != kernels) == (where == "kernel" or key in ("backward", "sink", "dropout"))
    if where == "module":
        assert other_module != module


@pytest.mark.parametrize("isa", ["avx512_bf16", "avx512", "portable"])
def test_the_instruction_set_acts(isa: str) -> None:
    assert texts(isa=isa)[0] != texts(isa="avx2")[0]


def test_an_option_for_other_targets_is_refused() -> None:
    with pytest.raises(PlanError, match="stages"):
        texts(tiles="{stages: 2}")


def test_keys_of_the_file_are_known() -> None:
    """Those of the top level act in load and expand, which their own tests show."""
    own_tests = (Path(__file__).parent / "test_spec_load.py").read_text()
    for key in SpecFile.model_fields:
        assert f"{key}:" in own_tests

"""Whatever the params of a spec are called, its kernels compile: no name made of theirs meets another."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fagen.errors import SpecError
from fagen.plan import plan
from fagen.render import render
from fagen.resources import templates_dir
from fagen.runtime.variant import Variant
from fagen.spec import expand, load_text
from fagen.toolchain import find_compiler

# What follows a param's name in C++, and what might come before it.
MADE = re.compile(r"(?:d_|g\d+_|part_of_)?(\w+?)_(?:at(?:_\w+)?|sums|count|part|part_of|grad)")
PAIRS = """w d_w w_at w_grad w_at_grad w_at_h w_at_h_g1 g1_w w_line1 w_at_line1 w_part part_of_w part_of_w_part w_sums
    w_count part_of_w_count""".split()
WORDS = """t1 t2 s1 g1 total total1 p at at_grad row tile queries n r kh weights slopes Array ArrayView Tensor vf vi
    kLanes Scratch Work work item heads_at abs2 min2 int32_t size_t uint64_t INT32_MAX INT64_MIN M_PI BUFSIZ
    FAGEN_UNROLL printf memcpy memset string vector cmath stdin stdout signed_at Infinity Optional""".split()


def spec(names: list[str]) -> list[Variant]:
    """A variant whose every param wants a gradient; read once a row and once a key, through an index too."""
    params = "".join(f"  {name}: {{dtype: f32, shape: [H, n], grad: true}}\n" for name in names)
    reads = [f"{name}[h, {'kv' if n % 2 else '0'}]" for n, name in enumerate(names)]
    score = " + ".join(
        ["s", *reads, f"{names[0]}[h, index[q]]", f"{names[0]}[h, q - kv]", f"{names[-1]}[h, index[kv]]"]
    )
    return expand(
        load_text(
            f"fagen: 1\nname: names\ntarget: cpu\nisa: portable\nparams:\n{params}"
            "  index: {dtype: i32, shape: [n]}\n"
            f'variants:\n  - {{name: all_of_them, head_dim: 8, dtype: f32, mask: causal, score: "{score}"}}\n'
        )
    )


def accepted(name: str) -> bool:
    try:
        return name != "index" and bool(spec([name]))
    except SpecError:
        return False


def must_compile(names: list[str], folder: Path) -> str:
    """Returns the rendered text, of both directions."""
    (variant,) = spec(names)
    sources = render(plan(variant, "cpu", "portable"))
    for source in sources:
        path = folder / source.name
        path.write_text(source.text)
        command = [
            *find_compiler().command,
            *source.flags,
            "-Werror",
            "-fsyntax-only",
            f"-I{templates_dir() / 'include'}",
        ]
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{names}:\n{done.stderr[:2000]}"
    return "\n".join(source.text for source in sources)


def test_params_whose_names_are_alike(tmp_path: Path) -> None:
    assert all(accepted(name) for name in PAIRS)
    for first in range(0, len(PAIRS) - 1, 13):
        must_compile(["w", *PAIRS[max(first, 1) : first + 14]], tmp_path)


def test_params_named_as_what_a_kernel_holds(tmp_path: Path) -> None:
    """Every name in kernels and headers that could have been made of a param's is taken for such a param."""
    text = must_compile(["w"], tmp_path)
    for header in (templates_dir() / "include" / "fagen").rglob("*.h"):
        if "host" not in header.parts:
            text += re.sub("//.*", "", header.read_text())
    found = {match[1] for name in re.findall(r"[A-Za-z_]\w*", text) if (match := MADE.fullmatch(name))}
    names = [name for name in sorted(found | set(WORDS)) if accepted(name)]
    assert len(names) > len(WORDS) / 2
    for first in range(0, len(names), 15):
        must_compile(names[first : first + 15], tmp_path)


@pytest.mark.parametrize("name", ["float", "errno", "assert", "std", "NULL", "w__x", "_w"])
def test_words_of_the_language_are_refused(name: str) -> None:
    assert not accepted(name)

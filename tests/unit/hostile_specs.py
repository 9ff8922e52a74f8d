"""Specs that mean harm, and a program that loads each while watching what the interpreter does.

`python hostile_specs.py FOLDER` writes them under FOLDER, loads them and prints, as JSON, how long each took, what it
was told, and every event in which something was run, written, opened, imported or sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HEAD = "fagen: 1\nname: x\ntarget: cpu\n"


def variant(**keys: str) -> str:
    values = {"name": "a", "head_dim": "64", **keys}
    return HEAD + "variants:\n  - " + "\n    ".join(f"{key}: {value}" for key, value in values.items()) + "\n"


def deep(depth: int, before: str, after: str, core: str = "s") -> str:
    return before * depth + core + after * depth


FILES: dict[str, str | bytes] = {
    # YAML that would build objects under an unsafe loader
    "tag_system": 'name: !!python/object/apply:os.system ["touch pwned"]\n',
    "tag_in_mask": variant(mask='!!python/object/new:subprocess.check_output [["touch", "pwned"]]'),
    "tag_name": HEAD + "variants: !!python/name:os.system\n",
    "tag_module": "!!python/module:antigravity\n",
    "tag_local": variant(mask="!include /etc/passwd"),
    "tag_binary": HEAD + "variants: !!binary aGVsbG8=\n",
    # Expressions that would run under eval
    "import": variant(mask="\"__import__('os').system('touch pwned')\""),
    "import_bare": variant(mask="__import__(os)"),
    "dunder": variant(mask="(1).__class__.__bases__[0].__subclasses__()"),
    "lambda": variant(score='"(lambda: s)()"'),
    "walrus": variant(score='"(x := s)"'),
    "comprehension": variant(score='"[s for i in range(9)]"'),
    "format_string": variant(score="\"f'{s}'\""),
    "eval": variant(score='eval("s")'),
    "attribute": variant(score="s.real"),
    "jinja": variant(mask='"causal {{ 7 * 7 }}"'),
    "jinja_block": variant(mask="\"{% include '/etc/passwd' %}\""),
    "define_import": HEAD
    + "define:\n  f(x): \"__import__('os')\"\nvariants:\n  - {name: a, head_dim: 64, mask: f(1)}\n",
    "scale_import": variant(scale="\"__import__('os').getpid()\""),
    "const_import": HEAD + "const: {W: \"__import__('os').getpid()\"}\nvariants:\n  - {name: a, head_dim: 64}\n",
    # Names that would reach paths and source
    "dotdot_spec": HEAD.replace("name: x", "name: ../x") + "variants:\n  - {name: a, head_dim: 64}\n",
    "dotdot_variant": variant(name="../../a"),
    "absolute": variant(name="/etc/cron.d/a"),
    "quote_name": variant(name='\'a"; system("touch pwned"); //\''),
    "newline_name": variant(name='"a\\nint x;"'),
    "nul_name": variant(name='"a\\0"'),
    "long_name": variant(name="a" * 200),
    "class_template": variant(name='"a{head_dim.__class__}"'),
    "format_template": variant(name='"a{head_dim:>99999999999}"', matrix="{head_dim: [64]}").replace(
        "head_dim: 64\n    ", ""
    ),
    "index_template": variant(name='"a{0}"'),
    "param_name": HEAD + 'params: {"x; int y": {dtype: f32, shape: [H]}}\nvariants:\n  - {name: a, head_dim: 64}\n',
    "shape_name": HEAD + 'params: {x: {dtype: f32, shape: ["H];"]}}\nvariants:\n  - {name: a, head_dim: 64}\n',
    "const_name": HEAD + 'const: {"a\\nb": 1}\nvariants:\n  - {name: a, head_dim: 64}\n',
    "define_name": HEAD + 'define: {"a\\nb(x)": q < x}\nvariants:\n  - {name: a, head_dim: 64}\n',
    "target_name": HEAD.replace("cpu", "'../cpu'") + "variants:\n  - {name: a, head_dim: 64}\n",
    # Text that would leave the comment it is printed in
    "newline_mask": variant(mask='"causal\\nand true"'),
    "comment_end": variant(mask='"causal */ and true"'),
    "line_join": variant(mask='"causal \\\\"'),
    "carriage_return": variant(mask='"causal\\rand true"'),
    "quote_mask": variant(mask="'causal\"'"),
    "unbuilt_newline": variant(value='"k[:512]\\nint x;"', cache="{page: 16}", later="[value, cache]"),
    "unbuilt_quote": variant(value="'k[\"a\"]'", later="[value]"),
    "unbuilt_nested": variant(cache='{page: 16, dtype: "a\\nb"}', later="[cache]"),
    "unbuilt_key": variant(multiple_of='{"a\\nb": 1}', later="[multiple_of]"),
    "unbuilt_tab": variant(schedule='"a\\tb"', later="[schedule]"),
    # Size
    "ten_megabytes": b"# " + b"x" * (10 << 20),
    "ten_megabytes_of_brackets": b"[" * (10 << 20),
    "half_megabyte_of_brackets": "[" * 500_000,
    "half_megabyte_of_dashes": "- " * 250_000,
    "half_megabyte_of_braces": "{a: " * 120_000,
    "many_keys": HEAD + "".join(f"k{i}: {i}\n" for i in range(20_000)),
    "many_bad_variants": HEAD + "variants:\n" + "  - {nmae: a, haed_dim: 64}\n" * 5_000,
    "many_duplicates": HEAD + "name: x\n" * 50_000,
    "long_key": HEAD + "x" * 400_000 + ": 1\n",
    "long_value": HEAD.replace("cpu", "c" * 400_000) + "variants: []\n",
    "long_number": variant(head_dim="9" * 400_000),
    "long_matrix": variant(matrix="{w: [" + "1, " * 100_000 + "1]}", mask="q < w"),
    "alias_bomb": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{c}: &{c} [{', '.join('*' + p for _ in range(9))}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)
    ),
    "alias_of_itself": "a: &a [*a]\n",
    "alias_chain": "a0: &a0 {}\n" + "".join(f"a{i + 1}: &a{i + 1} {{x: *a{i}}}\n" for i in range(10_000)),
    "matrix_of_a_million": variant(
        name="a{x}_{y}_{z}",
        matrix="{" + ", ".join(f"{axis}: [{', '.join(map(str, range(1, 101)))}]" for axis in "xyz") + "}",
        mask="q < x + y + z",
    ),
    "matrix_of_1e60": variant(
        name="a", matrix="{" + ", ".join(f"x{i}: [{', '.join(map(str, range(1, 101)))}]" for i in range(30)) + "}"
    ),
    "matrix_of_1e4000": variant(
        matrix="{" + ", ".join(f"x{i}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" for i in range(4000)) + "}"
    ),
    "thousand_long_expressions": HEAD
    + "variants:\n"
    + "".join(f"  - {{name: a{i}, head_dim: 64, mask: 'kv <= q + {i} and {'not ' * 80}causl'}}\n" for i in range(900)),
    "nested_parentheses": variant(score=deep(3000, "(", ")")),
    "nested_minus": variant(score="'" + "-" * 3000 + "s'"),
    "nested_not": variant(mask="not " * 3000 + "causal"),
    "nested_calls": variant(score=deep(3000, "abs(", ")")),
    "nested_max": variant(score=deep(3000, "max(s, ", ")")),
    "nested_reads": variant(score=deep(3000, "x[", "]", "h")),
    "nested_if": variant(score="s if q < kv else " * 3000 + "s"),
    "long_sum": variant(score="s" + " + s" * 100_000),
    "long_power": variant(score="s" + "**s" * 3000),
    "tower": variant(score="s + 9**9**9**9"),
    "tower_of_reals": variant(score="s + 9.0**9**9**9"),
    "tower_scale": variant(scale="9**9**9**9"),
    "tower_scale_reals": variant(scale="9.0**9.0**9.0"),
    "tower_const": HEAD + "const: {W: 9**9**9}\nvariants:\n  - {name: a, head_dim: 64}\n",
    "shift": variant(score="s + (1 << 9999999999)"),
    "macro_bomb": HEAD
    + "define:\n  m0: s + s\n"
    + "".join(f"  m{i + 1}: m{i} + m{i}\n" for i in range(40))
    + "variants:\n  - {name: a, head_dim: 64, score: m40}\n",
    "macro_loop": HEAD + "define:\n  f: g\n  g: f\nvariants:\n  - {name: a, head_dim: 64, score: f}\n",
    "macro_deep": HEAD
    + "define:\n  m0(x): x\n"
    + "".join(f"  m{i + 1}(x): m{i}(x)\n" for i in range(3000))
    + "variants:\n  - {name: a, head_dim: 64, score: m3000(s)}\n",
    # What is not text
    "nul": HEAD + "variants: \0\n",
    "utf16": "fagen: 1\n".encode("utf-16"),
    "latin1": "name: caf\xe9\n".encode("latin-1"),
    "elf": b"\x7fELF\x02\x01\x01\0\0\0",
    "surrogate": b"name: \xed\xa0\x80\n",
    "escape_codes": HEAD + "variants: \x1b[31m\n",
    "bidi": variant(mask="'causal \u202e and'"),
    "empty": "",
}

_HARMFUL = (
    "exec",
    "import",
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "ctypes.",
    "pty.",
    "marshal.loads",
    "tempfile.",
)


def watch(folder: Path) -> dict[str, Any]:
    """Loads every file and special path; the hook stays for the life of the process, so this runs in one of its own."""
    from fagen.errors import SpecError
    from fagen.spec import load

    paths = {}
    for name, content in FILES.items():
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    fifo = folder / "fifo.yaml"
    os.mkfifo(fifo)
    paths |= {"folder": folder, "missing": folder / "none.yaml", "device": Path("/dev/zero"), "fifo": fifo}
    paths |= {"nul_in_path": Path("a\0b.yaml"), "long_path": Path("a" * 5000)}
    warm = folder / "warm.yaml"
    warm.write_text(variant(mask="causal", score="softcap(50)", scale="1/16"))
    load(warm)  # so that what is imported on the first load is not counted against the others
    with_mistakes = folder / "warm_mistakes.yaml"
    with_mistakes.write_text(variant(mask="causl", maks="1"))
    with contextlib.suppress(SpecError):
        load(with_mistakes)

    events: list[str] = []
    active = [False]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not active[0]:
            return
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        looks = event in ("os.listdir", "os.scandir")
        if writes or (event.startswith(_HARMFUL) and not looks):
            events.append(f"{event} {arguments!r}"[:200])

    sys.addaudithook(hook)
    report = {}
    for name, path in paths.items():
        events.clear()
        told = error = ""
        active[0] = True
        start = time.process_time()  # not the clock's, which counts what else the machine does
        try:
            load(path)
        except SpecError as caught:
            told = str(caught)
        except BaseException as caught:
            error = f"{type(caught).__name__}: {caught}"[:500]
        seconds = time.process_time() - start
        active[0] = False
        report[name] = {"seconds": seconds, "told": told[:20_000], "error": error, "events": list(events)}
    return report


if __name__ == "__main__":
    print(json.dumps(watch(Path(sys.argv[1]))))

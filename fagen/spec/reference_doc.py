"""The generated parts of docs/spec.md: every key, name, operator, function, macro and limit, from the tables that rule.

    python -m fagen.spec.reference_doc docs/spec.md    # rewrites the parts between the markers

Between the markers the page is written by hand. A test fails while the page is not what this would write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..resources import specs_dir
from ..runtime.language import BUILT_INS, FUNCTIONS, NAMES, parse, unparse
from ..runtime.variant import Param
from ..target import TARGETS
from . import MAX_PARAMS, MAX_VARIANTS, expand, load, names, yaml_tree
from .features import status
from .load import MAX_BYTES
from .schema import LEVELS

_MARKED = re.compile(r"(<!-- generated: (?P<part>[\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_NAMES = {
    "s": "the scaled score, `scale` · q·k, in float32; in `score` only",
    "b": "which sequence of the batch",
    "h": "which query head",
    "hk": "which key head; `h // (H // Hk)`",
    "i": "which query, counted from 0 in its sequence",
    "j": "which key, counted from 0 in its sequence",
    "q": "the query's position: `i + kv_len - q_len`, or `i` with `align: top_left`",
    "kv": "the key's position, the same as `j`",
    "q_len": "how many queries the sequence has",
    "kv_len": "how many keys it has",
}

_FUNCTIONS = {
    "min": "the least of two or more; the first of equal ones takes the gradient",
    "max": "the greatest of two or more; the first of equal ones takes the gradient",
    "abs": "distance from 0; gradient 0 at 0",
    "floor": "the integer below, still a real number; gradient 0",
    "exp": "e to the power x",
    "exp2": "2 to the power x",
    "log": "natural logarithm",
    "log2": "logarithm to base 2",
    "sqrt": "square root",
    "tanh": "hyperbolic tangent",
    "sigmoid": "1 / (1 + exp(-x)), without overflow",
    "softplus": "log(1 + exp(x)), without overflow",
    "sin": "sine of radians",
    "cos": "cosine of radians",
}

# Macro -> how it is used, and what to say beside what it expands to.
_MACROS = {
    "causal": ("causal", "a query sees the keys up to its own position"),
    "window": ("window(64, 0)", "left and right are how many keys beside its own; -1 or None leaves a side unbounded"),
    "prefix": ("prefix(length)", "causal, and the first `length` keys seen by all; a param of shape [B], or a number"),
    "document": ("document(doc)", "query and key in the same document; a param of shape [B, n] or [n]"),
    "softcap": ("softcap(50)", "holds scores between -50 and 50"),
    "alibi": ("alibi(slope)", "lowers scores by distance; a param of shape [H], [B, H] or [], or a number"),
}
_MACRO_PARAMS = {
    "length": Param("length", "i32", ("B",)),
    "doc": Param("doc", "i32", ("B", "n")),
    "slope": Param("slope", "f32", ("H",)),
}


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _shown(value: Any) -> str:
    """A value as YAML writes it in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()
    return "`" + text.removesuffix("...").strip() + "`"


def _keys(level: str) -> Callable[[], str]:
    def table() -> str:
        rows = []
        fields = LEVELS[level].model_fields
        for key in sorted(fields, key=lambda key: key != "name"):
            field = fields[key]
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            default = "needed" if field.is_required() else str(extra.get("x-default", ""))
            built = status(key) if level == "variants" else "built"
            note = "" if built == "built" else f" **{built[0].upper()}{built[1:]}.**"
            examples = ", ".join(_shown(example) for example in field.examples or ())
            rows.append((f"`{key}`", f"{field.description}{note}", default, examples))
        return _table(("key", "what it says", "left out", "examples"), rows)

    return table


def _names() -> str:
    return _table(("name", "type", "meaning"), [(f"`{name}`", NAMES[name], _NAMES[name]) for name in NAMES])


def _functions() -> str:
    return _table(("function", "value"), [(f"`{name}`", _FUNCTIONS[name]) for name in FUNCTIONS])


def _macros() -> str:
    rows = []
    for name, macro in BUILT_INS.items():
        use, meaning = _MACROS[name]
        form = f"{name}({', '.join(macro.params)})" if macro.params else name
        expect = "score" if name in ("softcap", "alibi") else "mask"
        rows.append((f"`{form}`", f"`{use}` is `{unparse(parse(use, params=_MACRO_PARAMS, expect=expect))}`", meaning))
    return _table(("macro", "for example", "meaning"), rows)


def _targets() -> str:
    rows = [
        (f"`{target.name}`", target.title, "built" if target.built else "not built yet", ", ".join(target.dtypes))
        for target in TARGETS.values()
    ]
    return _table(("target", "what it is", "status", "dtypes"), rows)


def _limits() -> str:
    rows = [
        ("a spec file", f"{MAX_BYTES // 1024} KiB, {yaml_tree.MAX_VALUES:,} values, {yaml_tree.MAX_DEPTH} levels"),
        ("variants of a spec", f"{MAX_VARIANTS:,}"),
        ("params one variant reads", str(MAX_PARAMS)),
        ("a variant's name", f"{names.MAX_NAME} characters"),
        ("names of params, constants, macros", f"{names.MAX_INNER_NAME} characters"),
    ]
    return _table(("of", "at most"), rows)


def _zoo() -> str:
    """The zoo's variants, one a line, as proof of what can be said."""
    rows = []
    for variant in expand(load(specs_dir() / "zoo.yaml")):
        told = [f"`{key}: {text.text}`" for key, text in (("mask", variant.mask), ("score", variant.score)) if text]
        rows.append((f"`{variant.name}`", "<br>".join(told) or "every pair, unchanged"))
    return _table(("variant", "expressions"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "top level": _keys("top level"),
    "variants": _keys("variants"),
    "params": _keys("params"),
    "tiles": _keys("tiles"),
    "backward_tiles": _keys("backward_tiles"),
    "names": _names,
    "functions": _functions,
    "macros": _macros,
    "targets": _targets,
    "limits": _limits,
    "zoo": _zoo,
}


def refreshed(page: str) -> str:
    """The page with every generated part as it is now. Raises KeyError for a marker that names no part."""
    return _MARKED.sub(lambda match: match.group(1) + PARTS[match["part"]]() + match.group(3), page)


def main() -> None:
    """Rewrites the file named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

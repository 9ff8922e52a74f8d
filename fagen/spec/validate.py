"""Checks a file's values against the schema and says each mistake in fagen's own words, with its place."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import Problem
from .document import Document, Mapping, Node, Place, Scalar, describe, shorten, to_python
from .document import Sequence as SequenceNode
from .schema import LEVELS, MAX_RANK, SpecFile

Loc = tuple[str | int, ...]

MAX_PROBLEMS = 50  # told at once; the rest are counted

# Stands in for a missing key so that the rest of the file can still be checked.
_PLACEHOLDERS: dict[str, Any] = {"fagen": 1, "name": "unnamed", "target": "cpu", "variants": []}


@dataclass(frozen=True)
class Found:
    """A mistake before its hint is worked out, which is done only for those that are shown."""

    message: str
    place: Place
    hint: str | None = None
    word: str = ""
    choices: tuple[str, ...] = ()

    def problem(self, path: str) -> Problem:
        return Problem(self.message, path, self.place.line, self.place.column, self.hint or did_you_mean(self))


def did_you_mean(found: Found) -> str | None:
    """The nearest of the words that would have been right."""
    near = nearest(found.word, found.choices)
    return f"did you mean `{near}`?" if near else None


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like a word, upper and lower case and - and _ being the same, or None."""
    if not word or len(word) > 60:
        return None
    folded = {choice.lower().replace("-", "_"): choice for choice in reversed(list(choices))}
    near = difflib.get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def told(founds: Iterable[Found], path: str, earlier: Sequence[Problem] = ()) -> list[Problem]:
    """All problems in the file's order, each once, with hints; beyond MAX_PROBLEMS only their number."""
    unique = sorted({(found.place, found.message): found for found in founds}.values(), key=lambda found: found.place)
    problems = [*earlier, *(found.problem(path) for found in unique[:MAX_PROBLEMS])]
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
    left_out = len(problems) + max(len(unique) - MAX_PROBLEMS, 0) - MAX_PROBLEMS
    if left_out > 0:
        problems = [*problems[:MAX_PROBLEMS], Problem(f"and {left_out:,} more problems", path)]
    return problems


@dataclass(frozen=True)
class Validated:
    """A file as models. ``broken`` holds the paths of what was wrong and is left out or stood in for."""

    file: SpecFile
    broken: frozenset[Loc] = frozenset()


def validate(document: Document) -> tuple[Validated | None, list[Found]]:
    """The file as models and what is wrong with it; None where nothing can be made of it."""
    root = document.root
    if not isinstance(root, Mapping):
        return None, [Found(f"expected a mapping with the keys of a spec, found {describe(root)}", root.place)]
    data = to_python(root)
    try:
        return Validated(SpecFile.model_validate(data)), list(_empty_values(root))
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
    founds = [*(_translate(root, mistake) for mistake in mistakes), *_empty_values(root)]
    try:
        repaired, broken = _repaired(data, mistakes)
        return Validated(SpecFile.model_validate(repaired), broken), founds
    except ValidationError:
        return None, founds


def validate_value(level: type[BaseModel], key: str, node: Node, where: str) -> tuple[Any, list[Found]]:
    """One value that stands elsewhere than under its key, as in a matrix."""
    try:
        return getattr(level.model_validate({key: to_python(node)}), key), []
    except ValidationError as error:
        return None, [
            _expected(mistake, node, where) for mistake in error.errors(include_url=False, include_input=False)
        ]


def node_at(root: Node, loc: Loc) -> Node:
    """The node at a path, or the last one on the way there that exists."""
    for part in loc:
        if isinstance(root, Mapping) and part in root.entries:
            root = root.entries[str(part)]
        elif isinstance(root, SequenceNode) and isinstance(part, int) and part < len(root.items):
            root = root.items[part]
        else:
            break
    return root


def _translate(root: Mapping, mistake: Any) -> Found:
    loc: Loc = mistake["loc"]
    kind: str = mistake["type"]
    if kind == "extra_forbidden":
        return _unknown_key(root, loc)
    if kind == "missing":
        holder, key = node_at(root, loc[:-1]), str(loc[-1])
        hint = f"add it, for example `{key}: {_example(loc[:-1], key)}`"
        return Found(f"`{key}` is missing{_of(loc[:-1])}", holder.place, hint)
    return _expected(mistake, node_at(root, loc), _name_of(loc))


def _expected(mistake: Any, node: Node, where: str) -> Found:
    context = mistake.get("ctx", {})
    expected = {
        "expected": context.get("expected", ""),
        "model_type": "a mapping of keys",
        "dict_type": "a mapping",
        "list_type": "a list",
        "too_long": f"at most {MAX_RANK} extents",
        "too_short": "at least one value",
    }.get(mistake["type"], mistake["msg"])
    found = str(context["actual_length"]) if mistake["type"] == "too_long" else describe(node)
    choices = tuple(context.get("choices", ()))
    word = node.text if isinstance(node, Scalar) else ""
    hint = None
    if choices == ("true", "false") and word.lower() in ("yes", "on", "y"):
        hint = "write `true`"
    elif choices == ("true", "false") and word.lower() in ("no", "off", "n"):
        hint = "write `false`"
    elif expected == "an expression" and where == "`mask`" and word == "true":
        hint = "leave `mask` out to admit every pair"
    elif expected == "an expression" and where == "`mask`" and word == "false":
        hint = "it would admit no pair, and every output would be 0; leave `mask` out to admit every pair"
    elif expected == "an expression" and isinstance(node, (SequenceNode, Mapping)):
        hint = "an expression that begins with a bracket or brace must be quoted"
    return Found(f"{where}: expected {expected}, found {found}", node.place, hint, word, choices)


def _unknown_key(root: Mapping, loc: Loc) -> Found:
    holder, key = node_at(root, loc[:-1]), str(loc[-1])
    assert isinstance(holder, Mapping)
    known = _known_keys(loc[:-1])
    written, value = holder.keys[key], holder.entries[key]
    message = f"unknown key `{shorten(key)}`{_of(loc[:-1])}"
    if holder.in_braces and isinstance(value, Scalar) and value.is_empty and not key.isidentifier():
        return Found(message, written.place, "inside braces a comma ends a value: quote the expression")
    elsewhere = [
        name for name, level in LEVELS.items() if key in level.model_fields and set(level.model_fields) != set(known)
    ]
    hint = None
    if elsewhere and key not in known:
        place = "at the top level" if elsewhere[0] == "top level" else f"under `{elsewhere[0]}`"
        hint = f"`{key}` belongs {place}"
    return Found(message, written.place, hint, key, known)


def _example(loc: Loc, key: str) -> str:
    """A value for a key of the level at a path, as YAML."""
    return _in_yaml((LEVELS[_level(loc)].model_fields[key].examples or ["..."])[0])


def _in_yaml(value: Any) -> str:
    """A value of the schema's examples in one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_in_yaml(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_in_yaml, value)) + "]" if isinstance(value, list) else str(value)


def _known_keys(loc: Loc) -> tuple[str, ...]:
    """The keys of the level at a path."""
    return tuple(LEVELS[_level(loc)].model_fields)


def _level(loc: Loc) -> str:
    if loc[:1] == ("params",):  # a param may be called as a level is
        return "params"
    return next((str(part) for part in reversed(loc) if part in LEVELS), "top level")


def _of(loc: Loc) -> str:
    """ " in `tiles`", or nothing at the top and in a variant, where the place says enough."""
    names = [part for part in loc if isinstance(part, str) and part != "variants"]
    return f" in `{'.'.join(names)}`" if names else ""


def _name_of(loc: Loc) -> str:
    names = [part for part in loc if isinstance(part, str)]
    if names == ["variants"] and len(loc) > 1:
        return "a variant"
    return f"`{names[-1]}`" + (" in a matrix" if "matrix" in names[:-1] else "") if names else "the spec"


def _empty_values(root: Mapping) -> Iterable[Found]:
    """Keys with nothing behind the colon: null by YAML's rules, but hardly what was meant."""
    todo: list[Node] = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, SequenceNode):
            todo += node.items
        elif isinstance(node, Mapping):
            for key, value in node.entries.items():
                if isinstance(value, Scalar) and value.is_empty and (key.isidentifier() or not node.in_braces):
                    yield Found(
                        f"`{shorten(key)}` has no value", node.keys[key].place, "write a value, or remove the key"
                    )
                todo.append(value)


def _repaired(data: dict[str, Any], mistakes: Sequence[Any]) -> tuple[dict[str, Any], frozenset[Loc]]:
    """A copy without the values that are wrong and with stand-ins for needed ones, and the paths that were changed."""
    data = copy.deepcopy(data)
    broken: set[Loc] = set()
    guesses = MAX_PROBLEMS
    for mistake in mistakes:
        loc: Loc = mistake["loc"]
        if loc[0] == "variants" and len(loc) > 1:
            depth = 3
        elif loc[0] in ("params", "const", "define", "defaults") and len(loc) > 1:
            depth = 2
        else:
            depth = 1
        loc = loc[:depth]
        if mistake["type"] != "extra_forbidden" or len(mistake["loc"]) > depth:
            broken.add(loc)
        elif guesses:  # what a mistyped key was meant to be is not said to be missing as well
            guesses -= 1
            broken.add((*loc[:-1], nearest(str(loc[-1]), _known_keys(loc[:-1])) or ""))
        holder: Any = data
        for part in loc[:-1]:
            holder = holder[part]
        if loc[0] == "variants" and len(loc) == 2:
            holder[loc[1]] = {"name": "unnamed"}
        elif loc[-1] == "name" and len(loc) == 3:
            holder["name"] = "unnamed"
        elif len(loc) == 1 and loc[0] in _PLACEHOLDERS:
            holder[loc[0]] = _PLACEHOLDERS[str(loc[0])]
        else:
            holder.pop(loc[-1], None)
    return data, frozenset(broken)

"""A spec file to a Spec, with every mistake in it reported at once."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

from ..errors import Problem, SpecError
from ..runtime.language import BUILT_INS, RESERVED, Define
from ..runtime.variant import Param
from . import names
from .document import Document, Mapping, Node, Place, Scalar, describe, shorten
from .document import Sequence as SequenceNode
from .expand import expand_all
from .expressions import Names, loops, misspelt, read_constant, strange, written
from .features import unbuilt_keys
from .model import Entry, Spec, Value
from .schema import VariantKeys, variant_keys
from .targets import read_target
from .validate import Found, Validated, node_at, told, validate, validate_value
from .yaml_tree import parse

MAX_BYTES = 512 * 1024

_SIGNATURE = re.compile(r"\s*(\w+)\s*(?:\(\s*((?:\w+\s*(?:,\s*\w+\s*)*)?)\))?\s*", re.ASCII)
_FLOATS = ("f32", "bf16", "f16")


def load(path: str | os.PathLike[str]) -> Spec:
    """The spec in a YAML file. Raises SpecError with all that is wrong, the file's own troubles included."""
    return load_text(_read(Path(path)), str(path))


def load_text(text: str, name: str = "<spec>") -> Spec:
    """The spec in a string; ``name`` stands for the file in messages."""
    document = parse(text, name)
    validated, founds = validate(document)
    if validated is None:
        raise SpecError(told(founds, name, document.problems))
    reader = _Reader(document, validated)
    spec = reader.spec()
    expansion = expand_all(spec)
    problems = told([*founds, *reader.founds, *expansion.founds], name, document.problems)
    if problems:
        raise SpecError(problems)
    return dataclasses.replace(spec, skipped=tuple(expansion.skipped))


def _read(path: Path) -> str:
    shown = shorten(str(path), 1000)
    try:
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(Problem("not a file", shown))
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(Problem("no such file", shown, hint=_perhaps(path))) from None
    except IsADirectoryError:
        raise SpecError(Problem("is a folder, not a spec file", shown, hint=_perhaps(path))) from None
    except (OSError, ValueError) as error:
        raise SpecError(Problem(f"cannot be read: {getattr(error, 'strerror', None) or error}", shown)) from None
    if len(data) > MAX_BYTES:
        raise SpecError(Problem(f"the file is larger than {MAX_BYTES // 1024} KiB, the most a spec may have", shown))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise SpecError(
            Problem(f"not UTF-8: byte 0x{data[error.start]:02X}", shown, line, column, "save the file as UTF-8")
        ) from None


def _perhaps(path: Path) -> str:
    """Which spec may have been meant by a path that is none."""
    twin = f"{path}.yaml"
    if os.path.isfile(twin):
        return f"there is {twin}"
    folder = path if path.is_dir() else path.parent
    near = sorted(folder.glob("*.yaml"))[:8] if folder.is_dir() else []
    if near:
        return f"there {'is' if len(near) == 1 else 'are'} {', '.join(str(file) for file in near)}"
    return "`fagen list` names the specs that come with fagen, `fagen new` writes one to start from"


class _Reader:
    """Reads the levels above the variants, and gathers what each variant says."""

    def __init__(self, document: Document, validated: Validated):
        assert isinstance(document.root, Mapping)
        self.document, self.file, self.root = document, validated.file, document.root
        self.left_out = validated.broken
        self.founds: list[Found] = []
        self.declared: dict[str, tuple[str, Place]] = {}
        self.broken: set[str] = {
            str(loc[1]).split("(")[0].strip()
            for loc in validated.broken
            if len(loc) == 2 and loc[0] in ("params", "const", "define")
        }

    def say(self, message: str, place: Place, hint: str | None = None, word: str = "", choices: Any = ()) -> None:
        self.founds.append(Found(message, place, hint, word, tuple(choices)))

    def spec(self) -> Spec:
        if ("name",) not in self.left_out:
            problem = names.spec_name_problem(self.file.name)
            if problem:
                self.say(f"spec name `{shorten(self.file.name)}` {problem}", self._place("name"))
        consts = self._consts()
        params = self._params()
        defines = self._defines()
        targets = self._targets()
        return Spec(
            name=self.file.name,
            path=self.document.path,
            text=self.document.text,
            targets=tuple(targets),
            target_places=targets,
            isa=self.file.isa or "native",
            params=params,
            consts=consts,
            defines=defines,
            defaults={key: value.value for key, value in self._values(("defaults",), self.file.defaults).items()},
            entries=self._entries(),
            document=self.document,
            broken=frozenset(self.broken),
        )

    def _place(self, *loc: str | int) -> Place:
        return node_at(self.root, loc).place

    def _targets(self) -> dict[str, Place]:
        """Their normal names, and where each stands."""
        node = self.root.entries.get("target")
        found: dict[str, Place] = {}
        if node is None or ("target",) in self.left_out:
            return found
        for item in node.items if isinstance(node, SequenceNode) else (node,):
            if not isinstance(item, Scalar):
                continue
            name, problem = read_target(item.text, item.place)
            if problem:
                self.founds.append(problem)
            elif name in found:
                self.say(f"target `{name}` stands twice", item.place, "remove one of them")
            elif name is not None:
                found[name] = item.place
        return found

    def _declare(self, name: str, kind: str, place: Place, problem: str | None) -> bool:
        """Whether ``name`` may name a param, constant or macro; says why not."""
        if problem is None and name in RESERVED:
            problem = "is a word of the expression language"
        if problem is None and name in self.declared:
            other, first = self.declared[name]
            problem = f"is {other} already, at line {first.line}, column {first.column}"
        if problem:
            self.say(f"{kind} `{shorten(name)}` {problem}", place, "choose another name")
            self.broken.add(name)
            return False
        self.declared[name] = ({"constant": "a constant", "param": "a param", "macro": "a macro"}[kind], place)
        return True

    def _consts(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {}
        for name in self.file.const or {}:
            node, key = self._entry("const", name)
            if not self._declare(name, "constant", key.place, names.identifier_problem(name, names.MAX_INNER_NAME)):
                continue
            assert isinstance(node, Scalar)
            known = Names({}, found, {}, frozenset(self.broken))
            number, problems = read_constant(written(node, self.document), known, name)
            self.founds += problems
            if number is None:
                self.broken.add(name)
            else:
                found[name] = number
        return found

    def _params(self) -> dict[str, Param]:
        found: dict[str, Param] = {}
        for name, keys in (self.file.params or {}).items():
            node, key = self._entry("params", name)
            if not self._declare(name, "param", key.place, names.param_name_problem(name)):
                continue
            if keys.grad and keys.dtype not in _FLOATS:
                self.say(
                    f"param `{name}` of dtype {keys.dtype} cannot take a gradient",
                    node_at(node, ("grad",)).place,
                    "remove `grad`, or make it f32",
                )
            found[name] = Param(name, keys.dtype, tuple(keys.shape), keys.grad)
        return found

    def _defines(self) -> dict[str, Define]:
        found: dict[str, Define] = {}
        for signature in self.file.define or {}:
            node, key = self._entry("define", signature)
            match = _SIGNATURE.fullmatch(signature)
            if match is None:
                self.say(
                    f"`{shorten(signature)}`: expected a macro's name, with arguments in parentheses if it has any",
                    key.place,
                    "write for example `near(w)`",
                )
                continue
            name, listed = match.groups()
            problem = names.identifier_problem(name, names.MAX_INNER_NAME)
            if problem is None and name in BUILT_INS:
                problem = "is a macro of the language"
            if not self._declare(name, "macro", key.place, problem):
                continue
            arguments = tuple(part.strip() for part in (listed or "").split(",") if part.strip())
            if not self._arguments_are_right(name, arguments, key.place):
                continue
            assert isinstance(node, Scalar)
            body = written(node, self.document)
            wrong = misspelt(body)
            if wrong:
                self.founds.append(wrong)
                self.broken.add(name)
            else:
                found[name] = Define(arguments, body.text)
        for loop in loops(found):
            place = self.declared[loop[0]][1]
            self.say(f"macro `{loop[0]}` uses itself: {' -> '.join([*loop, loop[0]])}", place)
            self.broken |= set(loop)
        return found

    def _arguments_are_right(self, macro: str, arguments: tuple[str, ...], place: Place) -> bool:
        for argument in arguments:
            problem = names.identifier_problem(argument, names.MAX_INNER_NAME)
            if problem is None and argument in RESERVED:
                problem = "is a word of the expression language"
            if problem is None and arguments.count(argument) > 1:
                problem = "stands twice"
            if problem:
                self.say(f"argument `{shorten(argument)}` of macro `{macro}` {problem}", place)
                self.broken.add(macro)
                return False
        return True

    def _entry(self, level: str, name: str) -> tuple[Node, Scalar]:
        holder = self.root.entries[level]
        assert isinstance(holder, Mapping)
        return holder.entries[name], holder.keys[name]

    def _entries(self) -> tuple[Entry, ...]:
        node = self.root.entries.get("variants")
        if node is None or ("variants",) in self.left_out:
            return ()
        if not self.file.variants:
            self.say("`variants` is empty: expected at least one", node.place)
        defaults = self._values(("defaults",), self.file.defaults)
        broken_defaults = {str(loc[1]) for loc in self.left_out if len(loc) == 2 and loc[0] == "defaults"}
        broken_keys: dict[str | int, set[str]] = {}
        for path in self.left_out:
            if path[0] == "variants" and len(path) > 2:
                broken_keys.setdefault(path[1], set()).add(str(path[2]))
        found = []
        for index, keys in enumerate(self.file.variants):
            loc = ("variants", index)
            if loc in self.left_out:
                continue
            own = self._values(loc, keys)
            nulls = {key for key in variant_keys() if key in keys.model_fields_set and getattr(keys, key) is None}
            broken = broken_keys.get(index, set()) | broken_defaults
            merged = {**{key: value for key, value in defaults.items() if key not in nulls}, **own}
            matrix = self._matrix(loc, keys.matrix or {}, own, broken)
            named = node_at(self.root, (*loc, "name"))
            self._check_unread(merged)
            found.append(Entry(keys.name, named.place, merged, matrix, tuple(keys.later or ()), frozenset(broken)))
        return tuple(found)

    def _values(self, loc: tuple[str | int, ...], keys: VariantKeys | None) -> dict[str, Value]:
        """The variant keys a level sets, nulls left out."""
        holder = node_at(self.root, loc)
        if keys is None or not isinstance(holder, Mapping):
            return {}
        return {
            key: Value(getattr(keys, key), holder.entries[key], holder.keys[key].place)
            for key in variant_keys()
            if key in keys.model_fields_set and getattr(keys, key) is not None
        }

    def _check_unread(self, values: dict[str, Value]) -> None:
        """What keys that are not built yet hold is not read, but no text stays unchecked."""
        for key in unbuilt_keys():
            todo: list[Node] = [values[key].node] if key in values else []
            while todo:
                node = todo.pop()
                if isinstance(node, Scalar):
                    self.founds += [problem for problem in [strange(written(node, self.document))] if problem]
                elif isinstance(node, Mapping):
                    todo += [*node.keys.values(), *node.entries.values()]
                else:
                    todo += node.items

    def _matrix(
        self, loc: tuple[str | int, ...], axes: dict[str, list[Any]], own: dict[str, Value], broken: set[str]
    ) -> dict[str, tuple[Value, ...]]:
        found: dict[str, tuple[Value, ...]] = {}
        for axis in axes:
            node = node_at(self.root, (*loc, "matrix", axis))
            holder = node_at(self.root, (*loc, "matrix"))
            assert isinstance(node, SequenceNode)
            assert isinstance(holder, Mapping)
            place = holder.keys[axis].place
            if axis in own:
                self.say(f"`{axis}` stands both in the matrix and in the variant", place, "remove one of them")
                broken.add("matrix")
            elif axis in variant_keys():
                found[axis] = tuple(self._axis_of_key(axis, node, place, broken))
            elif self._is_constant_axis(axis, node, place):
                found[axis] = tuple(Value(_value(item), item, place) for item in node.items)
            else:
                broken.add("matrix")
        return found

    def _axis_of_key(self, axis: str, node: SequenceNode, place: Place, broken: set[str]) -> list[Value]:
        values = []
        for item in node.items:
            value, wrong = validate_value(VariantKeys, axis, item, f"`{axis}` in a matrix")
            if wrong:
                self.founds += wrong
                broken.add("matrix")
            values.append(Value(value, item, place))
        return values

    def _is_constant_axis(self, axis: str, node: SequenceNode, place: Place) -> bool:
        problem = names.identifier_problem(axis, names.MAX_INNER_NAME)
        if problem is None and axis in RESERVED:
            problem = "is a word of the expression language"
        if problem is None and axis in self.declared:
            other, first = self.declared[axis]
            problem = f"is {other} already, at line {first.line}, column {first.column}"
        if problem:
            self.say(f"matrix key `{shorten(axis)}` {problem}", place)
            return False
        for item in node.items:
            value = _value(item)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                self.say(
                    f"`{axis}` in a matrix: expected a number, found {describe(item)}",
                    item.place,
                    None,
                    axis,
                    variant_keys(),
                )
                return False
        return True


def _value(node: Node) -> Any:
    return node.value if isinstance(node, Scalar) else None

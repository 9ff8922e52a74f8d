"""PTX tokens to a Module. Source: PTX ISA, Syntax, and Directives."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .model import (
    Call,
    Function,
    Instruction,
    Label,
    Module,
    Operand,
    Place,
    Register,
    Scope,
    Statement,
    Symbol,
    Variable,
)
from .reader import Reader
from .tokens import Token

_LINKING = (".visible", ".extern", ".weak", ".common")
_SPACES = (".global", ".shared", ".local", ".const", ".param", ".tex")
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_ENTRY_DIRECTIVES = (
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".noreturn",
    ".explicitcluster",
    ".reqnctapercluster",
    ".maxclusterrank",
    ".blocksareclusters",
)


def parse(text: str) -> Module:
    """The module that ``text`` says. Raises PtxError with the line."""
    return _Parser(text).module()


def type_bytes(name: str) -> int:
    """Bytes of an element of a PTX type such as "f32" or "b8"; a predicate has one."""
    if name == "pred":
        return 1
    digits = "".join(
        c for c in name.removesuffix("x2").removeprefix("bf").lstrip("abcdefghijklmnopqrstuvwxyz") if c.isdigit()
    )
    size = _SIZES[digits]
    return size * 2 if name.endswith("x2") else size


class _Parser(Reader):
    def __init__(self, text: str):
        super().__init__(text)
        self._module = Module()
        self._loc: tuple[int | None, int, int] = (None, 0, 0)
        self._caller: tuple[int, int, int] | None = None
        self._lines: set[tuple[int, int]] = set()

    def _place(self, token: Token) -> Place:
        return Place(token.line, *self._loc, self._caller)

    # ---- module

    def module(self) -> Module:
        module = self._module
        while self._peek().kind != "end":
            token = self._peek()
            if self._take(".version"):
                major, _, minor = self._next().text.partition(".")
                module.version = (int(major), int(minor or 0))
            elif self._take(".target"):
                module.target = self._word()
                while self._take(","):
                    self._word()
            elif self._take(".address_size"):
                module.address_size = self._integer()
            elif self._take(".file"):
                number = self._integer()
                module.files[number] = self._next().text.strip('"')
                while self._take(","):
                    self._next()
            elif self._take(".section"):
                self._word()
                self._skip_braces()
            elif self._take(".pragma"):
                while self._next().text != ";":
                    pass
            elif self._take(".alias"):
                raise self._error(token, ".alias is not built")
            else:
                self._declaration()
        return module

    def _declaration(self) -> None:
        token = self._peek()
        extern = False
        while self._peek().text in _LINKING:
            extern |= self._next().text == ".extern"
        kind = self._peek().text
        if kind in (".entry", ".func"):
            function = self._function()
            known = self._module.functions.get(function.name)
            if known is None or known.body is None:
                self._module.functions[function.name] = function
        elif kind in _SPACES:
            self._module.variables += self._variables(extern)
        else:
            raise self._error(token, f"unexpected `{token.text}`")

    def _function(self) -> Function:
        start = self._next()
        entry = start.text == ".entry"
        results: tuple[Variable, ...] = ()
        if not entry and self._peek().text == "(":
            results = self._parameters()
        name = self._word()
        parameters = self._parameters() if self._peek().text == "(" else ()
        directives: dict[str, tuple[int, ...]] = {}
        while self._peek().text in _ENTRY_DIRECTIVES or self._peek().text == ".pragma":
            directive = self._word()
            if directive == ".pragma":
                while self._next().text != ";":
                    pass
                continue
            numbers = []
            while self._peek().kind == "number":
                numbers.append(self._integer())
                self._take(",")
            directives[directive.removeprefix(".")] = tuple(numbers)
        body = None
        self._lines = set()
        if not self._take(";"):
            self._expect("{")
            body = self._scope()
        place = self._place(start)
        return Function(name, entry, parameters, results, body, directives, place, frozenset(self._lines))

    def _parameters(self) -> tuple[Variable, ...]:
        self._expect("(")
        found: list[Variable] = []
        while not self._take(")"):
            if self._peek().text == ".reg":
                raise self._error(self._peek(), "parameters in registers are not built")
            found += self._variables(extern=False, several=False)
            self._take(",")
        return tuple(found)

    def _variables(self, extern: bool, several: bool = True) -> list[Variable]:
        """One declaration's variables; with its semicolon if there may be ``several``."""
        start = self._next()
        space = start.text.removeprefix(".")
        align, type_, vector = 0, "", 1
        while self._peek().text.startswith("."):
            word = self._word()
            if word == ".align":
                align = self._integer()
            elif word == ".ptr":
                pass
            elif word in (".v2", ".v4"):
                vector = int(word[2:])
            elif word in _SPACES:
                pass  # the space a pointer parameter points into
            else:
                # `.u64.ptr` may come as one word
                type_ = word.removeprefix(".").split(".")[0]
        found = []
        while True:
            name_token = self._peek()
            name = self._word()
            count: int | None = None
            while self._take("["):
                size = 0 if self._peek().text == "]" else self._integer()
                count = size if count is None else count * size
                self._expect("]")
            if vector > 1:
                count = vector * (1 if count is None else count)
            initial: bytes = b""
            addresses: tuple[tuple[int, Symbol], ...] = ()
            if self._take("="):
                initial, addresses = self._initial(type_)
            found.append(
                Variable(
                    name, space, type_, count, align or type_bytes(type_), self._place(name_token), initial, addresses,
                    extern,
                )
            )  # fmt: skip
            if not several or not self._take(","):
                break
        if several:
            self._expect(";")
        return found

    def _initial(self, type_: str) -> tuple[bytes, tuple[tuple[int, Symbol], ...]]:
        size = type_bytes(type_)
        out = bytearray()
        addresses: list[tuple[int, Symbol]] = []

        def one() -> None:
            if self._peek().text == "{":
                self._next()
                while not self._take("}"):
                    one()
                    self._take(",")
                return
            if self._peek().kind == "word":
                name, offset = self._word(), 0
                if name == "generic":
                    self._expect("(")
                    name = self._word()
                    offset = self._integer() if self._take("+") else 0
                    self._expect(")")
                offset += self._integer() if self._take("+") else 0
                addresses.append((len(out), Symbol(name, offset)))
                out.extend(bytes(size))
                return
            value = self._immediate()
            bits = value.bits
            if value.width and value.width != size * 8:
                as_float = struct.unpack(
                    "<d" if value.width == 64 else "<f", struct.pack("<Q" if value.width == 64 else "<I", bits)
                )[0]
                bits = int.from_bytes(struct.pack("<d" if size == 8 else "<f", as_float), "little")
            out.extend((bits & ((1 << (8 * size)) - 1)).to_bytes(size, "little"))

        one()
        return bytes(out), tuple(addresses)

    # ---- bodies

    def _scope(self) -> Scope:
        registers: dict[str, str] = {}
        variables: list[Variable] = []
        statements: list[Statement | Scope] = []
        while not self._take("}"):
            token = self._peek()
            if token.kind == "end":
                raise self._error(token, "a body without its `}`")
            if self._take("{"):
                statements.append(self._scope())
            elif token.text == ".reg":
                self._registers(registers)
            elif (
                token.text.split(".")[1:2] and f".{token.text.split('.')[1]}" in _SPACES and token.text.startswith(".")
            ):
                variables += self._variables(extern=False)
            elif token.text in _LINKING:
                extern = self._next().text == ".extern"
                variables += self._variables(extern)
            elif self._take(".loc"):
                self._location()
            elif self._take(".pragma"):
                while self._next().text != ";":
                    pass
            elif token.kind == "word" and self._peek(1).text == ":":
                self._at += 2
                if self._peek().text == ".branchtargets":
                    self._next()
                    self._module.branch_targets[token.text] = tuple(self._names())
                elif self._peek().text in (".callprototype", ".calltargets"):
                    raise self._error(token, "indirect calls are not built")
                else:
                    statements.append(Label(token.text))
            else:
                statements.append(self._instruction())
        return Scope(registers, tuple(variables), tuple(statements))

    def _names(self) -> Iterator[str]:
        while True:
            yield self._word()
            if not self._take(","):
                self._expect(";")
                return

    def _registers(self, into: dict[str, str]) -> None:
        self._expect(".reg")
        type_ = self._word().removeprefix(".")
        if type_ in ("v2", "v4"):
            raise self._error(self._peek(), "vector registers are not built")
        while True:
            name = self._word()
            if self._take("<"):
                for number in range(self._integer()):
                    into[f"{name}{number}"] = type_
                self._expect(">")
            else:
                into[name] = type_
            if not self._take(","):
                break
        self._expect(";")

    def _location(self) -> None:
        here = self._integer(), self._integer(), self._integer()
        self._loc, self._caller = here, None
        while self._take(","):
            word = self._word()  # function_name label+offset, or inlined_at file line column
            if word == "inlined_at":
                self._caller = self._integer(), self._integer(), self._integer()
                self._module.inlined.setdefault(here, set()).add(self._caller)
            else:
                self._word()
                if self._take("+"):
                    self._integer()
        if self._caller is None:
            self._lines.add(here[:2])

    def _instruction(self) -> Instruction | Call:
        start = self._peek()
        guard, negated = None, False
        if self._take("@"):
            negated = self._take("!")
            guard = Register(self._word())
        opcode_token = self._peek()
        opcode, *modifiers = self._word().split(".")
        if opcode == "call":
            return self._call(start, guard, negated)
        operands: list[Operand] = []
        while not self._take(";"):
            operands.append(self._operand())
            self._take(",")
        end = self._tokens[self._at - 1]
        text = " ".join(self._text[opcode_token.start if guard is None else start.start : end.end].split())
        return Instruction(opcode, tuple(modifiers), tuple(operands), self._place(start), text, guard, negated)

    def _call(self, start: Token, guard: Register | None, negated: bool) -> Call:
        results: tuple[Operand, ...] = ()
        if self._peek().text == "(":
            results = self._list()
            self._expect(",")
        token = self._peek()
        function = self._word()
        if function.startswith("%"):
            raise self._error(token, "indirect calls are not built")
        arguments: tuple[Operand, ...] = ()
        if self._take(","):
            arguments = self._list()
        end = self._expect(";")
        text = " ".join(self._text[start.start : end.end].split())
        return Call(function, results, arguments, self._place(start), text, guard, negated)

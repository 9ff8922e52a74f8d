"""Tokens to operands and constants. Source: PTX ISA, Syntax; Instruction Operands."""

from __future__ import annotations

import struct

from .model import Address, Immediate, Negated, Operand, Pair, Register, Sink, Symbol, Vector
from .tokens import PtxError, Token, tokens


class Reader:
    """Reads one text from its beginning."""

    def __init__(self, text: str):
        self._text = text
        self._tokens = list(tokens(text))
        self._at = 0

    # ---- tokens

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        if at < len(self._tokens):
            return self._tokens[at]
        last = self._tokens[-1].line if self._tokens else 1
        return Token("end", "", last, len(self._text), len(self._text))

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, text: str) -> bool:
        if self._peek().text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        token = self._next()
        if token.text != text:
            raise self._error(token, f"expected `{text}`, found `{token.text or 'the end'}`")
        return token

    def _word(self) -> str:
        token = self._next()
        if token.kind != "word":
            raise self._error(token, f"expected a name, found `{token.text or 'the end'}`")
        return token.text

    def _skip_braces(self) -> None:
        self._expect("{")
        depth = 1
        while depth:
            token = self._next()
            if token.kind == "end":
                raise self._error(token, "a section without its `}`")
            depth += {"{": 1, "}": -1}.get(token.text, 0)

    def _error(self, token: Token, what: str) -> PtxError:
        line = self._text.split("\n")[token.line - 1].strip()
        return PtxError(f"PTX line {token.line}: {what}: {line}")

    # ---- operands

    def _list(self) -> tuple[Operand, ...]:
        self._expect("(")
        found = []
        while not self._take(")"):
            found.append(self._operand())
            self._take(",")
        return tuple(found)

    def _operand(self) -> Operand:
        operand = self._single()
        if self._take("|"):
            return Pair(operand, self._single())
        return operand

    def _single(self) -> Operand:
        token = self._peek()
        if self._take("["):
            return self._address()
        if self._take("{"):
            items = []
            while not self._take("}"):
                items.append(self._operand())
                self._take(",")
            return Vector(tuple(items))
        if self._take("!"):
            return Negated(Register(self._word()))
        if token.kind == "number" or token.text in ("-", "~", "(", "!"):
            return self._immediate()
        name = self._word()
        if name == "_":
            return Sink()
        if name.startswith("%"):
            return Register(name)
        offset = 0
        while self._peek().text in ("+", "-"):
            sign = -1 if self._next().text == "-" else 1
            offset += sign * self._integer()
        return Symbol(name, offset)

    def _address(self) -> Address:
        base: Register | Symbol | None = None
        offset = 0
        if self._peek().kind == "word":
            name = self._word()
            base = Register(name) if name.startswith("%") else Symbol(name)
            while self._peek().text in ("+", "-"):
                sign = -1 if self._next().text == "-" else 1
                offset += sign * self._integer()
        else:
            offset = self._integer()
        index: tuple[Register | Immediate, ...] = ()
        if self._take(","):
            self._expect("{")
            found: list[Register | Immediate] = []
            while not self._take("}"):
                item = self._single()
                if not isinstance(item, Register | Immediate):
                    raise self._error(self._peek(), "a coordinate is a register or a number")
                found.append(item)
                self._take(",")
            index = tuple(found)
        self._expect("]")
        return Address(base, offset, index)

    # ---- constants

    def _integer(self) -> int:
        value = self._immediate()
        if value.width:
            raise self._error(self._peek(), "expected a whole number")
        return value.bits

    def _immediate(self) -> Immediate:
        if self._take("-"):
            value = self._immediate()
            if value.width:
                return Immediate(value.bits ^ (1 << (value.width - 1)), value.width)
            return Immediate(-value.bits)
        if self._take("~"):
            return Immediate(~self._immediate().bits)
        if self._take("("):
            value = self._immediate()
            self._expect(")")
            return value
        token = self._next()
        if token.kind != "number":
            raise self._error(token, f"expected a number, found `{token.text or 'the end'}`")
        text = token.text
        if text[:2] in ("0f", "0F"):
            return Immediate(int(text[2:], 16), 32)
        if text[:2] in ("0d", "0D"):
            return Immediate(int(text[2:], 16), 64)
        if "." in text or ("e" in text.lower() and not text.lower().startswith("0x")):
            return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
        text = text.removesuffix("U")
        octal = len(text) > 1 and text[0] == "0" and text.isdigit()
        return Immediate(int(text, 8 if octal else 0))

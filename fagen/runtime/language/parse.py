"""Text to typed tree. Python's ``ast`` reads the text, an allow-list walks what it read; nothing is ever evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping

from ..shapes import shape_of
from ..variant import Param
from .construct import NumberError, binary, call, logic, negative, number
from .errors import LanguageError, joined
from .extents import element_type, typical_index, wrong_index
from .functions import ELSEWHERE, EXTREMES, FUNCTIONS
from .hints import nearest, parenthesised
from .macros import BUILT_INS, Argument, BuiltIn, Define, MacroError
from .nodes import NAMES, Compare, Conditional, Name, Node, Not, Number, Read, children
from .scope import Scope
from .unparse import unparse

MAX_DEPTH = 64  # of the tree, and of the parser's own recursion
MAX_NODES = 500
MAX_WORK = 20_000  # pieces of text looked at, a macro's body counted each time it is used
MAX_TEXT = 16_000  # of the tree written out again: less than scan() takes, so that it can be read back

_ARITHMETIC = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_TRUTHS = {"true": True, "false": False}
_A = {"bool": "a truth value", "int": "an integer", "real": "a real number"}

# Names no param, constant, matrix key or macro may have: they would hide, or be hidden by, the language's own.
RESERVED = frozenset(
    [*NAMES, *FUNCTIONS, *_TRUTHS, "causal", "None", "True", "False", "and", "or", "not", "if", "else", "is", "in"]
)


def parse(
    text: str,
    *,
    params: Mapping[str, Param] | None = None,
    consts: Mapping[str, int | float] | None = None,
    defines: Mapping[str, Define] | None = None,
    expect: str,
) -> Node:
    """The tree of an expression; LanguageError if it is not in the language.

    ``expect`` is "mask" (a truth value of a pair), "score" (a number of a pair, the only kind that may use ``s``) or
    "number" (a constant). ``params`` are the run-time inputs it may read, ``consts`` names that stand for numbers,
    ``defines`` macros besides the built-in ones.
    """
    node = _Parser(params or {}, consts or {}, defines or {}, expect).read(text)
    message, hint = None, None
    if expect == "mask" and node.type != "bool":
        message = f"a mask is a truth value, but this is {_A[node.type]}"
        hint = "compare it with something, as in `kv <= q`"
    elif expect == "score" and node.type == "bool":
        message = "a score change is a number, but this is a truth value"
        hint = "a condition on which keys are seen belongs under `mask:`"
    elif expect == "number" and node.type == "bool":
        message = "a number was expected, but this is a truth value"
    if message:
        raise LanguageError(message, len(text) - len(text.lstrip()), len(text.rstrip()), hint, text)
    return node


class _Parser:
    """One call of parse(): what names mean, and how much has been read so far."""

    def __init__(
        self,
        params: Mapping[str, Param],
        consts: Mapping[str, int | float],
        defines: Mapping[str, Define],
        expect: str,
    ):
        self.params, self.consts, self.defines, self.expect = params, consts, defines, expect
        self.work = self.depth = 0
        self.visitors: dict[type, Callable] = {
            ast.Constant: self.constant,
            ast.Name: self.name,
            ast.Subscript: self.subscript,
            ast.Call: self.call,
            ast.UnaryOp: self.unary,
            ast.BinOp: self.binary,
            ast.BoolOp: self.boolean,
            ast.Compare: self.compare,
            ast.IfExp: self.conditional,
        }

    def read(self, text: str, macros: tuple[str, ...] = (), arguments: Mapping[str, Argument] | None = None) -> Node:
        """The tree of the user's text, or of a macro's body."""
        scope = Scope.of(text, macros, arguments or {})
        node = self.visit(scope.tree(), scope)
        size, deepest, stack = 0, 0, [(node, 1)]
        while stack and size <= MAX_NODES and deepest <= MAX_DEPTH:
            top, depth = stack.pop()
            size, deepest = size + 1, max(deepest, depth)
            stack.extend((below, depth + 1) for below in children(top))
        if size > MAX_NODES:
            raise scope.error(None, f"this has more than {MAX_NODES} terms once its macros are expanded")
        if deepest > MAX_DEPTH:
            raise scope.error(None, f"this is more than {MAX_DEPTH} terms deep once its macros are expanded")
        if len(unparse(node)) > MAX_TEXT:
            raise scope.error(None, f"this is longer than {MAX_TEXT:,} characters once its macros are expanded")
        return node

    def visit(self, node: ast.expr, scope: Scope) -> Node:
        self.work += 1
        if self.work > MAX_WORK:
            raise scope.error(node, "its macros expand to too much")
        visitor = self.visitors.get(type(node))
        if visitor is None:
            raise scope.error(node, f"`{scope.source(node)}` is not part of the language")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise scope.error(node, f"this is nested more than {MAX_DEPTH} deep")
        try:
            result: Node = visitor(node, scope)
        except NumberError as error:
            raise scope.error(node, str(error)) from None
        finally:
            self.depth -= 1
        return result

    def each(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Node]:
        """The trees of parts that say nothing about each other: all their mistakes are told at once."""
        found: list[Node] = []
        errors: list[LanguageError] = []
        for node in nodes:
            try:
                found.append(self.visit(node, scope))
            except LanguageError as error:
                errors.append(error)
        if errors:
            raise joined(errors) if len(errors) > 1 else errors[0]
        return found

    # Leaves

    def constant(self, node: ast.Constant, scope: Scope) -> Node:
        if isinstance(node.value, (bool, int, float)):
            return number(node.value)
        hint = "None stands for no bound: window(None, 0)" if node.value is None else None
        raise scope.error(node, f"`{scope.source(node)}` is not a number", hint)

    def name(self, node: ast.Name, scope: Scope) -> Node:
        name = node.id
        if name in scope.arguments:
            argument = scope.arguments[name]
            if argument is None:
                raise scope.error(node, f"`{name}` is None here, which is not a number")
            return self.scalar(argument, node, scope) if isinstance(argument, Param) else argument
        if name in NAMES:
            return self.variable(name, node, scope)
        if name in _TRUTHS:
            return Number(_TRUTHS[name])
        if name in self.params:
            return self.scalar(self.params[name], node, scope)
        if name in self.consts:
            value = self.consts[name]
            if not isinstance(value, (bool, int, float)):
                raise scope.error(node, f"`{name}` stands for {value!r}, which is not a number")
            return number(value)
        if name in self.defines or name in BUILT_INS:
            return self.macro(name, [], [], node, scope)
        if name in FUNCTIONS:
            raise scope.error(node, f"`{name}` is a function", f"write `{name}(...)`")
        hint = nearest(name, [*scope.arguments, *self.names(), *self.defines, *BUILT_INS])
        raise scope.error(node, f"unknown name `{name}`", hint)

    def names(self) -> list[str]:
        """What a bare name may be here."""
        if self.expect == "number":
            return list(self.consts)
        return [*(n for n in NAMES if n != "s" or self.expect == "score"), *self.params, *self.consts]

    def variable(self, name: str, node: ast.expr, scope: Scope) -> Node:
        if self.expect == "number":
            raise scope.error(node, f"`{name}` differs from pair to pair, but a constant is wanted here")
        if name == "s" and self.expect == "mask":
            hint = "what depends on the score belongs under `score:`"
            raise scope.error(node, "a mask cannot depend on the score `s`", hint)
        return Name(name, NAMES[name])

    def scalar(self, param: Param, node: ast.expr, scope: Scope) -> Node:
        if self.expect == "number":
            raise scope.error(node, f"`{param.name}` is only known at run time, but a constant is wanted here")
        if param.shape:
            indices = ", ".join(map(typical_index, param.shape))
            message = f"`{param.name}` has shape {shape_of(param)}; here it is read with no index"
            raise scope.error(node, message, f"write `{param.name}[{indices}]`, say")
        return Name(param.name, element_type(param))

    def subscript(self, node: ast.Subscript, scope: Scope) -> Node:
        param = self.array(node.value, scope)
        if self.expect == "number":
            raise scope.error(node, f"`{param.name}` is only known at run time, but a constant is wanted here")
        written = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not param.shape:
            raise scope.error(node, f"`{param.name}` is a scalar: it takes no index", f"write `{param.name}`")
        if len(written) != len(param.shape):
            wants = "1 index" if len(param.shape) == 1 else f"{len(param.shape)} indices"
            raise scope.error(node, f"`{param.name}` has shape {shape_of(param)}: it wants {wants}, not {len(written)}")
        indices = []
        for extent, index, value in zip(param.shape, written, self.each(written, scope), strict=True):
            if value.type != "int":
                hint = "`//` divides integers, `/` gives a real number" if value.type == "real" else None
                message = f"an index is an integer, but `{scope.source(index)}` is {_A[value.type]}"
                raise scope.error(index, message, hint)
            if wrong_index(extent, value):
                message = (
                    f"`{param.name}` has shape {shape_of(param)}: `{unparse(value)}` is no index of extent {extent}"
                )
                raise scope.error(index, message, f"write `{typical_index(extent)}`")
            indices.append(value)
        return Read(param.name, tuple(indices), element_type(param))

    def array(self, node: ast.expr, scope: Scope) -> Param:
        """The param in front of ``[...]``."""
        if not isinstance(node, ast.Name):
            raise scope.error(node, f"only a param can be read with [...], not `{scope.source(node)}`")
        name = node.id
        if name in scope.arguments:
            argument = scope.arguments[name]
            if isinstance(argument, Param):
                return argument
            raise scope.error(node, f"`{name}` is not a param here, so it cannot be read with [...]")
        if name in self.params:
            return self.params[name]
        if name in NAMES or name in self.consts:
            raise scope.error(node, f"`{name}` is a number, not a param: it cannot be read with [...]")
        if name in FUNCTIONS or name in BUILT_INS or name in self.defines:
            raise scope.error(node, f"`{name}` is called with (...), not read with [...]")
        declare = "declare it under `params:`"
        raise scope.error(node, f"unknown param `{name}`", nearest(name, self.params) or declare)

    # Operators

    def unary(self, node: ast.UnaryOp, scope: Scope) -> Node:
        x = self.visit(node.operand, scope)
        if isinstance(node.op, (ast.Not, ast.Invert)):
            symbol = "not" if isinstance(node.op, ast.Not) else "~"
            self.want_truth(x, node.operand, symbol, scope)
            return Not(x)
        symbol = "-" if isinstance(node.op, ast.USub) else "+"
        self.want_number(x, node.operand, symbol, scope)
        return negative(x) if symbol == "-" else x

    def binary(self, node: ast.BinOp, scope: Scope) -> Node:
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            symbol, word = ("&", "and") if isinstance(node.op, ast.BitAnd) else ("|", "or")
            sides = self.each((node.left, node.right), scope)
            for side, written in zip(sides, (node.left, node.right), strict=True):
                self.want_truth(side, written, symbol, scope)
            return logic(word, sides)
        symbol = _ARITHMETIC.get(type(node.op), "")
        if not symbol:
            raise scope.error(node, f"`{scope.source(node)}` is not part of the language")
        left, right = self.each((node.left, node.right), scope)
        self.want_number(left, node.left, symbol, scope)
        self.want_number(right, node.right, symbol, scope)
        try:
            return binary(symbol, left, right)
        except NumberError as error:
            hint = "for a real result make the base real, as in `2.0 ** n`" if symbol == "**" else None
            raise scope.error(node, str(error), hint) from None

    def boolean(self, node: ast.BoolOp, scope: Scope) -> Node:
        word = "and" if isinstance(node.op, ast.And) else "or"
        args = self.each(node.values, scope)
        for arg, written in zip(args, node.values, strict=True):
            self.want_truth(arg, written, word, scope)
        return logic(word, args)

    def compare(self, node: ast.Compare, scope: Scope) -> Node:
        written = [node.left, *node.comparators]
        for operand in written:
            if isinstance(operand, ast.BinOp) and isinstance(operand.op, (ast.BitAnd, ast.BitOr)):
                self.precedence_trap(operand, node, scope)
        sides = self.each(written, scope)
        pairs: list[Node] = []
        for k, op in enumerate(node.ops):
            symbol = _COMPARISONS.get(type(op))
            if symbol is None:
                word = "in" if isinstance(op, (ast.In, ast.NotIn)) else "is"
                raise scope.error(node, f"`{word}` is not part of the language", "compare with < <= > >= == !=")
            left, right = sides[k], sides[k + 1]
            if (left.type == "bool") != (right.type == "bool") or (left.type == "bool" and symbol not in ("==", "!=")):
                a, b = scope.source(written[k]), scope.source(written[k + 1])
                message = f"`{symbol}` cannot compare `{a}`, {_A[left.type]}, with `{b}`, {_A[right.type]}"
                raise scope.error(node, message, "truth values are joined with `and`, `or`, `not`")
            pairs.append(Compare(symbol, left, right))
        return logic("and", pairs)

    def precedence_trap(self, operand: ast.BinOp, node: ast.Compare, scope: Scope) -> None:
        """``causal & q - kv < 4096`` is ``(causal & (q - kv)) < 4096`` to Python."""
        if scope.in_parentheses(operand):
            return
        symbol = "&" if isinstance(operand.op, ast.BitAnd) else "|"
        start, end = scope.span(node)
        fixed = parenthesised(scope.text, scope.tokens, start, end).strip()
        message = f"`{symbol}` binds tighter than a comparison, so this compares `{scope.source(operand)}`"
        raise scope.error(node, message, f"write `{fixed}`, or use `{'and' if symbol == '&' else 'or'}`")

    def conditional(self, node: ast.IfExp, scope: Scope) -> Node:
        test, yes, no = self.each((node.test, node.body, node.orelse), scope)
        self.want_truth(test, node.test, "if", scope)
        if (yes.type == "bool") != (no.type == "bool"):
            raise scope.error(node, f"one branch is {_A[yes.type]}, the other {_A[no.type]}")
        return Conditional(test, yes, no)

    def want_truth(self, node: Node, written: ast.expr, symbol: str, scope: Scope) -> None:
        if node.type != "bool":
            message = f"`{symbol}` wants truth values, but `{scope.source(written)}` is {_A[node.type]}"
            raise scope.error(written, message, "compare it with something, as in `kv <= q`")

    def want_number(self, node: Node, written: ast.expr, symbol: str, scope: Scope) -> None:
        if node.type == "bool":
            message = f"`{symbol}` wants numbers, but `{scope.source(written)}` is a truth value"
            raise scope.error(written, message, f"write `(1 if {scope.source(written)} else 0)` for a number")

    # Calls

    def call(self, node: ast.Call, scope: Scope) -> Node:
        if not isinstance(node.func, ast.Name):
            raise scope.error(node.func, f"`{scope.source(node.func)}` cannot be called")
        name = node.func.id
        for keyword in node.keywords:
            if keyword.arg is None:
                raise scope.error(node, f"`{scope.source(node)}` is not part of the language")
        if name not in FUNCTIONS:
            if name in self.defines or name in BUILT_INS:
                return self.macro(name, node.args, node.keywords, node, scope)
            if name in self.params:
                raise scope.error(node, f"`{name}` is a param: it is read with [...], not called")
            hint = ELSEWHERE.get(name) or nearest(name, [*FUNCTIONS, *self.defines, *BUILT_INS])
            raise scope.error(node.func, f"unknown function `{name}`", hint)
        args = tuple(self.each(node.args, scope))
        if node.keywords or (len(args) < 2 if name in EXTREMES else len(args) != 1):
            wants = "two or more numbers" if name in EXTREMES else "one number"
            raise scope.error(node, f"`{name}` wants {wants}")
        for arg, written in zip(args, node.args, strict=True):
            self.want_number(arg, written, name, scope)
        return call(name, args)

    def macro(self, name: str, args: list[ast.expr], keywords: list[ast.keyword], node: ast.expr, scope: Scope) -> Node:
        """A macro's body with its arguments in place of its parameters."""
        macro: Define | BuiltIn = self.defines.get(name) or BUILT_INS[name]
        if name in scope.macros:
            raise scope.error(node, f"macro `{name}` uses itself: {' -> '.join([*scope.macros, name])}")
        form = f"{name}({', '.join(macro.params)})" if macro.params else name
        bound: dict[str, Argument] = {}
        for parameter, arg in [*zip(macro.params, args, strict=False), *((k.arg, k.value) for k in keywords)]:
            if parameter not in macro.params or parameter in bound:
                raise scope.error(node, f"`{name}` cannot take `{parameter}` here", f"it is `{form}`")
            bound[parameter] = self.argument(arg, scope)
        if len(args) > len(macro.params) or len(bound) != len(macro.params):
            raise scope.error(node, f"`{name}` wants {len(macro.params) or 'no'} arguments", f"it is `{form}`")
        try:
            body = macro.text if isinstance(macro, Define) else macro.body(bound)
            return self.read(body, (*scope.macros, name), bound)
        except MacroError as error:
            raise scope.error(node, f"in `{name}`: {error}") from None
        except LanguageError as error:
            shown = f" (`{macro.text}`)" if isinstance(macro, Define) and len(macro.text) <= 60 else ""
            raise scope.error(node, f"in `{name}`{shown}: {error.message}", error.hint) from None

    def argument(self, node: ast.expr, scope: Scope) -> Argument:
        """A macro's argument: a param by its bare name, None, or a value."""
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.Name):
            bound = scope.arguments.get(node.id, self.params.get(node.id))
            if bound is None and node.id in scope.arguments:
                return None
            if isinstance(bound, Param) and bound.shape and node.id not in NAMES:
                return bound
        return self.visit(node, scope)

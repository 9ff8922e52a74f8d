"""A mask's tile test and loop limits as C++ statements over templates/include/fagen/bounds.h."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..runtime.variant import Variant
from .analysis import MaskAnalysis, analyse
from .code import NarrowBounds
from .conditions import Equal, Linear, Literal, Ordered, Truth, nodes_of
from .graph import Graph, Node
from .intervals import Walker
from .limits import NOTHING, Between, Both, Bound, Limit, When
from .literals import float_literal
from .narrow import literals_of, why_not_narrow
from .printer import Printer, array_name
from .tiles import Conjunction, EachOf, OneOf, Possible, Shared, shared, strip

_INDENT = "  "


@dataclass(frozen=True)
class Bounds:
    """Bodies of the three functions that KernelCode describes, and the params they look through; ``ends`` is as in
    MaskAnalysis; ``narrow`` are the first two functions in 32 bits, or None: ``wide`` says why."""

    tile_test: tuple[str, ...]
    key_ranges: tuple[str, ...]
    query_ranges: tuple[str, ...]
    params: tuple[str, ...]
    ends: bool
    narrow: NarrowBounds | None
    wide: str


def print_bounds(graph: Graph, variant: Variant, mask: Node | None) -> Bounds:
    """The bounds of a variant's mask, which is a node of ``graph`` (None: every pair)."""
    analysis = analyse(graph, variant, mask)
    params: dict[str, None] = {}
    test = ["return Tri::kAll;"] if mask is None else _TestPrinter(analysis, params).body()
    return Bounds(
        tuple(test),
        tuple(_LimitPrinter(analysis, params, "kv").body(analysis.keys)),
        tuple(_LimitPrinter(analysis, params, "q").body(analysis.queries)),
        tuple(params),
        analysis.ends,
        *_narrow(analysis, mask),
    )


def _narrow(analysis: MaskAnalysis, mask: Node | None) -> tuple[NarrowBounds | None, str]:
    wide = "there is no mask" if mask is None else why_not_narrow(analysis)
    if wide:
        return None, wide
    test = _TestPrinter(analysis, {}, bits=32).body()
    limits = _LimitPrinter(analysis, {}, "kv", bits=32).body(analysis.keys)
    return NarrowBounds(tuple(test), tuple(limits), len(literals_of(analysis))), ""


class _Body:
    """The statements of one function: numbers of the whole tile first, then the steps. Of so many ``bits`` are
    integers."""

    def __init__(self, analysis: MaskAnalysis, params: dict[str, None], bits: int = 64):
        self.analysis = analysis
        self.params = params
        self.span, self.pairs = ("Span", "Pairs") if bits == 64 else (f"Span{bits}", f"Pairs{bits}")
        self.scalars = Printer(analysis.graph, analysis.sizes.params)
        self.lines: list[str] = []
        self.lanes = "lanes"  # that are here: see Lanes of array.h
        self._depth = 0
        self._names: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(_INDENT * self._depth + line)

    @contextmanager
    def block(self, condition: str = "") -> Iterator[None]:
        """A block, perhaps for a ``condition`` alone; what is named in it can be named again after it."""
        start, named, around = len(self.lines), len(self._names), self.lanes
        self.add("{")
        if condition:
            self.lanes = self.fresh("lanes")
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")
        if condition:
            inside = self._where(start + 1, around, condition)
            self.lines[start] = _INDENT * self._depth + f"if ({inside or condition}) {{"
        del self._names[named:]
        self.lanes = around

    @contextmanager
    def unless(self, condition: str, leave: str) -> Iterator[None]:
        """Statements for which those are left that do not ``leave``."""
        start, around = len(self.lines), self.lanes
        self.lanes = self.fresh("lanes")
        yield
        inside = self._where(start, around, condition)
        left = [f"{inside};", f"if (!{self.lanes}) {leave}"] if inside else [f"if (!{condition}) {leave}"]
        self.lines[start:start] = [_INDENT * self._depth + line for line in left]

    def _where(self, start: int, around: str, condition: str) -> str | None:
        """The declaration of ``self.lanes``, if a line from ``start`` on names them."""
        if not any(re.search(rf"\b{self.lanes}\b", line) for line in self.lines[start:]):
            return None
        return f"const Lanes {self.lanes} = {around}.where({condition})"

    def fresh(self, stem: str) -> str:
        """A name nothing else in the function has; it ends in a digit or holds ``_at``."""
        name, number = (stem, 1) if "_at" in stem else (f"{stem}1", 1)
        while name in self._names:
            number += 1
            name = f"{stem}{number}"
        self._names.append(name)
        return name

    def scalar(self, node: Node) -> str:
        """The expression of an integer or truth value that is one for the tile."""
        self.scalars.visit((node,))
        return self.scalars.text(node)

    def finished(self) -> list[str]:
        return [*self.scalars.row, *self.lines]


class _Steps:
    """The Backend that prints: a value is the C++ expression of an interval."""

    def __init__(self, body: _Body, q: str, kv: str):
        self._body = body
        self._spans = {"q": q, "kv": kv}
        self.walker = Walker(self, body.analysis.sizes)

    def position(self, name: str) -> str:
        return self._spans[name]

    def exact(self, node: Node) -> str:
        return f"{'tri' if node.type == 'bool' else self._body.span}({self._body.scalar(node)})"

    def constant(self, value: float) -> str:
        return f"reals({float_literal(value).removesuffix('f')})"

    def step(self, kind: str, step: str, arguments: list[str], node: Node) -> str:
        if not step.isidentifier():
            text = f"{step}{arguments[0]}" if len(arguments) == 1 else f"{arguments[0]} {step} {arguments[1]}"
        else:
            text = f"{step}({', '.join(arguments)})"
        return self._named(kind, text, {"Span": "span", "Reals": "real", "Tri": "truth"}[kind])

    def hull(self, kind: str, param: str, indices: list[str], node: Node) -> str:
        self._body.params[param] = None
        names = [str(index.value) if index.op == "name" else None for index in node.args]
        stem = f"{array_name(param)}_" + ("_".join(str(name) for name in names) if all(names) else "range")
        return self._named(kind, f"{array_name(param)}.hull({', '.join([self._body.lanes, *indices])})", stem)

    def _named(self, kind: str, text: str, stem: str) -> str:
        name = self._body.fresh(stem)
        self._body.add(f"const {self._body.span if kind == 'Span' else kind} {name} = {text};")
        return name


class _TestPrinter(_Body):
    def body(self) -> list[str]:
        self.add("bool admits = false;")
        self._possible(self.analysis.admits, "admits")
        with self.unless("admits", "return Tri::kNone;"):
            self.add("bool refuses = false;")
            self._possible(self.analysis.refuses, "refuses")
        self.add("return refuses ? Tri::kSome : Tri::kAll;")
        return self.finished()

    def _possible(self, test: Possible, found: str, condition: str = "") -> None:
        """A block, for a ``condition``, that sets ``found``, so far false, if the test is passed."""
        if isinstance(test, OneOf):
            for number, part in enumerate(test.parts):
                self._possible(part, found, f"!{found}" if number else condition)
            return
        with self.block(condition), ExitStack() as blocks:
            passed = self._conjunction(test, blocks) if isinstance(test, Conjunction) else self._each(test, blocks)
            self.add(f"if ({passed}) {found} = true;" if passed else f"{found} = true;")

    def _each(self, test: EachOf, blocks: ExitStack) -> str | None:
        passed: str | None = None
        for part in test.parts:
            if passed:
                blocks.enter_context(self.block(passed))
            passed = self.fresh("part")
            self.add(f"bool {passed} = false;")
            self._possible(part, passed)
        return passed

    def _conjunction(self, test: Conjunction, blocks: ExitStack) -> str | None:
        """Opens blocks for all conditions but the last, which it returns."""
        passed: str | None = None
        q, kv = "q", "kv"
        if test.linear:
            self._pairs(test.linear)
            passed = f"pairs.narrow({'planes' if self._planes(test.linear) else ''})"
            q, kv = "pairs.q", "pairs.kv"
        steps = _Steps(self, q, kv)
        for literal in test.others:
            if passed:
                blocks.enter_context(self.block(passed))
            passed = _passed(self, steps, literal)
            pair = shared(literal, test.others, steps.walker.is_exact) if isinstance(literal, Equal) else None
            if passed and pair:
                blocks.enter_context(self.block(passed))
                passed = self._may_share(pair, steps)
        return passed

    def _may_share(self, pair: Shared, steps: _Steps) -> str:
        arguments = [self.lanes]
        for read in (pair.left, pair.right):
            indices = ", ".join(steps.walker.walk(index) for index in read.args)
            arguments.append(self.fresh(f"{array_name(str(read.value))}_part"))
            self.add(f"const auto {arguments[-1]} = {array_name(str(read.value))}.part({indices});")
        if pair.least or pair.most:
            least, most = "INT64_MIN", "INT64_MAX"
            for node in pair.least:
                least = self.scalar(node) if least == "INT64_MIN" else f"greatest({least}, {self.scalar(node)})"
            for node in pair.most:
                most = self.scalar(node) if most == "INT64_MAX" else f"least({most}, {self.scalar(node)})"
            arguments.append(f"Span({least}, {most})")
        return f"may_share({', '.join(arguments)})"

    def _planes(self, linear: tuple[Linear, ...]) -> list[Linear]:
        return [condition for condition in linear if strip(self.analysis.graph, condition) is None]

    def _pairs(self, linear: tuple[Linear, ...]) -> None:
        """Makes ``pairs`` with what the linear conditions say of them."""
        graph = self.analysis.graph
        self.add(f"{self.pairs} pairs(q, kv);")
        for condition in linear:
            cut = strip(graph, condition)
            if cut is not None:
                side = "at_least" if cut.at_least else "at_most"
                self.add(f"pairs.{cut.of}.{side}({self.scalar(cut.bound)});")
        planes = [
            f"{{{condition.of_q}, {condition.of_kv}, {self.scalar(condition.rest.node(graph))}}}"
            for condition in self._planes(linear)
        ]
        if planes:
            self.add(f"const HalfPlane planes[] = {{{', '.join(planes)}}};")


def _passed(body: _Body, steps: _Steps, literal: Literal) -> str | None:
    """The C++ condition that a literal is not false for all pairs; None where nothing is known of it."""
    assert not isinstance(literal, Linear)
    nodes = nodes_of(literal)
    if not steps.walker.can_walk(*nodes):
        return None
    if isinstance(literal, Truth) and steps.walker.is_exact(literal.node):
        text = body.scalar(literal.node)
        return text if literal.wanted else f"!({text})"
    values = [steps.walker.walk(node) for node in nodes]
    if isinstance(literal, Ordered):
        return f"less_equal({values[0]}, {values[1]}) != Tri::kNone"
    text = f"equal({values[0]}, {values[1]})" if isinstance(literal, Equal) else values[0]
    return f"{text} != Tri::{'kNone' if literal.wanted else 'kAll'}"


class _LimitPrinter(_Body):
    """``of`` is the position that is limited."""

    def __init__(self, analysis: MaskAnalysis, params: dict[str, None], of: str, bits: int = 64):
        super().__init__(analysis, params, bits)
        self._keys = of == "kv"
        self._span = "q" if self._keys else "kv"
        graph = analysis.graph
        if self._keys or not analysis.bottom_right:
            self._first, self._last = "0", "kv_len" if self._keys else "q_len"
        else:
            self._first, self._last = self.scalar(graph.sub(graph.name("kv_len"), graph.name("q_len"))), "kv_len"
        # A limited position of which nothing is known: all of them.
        whole = f"{self.span}({self._first}, {self._last} - 1)"
        self._steps = _Steps(self, *(("q", whole) if self._keys else (whole, "kv")))

    def body(self, limit: Limit) -> list[str]:
        if limit == Between(()):
            return [f"return between(0, {'kv_len' if self._keys else 'q_len'});"]
        found = self._limit(limit, named=False)
        shifted = not self._keys and self.analysis.bottom_right
        self.add(f"return shifted({found}, q_len - kv_len);" if shifted else f"return {found};")
        return self.finished()

    def _limit(self, limit: Limit, named: bool = True) -> str:
        if limit == NOTHING:
            return "between(0, 0)"
        if isinstance(limit, (Between, When)):
            text = self._between(limit) if isinstance(limit, Between) else self._when(limit.literal)
        else:
            step = "intersect" if isinstance(limit, Both) else "unite"
            parts = [self._limit(part) for part in limit.parts]
            for part in parts[1:-1]:
                parts[0] = self._named(f"{step}({parts[0]}, {part})")
            text = f"{step}({parts[0]}, {parts[-1]})"
        return self._named(text) if named else text

    def _named(self, text: str) -> str:
        name = self.fresh("ranges")
        self.add(f"const auto {name} = {text};")
        return name

    def _when(self, literal: Literal) -> str:
        everything = f"between({self._first}, {self._last})"
        if isinstance(literal, Linear):
            passed = self._linear(literal)
        else:
            known = _passed(self, self._steps, literal)
            if known is None:
                return everything
            passed = known
        return f"{passed} ? {everything} : between(0, 0)"

    def _linear(self, literal: Linear) -> str:
        """Whether a linear condition on the span alone can hold in it."""
        factor = literal.of_q if self._keys else literal.of_kv
        end = f"{self._span}.{'hi' if factor > 0 else 'lo'}"
        times = "" if abs(factor) == 1 else f"{abs(factor)} * "
        rest = self.scalar(literal.rest.node(self.analysis.graph))
        return f"{rest} {'+' if factor > 0 else '-'} {times}{end} >= 0"

    def _between(self, limit: Between) -> str:
        first, last = self._first, self._last
        for bound in limit.bounds:
            if bound.factor > 0:
                first = f"greatest({first}, {self._least(bound)})"
            else:
                last = f"least({last}, {self._past(bound)})"
        return f"between({first}, {last})"

    def _least(self, bound: Bound) -> str:
        """x >= -(rest + scale · top) / factor, rounded up."""
        reach = self._reach(bound, -1)
        return reach if bound.factor == 1 else f"ceil_quotient({reach}, {bound.factor})"

    def _past(self, bound: Bound) -> str:
        """x <= (rest + scale · top) / -factor, rounded down: the first index past it."""
        if bound.factor == -1:
            return self._reach(bound, 1, 1)
        return f"floor_quotient({self._reach(bound, 1)}, {-bound.factor}) + 1"

    def _reach(self, bound: Bound, sign: int, more: int = 0) -> str:
        """sign · (rest + scale · top) + more."""
        rest = bound.rest.times(sign).shifted(more)
        if not bound.others.terms and not bound.others.constant:
            return self.scalar(rest.node(self.analysis.graph))
        top = self._top(bound, sign)
        if rest.terms:
            return f"{top} + ({self.scalar(rest.node(self.analysis.graph))})"
        return f"{top} {'+' if rest.constant > 0 else '-'} {abs(rest.constant)}" if rest.constant else top

    def _top(self, bound: Bound, sign: int) -> str:
        """sign · scale · top."""
        span = self.analysis.graph.name(self._span)
        times = bound.scale * sign
        if bound.others.without(span).terms or bound.others.constant:
            end = f"{self._steps.walker.walk(bound.others.node(self.analysis.graph))}.hi"
        else:
            factor = bound.others.coefficient(span)
            end = f"{self._span}.{'hi' if factor > 0 else 'lo'}"
            times *= factor
        return end if times == 1 else f"-{end}" if times == -1 else f"{times} * {end}"

"""One text for all ways of writing the same function, as far as that can be proved cheaply.

Integers are exact, so there anything true of integers may be used. Real numbers are rounded, so there nothing is
used that could change a result: sums are not re-associated, only what rounding respects (a + b = b + a,
(-a) * b = -(a * b), a - b = a + (-b)) is. The one liberty is the sign of a zero, and none where a division or a
power could see it. The gradient of min and max on a tie goes to the first argument, so their order stays.
"""

from __future__ import annotations

from .construct import call, negative
from .integers import (
    EVERYTHING,
    NOTHING,
    Monomial,
    Polynomial,
    Set,
    TooLarge,
    add,
    constant,
    leading,
    multiply,
    order,
    primitive,
    split_constant,
)
from .nodes import TRUE, Binary, Call, Compare, Conditional, Logic, Node, Not, Number, Read, Unary
from .truth import ALWAYS, NEVER, Fact, Member, Truth, conjunction, disjunction, negation, tree
from .unparse import unparse

_MOST_AT_ONCE = 3  # abs, min and max in one comparison that it is split at; each doubles it
_MOST_CASES = 64  # splits altogether; nested ones would double and double
_EXACT = 2**53  # integers up to here are the same number in float64
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def canonical(node: Node) -> str:
    """A text of the same function, equal for trees that are provably the same.

    It is itself an expression: for a mask, comparisons of integers are inequalities with one polynomial on the left
    and a constant on the right, joined with ``and`` and ``or``.
    """
    canonizer = _Canonizer()
    if node.type == "bool":
        return unparse(tree(canonizer.truth(node)))
    return unparse(canonizer.number(node, strict=False))


class _Canonizer:
    def __init__(self) -> None:
        self.atoms: dict[str, Node] = {}  # what the factors of monomials stand for
        self.cases = 0

    # Truth values

    def truth(self, node: Node) -> Truth:
        match node:
            case Number(value=value):
                return ALWAYS if value else NEVER
            case Not(x=x):
                return negation(self.truth(x))
            case Logic(op="and", args=args):
                return conjunction(map(self.truth, args))
            case Logic(args=args):
                return disjunction(map(self.truth, args))
            case Compare(op=op, left=left, right=right) if left.type == right.type == "bool":
                same = self.same(self.truth(left), self.truth(right))
                return same if op == "==" else negation(same)
            case Compare(op=op, left=left, right=right) if left.type == right.type == "int":
                try:
                    return self.compare(op, add(self.polynomial(left), self.polynomial(right), -1))
                except TooLarge:
                    return self.fact(op, self.integer(left), self.integer(right))
            case Compare(op=op, left=left, right=right):
                return self.fact(op, self.number(left, strict=False), self.number(right, strict=False))
            case Conditional(test=test, yes=yes, no=no):
                return self.choice(self.truth(test), self.truth(yes), self.truth(no))
            case Read():
                return Fact(self.read(node))
            case _:
                return Fact(node)

    def fact(self, op: str, left: Node, right: Node) -> Truth:
        """A comparison as it stands, with < <= or == (which NaN respects: it makes each of them false)."""
        if op in (">", ">="):
            op, left, right = _FLIPPED[op], right, left
        if op in ("==", "!="):
            left, right = sorted((left, right), key=unparse)
        return Fact(Compare("==" if op == "!=" else op, left, right), op != "!=")

    def same(self, a: Truth, b: Truth) -> Truth:
        for one, other in ((a, b), (b, a)):
            if one == ALWAYS:
                return other
            if one == NEVER:
                return negation(other)
        (a, a_kept), (b, b_kept) = _positive(a), _positive(b)
        if a == b:
            return ALWAYS if a_kept == b_kept else NEVER
        left, right = sorted((tree(a), tree(b)), key=unparse)
        return Fact(Compare("==", left, right), a_kept == b_kept)

    def choice(self, test: Truth, yes: Truth, no: Truth) -> Truth:
        test, kept = _positive(test)
        if not kept:
            yes, no = no, yes
        if test == ALWAYS or yes == no:
            return yes
        if yes == ALWAYS or no == NEVER:
            return disjunction([test, no]) if yes == ALWAYS else conjunction([test, yes])
        if yes == NEVER or no == ALWAYS:
            return conjunction([negation(test), no]) if yes == NEVER else disjunction([negation(test), yes])
        yes, kept = _positive(yes)
        no = no if kept else negation(no)
        return Fact(Conditional(tree(test), tree(yes), tree(no)), kept)

    def compare(self, op: str, difference: Polynomial) -> Truth:
        """``difference op 0``."""
        case = self.case(difference)
        if op in ("==", "!=") and case is not None:
            both = [self.compare("<=", difference), self.compare(">=", difference)]
            return conjunction(both) if op == "==" else negation(conjunction(both))
        if op in (">", ">="):
            return self.compare("<" if op == ">" else "<=", add({}, difference, -1))
        if case is not None:
            # k * abs(e) + rest <= 0 with k > 0 is k*e + rest <= 0 and -k*e + rest <= 0; max likewise, min with or.
            key, (first, second) = case
            coefficient = difference[key,]
            rest = {monomial: c for monomial, c in difference.items() if monomial != (key,)}
            sides = [self.compare(op, add(rest, value, coefficient)) for value in (first, second)]
            rises = getattr(self.atoms[key], "function", "") in ("abs", "max")
            return conjunction(sides) if rises == (coefficient > 0) else disjunction(sides)
        terms, offset = split_constant(difference)
        values = _solutions(op, offset)
        if not terms:
            return ALWAYS if _holds(values, 0) else NEVER
        polynomial, divisor = primitive(terms)
        values = _divided(values, divisor)
        if values in (EVERYTHING, NOTHING):
            return ALWAYS if values else NEVER
        return Member(self.sum(polynomial), values)

    def case(self, difference: Polynomial) -> tuple[str, tuple[Polynomial, Polynomial]] | None:
        """An abs, min or max that stands alone in a term, and the two polynomials it is one of."""
        found = []
        for monomial in order(difference):
            key = monomial[0] if len(monomial) == 1 else ""
            atom = self.atoms.get(key)
            if isinstance(atom, Call) and not any(key in other for other in difference if other != monomial):
                found.append((key, atom))
        if not 0 < len(found) <= _MOST_AT_ONCE or self.cases >= _MOST_CASES:
            return None
        self.cases += 1
        key, atom = found[0]
        first = self.polynomial(atom.args[0])
        second = add({}, first, -1) if atom.function == "abs" else self.polynomial(atom.args[1])
        return key, (first, second)

    # Integers

    def integer(self, node: Node) -> Node:
        """An integer in its canonical form."""
        try:
            return self.sum(self.polynomial(node))
        except TooLarge:
            return self.opaque(node)

    def polynomial(self, node: Node) -> Polynomial:
        """An integer as a polynomial in atoms. TooLarge where that would be large."""
        match node:
            case Number(value=value):
                return constant(int(value))
            case Unary(x=x):
                return add({}, self.polynomial(x), -1)
            case Binary(op="+", left=left, right=right):
                return add(self.polynomial(left), self.polynomial(right))
            case Binary(op="-", left=left, right=right):
                return add(self.polynomial(left), self.polynomial(right), -1)
            case Binary(op="*", left=left, right=right):
                return multiply(self.polynomial(left), self.polynomial(right))
            case Binary(op="**", left=left, right=Number(value=value)):
                base, result = self.polynomial(left), constant(1)
                for _ in range(int(value)):
                    result = multiply(result, base)
                return result
            case Binary(op="//" | "%", left=left, right=right):
                return self.quotient(node.op, self.polynomial(left), self.integer(right))
            case Call(function="abs", args=(x,)):
                inner = self.polynomial(x)
                if not split_constant(inner)[0]:
                    return constant(abs(inner.get((), 0)))
                return self.atom(Call("abs", (self.sum(add({}, inner, 1 if leading(inner) > 0 else -1)),)))
            case Call(function="floor", args=(x,)):
                return self.polynomial(x)
            case _:
                plain = self.opaque(node)
                collapsed = getattr(plain, "function", type(plain)) != getattr(node, "function", type(node))
                return self.polynomial(plain) if collapsed else self.atom(plain)

    def quotient(self, op: str, dividend: Polynomial, divisor: Node) -> Polynomial:
        """Floor division and its remainder; (d*a + r) // d = a + r // d, and its remainder is r's."""
        whole: Polynomial = {}
        if isinstance(divisor, Number):
            d = int(divisor.value)
            if d == 0:
                return constant(0)
            whole = {monomial: coefficient // d for monomial, coefficient in dividend.items() if coefficient // d}
            dividend = {monomial: coefficient % d for monomial, coefficient in dividend.items() if coefficient % d}
            terms, offset = split_constant(dividend)
            if not terms:
                return add(whole, constant(offset // d)) if op == "//" else constant(offset % d)
        rest = self.atom(Binary(op, self.sum(dividend), divisor))
        return add(whole, rest) if op == "//" else rest

    def opaque(self, node: Node) -> Node:
        """An integer that is no sum or product: its parts in canonical form."""
        match node:
            case Read():
                return self.read(node)
            case Call(function="min" | "max", args=args):
                parts: dict[Node, None] = {}
                stack = list(reversed(args))
                while stack:
                    part = stack.pop()
                    if isinstance(part, Call) and part.function == node.function:
                        stack.extend(reversed(part.args))
                    else:
                        parts[self.integer(part)] = None
                return call(node.function, tuple(sorted(parts, key=_constants_first)))
            case Conditional(test=test, yes=yes, no=no):
                return self.chosen(self.truth(test), self.integer(yes), self.integer(no))
            case Binary(op=op, left=left, right=right):
                return Binary(op, self.integer(left), self.integer(right))
            case Unary(x=x):
                return Unary("-", self.integer(x))
            case Call(function=function, args=args):
                return Call(function, tuple(map(self.integer, args)))
            case _:
                return node

    def chosen(self, test: Truth, yes: Node, no: Node) -> Node:
        test, kept = _positive(test)
        if not kept:
            yes, no = no, yes
        return yes if test == ALWAYS or yes == no else Conditional(tree(test), yes, no)

    def read(self, node: Read) -> Node:
        return Read(node.param, tuple(map(self.integer, node.indices)), node.type)

    def atom(self, node: Node) -> Polynomial:
        key = unparse(node)
        self.atoms[key] = node
        return {(key,): 1}

    def sum(self, polynomial: Polynomial) -> Node:
        """A polynomial as a tree; of no terms it is 0."""
        result: Node | None = None
        for monomial in order(polynomial):
            coefficient = polynomial[monomial]
            term = self.term(monomial, abs(coefficient) if result is not None else coefficient)
            result = term if result is None else Binary("+" if coefficient > 0 else "-", result, term)
        return Number(0) if result is None else result

    def term(self, monomial: Monomial, coefficient: int) -> Node:
        if not monomial:
            return Number(coefficient)
        factors = [self.atoms[key] for key in monomial]
        if abs(coefficient) != 1:
            factors.insert(0, Number(coefficient))
        elif coefficient < 0:
            factors[0] = Unary("-", factors[0])
        product = factors[0]
        for factor in factors[1:]:
            product = Binary("*", product, factor)
        return product

    # Real numbers

    def number(self, node: Node, strict: bool) -> Node:
        """A number where a real one is wanted; ``strict`` where the sign of a zero could matter."""
        sign, plain = self.signed(node, strict)
        return plain if sign > 0 else negative(plain)

    def signed(self, node: Node, strict: bool) -> tuple[int, Node]:
        """The same as a sign and a number without one in front."""
        if node.type == "int":
            return self.signed_integer(node, strict)
        match node:
            case Number(value=value):
                return (-1, Number(-value)) if value < 0 else (1, node)
            case Read():
                return 1, self.read(node)
            case Unary(x=x):
                sign, plain = self.signed(x, strict)
                return -sign, plain
            case Binary(op="+" | "-", left=left, right=right):
                return self.signed_sum(node.op, left, right, strict)
            case Binary(op="*", left=left, right=right):
                (a_sign, a), (b_sign, b) = sorted(
                    (self.signed(side, strict) for side in (left, right)), key=lambda factor: unparse(factor[1])
                )
                return a_sign * b_sign, Binary("*", a, b)
            case Binary(op="/", left=left, right=right):
                a_sign, a = self.signed(left, strict)
                b_sign, b = self.divisor(right)
                return a_sign * b_sign, Binary("/", a, b)
            case Binary(op="**", left=left, right=Number(type="int")):
                return 1, Binary("**", self.number(left, strict=True), node.right)
            case Binary(op=op, left=left, right=right):
                sign, plain = self.divisor(right) if op in ("//", "%") else self.signed(right, strict=True)
                return 1, Binary(op, self.number(left, strict=True), plain if sign > 0 else negative(plain))
            case Call(function="abs", args=(x,)):
                return 1, Call("abs", (self.signed(x, strict=False)[1],))
            case Call(function=function, args=args):
                # Their derivatives divide by their argument.
                strict = strict or function in ("log", "log2", "sqrt")
                return 1, Call(function, tuple(self.number(arg, strict) for arg in args))
            case Conditional(test=test, yes=yes, no=no):
                chosen = self.chosen(self.truth(test), self.number(yes, strict), self.number(no, strict))
                if chosen.type == "int":  # alone it would no longer be taken as a real number by what stands around it
                    return 1, Conditional(TRUE, chosen, Number(0.0))
                return (1, chosen) if isinstance(chosen, Conditional) else self.signed(chosen, strict)
            case _:
                return 1, node

    def divisor(self, node: Node) -> tuple[int, Node]:
        """As signed(); but what turns out to be 0 stays as it is, since a division by the constant 0 cannot be read."""
        sign, plain = self.signed(node, strict=True)
        return (1, node) if isinstance(plain, Number) and plain.value == 0 else (sign, plain)

    def signed_sum(self, op: str, left: Node, right: Node, strict: bool) -> tuple[int, Node]:
        terms = [self.signed(left, strict), self.signed(right, strict)]
        if op == "-":
            terms[1] = -terms[1][0], terms[1][1]
        (a_sign, a), (b_sign, b) = sorted(terms, key=lambda term: unparse(term[1]))
        if a_sign < 0 < b_sign:
            (a_sign, a), (b_sign, b) = (b_sign, b), (a_sign, a)
        return 1, Binary("+" if b_sign > 0 else "-", a if a_sign > 0 else negative(a), b)

    def signed_integer(self, node: Node, strict: bool) -> tuple[int, Node]:
        try:
            polynomial = self.polynomial(node)
        except TooLarge:
            return 1, self.opaque(node)
        terms, value = split_constant(polynomial)
        if not terms:
            # A constant is written as the real number it becomes.
            plain = Number(float(abs(value))) if abs(value) <= _EXACT else Number(abs(value))
            return (-1 if value < 0 else 1), plain
        if strict or leading(terms) > 0:
            return 1, self.sum(polynomial)
        return -1, self.sum(add({}, polynomial, -1))


def _positive(truth: Truth) -> tuple[Truth, bool]:
    """Of a truth value and its negation the one that is written shorter, and whether it is the former."""
    texts = [unparse(tree(candidate)) for candidate in (truth, negation(truth))]
    kept = (len(texts[0]), texts[0]) <= (len(texts[1]), texts[1])
    return (truth, True) if kept else (negation(truth), False)


def _constants_first(node: Node) -> tuple[bool, str]:
    return not isinstance(node, Number), unparse(node)


def _solutions(op: str, offset: int) -> Set:
    """The values x for which ``x + offset op 0``."""
    match op:
        case "<":
            return ((None, -offset - 1),)
        case "<=":
            return ((None, -offset),)
        case "==":
            return ((-offset, -offset),)
        case _:
            return ((None, -offset - 1), (-offset + 1, None))


def _holds(values: Set, x: int) -> bool:
    return any((low is None or low <= x) and (high is None or x <= high) for low, high in values)


def _divided(values: Set, divisor: int) -> Set:
    """The x for which divisor * x is in ``values``."""
    result = []
    for low, high in values if divisor > 0 else reversed(values):
        if divisor < 0:
            low, high = (None if high is None else -high), (None if low is None else -low)
        low = None if low is None else -(-low // abs(divisor))
        high = None if high is None else high // abs(divisor)
        if low is None or high is None or low <= high:
            result.append((low, high))
    merged: list[tuple[int | None, int | None]] = []
    for low, high in result:
        if merged and low is not None and merged[-1][1] is not None and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)

"""Graph to C++ statements: a row's values as scalars, a key's as vectors of kLanes keys or as scalars too.

The statements are for code within namespace fagen, whose functions they call without naming it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count

from ..runtime.variant import Param
from .access import Access, classify
from .code import ArrayDeclaration, Snippet
from .graph import REAL_FUNCTIONS, Graph, Node, below
from .literals import float_literal, int_literal
from .sizes import Sizes
from .steps import is_invertible, under_steps

# How tightly an expression holds together. Bit operations and truth are parenthesised everywhere, as compilers advise.
_CHOICE, _LOGIC, _COMPARE, _SUM, _PRODUCT, _SIGN, _ATOM = range(7)

# An inlined expression longer than this gets a name of its own.
_LONGEST_INLINE = 48

_ELEMENTS = {
    "f32": "float",
    "bf16": "bf16",
    "f16": "f16",
    "i32": "int32_t",
    "i64": "int64_t",
    "bool": "bool",
}
_SCALARS = {"real": "float", "bool": "bool", 32: "int32_t", 64: "int64_t"}
_VECTORS = {"real": "vf", "bool": "vi", 32: "vi", 64: "vl"}


@dataclass(frozen=True)
class _Text:
    """C++ for a node. ``kind`` is "real", "bool", 32 or 64 (bits of an integer)."""

    text: str
    strength: int
    kind: str | int
    vector: bool

    def inside(self, least: int) -> str:
        return self.text if self.strength >= least else f"({self.text})"


def array_name(param: str) -> str:
    """The C++ name of a param's array.

    What is made of a param is named by this and a suffix of its own (``_grad``, ``_line1``, indexes, ...): a prefix
    would meet the name of another param, as that of ``w``'s gradient and ``d_w`` would.
    """
    return f"{param}_at"


def grad_name(param: str) -> str:
    """The C++ name of the array of a param's gradient."""
    return f"{array_name(param)}_grad"


def declare_array(param: Param, index: int) -> ArrayDeclaration:
    """A param's array."""
    element = f"const {_ELEMENTS[param.dtype]}"
    return ArrayDeclaration(array_name(param.name), element, len(param.shape), f"p.params[{index}]", index)


def band_name(param: str, number: int) -> str:
    """The C++ name of what gives pairs their elements of a param, of which ``number`` says which read it is."""
    return f"{array_name(param)}_band{number}"


def element_type(param: Param) -> str:
    """The C++ type of what an element of a param is to an expression."""
    return {"i32": "int32_t", "i64": "int64_t", "bool": "bool"}.get(param.dtype, "float")


def declare_grad(param: Param, index: int) -> ArrayDeclaration:
    """The array of a param's gradient."""
    return ArrayDeclaration(grad_name(param.name), "float", len(param.shape), f"p.d_params[{index}]", index)


class Printer:
    """Prints the nodes of one snippet.

    ``prefix`` starts the names of temporaries and ends other names, so that two snippets can share a scope.
    ``lanes`` says whether what a key has is a vector, a lane a key, or a scalar of one key. ``bands`` says, for reads
    that shared memory holds, what a pair's own is.
    """

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, Param],
        prefix: str = "t",
        *,
        lanes: bool = True,
        bands: Mapping[Node, str] | None = None,
    ):
        self._vectors = lanes
        self._bands = bands or {}
        self._graph = graph
        self._params = params
        self._sizes = Sizes(params)
        self._prefix = prefix
        self._own = "" if prefix == "t" else f"_{prefix.rstrip('_')}"  # ends names that say more than a number
        self._texts: dict[Node, _Text] = {}
        self._names: set[str] = set()
        self._stepped: set[Node] = set()  # whose last bit may decide
        self._temporaries = 0
        self.row: list[str] = []
        self.pair: list[str] = []

    # ---- the walk ----

    def visit(self, roots: tuple[Node, ...]) -> None:
        """Prints what the roots need, naming what is used more than once."""
        nodes = below(roots, self._bands)
        self._stepped.update(under_steps(nodes))
        uses: dict[Node, int] = dict.fromkeys(nodes, 0)
        used_per_key: set[Node] = set()
        for node in nodes:
            for arg in node.args if node not in self._bands else ():
                uses[arg] += 1
                if node.per_key:
                    used_per_key.add(arg)
        for root in roots:
            uses[root] += 1
        for node in nodes:
            if node in self._texts:
                continue
            text = self._print(node)
            leaf = node.op in ("const", "name")
            per_row = not node.per_key and node in used_per_key and not leaf
            if node.op == "read" or (not leaf and (uses[node] > 1 or len(text.text) > _LONGEST_INLINE)) or per_row:
                text = self._named(node, text)
            self._texts[node] = text

    def text(self, node: Node) -> str:
        """The expression of a visited node, safe as an argument or an initialiser."""
        return self._texts[node].text

    def vector(self, node: Node) -> str:
        """The same as a vector, whatever the node."""
        return self._as_vector(self._texts[node])

    def _fresh(self, wish: str | None = None) -> str:
        if wish is not None:
            numbered = (f"{wish}{n}{self._own}" for n in chain(("",), count(2)))
            name = next(name for name in numbered if name not in self._names)
            self._names.add(name)
            return name
        self._temporaries += 1
        return f"{self._prefix}{self._temporaries}"

    def _named(self, node: Node, text: _Text) -> _Text:
        name = self._fresh(self._read_name(node) if node.op == "read" else None)
        kind = (_VECTORS if text.vector else _SCALARS)[text.kind]
        (self.pair if node.per_key else self.row).append(f"const {kind} {name} = {text.text};")
        return _Text(name, _ATOM, text.kind, text.vector)

    def _read_name(self, node: Node) -> str:
        if not node.args:
            return f"{array_name(str(node.value))}_0"
        if all(index.op == "name" or (index.is_const and index.integer >= 0) for index in node.args):
            indices = "_".join(str(index.value) for index in node.args)
            return f"{array_name(str(node.value))}_{indices}"
        return f"{array_name(str(node.value))}_1"

    # ---- conversions ----

    def _by_lanes(self, node: Node) -> bool:
        """Whether a node is a vector."""
        return self._vectors and node.per_key

    def _kind(self, node: Node) -> str | int:
        return self._sizes.bits(node) if node.type == "int" else node.type

    def _wide(self, x: _Text) -> _Text:
        """A 32-bit integer as one of 64 bits."""
        if x.kind == 64:
            return x
        if x.vector:
            return _Text(f"widen({x.text})", _ATOM, 64, True)
        return _Text(f"int64_t{{{x.text}}}", _ATOM, 64, False)

    def _as_vector(self, x: _Text) -> str:
        if x.vector or not self._vectors:
            return x.text
        if x.kind == "bool":
            return f"all_lanes({x.text})"
        return f"broadcast({x.text})"

    def _alike(self, node: Node) -> list[_Text]:
        """The operands of a node, all integers widened if one is wide or the result is."""
        operands = [self._texts[arg] for arg in node.args]
        if any(x.kind == 64 for x in operands) or (node.type == "int" and self._kind(node) == 64):
            operands = [self._wide(x) if x.kind == 32 else x for x in operands]
        return operands

    # ---- one node ----

    def _print(self, node: Node) -> _Text:
        kind = self._kind(node)
        op = node.op
        if op == "const":
            return self._constant(node, kind)
        if op == "name":
            return _Text(str(node.value), _ATOM, kind, self._by_lanes(node))
        if op == "read":
            return _Text(self._read(node), _ATOM, kind, self._by_lanes(node))
        if op in ("and", "or", "not"):
            return self._logic(node)
        if op == "select":
            return self._select(node, kind)
        operands = self._alike(node)
        a, b = operands[0], operands[-1]
        if op in ("lt", "le", "eq"):
            return self._comparison(node, operands)
        if op == "to_real":
            call = "to_real" if a.vector else "static_cast<float>"
            return _Text(f"{call}({a.text})", _ATOM, kind, a.vector)
        if op == "neg":
            return _Text(f"-{a.inside(_ATOM)}", _SIGN, kind, a.vector)
        if op in ("add", "sub"):
            sign = "+" if op == "add" else "-"
            return _Text(f"{a.inside(_SUM)} {sign} {b.inside(_PRODUCT)}", _SUM, kind, self._by_lanes(node))
        if op == "mul" or (op == "div" and kind == "real"):
            if op == "div" and not self._vectors and node not in self._stepped and is_invertible(node.args[1]):
                # Cards divide with branches; a product with the reciprocal differs in its last bit, which decides
                # nothing.
                return _Text(f"{a.inside(_PRODUCT)} * (1.0f / {b.inside(_ATOM)})", _PRODUCT, kind, False)
            sign = "*" if op == "mul" else "/"
            return _Text(f"{a.inside(_PRODUCT)} {sign} {b.inside(_SIGN)}", _PRODUCT, kind, self._by_lanes(node))
        if op in ("floordiv", "mod") and node.type == "int":
            shifted = self._by_power_of_two(node, a)
            if shifted is not None:
                return shifted
        names = {"floordiv": "floor_div", "mod": "floor_mod"}
        if op in ("floordiv", "mod", "min", "max", "abs", "floor", "pow", "fma", "tanh_near") or op in REAL_FUNCTIONS:
            arguments = [self._as_vector(x) if self._by_lanes(node) else x.text for x in operands]
            return _Text(f"{names.get(op, op)}({', '.join(arguments)})", _ATOM, kind, self._by_lanes(node))
        raise AssertionError(f"no C++ for {op}")

    def _constant(self, node: Node, kind: str | int) -> _Text:
        if node.type == "bool":
            return _Text("true" if node.value else "false", _ATOM, kind, False)
        text = float_literal(node.real) if node.type == "real" else int_literal(node.integer)
        return _Text(text, _SIGN if text.startswith("-") else _ATOM, kind, False)

    def _comparison(self, node: Node, operands: list[_Text]) -> _Text:
        sign = {"lt": "<", "le": "<=", "eq": "=="}[node.op]
        a, b = operands
        if a.kind == "bool" and self._by_lanes(node):
            a, b = (x if x.vector else _Text(self._as_vector(x), _ATOM, "bool", True) for x in (a, b))
        if node.args[0].is_const:  # as people write it
            a, b, sign = b, a, {"<": ">", "<=": ">=", "==": "=="}[sign]
        text = f"{a.inside(_SUM)} {sign} {b.inside(_SUM)}"
        if not self._by_lanes(node):
            return _Text(text, _COMPARE, "bool", False)
        if a.kind == 64:
            return _Text(f"narrow({text})", _ATOM, "bool", True)
        return _Text(text, _COMPARE, "bool", True)

    def _logic(self, node: Node) -> _Text:
        operands = [self._texts[arg] for arg in node.args]
        if node.op == "not":
            return _Text(
                f"{'~' if self._by_lanes(node) else '!'}{operands[0].inside(_ATOM)}",
                _SIGN,
                "bool",
                self._by_lanes(node),
            )
        if not self._by_lanes(node):
            sign = " && " if node.op == "and" else " || "
            return _Text(sign.join(x.inside(_COMPARE) for x in operands), _LOGIC, "bool", False)
        parts = [x.inside(_SIGN) if x.vector else self._as_vector(x) for x in operands]
        return _Text((" & " if node.op == "and" else " | ").join(parts), _LOGIC, "bool", True)

    def _select(self, node: Node, kind: str | int) -> _Text:
        condition = self._texts[node.args[0]]
        branches = [self._texts[arg] for arg in node.args[1:]]
        if kind == 64:
            branches = [self._wide(x) for x in branches]
        if condition.vector:
            yes, no = (self._as_vector(x) for x in branches)
            return _Text(f"select({condition.text}, {yes}, {no})", _ATOM, kind, True)
        if self._by_lanes(node):
            yes, no = (self._as_vector(x) if not x.vector else x.inside(_LOGIC) for x in branches)
        else:
            yes, no = (x.inside(_LOGIC) for x in branches)
        return _Text(f"{condition.inside(_LOGIC)} ? {yes} : {no}", _CHOICE, kind, self._by_lanes(node))

    def _by_power_of_two(self, node: Node, a: _Text) -> _Text | None:
        divisor = node.args[1]
        if not divisor.is_const:
            return None
        value = divisor.integer
        if value < 2 or value & (value - 1):
            return None
        sign, operand = (">>", value.bit_length() - 1) if node.op == "floordiv" else ("&", value - 1)
        return _Text(f"{a.inside(_SIGN)} {sign} {int_literal(operand)}", _LOGIC, self._kind(node), a.vector)

    # ---- reads ----

    def _read(self, node: Node) -> str:
        if node in self._bands:
            return self._bands[node]
        access = classify(self._graph, node) if self._vectors else Access("row")
        array = array_name(str(node.value))
        if access.kind == "run":
            line = self._fresh(f"{array}_line1")
            self.row.append(f"const auto {line} = {self.line(node, access, array)};")
            return f"{line}.{'run' if access.direction == 1 else 'reversed_run'}({self.run_start(node, access)})"
        call = "gather" if access.kind == "gather" else "load"
        return f"{array}.{call}({', '.join(self.index(arg) for arg in node.args)})"

    def index(self, node: Node) -> str:
        """The expression of an index, visiting what it needs."""
        if node not in self._texts:
            self.visit((node,))
        return self._texts[node].text

    def line(self, read: Node, access: Access, array: str) -> str:
        """The line that a run moves along."""
        indices = ["0" if axis == access.axis else self.index(arg) for axis, arg in enumerate(read.args)]
        return f"{array}.line<{access.axis}>({', '.join(indices)})"

    def run_start(self, read: Node, access: Access) -> str:
        """The index of lane 0 of a run."""
        assert access.key is not None and access.offset is not None
        near = self._sizes.fits(read.args[access.axis])
        lane0 = f"{access.key.value}[0]" if near else f"int64_t{{{access.key.value}[0]}}"
        offset = access.offset
        if offset.is_const:
            by = offset.integer
            if access.direction == -1:
                return f"{int_literal(by)} - {lane0}" if by else f"-{lane0}"
            return f"{lane0} {'-' if by < 0 else '+'} {int_literal(abs(by))}" if by else lane0
        self.index(offset)
        if access.direction == -1:
            return f"{self._texts[offset].inside(_SUM)} - {lane0}"
        return f"{lane0} + {self._texts[offset].inside(_PRODUCT)}"

    def snippet(self, *results: str) -> Snippet:
        """What was printed so far."""
        return Snippet(tuple(self.row), tuple(self.pair), results)

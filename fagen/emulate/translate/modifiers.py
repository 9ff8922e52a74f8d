"""An instruction's modifiers, and the errors of what is not built."""

from __future__ import annotations

from ..ptx.model import Instruction
from ..ptx.tokens import PtxError


class Modifiers:
    """An instruction's modifiers, taken one after another; what is left in the end is not known, and refused."""

    def __init__(self, instruction: Instruction):
        self._left = list(instruction.modifiers)
        self._instruction = instruction

    def flag(self, name: str) -> bool:
        """Whether the modifier stands there."""
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def choice(self, *names: str, default: str | None = None) -> str:
        """The first modifier that is one of ``names``; without a default, one must be there."""
        for name in self._left:
            if name in names:
                self._left.remove(name)
                return name
        if default is None:
            raise refused(self._instruction, f"expected one of .{', .'.join(names)}")
        return default

    def last(self) -> str:
        """The last modifier, as a type."""
        if not self._left:
            raise refused(self._instruction, "expected a type")
        return self._left.pop()

    def left(self) -> tuple[str, ...]:
        """Those not taken yet."""
        return tuple(self._left)

    def done(self) -> None:
        """Refuse the instruction if something is left."""
        if self._left:
            raise refused(self._instruction, f".{', .'.join(self._left)} is not built")


def refused(instruction: Instruction, why: str) -> PtxError:
    """What to raise for an instruction that cannot be translated."""
    name = ".".join((instruction.opcode, *instruction.modifiers))
    return PtxError(f"PTX line {instruction.place.line}: {name}: {why}: {instruction.text}")


class Unplaced(PtxError):
    """An operand that is not understood; who knows the instruction says where."""

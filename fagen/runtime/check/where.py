"""Where the kernels of a check run: on the CPU they are built for, on a card, or in the emulator. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from ..cards import Card, cards

DEVICE, EMULATOR = "device", "emulator"  # what a user may ask for


@dataclass(frozen=True)
class Where:
    """``device`` is torch's name for where tensors are. ``title`` names the card, or is "emulator"; it is empty for a
    module for the CPU. ``emulator`` is the folder that fagen.emulate is imported from, if that runs the kernels, and
    ``cache`` where it keeps what it compiles, if that is not its usual place."""

    device: str = "cpu"
    title: str = ""
    emulator: str = ""
    cache: str = ""


def find_where(target: str, on: str | None, *, cuda: bool, emulator: str | None) -> Where:
    """Where to check what is built for ``target``: as ``on`` says, else on the best card that runs it, else emulated.

    ``cuda`` says whether torch can use cards, ``emulator`` where fagen can be imported from. Raises LookupError, saying
    what is missing, where ``on`` cannot be had.
    """
    if target == "cpu":
        if on is not None:
            raise LookupError("the module is built for the CPU, and is checked on it: leave --on out")
        return Where()
    if on != EMULATOR:
        there = cards()
        fitting = [card for card in there if card.runs(target)]
        if fitting and cuda:
            card = min(fitting, key=lambda card: card.target != target)
            return Where(f"cuda:{card.index}", str(card))
        if on == DEVICE:
            raise LookupError(_missing(target, there, cuda and not fitting))
    if emulator is None:
        raise LookupError(
            f"there is no card here that runs {target}, and no fagen to emulate one: pip install fagen"
            if on != EMULATOR
            else "the emulator comes with fagen, which is not installed here: pip install fagen"
        )
    return Where("cpu", EMULATOR, emulator)


def _missing(target: str, there: tuple[Card, ...], cuda: bool) -> str:
    if there and not cuda:
        return f"{', '.join(map(str, there))} would run {target}, but torch is installed without CUDA"
    seen = f"there are {', '.join(map(str, there))}" if there else "there is none at all"
    return f"no card here runs {target}: {seen}; --on emulator needs none"

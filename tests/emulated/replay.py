"""Runs instruction forms on the emulator and holds what comes out against what a card gave."""

from __future__ import annotations

import base64
import ctypes
import json
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fagen import emulate

from .fixtures.form import BYTES, LANES, Form, kernel_name, made_bytes, pack, packed, unpack

RECORDED = Path(__file__).parent / "fixtures" / "recorded"


@cache
def recorded(family: str) -> dict[str, Any]:
    """What record.py wrote of one family."""
    return json.loads((RECORDED / f"{family}.json").read_text())


def values_of(kind: str, text: str) -> tuple[int, ...]:
    """Patterns, as record.py packs them."""
    data = zlib.decompress(base64.b64decode(text))
    letter = {"b16": "H", "b32": "I", "b64": "Q"}[kind]
    return struct.unpack(f"<{len(data) // BYTES[kind]}{letter}", data)


def emulated(ptx: str, form: Form) -> bytes:
    """What the form's kernel writes on the emulator."""
    given = torch.frombuffer(bytearray(packed(form)), dtype=torch.uint8)
    made = torch.full((made_bytes(form, form.cases),), 0xA5, dtype=torch.uint8)
    # Cells are aligned to 32 bytes on a card.
    assert made.data_ptr() % 32 == 0
    blocks = form.cases // LANES
    emulate.launch(ptx, kernel_name(form), blocks, LANES, [emulate.readonly(given), made], checks=blocks < 64)
    return ctypes.string_at(made.data_ptr(), made.numel())


# What the ISA says and the card does otherwise: form -> whether a case is one of them.
_ISA_SAYS_OTHERWISE = {
    # Position and length are taken modulo 256; with 64 bits the card takes them whole.
    "bfe.u64": lambda row: row["b"] > 255 or row["c"] > 255,
    "bfe.s64": lambda row: row["b"] > 255 or row["c"] > 255,
    "bfi.b64": lambda row: row["c"] > 255 or row["d"] > 255,
}


def differences(form: Form, card: Sequence[Sequence[int]], made: bytes) -> Iterator[str]:
    """In words, for each case that an emulator must not give; ``card`` has each output's patterns."""
    for (name, kind), wanted, found in zip(form.outputs, card, unpack(form, form.cases, made), strict=True):
        for case, (x, y) in enumerate(zip(wanted, found, strict=True)):
            if x == y or _alike(form, kind, x, y, case):
                continue
            row = {n: values[case] for n, _, values in form.inputs}
            if form.name not in _ISA_SAYS_OTHERWISE or not _ISA_SAYS_OTHERWISE[form.name](row):
                given = ", ".join(f"{n}={value:#x}" for n, value in row.items())
                yield f"{form.name}: {name} = {y:#x}, on the card {x:#x}, of {given}"


def _alike(form: Form, kind: str, x: int, y: int, case: int) -> bool:
    how, _, number = form.compare.partition(":")
    if how == "bits":
        return False
    if how == "nan64":
        return kind == "b64" and all(math.isnan(float64(each)) for each in (x, y))
    if how == "near":
        number, _, most = number.partition(":")
        if most and abs(float32(form.inputs[0][2][case])) > float(most):
            return True
        a, b = (float32(each) if kind == "b32" else float64(each) for each in (x, y))
        return math.isnan(a) and math.isnan(b) or abs(a - b) <= float(number) * max(1.0, abs(a))
    if how == "matrix":
        return _alike_matrix(number, kind, x, y, case)
    halves = [(x, y)] if kind != "b32" or how == "ulp32" else [(x & 0xFFFF, y & 0xFFFF), (x >> 16, y >> 16)]
    return all(_steps(how, a, b) <= int(number) for a, b in halves)


def _steps(how: str, x: int, y: int) -> float:
    """Units in the last place between two numbers; NaN is only like NaN."""
    exponents, mantissa = {"ulp32": (8, 23), "ulp16": (5, 10), "ulpb16": (8, 7), "ulp64": (11, 52)}[how]
    top = 1 << (exponents + mantissa)
    infinity = top - (1 << mantissa)
    nan = [each % top > infinity for each in (x, y)]
    if any(nan):
        return 0 if all(nan) else math.inf
    a, b = (each % top if each < top else -(each % top) for each in (x, y))
    return abs(a - b)


def _alike_matrix(how: str, kind: str, x: int, y: int, case: int) -> bool:
    """Only the second warp's sums hang on their order: "D:A:K"."""
    d, a, k = how.split(":")
    if not LANES <= case < 2 * LANES:
        return False
    if d == "f64":
        return abs(float64(x) - float64(y)) <= 1e-13
    if d == "f16":
        pairs = [(half(x & 0xFFFF), half(y & 0xFFFF)), (half(x >> 16), half(y >> 16))]
        return all(abs(p - q) <= 2**-9 * max(abs(p), 1.0) for p, q in pairs)
    # Products up to 4, K of them; the hardware aligns addends to the largest and drops what lies below.
    dropped = 2.0**-12 if a in ("e4m3", "e5m2") else 2.0**-21
    return abs(float32(x) - float32(y)) <= dropped * int(k)


def float32(pattern: int) -> float:
    """The number that a pattern means."""
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def float64(pattern: int) -> float:
    """Likewise."""
    return struct.unpack("<d", struct.pack("<Q", pattern))[0]


def half(pattern: int) -> float:
    """Likewise."""
    return struct.unpack("<e", struct.pack("<H", pattern))[0]


__all__ = ["differences", "emulated", "pack", "recorded", "values_of"]

"""NVIDIA's cards in this machine, as their driver knows them. No torch here."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True)
class Card:
    """One of them: its number among those that are visible (torch's own), and what it is, as "sm_90"."""

    index: int
    name: str
    target: str

    def runs(self, target: str) -> bool:
        """Whether it runs what is built for ``target``: its own code, or older PTX, which the driver compiles."""
        number, exact = _number(target)
        own = _number(self.target)[0]
        return own == number if exact else own >= number

    def __str__(self) -> str:
        return f"{self.name} ({self.target})"


def cards() -> tuple[Card, ...]:
    """Those that are visible; none where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        failed = (
            driver.cuDeviceGet(ctypes.byref(device), index)
            or driver.cuDeviceGetName(name, len(name), device)
            or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        )
        if not failed:
            found.append(Card(index, name.value.decode(errors="replace"), f"sm_{major.value}{minor.value}"))
    return tuple(found)


def _number(target: str) -> tuple[int, bool]:
    """90 and whether that alone will do, of "sm_90a"."""
    match = re.fullmatch(r"sm_(\d+)(a?)", target)
    assert match is not None, target
    return int(match[1]), bool(match[2])

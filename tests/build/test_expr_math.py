"""Vector math against float64: within 2 units in the last place over all of float32, on every ISA and compiler."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expr_cpp import can_run, compile_library

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x < 0, np.exp(-abs(x)), 1.0) / (1 + np.exp(-abs(x))),
    "softplus": lambda x: np.where(x == -np.inf, 0.0, np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "abs": np.abs,
}
EXACT = {"sqrt": 0.5, "floor": 0.0, "abs": 0.0}
PAIRS = ("min", "max", "floor_div", "floor_mod", "pow")
INTEGERS = ("min", "max", "floor_div", "floor_mod")

_VECTOR_LOOP = """
extern "C" void {name}({element}* out, const {element}* a, const {element}* b, int64_t n) {{
  for (int64_t i = 0; i < n; i += kLanes) {{
    const {vector} x = *({vector}_in*)(a + i);
    [[maybe_unused]] const {vector} y = *({vector}_in*)(b + i);
    *({vector}_in*)(out + i) = {call};
  }}
}}
"""
_SCALAR_LOOP = """
extern "C" void {name}({element}* out, const {element}* a, [[maybe_unused]] const {element}* b, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = {call};
}}
"""


def _source() -> str:
    lines = ['#include "fagen/cpu/math.h"', "using namespace fagen;"]
    for vector, element in (("vf", "float"), ("vi", "int32_t"), ("vl", "int64_t")):
        size = "sizeof(" + vector + ")"
        lines.append(f"typedef {element} {vector}_in __attribute__((vector_size({size}), aligned(4), may_alias));")
    for name in FUNCTIONS:
        for kind, loop, call in (
            ("vector", _VECTOR_LOOP, f"fagen::{name}(x)"),
            ("scalar", _SCALAR_LOOP, f"fagen::{name}(a[i])"),
        ):
            lines.append(loop.format(name=f"{kind}_{name}", element="float", vector="vf", call=call))
    for element, vector, names in (("float", "vf", PAIRS), ("int32_t", "vi", INTEGERS), ("int64_t", "vl", INTEGERS)):
        for name in names:
            for kind, loop, call in (
                ("vector", _VECTOR_LOOP, f"fagen::{name}(x, y)"),
                ("scalar", _SCALAR_LOOP, f"fagen::{name}(a[i], b[i])"),
            ):
                lines.append(loop.format(name=f"{kind}_{vector}_{name}", element=element, vector=vector, call=call))
    return "\n".join(lines)


class Math:
    def __init__(self, library: Path):
        self._library = ctypes.CDLL(str(library))

    def __call__(self, name: str, a: Any, b: Any = None) -> Any:
        a = np.ascontiguousarray(a)
        b = a if b is None else np.ascontiguousarray(b)
        assert a.size % 16 == 0
        out = np.empty_like(a)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (out, a, b))
        getattr(self._library, name)(*pointers, ctypes.c_int64(a.size))
        return out


@pytest.fixture(scope="module", params=[(c, isa) for c in ("g++", "clang++") for isa in ("avx512", "avx2", "portable")])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Math:
    compiler, isa = request.param
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    # The flags kernels are compiled with.
    flags = ("-O2", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
    library = compile_library(_source(), tmp_path_factory.mktemp("math"), compiler, isa, *flags)
    if not can_run(isa):
        pytest.skip(f"compiled, but this machine has no {isa}")
    return Math(library)


def all_floats() -> Any:
    """Every 4,999th float32 of all, and those at which things change."""
    edges = np.array([0.0, 1.0, 88.72, 88.73, -87.34, -103.97, -104.5, 0.625, 9.0, 2.0**23, 1e-45], np.float32)
    near = (edges.view(np.int32)[:, None] + np.arange(-40, 40)[None, :]).astype(np.int32).view(np.float32).reshape(-1)
    bits = np.arange(0, 2**32, 4999, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    found = np.concatenate([near, -near, bits, special])
    return np.concatenate([found, np.zeros(-len(found) % 16, np.float32)])


def ulps(found: Any, exact: Any) -> Any:
    """How far results are from the exact ones, in units in the last place of float32."""
    rounded = exact.astype(np.float32)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
    unit = np.where(np.isinf(rounded), 2.0**104, unit)
    distance = np.abs(found.astype(np.float64) - np.clip(exact, -(2.0**128), 2.0**128)) / unit
    return np.where(same & ~np.isfinite(rounded), 0.0, np.where(np.isnan(found) != np.isnan(rounded), np.inf, distance))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_argument(compiled: Math, name: str) -> None:
    x = all_floats()
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64))
        found = compiled(f"vector_{name}", x)
        if name in ("sin", "cos"):  # the C library's; beyond this it may differ by the machine
            x, exact, found = (array[np.abs(x) < 1e6] for array in (x, exact, found))
        worst = ulps(found, exact)
    assert np.nanmax(worst) <= EXACT.get(name, 2.0), x[np.nanargmax(worst)]
    if name in ("floor", "abs", "tanh", "sqrt"):
        assert np.array_equal(np.signbit(found[~np.isnan(found)]), np.signbit(exact[~np.isnan(found)]))
    some = all_floats()[::64]
    some = some[: len(some) // 16 * 16]
    np.testing.assert_array_equal(compiled(f"scalar_{name}", some), compiled(f"vector_{name}", some))


def test_real_pairs(compiled: Math) -> None:
    rng = np.random.default_rng(0)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.7, 1e-40, 3e38], np.float32)
    a, b = (np.concatenate([rng.normal(size=950).astype(np.float32) * 9, rng.choice(special, 970)]) for _ in range(2))
    with np.errstate(all="ignore"):
        expected = {
            "min": np.where((a <= b) | np.isnan(a), a, b),
            "max": np.where((a >= b) | np.isnan(a), a, b),
            "floor_mod": np.remainder(a, b),
            "floor_div": np.floor_divide(a, b),
            "pow": np.power(a.astype(np.float64), b.astype(np.float64)),
        }
        for name, exact in expected.items():
            for kind in ("vector", "scalar"):
                found = compiled(f"{kind}_vf_{name}", a, b)
                if name == "pow":
                    assert (ulps(found, exact) <= 2).all()
                else:
                    np.testing.assert_array_equal(found, exact, err_msg=name)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_pairs(compiled: Math, dtype: type) -> None:
    rng = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    special = np.array([0, 1, -1, 2, -2, 7, -7, limits.max, limits.min, limits.max - 1], dtype)
    a, b = (np.concatenate([rng.integers(-50, 50, 960).astype(dtype), rng.choice(special, 960)]) for _ in range(2))
    vector = "vi" if dtype is np.int32 else "vl"
    for name in INTEGERS:
        exact = []
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            value = {
                "min": min(x, y),
                "max": max(x, y),
                "floor_div": x // y if y else 0,
                "floor_mod": x % y if y else 0,
            }[name]
            exact.append((value - limits.min) % (limits.max - limits.min + 1) + limits.min)  # wraps
        for kind in ("vector", "scalar"):
            np.testing.assert_array_equal(compiled(f"{kind}_{vector}_{name}", a, b), np.array(exact, dtype), name)

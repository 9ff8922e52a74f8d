"""Instructions against references that share nothing with the machine: fractions, Python's integers, torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from random import Random

import pytest
import torch

from fagen import emulate

from .compiled import ptx_of
from .fixtures.form import Form, module, unpack
from .launches import FEW, ints, run
from .reference import number, rounded
from .replay import emulated

orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")
F32, F16, BF16 = (8, 23), (5, 10), (8, 7)


def patterns(exponent_bits: int, mantissa_bits: int, seed: int, count: int = 512) -> list[int]:
    """Finite ones, many near each other in size, some of them subnormal."""
    random = Random(seed)
    found = []
    for n in range(count):
        middle = (1 << exponent_bits - 1) - 1
        exponent = {0: 0, 1: random.randrange((1 << exponent_bits) - 1)}.get(n % 8, middle + random.randrange(-3, 4))
        found.append(
            (random.getrandbits(1) << exponent_bits | exponent) << mantissa_bits | random.getrandbits(mantissa_bits)
        )
    return found


def made(body: str, outputs: str, target: str = "sm_90", **inputs: tuple[str, list[int]]) -> list[int]:
    """What a form of one output gives."""
    given = tuple((name, kind, tuple(values)) for name, (kind, values) in inputs.items())
    form = Form("one", body, given, (("r", outputs),))
    return list(unpack(form, form.cases, emulated(module([form], target), form))[0])


ARITHMETIC: dict[str, Callable[..., Fraction]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": lambda a, b, c: a * b + c,
}


def unsigned(pattern: int, width: int) -> int:
    """Zeros are alike: fractions have no sign for them."""
    return 0 if pattern == 1 << width - 1 else pattern


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_pairs_of_float32(name: str, mode: str) -> None:
    """Of which an H200 has none."""
    count = 3 if name == "fma" else 2
    columns = [patterns(*F32, seed) for seed in range(2 * count)]
    words = [[low | high << 32 for low, high in zip(columns[n], columns[n + count], strict=True)] for n in range(count)]
    inputs = {letter: ("b64", values) for letter, values in zip("abc", words, strict=False)}
    body = f"{name}.{mode}.f32x2 %r, {', '.join('%' + letter for letter in inputs)};"
    found = made(body, "b64", "sm_100", **inputs)
    for half in (0, 1):
        for n, result in enumerate(found):
            operands = [number(columns[k + half * count][n], *F32) for k in range(count)]
            wanted = rounded(ARITHMETIC[name](*operands), *F32, mode)
            assert unsigned(result >> 32 * half & 0xFFFFFFFF, 32) == unsigned(wanted, 32), (operands, half)


@pytest.mark.parametrize(("kind", "form"), [("f32", F32), ("f16", F16), ("bf16", BF16)])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str, kind: str, form: tuple[int, int]) -> None:
    register, width = ("b32", 32) if kind == "f32" else ("b16", 16)
    columns = [patterns(*form, seed) for seed in range(3 if name == "fma" else 2)]
    inputs = {letter: (register, values) for letter, values in zip("abc", columns, strict=False)}
    body = f"{name}.rn.{kind} %r, {', '.join('%' + letter for letter in inputs)};"
    for n, result in enumerate(made(body, register, **inputs)):
        operands = [number(values[n], *form) for values in columns]
        wanted = rounded(ARITHMETIC[name](*operands), *form)
        assert unsigned(result, width) == unsigned(wanted, width), operands


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("to", "form"), [("f16", F16), ("bf16", BF16), ("f32", F32)])
def test_integers_of_64_bits_to_floats(to: str, form: tuple[int, int], mode: str) -> None:
    random = Random(1)
    values = [random.getrandbits(random.randrange(1, 65)) for _ in range(448)]
    values += [(1 << n) + (1 << n - 9) + (n % 2) for n in range(9, 64)] + [0] * 9
    register = "b32" if to == "f32" else "b16"
    found = made(f"cvt.{mode}.{to}.s64 %r, %a;", register, a=("b64", values))
    for value, result in zip(values, found, strict=True):
        signed = value - (1 << 64) if value >> 63 else value
        assert result == rounded(Fraction(signed), *form, mode), signed


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_products_quotients_and_shifts(kind: str) -> None:
    bits, is_signed = int(kind[1:]), kind[0] == "s"
    random = Random(bits)
    a, b = ([random.getrandbits(random.randrange(1, bits + 1)) for _ in range(256)] for _ in range(2))
    b = [value or 1 for value in b]
    mask = (1 << bits) - 1

    def value(x: int) -> int:
        return x - (1 << bits) if is_signed and x >> bits - 1 else x

    def quotient(x: int, y: int) -> int:
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    wanted: dict[str, Callable[[int, int], int]] = {
        f"mul.hi.{kind}": lambda x, y: x * y >> bits,
        f"mul.lo.{kind}": lambda x, y: x * y,
        f"div.{kind}": quotient,
        f"rem.{kind}": lambda x, y: x - y * quotient(x, y),
        f"sub.{kind}": lambda x, y: x - y,
        f"min.{kind}": min,
    }
    for instruction, reference in wanted.items():
        found = made(f"{instruction} %r, %a, %b;", f"b{bits}", a=(f"b{bits}", a), b=(f"b{bits}", b))
        assert found == [reference(value(x), value(y)) & mask for x, y in zip(a, b, strict=True)], instruction


def test_places_in_the_grid() -> None:
    grid, block = (3, 2, 2), (5, 4, 3)
    out = ints(12 * 60, 14)
    emulate.launch(ptx_of("language"), "places", grid, block, [out])
    rows = iter(out.tolist())
    for bz in range(2):
        for by in range(2):
            for bx in range(3):
                for n in range(60):
                    lane = n % 32
                    masks = (1 << lane) - 1, 0xFFFFFFFF << lane & 0xFFFFFFFF
                    below, above = (mask - (1 << 32) if mask >> 31 else mask for mask in masks)
                    where = [n % 5, n // 5 % 4, n // 20, bx, by, bz]
                    assert next(rows) == [*where, lane, n // 32, 2, below, above, *grid]


def test_calls_and_structs() -> None:
    def collatz(n: int) -> int:
        steps = 0
        while n != 1:
            n = 3 * n + 1 if n % 2 else n // 2
            steps += 1
        return steps

    out = torch.zeros(64, dtype=torch.int64)
    run("language", "calls", 1, 64, [out])
    for t, found in enumerate(out.tolist()):
        by = t + 100 if t % 2 else 0
        total = t + by
        for part in (1, 2, 3, 4, t):
            total = total * 7 + (part + by + 128) % 256 - 128
        assert found == total * 1000 + (collatz(t + 1) if t % 3 else -collatz(t + 2))


def test_switches() -> None:
    x, out = torch.arange(40, dtype=torch.int32) % 10, torch.full((40,), -1, dtype=torch.int32)
    run("language", "switches", 1, 40, [x, out])
    cases = [
        lambda t: t, lambda t: 3 * t, lambda t: t * t + 5, lambda t: 5, lambda t: -t, lambda t: t << 3, lambda t: ~t,
        lambda t: -1, lambda t: 1000, lambda t: 1000,
    ]  # fmt: skip
    assert out.tolist() == [cases[t % 10](t) for t in range(40)]


def test_vectors() -> None:
    b = torch.randint(0, 256, (32, 4), dtype=torch.uint8)
    s = torch.randint(-(2**15), 2**15, (32, 2), dtype=torch.int16)
    d = torch.randint(0, 1000, (32, 2)).double()
    out = ints(32, 4)
    run("language", "vectors", 1, 32, [b, s, d, out])
    b, s = b.int(), s.int()
    wanted = [b[:, 0] + 256 * b[:, 1], s[:, 0] * s[:, 1], d.sum(1).int(), b[:, 2] * b[:, 3]]
    assert torch.equal(out, torch.stack(wanted, 1).int())


@orders
def test_barriers_that_reduce_and_barriers_by_number(order: emulate.Order) -> None:
    x, out = torch.randint(-6, 6, (96,), dtype=torch.int32), ints(96)
    run("language", "votes", 1, 96, [x, out], **order)
    wanted = (x > 0).sum() + 1000 * (x > -5).all() + 2000 * (x > 4).any()
    assert (out == wanted).all()
    out = ints(128)
    run("language", "halves", 1, 128, [out], **order)
    assert out.tolist() == [(t ^ 63) + 2 + t // 64 for t in range(128)]
    out = ints(64)
    run("language", "producer", 1, 96, [out, 6], **order)
    assert out.tolist() == [15 * (31 - lane) for lane in range(32)] * 2


def test_mbarriers_with_fewer_participants() -> None:
    out = ints(1)
    run("language", "transactions", 1, 32, [out])
    # Parity 0 is done after two arrivals; parity 1 after one more, and then parity 0 is not.
    assert out.item() == 0b010100

"""Floating-point arithmetic by fractions: what an instruction's result must be, by no arithmetic of the machine's."""

from __future__ import annotations

from fractions import Fraction


def rounded(x: Fraction, exponent_bits: int, mantissa_bits: int, mode: str = "rn") -> int:
    """The pattern, without a sign bit for zero, of a number in a format that has infinities."""
    sign = int(x < 0) << (exponent_bits + mantissa_bits)
    size, bias = abs(x), (1 << exponent_bits - 1) - 1
    exponent = 1 - bias
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    units = size / Fraction(2) ** (exponent - mantissa_bits)
    whole, rest = divmod(units, 1)
    whole = int(whole)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "rm": rest > 0 and x < 0,
        "rp": rest > 0 and x > 0,
    }[mode]
    whole += up
    if whole >> (mantissa_bits + 1):
        whole, exponent = whole >> 1, exponent + 1
    if exponent > bias:
        infinite = mode == "rn" or (mode == "rm" and x < 0) or (mode == "rp" and x > 0)
        top = ((1 << exponent_bits) - 1) << mantissa_bits
        return sign | (top if infinite else top - 1)
    if not whole >> mantissa_bits:  # subnormal
        return sign | whole
    return sign | (exponent + bias) << mantissa_bits | (whole & (1 << mantissa_bits) - 1)


def number(pattern: int, exponent_bits: int, mantissa_bits: int) -> Fraction:
    """What a finite pattern means."""
    sign = -1 if pattern >> (exponent_bits + mantissa_bits) else 1
    exponent = pattern >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = pattern & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    if exponent == 0:
        return sign * Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)
    return sign * Fraction(mantissa | 1 << mantissa_bits) * Fraction(2) ** (exponent - bias - mantissa_bits)

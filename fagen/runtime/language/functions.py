"""The functions an expression may call: a closed list."""

from __future__ import annotations

# Two arguments; integers give an integer. On a tie the value, and so the gradient, is the first argument's.
# More arguments are folded from the left: min(a, b, c) is min(min(a, b), c). A NaN argument gives NaN.
EXTREMES = ("min", "max")

# One argument; an integer gives an integer (floor then changes nothing).
TYPE_KEEPING = ("abs", "floor")

# One argument, taken as a real number; the result is real. softplus(x) is log(1 + exp(x)).
REAL = ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "softplus", "sin", "cos")

FUNCTIONS = EXTREMES + TYPE_KEEPING + REAL

# What people call things elsewhere, and how it is said here.
ELSEWHERE = {
    "where": "write `a if condition else b`",
    "select": "write `a if condition else b`",
    "pow": "write `x ** n`",
    "square": "write `x ** 2`",
    "ln": "write `log(x)`, the natural logarithm",
    "log10": "write `log(x) / 2.302585092994046`",
    "log1p": "write `log(1 + x)`",
    "relu": "write `max(x, 0)`",
    "silu": "write `x * sigmoid(x)`",
    "clamp": "write `min(max(x, low), high)`",
    "clip": "write `min(max(x, low), high)`",
    "minimum": "write `min(a, b)`",
    "maximum": "write `max(a, b)`",
    "ceil": "write `-floor(-x)`, or `-(-a // b)` for integers",
    "round": "write `floor(x + 0.5)`",
    "int": "write `a // b` to divide integers; a real number cannot become an integer",
    "sign": "write `1 if x > 0 else -1 if x < 0 else 0`",
    "rsqrt": "write `1 / sqrt(x)`",
    "cap": "write `softcap(c)`",
    "any": "write `a or b`",
    "all": "write `a and b`",
    "sliding_window": "write `window(left, right)`",
    "range": "compare instead: `low <= x < high`",
}

"""What the language says of text that it does not take: where, what and a hint, at once whatever the text."""

from __future__ import annotations

import copy
import pickle
import sys
import time

import pytest
from language_names import PARAMS, read

from fagen.runtime.language import Define, LanguageError, Node, parse, unparse
from fagen.runtime.variant import Param

# text, the part the error points at, words of the message, words of the hint
WRONG = [
    ("causal & q - kv < 4096", "causal & q - kv < 4096", "binds tighter", "`causal & (q - kv < 4096)`"),
    ("q < 3 & kv < 2 | on", "q < 3 & kv < 2 | on", "binds tighter", "`(q < 3) & (kv < 2) | on`"),
    ("on and (on | q == 3)", "on | q == 3", "binds tighter", "`on and (on | (q == 3))`"),
    (
        "on & max(q, 1) < doc[b, q] & on",
        "on & max(q, 1) < doc[b, q] & on",
        "binds",
        "`on & (max(q, 1) < doc[b, q]) & on`",
    ),
    ("causal & q", "q", "`&` wants truth values, but `q` is an integer", "compare"),
    ("causal + 1 < 2", "causal", "`+` wants numbers, but `causal` is a truth value", "1 if causal else 0"),
    ("-on < 2", "on", "`-` wants numbers", ""),
    ("abs(on) < 2", "on", "`abs` wants numbers", ""),
    ("causal and q", "q", "`and` wants truth values", ""),
    ("not q", "q", "`not` wants truth values", ""),
    ("~q < 3", "q", "`~` wants truth values", ""),
    ("on < on", "on < on", "cannot compare", ""),
    ("on == 1", "on == 1", "cannot compare", ""),
    ("q if on else on", "q if on else on", "one branch is an integer, the other a truth value", ""),
    ("on if q else on", "q", "`if` wants truth values", ""),
    ("q - kv", "q - kv", "a mask is a truth value, but this is an integer", ""),
    ("casual", "casual", "unknown name `casual`", "did you mean `causal`?"),
    ("q_idx >= kv_idx", "q_idx", "unknown name `q_idx`", "did you mean `q`?"),
    ("tahn(q) < 1", "tahn", "unknown function `tahn`", "did you mean `tanh`?"),
    ("where(on, q, kv) < 1", "where", "unknown function `where`", "a if condition else b"),
    ("slpe[h] < 1", "slpe", "unknown param `slpe`", "did you mean `slope`?"),
    ("tanh < 1", "tanh", "`tanh` is a function", "tanh(...)"),
    ("tanh(1, 2) < 1", "tanh(1, 2)", "`tanh` wants one number", ""),
    ("max(q) < 1", "max(q)", "`max` wants two or more numbers", ""),
    ("max(q, kv, key=3) < 1", "max(q, kv, key=3)", "`max` wants", ""),
    ("slope < 1", "slope", "shape [H]; here it is read with no index", "slope[h]"),
    ("slope[h, b] < 1", "slope[h, b]", "it wants 1 index, not 2", ""),
    ("doc[q] == 1", "doc[q]", "it wants 2 indices, not 1", ""),
    ("slope[hk] < 1", "hk", "`hk` is no index of extent H", "write `h`"),
    ("key_slope[h] < 1", "h", "`h` is no index of extent Hk", "write `hk`"),
    ("prefix[q] < 1", "q", "no index of extent B", "write `b`"),
    ("tree[b, h, j]", "h", "no index of extent Sq", "write `i`"),
    ("doc[b, q / 2] == 1", "q / 2", "an index is an integer, but `q / 2` is a real number", "`//`"),
    ("doc[b, on] == 1", "on", "an index is an integer", ""),
    ("b0[0] < 1", "b0[0]", "`b0` is a scalar", "write `b0`"),
    ("q[1] < 2", "q", "`q` is a number, not a param", ""),
    ("(q + 1)[1] < 2", "q + 1", "only a param can be read", ""),
    ("prefix[b][0] < 2", "prefix[b]", "only a param can be read", ""),
    ("doc[b, 1:2] == 1", ":", "`:` has no meaning here", ""),
    ("doc(b, q) == 1", "doc(b, q)", "read with [...], not called", ""),
    ("causal[q]", "causal", "called with (...)", ""),
    ("s < 1", "s", "a mask cannot depend on the score", "under `score:`"),
    ("softcap(2) < 1", "softcap(2)", "in `softcap`: a mask cannot depend on the score", ""),
    ("q // 0 < 1", "q // 0", "divides by zero", ""),
    ("q % (3 - 3) < 1", "q % (3 - 3)", "divides by zero", ""),
    ("q ** kv < 1", "q ** kv", "exponent is a constant from 0 to 64", "2.0 ** n"),
    ("9**9**9**9 > q", "9**9**9", "exponent is a constant", ""),
    ("2**62 * 3 > q", "2**62 * 3", "does not fit in 64 bits", ""),
    ("b0 < 1e39", "1e39", "does not fit in float32", ""),
    ("b0 < 1e999", "1e999", "does not fit", ""),
    ("q < " + "9" * 41, "9" * 41, "a number of 41 characters", ""),
    ("q < 0x10", "0x10", "not a number", "decimal"),
    ("q < 3j", "3j", "not a number", ""),
    ("q < 012", "012", "leading zeros", ""),
    ("q = 3", "=", "cannot read `=`", "=="),
    ("q => 3", "=", "cannot read `=`", ">="),
    ("q < ", "", "ends too soon", ""),
    ("3 q", "q", "cannot read", ""),
    ("q < 3)", ")", "`)` closes nothing", ""),
    ("(q < 3", "(", "`(` is never closed", ""),
    ("doc[b, (q] < 3)", "]", "`]` closes nothing", ""),
    ("", "", "there is none", ""),
    ("  \n", "  \n", "there is none", ""),
    ("q \u2264 3", "\u2264", "has no meaning here", "write `<=`"),
    ("on && on", "&&", "has no meaning here", "write `and`"),
    ("!on", "!", "has no meaning here", "write `not`"),
    ("on ^ on", "^", "has no meaning here", "!="),
    ("q < 3 # comment", "#", "has no meaning here", "comment"),
    ("q.real < 1", ".", "has no meaning here", ""),
    ("q < {W}", "{", "has no meaning here", "bare name"),
    ("'causal'", "'", "has no meaning here", ""),
    ("\u03b1 < 1", "\u03b1", "has no meaning here", ""),
    ("q < 1\x00", "\x00", "has no meaning here", ""),
    ("q in (1, 2)", "(1, 2)", "not part of the language", ""),
    ("q is 3", "q is 3", "`is` is not part of the language", ""),
    ("[q < 1 for q in doc]", "[q < 1 for q in doc]", "not part of the language", ""),
    ("__import__", "__import__", "unknown name", ""),
    ("__import__(1)", "__import__", "unknown function", ""),
    ("max(*doc)", "*doc", "not part of the language", ""),
    ("near(**doc)", "near(**doc)", "not part of the language", ""),
    ("(tanh)(3)(4) < 1", "(tanh)(3)", "cannot be called", ""),
    ("None", "None", "not a number", ""),
    ("q << 2 < 8", "q << 2", "not part of the language", ""),
    ("window(2)", "window(2)", "`window` wants 2 arguments", "`window(left, right)`"),
    ("window", "window", "`window` wants 2 arguments", "`window(left, right)`"),
    ("window(1, 2, 3)", "window(1, 2, 3)", "wants 2 arguments", ""),
    ("window(1, left=2)", "window(1, left=2)", "cannot take `left`", ""),
    ("window(1, wide=2)", "window(1, wide=2)", "cannot take `wide`", ""),
    ("window(-2, 0)", "window(-2, 0)", "in `window`: `left` is a number of keys", ""),
    ("window(0.5, 0)", "window(0.5, 0)", "an integer, or -1 or None", ""),
    ("window(doc, 0)", "window(doc, 0)", "has 2 dimensions", ""),
    ("prefix(doc)", "prefix(doc)", "param of shape [B], but `doc` has shape [B, n]", ""),
    ("prefix(0.5)", "prefix(0.5)", "`n` is an integer", ""),
    ("prefix(None)", "prefix(None)", "`n` is an integer", ""),
    ("document(3)", "document(3)", "by its bare name", ""),
    ("document(prefix)", "document(prefix)", "but `prefix` has shape [B]", ""),
    ("document(tree)", "document(tree)", "but `tree` has shape [B, Sq, Sq]", ""),
    ("causal(3)", "causal(3)", "`causal` wants no arguments", "it is `causal`"),
    ("local(on)", "local(on)", "in `local` (`causal and q - kv < n`): `<` cannot compare", ""),
    ("local(doc)", "local(doc)", "in `local` (`causal and q - kv < n`): `doc` has shape [B, n]", "doc[b, kv]"),
    ("same(q)", "same(q)", "in `same`", ""),
    ("same(None)", "same(None)", "in `same`", ""),
    ("loop(1) < 3", "loop(1)", "macro `loop` uses itself: loop -> pool -> loop", ""),
    ("on and wrong", "wrong", "in `wrong` (`q < kw`): unknown name `kw`", "did you mean `kv`?"),
    ("broken(1)", "broken(1)", "in `broken` (`q < (n`): `(` is never closed", ""),
]


@pytest.mark.parametrize(
    "text, part, message, hint", WRONG, ids=[text[:40].replace("\x00", "NUL") for text, *_ in WRONG]
)
def test_errors_say_where_what_and_how(text: str, part: str, message: str, hint: str) -> None:
    with pytest.raises(LanguageError) as caught:
        read(text)
    error = caught.value
    assert text[error.start : error.end] == part
    assert message in error.message
    assert hint in (error.hint or "")
    assert f"hint: {error.hint}" in str(error) or error.hint is None


def test_errors_of_scores_and_numbers() -> None:
    for text, expect, message in [
        ("causal", "score", "a score change is a number, but this is a truth value"),
        ("softcap(0)", "score", "a cap is positive"),
        ("softcap(slope)", "score", "`c` is a number"),
        ("alibi(doc)", "score", "`slope` is a number, or a param of shape [H] or [B, H], but `doc` has shape [B, n]"),
        ("alibi(on)", "score", "`slope` is a number"),
        ("q", "number", "differs from pair to pair"),
        ("s", "number", "differs from pair to pair"),
        ("b0", "number", "only known at run time"),
        ("slope[0]", "number", "only known at run time"),
        ("true", "number", "a number was expected"),
    ]:
        with pytest.raises(LanguageError) as caught:
            read(text, expect)
        assert message in caught.value.message, text


def test_error_shows_the_place() -> None:
    with pytest.raises(LanguageError) as caught:
        read("q <\n casual")
    assert str(caught.value) == ("unknown name `casual`\n  q <  casual\n       ^^^^^^\n  hint: did you mean `causal`?")


def test_mistakes_that_are_not_each_others_fault_are_told_at_once() -> None:
    with pytest.raises(LanguageError) as caught:
        read("casual and doc[bb, qq] == tahn(qx) + 1 and (on if q else on + 1 < 2)")
    every = (caught.value, *caught.value.others)
    assert [error.message for error in every] == [
        "unknown name `casual`",
        "unknown name `bb`",
        "unknown name `qq`",
        "unknown function `tahn`",
        "`+` wants numbers, but `on` is a truth value",
    ]
    assert str(caught.value).count("hint: did you mean") == 4
    assert all(not error.others for error in caught.value.others)
    twin = pickle.loads(pickle.dumps(caught.value))
    assert str(twin) == str(caught.value)


def test_errors_survive_pickle_and_copy() -> None:
    with pytest.raises(LanguageError) as caught:
        read("on and casual")
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.deepcopy(caught.value)):
        assert str(twin) == str(caught.value)
        assert (twin.start, twin.end, twin.hint) == (7, 13, "did you mean `causal`?")


HOSTILE = {
    "parentheses": "(" * 3000 + "q" + ")" * 3000,
    "open": "(" * 100_000,
    "brackets": "doc[" * 3000,
    "not": "not " * 3000 + "on",
    "minus": "-" * 3000 + "q < 1",
    "invert": "~" * 499 + "on",
    "sum": "+".join(["q"] * 3000) + "< 1",
    "short sum": "+".join(["q"] * 400) + "< 1",
    "power": "**".join(["9"] * 400) + "< 1",
    "conditional": "on if on else " * 200 + "on",
    "max": "max(q, " * 99 + "q" + ")" * 99 + "< 1",
    "wide max": "max(" + "q," * 900 + "q) < 1",
    "chain": "<".join(["q"] * 3000),
    "long": "q <" + " " * 10_000_000 + "1",
    "digits": "q < " + "9" * 10_000,
    "exponent": "b0 < 1e" + "9" * 30,
    "power of powers": "9**9**9**9 < q",
    "steps to a large power": "((((99**64)**64)**64)**64) < q",
    "name": "a" * 15_000,
    "lambda": "(lambda: 1)()",
    "walrus": "(q := 1) < 2",
    "fstring": "f'{q}' == 1",
    "dunder": "q.__class__.__mro__[1].__subclasses__() == 1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_an_error_at_once(name: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(LanguageError):
        read(HOSTILE[name])
    assert time.perf_counter() - begun < 1


def test_hostile_macros_are_an_error_at_once() -> None:
    doubling = {f"m{k}": Define(("x",), f"m{k - 1}(x + x)" if k else "x") for k in range(60)}
    empty = {f"e{k}": Define((), "+".join([f"e{k - 1}"] * 50) if k else "1") for k in range(30)}
    copies = {f"c{k}": Define(("x",), f"c{k - 1}(x) and c{k - 1}(x)" if k else "x") for k in range(40)}
    begun = time.perf_counter()
    for defines, text in ((doubling, "m59(q) < 1"), (empty, "e29 < q"), (copies, "c39(on)")):
        with pytest.raises(LanguageError):
            parse(text, params=PARAMS, defines=defines, expect="mask")
    assert time.perf_counter() - begun < 2


def test_limits_hold_deep_in_the_stack() -> None:
    """A parse begun near Python's own recursion limit fails as RecursionError, never otherwise; here there is room."""

    def deep(levels: int) -> Node:
        return read("on and " * 40 + "(" * 40 + "on" + ")" * 40) if levels == 0 else deep(levels - 1)

    assert deep(sys.getrecursionlimit() // 2).type == "bool"


def test_what_is_accepted_can_be_read_back_at_the_limits() -> None:
    largest = "".join(f"({'x' * 90} + q) * (" for _ in range(30)) + "q" + ")" * 30 + " < 1"
    params = {"x" * 90: Param("x" * 90, "f32", ())}
    node = parse(largest, params=params, expect="mask")
    assert parse(unparse(node), params=params, expect="mask") == node
    wide = " or ".join(f"q == {k}" for k in range(160))
    assert parse(unparse(read(wide)), expect="mask") == read(wide)

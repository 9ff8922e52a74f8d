"""The mistakes a check is asked to notice."""

from __future__ import annotations

from fagen.runtime.language import canonical, mutants, parse, unparse
from fagen.runtime.variant import Param

PARAMS = {
    param.name: param
    for param in (
        Param("slope", "f32", ("H",)),
        Param("doc", "i32", ("B", "n")),
        Param("glob", "bool", ("B", "n")),
        Param("c", "f32", ()),
        Param("n", "i32", ()),
        Param("on", "bool", ()),
    )
}


def texts(text: str, expect: str = "mask") -> set[str]:
    node = parse(text, params=PARAMS, expect=expect)
    return {unparse(mutant) for _, mutant in mutants(node)}


def test_a_window() -> None:
    found = texts("causal and q - kv < 64")
    assert found >= {
        "true",  # the mask left out
        "kv <= q",  # a conjunct dropped
        "q - kv < 64",
        "kv < q and q - kv < 64",  # strict for loose
        "kv >= q and q - kv < 64",  # turned round
        "kv <= q and q - kv <= 64",  # a bound moved by one
        "kv <= q and q < 64",  # an operator deleted
        "kv <= q and q + kv < 64",  # an operator changed
        "kv <= i and q - kv < 64",  # a row taken for a position
    }
    forms = {canonical(parse(text, expect="mask")) for text in found}
    assert canonical(parse("kv <= q or q - kv < 64", expect="mask")) in forms or "true" in forms
    assert canonical(parse("causal and q - kv < 63", expect="mask")) in forms


def test_a_softcap() -> None:
    assert texts("softcap(50)", "score") >= {
        "s",
        "51 * tanh(s / 50)",
        "50 * tanh(s / 49)",
        "tanh(s / 50)",
        "50 * tanh(s)",
        "50 * (s / 50)",
        "50 * sigmoid(s / 50)",
        "50 / tanh(s / 50)",
    }


def test_an_alibi_bias() -> None:
    assert texts("alibi(slope)", "score") >= {
        "s",
        "s + slope[h] * abs(q - kv)",
        "slope[h] * abs(q - kv) - s",
        "s - slope[0] * abs(q - kv)",
        "s - slope[h + 1] * abs(q - kv)",
        "s - slope[h] * (q - kv)",
        "s - slope[h]",
        "s - slope[h] * abs(q + 1 - kv)",
        "s - slope[h] * abs(i - kv)",
    }


def test_reads_params_and_constants() -> None:
    assert texts("doc[b, q] == doc[b, kv]") >= {
        "doc[b, q] != doc[b, kv]",
        "doc[0, q] == doc[b, kv]",
        "doc[b, q + 1] == doc[b, kv]",
        "doc[b, q] == doc[b, kv - 1]",
        "true",
        "doc[b, i] == doc[b, kv]",
        "doc[b, q] <= doc[b, kv]",
    }
    assert texts("on or not glob[b, q]") >= {"on", "not glob[b, q]", "on and not glob[b, q]", "on or glob[b, q]"}
    assert texts("q < n") >= {"q <= n", "q + 1 < n", "kv < n", "i < n"}
    assert texts("s + c", "score") >= {"s + c * 1.25", "s - c", "c"}
    assert texts("s * 0.5", "score") >= {"s * 0.625", "s / 0.5", "s"}
    assert texts("s + 0.0", "score") >= {"s + 1.0"}
    assert texts("-s", "score") == {"s"}
    assert texts("s if causal else 0", "score") >= {"s", "0", "0 if kv <= q else s", "s if kv < q else 0"}


def test_none_is_refused_when_read_back() -> None:
    """A constant changed by one must not become a division by 0 or an exponent out of range; nor may an index left
    over from a longer one be refused because it does not belong to the extent."""
    for text in (
        "slope[(h + b) % 4] < 1",
        "slope[q // 64] < 1",
        "slope[max(h - kv, b)] < 1",
        "doc[b * 2 + q, i + h] > 0",
    ):
        for found in texts(text):
            assert parse(found, params=PARAMS, expect="mask").type == "bool"
    for text in (
        "q // 1 < 3",
        "q % -1 == 0",
        "q ** 0 < 3",
        "q ** 64 < 3",
        "q // n ** 2 < 1",
        "q < 9223372036854775807",
    ):
        for found in texts(text):
            assert parse(found, params=PARAMS, expect="mask").type == "bool"


def test_descriptions_say_what_changed() -> None:
    node = parse("causal and on", params=PARAMS, expect="mask")
    found = {unparse(mutant): description for description, mutant in mutants(node)}
    assert found["true"] == "no mask"
    assert found["on"] == "without `kv <= q`"
    assert found["kv < q and on"] == "`kv <= q` -> `kv < q`"

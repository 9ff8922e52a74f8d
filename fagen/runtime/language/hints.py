"""Hints for names that are not known and for Python's precedence of ``&`` and ``|``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .scan import Token

_ELSEWHERE = {
    "batch": "b",
    "batch_idx": "b",
    "head": "h",
    "head_idx": "h",
    "h_kv": "hk",
    "q_idx": "q",
    "q_pos": "q",
    "k": "kv",
    "k_idx": "kv",
    "kv_idx": "kv",
    "kv_pos": "kv",
    "score": "s",
    "seqlen_q": "q_len",
    "seqlen_k": "kv_len",
    "Sq": "q_len",
    "Skv": "kv_len",
}
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint with the known name that was probably meant."""
    from difflib import get_close_matches  # only needed once something is wrong

    known = list(known)
    elsewhere = _ELSEWHERE.get(name)
    if elsewhere in known:
        return f"did you mean `{elsewhere}`?"
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    if not close:
        close = [candidate for candidate in known if candidate.lower() == name.lower()]
    return f"did you mean `{close[0]}`?" if close else None


def parenthesised(text: str, tokens: Sequence[Token], start: int, end: int) -> str:
    """The text with parentheses around each comparison that ``&`` and ``|`` join in text[start:end]."""
    pieces: list[str] = []
    begin, depth, compares = start, 0, False
    for token in [*(t for t in tokens if start <= t.start < end), Token("symbol", "&", end)]:
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
        elif depth == 0 and token.text in _COMPARISONS:
            compares = True
        elif depth == 0 and token.text in ("&", "|"):
            piece = text[begin : token.start].strip()
            pieces.append(f"({piece})" if compares else piece)
            if token.start < end:
                pieces.append(token.text)
            begin, compares = token.end, False
    return text[:start] + " ".join(pieces) + text[end:]

"""Which words may name a spec, a variant, a param or a constant.

Names reach paths, generated C++ and generated Python, so they are plain identifiers that mean nothing else there.
"""

from __future__ import annotations

import builtins
import keyword
import re

MAX_NAME = 100  # characters; file names add a suffix and stay well under every file system's limit
MAX_INNER_NAME = 40  # of params, constants, macros and matrix keys

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

CPP_KEYWORDS = frozenset(
    """alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor bool break case
    catch char char8_t char16_t char32_t class co_await co_return co_yield compl concept const const_cast consteval
    constexpr constinit continue contract_assert decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public reflexpr register reinterpret_cast requires return short signed sizeof
    static static_assert static_cast struct switch synchronized template this thread_local throw true try typedef
    typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq""".split()
)
# Macros that C++ compilers and the standard headers define without underscores.
_CPP_MACROS = frozenset("linux unix i386 NULL EOF INFINITY NAN HUGE_VAL errno assert main std fagen torch".split())
PYTHON_WORDS = frozenset(keyword.kwlist)

# What a published module holds beside its variants.
MODULE_NAMES = frozenset(
    """attention variants variant check tile_counts dropout_mask reference runtime sources library manifest main
    scaled_dot_product_attention flash_attn_func flash_attn_varlen_func flash_attn_with_kvcache""".split()
)
# What every variant's call takes or returns beside its params.
CALL_NAMES = frozenset(
    """q k v o x lse d_o d_lse dq dk dv d_sink sink scale out return_lse mask score fallback needs align layout dtype
    dropout_p rng_state name arguments self""".split()
)


def identifier_problem(name: str, limit: int = MAX_NAME) -> str | None:
    """Why ``name`` is not a plain identifier, or None."""
    if not name:
        return "is empty"
    if len(name) > limit:
        return f"is {len(name)} characters long; at most {limit} are allowed"
    if not _IDENTIFIER.fullmatch(name):
        return "must be letters, digits and underscores, starting with a letter"
    if "__" in name or name.endswith("_"):
        return "must not end in an underscore or hold two in a row, since C++ keeps such names for itself"
    if name in CPP_KEYWORDS or name in _CPP_MACROS:
        return "is a word of C++"
    if name in PYTHON_WORDS:
        return "is a word of Python"
    return None


def variant_name_problem(name: str) -> str | None:
    """Why ``name`` cannot name a variant, or None."""
    if name in MODULE_NAMES:
        return "is a name that every published module has already"
    if name in vars(builtins):
        return "is a built-in name of Python"
    return identifier_problem(name)


def spec_name_problem(name: str) -> str | None:
    """Why ``name`` cannot name a spec, its folder and its op namespace, or None."""
    return identifier_problem(name)


def param_name_problem(name: str) -> str | None:
    """Why ``name`` cannot name a run-time input, or None. Names of the expression language are checked elsewhere."""
    if name == "sink":
        return "is taken: `sink: true` on a variant adds the input `sink` by itself"
    if name in CALL_NAMES:
        return "is taken by an argument that every variant has"
    return identifier_problem(name, MAX_INNER_NAME)

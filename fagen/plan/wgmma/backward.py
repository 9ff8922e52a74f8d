"""What the wgmma schedule's backward kernels choose, and what their templates print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...expr import KernelCode, Snippet
from ...runtime.variant import Variant
from ...target import Target
from ..pieces import Piece, admission, body, identifiers, needs, used_declarations, used_statements
from .forward import band_loads, held_bands, registers_of
from .grads import HEAD, exact_sums, param_grads, sums_of

_SLAB = 64  # elements of a row that lie together in shared memory: 128 bytes, the widest swizzle
_KEYS = 64  # of a warpgroup, by the instruction
_GROUPS = 2
ROWS = (32, 48, 64, 80, 96, 112, 128)  # of a tile: whole steps of the products that add to dK and dV
_PLANNED = 8
_FINDERS = 2  # warps of a block that finds tiles: kFinders of params.h
_BESIDE, _BESIDE_EACH = 32, 20  # registers of a thread beside its sums and pairs; where a score, or dropout, is
_TURNS_APART = int(1.9 * 132)  # tiles from one block of a head to the next, in a turn of all multiprocessors of an H200
_FEEDER = 24  # registers of a thread that feeds: what two warpgroups have no use for
_ORDERED_FEEDER = 32  # where it waits for turns too: with 24, ptxas was seen to spill


@dataclass(frozen=True)
class Backward:
    """Sizes of the backward kernels; see the constants at the top of a rendered one.

    A block of ``threads`` has ``tile_kv`` keys of a key head, 64 for each of two warpgroups or (``wide``) for both, and
    all queries that see them, ``tile_q`` at a time; ``query_stages`` tiles of Q and ``gradient_stages`` of dO are in
    shared memory, ``planned`` are known to be needed, ``shared_bytes`` are taken in all. A warpgroup has ``dq_rows``
    queries of dQ of a tile. dK and dV leave by way of shared memory, ``staged_slabs`` of 64 columns of a warp's rows at
    a time. A thread that multiplies has ``registers``, one that feeds ``feeder_registers``.

    For each query row of whole tiles there are ``note_bytes``, and ``sum_bytes`` of its dQ. Counters say which
    blocks have added to dQ, if they must do that one after the other (``ordered``), and, where rows of NaN must not
    reach what the mask keeps from them, which blocks are to be computed again, by another kernel (``mends``); another
    one yet is for the gradient of the ``sink``. Where ordered blocks are not to begin at once, ``turns_apart`` is how
    many tiles later the next one of a head does, times multiprocessors. A kernel that runs before stores ``word_bytes``
    for 32 tiles of queries of a block of keys, of each head or (not ``by_head``) once for all; 0 without a mask.

    ``sums`` says of each param with a gradient how it is summed, "atomic" or "exact"; ``keeps_scores`` whether a tile's
    scores stay in shared memory until that is done, and ``head_sums`` how many sums each warp that multiplies has there
    of a head's pairs. Each such warp has in shared memory what its pairs of a tile read by ``bands``.
    """

    tile_q: int
    tile_kv: int
    wide: bool
    query_stages: int
    gradient_stages: int
    planned: int
    dq_rows: int
    staged_slabs: int
    threads: int
    registers: int
    feeder_registers: int
    shared_bytes: int
    note_bytes: int
    sum_bytes: int
    ordered: bool
    turns_apart: int
    mends: bool
    sink: bool
    word_bytes: int
    by_head: bool
    sums: Mapping[str, str]
    keeps_scores: bool
    head_sums: int
    bands: int
    optimize: str

    @property
    def turns(self) -> bool:
        """Whether there are counters."""
        return self.ordered or self.mends

    @property
    def kernels(self) -> Mapping[str, tuple[int, int]]:
        """Threads of a block of each kernel, and its shared memory."""
        others = ("prepare", "finish", *("sink",) * self.sink, *("mend",) * self.mends)
        found = {"find": (32 * _FINDERS, 0)} if self.word_bytes else {}
        if "exact" in self.sums.values():
            found["round"] = (self.threads, 0)
        return {"kernel": (self.threads, self.shared_bytes), **dict.fromkeys(others, (256, 0)), **found}

    @property
    def boxes(self) -> tuple[int, int]:
        """Rows of the boxes that Q and dO are copied by, and keys of those of K and V."""
        return self.tile_q, self.tile_kv


def choose_backward(
    variant: Variant, target: Target, code: KernelCode, by_head: bool
) -> tuple[Backward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    assert target.device is not None
    sums, reasons = sums_of(variant, code)
    why = {"sums": "by how their reads are indexed", **{f"sums.{name}": reason for name, reason in reasons.items()}}
    grads = param_grads(variant, code)
    keeps_scores, head_sums = grads.keeps_scores, len(grads.held)
    why["keeps_scores"] = (
        "gradients of params are made of them" if keeps_scores else "nothing asks for them when there is dO · v"
    )
    head, value = (-(-dim // _SLAB) for dim in (variant.head_dim, variant.value_dim))
    wide = max(head, value) > 2
    fewer = (variant.score is not None) + variant.dropout + grads.across_lanes
    rows = 64 if max(head, value) > 1 else 112 - 16 * fewer
    why["tile_q"] = f"{rows} rows are what registers hold beside sums of dK and dV"
    wanted = variant.backward_tiles
    if wanted.q is not None:
        rows, why["tile_q"] = wanted.q, wanted.why("q", "backward_tiles")
    key_groups = 1 if wide else _GROUPS
    keys = key_groups * _KEYS
    why["tile_kv"] = (
        f"{_KEYS} keys, an instruction's rows: one warpgroup has sums of dV, the other those of dK"
        if wide
        else f"{_KEYS} keys, an instruction's rows, a warpgroup: {_GROUPS} of them"
    )
    why["wide"] = "registers of one warpgroup hold sums of dK or of dV" if wide else "registers hold sums of dK and dV"
    dq_rows = rows if head > 1 else rows // _GROUPS
    why["dq_rows"] = (
        "a warpgroup has 64 columns of dQ" if head > 1 else "there are 64 columns: a warpgroup has half of the rows"
    )
    staged = max(slabs for slabs in (1, 2) if slabs * 16 * _SLAB * 2 <= dq_rows * 64)
    why["staged_slabs"] = "as many as there is room for where dQ was"
    registers, feeder = registers_of(target.device, _GROUPS, _ORDERED_FEEDER if variant.deterministic else _FEEDER)
    why["registers"] = f"what {_GROUPS} warpgroups can have each when the one that feeds them gives up its own"
    why["feeder_registers"] = "for what schedules tiles, has them copied and dQ added"
    planned = _PLANNED
    why["planned"] = "some ahead of the copies"
    pairs = 2 * rows * keys * 2 + (rows * keys * 4 if wide else 0)
    why["head_sums"] = "of reads that are one for all of a head's pairs"
    dq_sums = _GROUPS * dq_rows * 64 * 4
    of_params = rows * keys * 4 * keeps_scores + head_sums * _GROUPS * 4 * 4
    kept = 128 * 4 * -(-rows // 64) if wide and variant.dropout else 0  # a bit a pair, whole words of each thread

    def taken(query_stages: int, gradient_stages: int, bands: int = 0) -> int:
        tiles = (keys * (head + value) + rows * (query_stages * head + gradient_stages * value)) * _SLAB * 2
        small = (query_stages + gradient_stages) * (rows * 4 + 16) + 16 + 2 * 16 * planned
        diagonals = bands * key_groups * 4 * (16 + rows) * 4
        return tiles + pairs + kept + dq_sums + of_params + small + diagonals

    room = target.device.shared_per_block
    # One turn of the narrow kernels is of Q, dO and dS.
    stages = [(2, 2), (2, 1), (1, 1)] if wide else [(2, 2)]
    if wanted.stages is not None:
        stages = [each for each in stages if each[0] == wanted.stages]
    query_stages, gradient_stages = next((each for each in stages if taken(*each) <= room), stages[-1])
    two = "two: one is read while the other comes"
    why["query_stages"] = two if query_stages > 1 else "there is no room for two"
    why["gradient_stages"] = two if gradient_stages > 1 else "there is no room for two"
    if wanted.stages is not None:
        why["query_stages"] = wanted.why("stages", "backward_tiles")
    bands, why["bands"] = held_bands(
        code.banded_score, "each warp", lambda count: taken(query_stages, gradient_stages, count) <= room
    )
    why["shared_bytes"] = (
        f"{keys} rows of K and V, {query_stages} × {rows} of Q, {gradient_stages} × {rows} of dO, 2 × {rows} of dS, "
        f"{'weights, ' if wide else ''}{'which are kept, ' if kept else ''}dQ, {'scores, ' if keeps_scores else ''}"
        f"{'sums, ' if head_sums else ''}barriers and notes"
        f"{f', {16 + rows} elements a band and warp' if bands else ''}"
    )
    why["threads"] = "two of the warpgroups multiply, one feeds them"
    why["note_bytes"] = "where a row's scores start, its dO · v, and what is added where rounding lse counts"
    why["sum_bytes"] = "dQ in float32, in slabs of 64 columns"
    contains = variant.mask is not None and variant.nonfinite == "contain"
    why["mends"] = "the mask keeps rows of NaN from others" if contains else "no row is kept from another"
    why["ordered"] = (
        "`deterministic`: blocks of keys add to dQ in their order"
        if variant.deterministic
        else "blocks add to dQ as they come: without an order, none waits"
    )
    apart = variant.deterministic and variant.mask is None and not wide
    why["turns_apart"] = (
        "by trying: heads side by side, so that blocks that take turns do not begin at once"
        if apart
        else "masked blocks and wide heads were slower with more heads side by side"
        if variant.deterministic
        else "there are no turns"
    )
    why["sink"] = "there is one" if variant.sink else "there is none"
    why["word_bytes"] = "there is no mask" if variant.mask is None else "tiles are found before: 8 bytes for 64 keys"
    why["by_head"] = "the mask tells heads apart" if by_head else "once for all heads"
    why["optimize"] = "the compiler's usual level"
    chosen = Backward(
        tile_q=rows,
        tile_kv=keys,
        wide=wide,
        query_stages=query_stages,
        gradient_stages=gradient_stages,
        planned=planned,
        dq_rows=dq_rows,
        staged_slabs=staged,
        threads=128 * (_GROUPS + 1),
        registers=registers,
        feeder_registers=feeder,
        shared_bytes=taken(query_stages, gradient_stages, bands),
        note_bytes=(4 if variant.score is None else 3) * 4,
        sum_bytes=head * _SLAB * 4,
        ordered=variant.deterministic,
        turns_apart=_TURNS_APART if apart else 0,
        mends=contains,
        sink=variant.sink,
        word_bytes=0 if variant.mask is None else 8 * key_groups,
        by_head=by_head,
        sums=sums,
        keeps_scores=keeps_scores,
        head_sums=head_sums,
        bands=bands,
        optimize="-O3",
    )
    return chosen, why


def registers_needed(variant: Variant, backward: Backward) -> int:
    """Of a thread that multiplies, by what ptxas was seen to need at 112 rows of D 64 and 64 of D 128: sums; scores and
    dO · v, or what comes from the other warpgroup; what they are packed into; and the rest."""
    pairs = backward.tile_q + backward.tile_q // 4
    if backward.wide:
        return max(variant.head_dim, variant.value_dim) // 2 + pairs + _BESIDE
    spare = _BESIDE + _BESIDE_EACH * ((variant.score is not None) + variant.dropout)
    return (variant.head_dim + variant.value_dim) // 2 + pairs + spare


@dataclass(frozen=True)
class Slopes(Piece):
    """From a scaled score to ``x``, to what slopes are multiplied by (``times``: "" where d x / d s is 1) and to
    ``admitted`` ("" where all pairs are). ``row`` runs once a query row, ``pair`` once a pair. Weights of others are
    ``excluded``."""

    row: tuple[str, ...]
    pair: tuple[str, ...]
    x: str
    times: str
    admitted: str
    excluded: str = "0.0f"

    @property
    def score(self) -> str:
        """What takes the score's place."""
        weight = "weight[row][c]"
        return weight if self.excluded == "kExcluded" else f"admitted ? {weight}{self.times} : {self.excluded}"


def slopes(code: KernelCode, variant: Variant, snippet: Snippet, *, mixed: bool) -> Slopes:
    """``mixed`` says that some of a tile's pairs are excluded, or their keys past the end."""
    x, dx_ds, *rest = snippet.results
    names = identifiers((*snippet.row, *snippet.pair, *snippet.results))
    if mixed:
        names |= {"j", "kv_len"}
    allowed = f"({rest[-1]}) && " if mixed and variant.mask is not None else ""
    return Slopes(
        used_declarations(code.declarations, names),
        tuple(name for name in needs(names, variant) if name != "s"),
        snippet.row,
        snippet.pair,
        x,
        "" if dx_ds == "1.0f" else f" * ({dx_ds})",
        f"{allowed}j < kv_len" if mixed else "",
    )


# What makes infinities or NaN of zeros, but for a division by a number.
_POLES = re.compile(r"\b(?:log2?|sqrt|pow|exp2?)\(|/ (?!\d)")


def _may_fail_past_the_end(found: Slopes) -> bool:
    """Whether the score of a row that does not exist, of which queries and params are 0, may be no number."""
    lines = (*found.row, *found.pair, found.x)
    return bool({"i", "q"} & identifiers(lines)) and any(_POLES.search(line) for line in lines)


def _of_seen(found: Slopes) -> Slopes:
    """The same of rows that see a key alone: of others, noted lse is -inf."""
    return replace(found, admitted=" && ".join(["lse != -kInfinity", *[found.admitted] * bool(found.admitted)]))


def _weights(code: KernelCode, variant: Variant, found: Slopes) -> Slopes:
    """The same where slopes are multiplied later, by what makes gradients of params, which tells by weights which pairs
    count."""
    names = identifiers((found.x, found.admitted))
    pair = used_statements(found.pair, names)
    row = used_statements(found.row, names)
    return Slopes(
        used_declarations(code.declarations, names),
        tuple(name for name in needs(names, variant) if name != "s"),
        row,
        pair,
        found.x,
        "",
        found.admitted,
        "kExcluded",
    )


def backward_names(variant: Variant, code: KernelCode, backward: Backward, *, short: bool) -> Mapping[str, object]:
    """What the templates of the backward kernels print besides the names that both directions share. ``short`` says
    that the mask is a few instructions a pair."""
    masked, by_head = variant.mask is not None, backward.by_head
    scored = variant.score is not None
    slabs, wide = backward.dq_rows == backward.tile_q, backward.wide
    head_slabs = -(-variant.head_dim // _SLAB)
    part = "part" if wide else "group_"  # of dQ, as its maker calls it
    headers = ("cuda/array.h", "cuda/math.h") if code.declarations else ("cuda/math.h",)
    exclude = () if scored else ("cuda/exclude_unrolled.h" if short else "cuda/exclude.h",)
    grads, exact = param_grads(variant, code), exact_sums(variant, code)
    of_params = (*("cuda/exact_gradient.h",) * bool(exact), "cuda/gradient.h", "cuda/pair_sums.h")
    of_params += ("cuda/sums.h",) * any(read.kind == HEAD for read in grads.reads)
    after_scores = "kGradSums" if backward.head_sums else "kStarts"
    after_pairs = "kScores" if backward.keeps_scores else after_scores
    full = slopes(code, variant, code.score_grad, mixed=False)
    of_pair = partial = slopes(code, variant, code.score_grad_mask or code.score_grad, mixed=True)
    asks_rows = bool(grads.reads) or _may_fail_past_the_end(full)
    banded = code.banded_score if backward.bands else None
    if banded is not None:
        full = slopes(code, variant, banded.grad, mixed=False)
        partial = slopes(code, variant, banded.grad_mask or banded.grad, mixed=True)
    if asks_rows:
        full, partial = _of_seen(full), _of_seen(partial)
    if grads.reads:
        full, partial = _weights(code, variant, full), _weights(code, variant, partial)
    return {
        "headers": (
            *headers,
            *exclude,
            *(("cuda/bulk_turns.h",) if backward.ordered else ()),
            *(("cuda/dropout.h",) if variant.dropout else ()),
            *(of_params if grads.reads else ()),
            *(("cuda/column_band.h",) if banded is not None else ()),
        ),
        # Sums of dV are of weights not divided by the share that is kept; dO · v starts at -δ times that share.
        "value_factor": "p_.dropout.factor" if variant.dropout else "1.0f",
        "mended_value_factor": "p.dropout.factor" if variant.dropout else "1.0f",
        "noted_delta": "(d_lse - product) / p.dropout.factor" if variant.dropout else "d_lse - product",
        "sink_sum": "sum * p.dropout.factor" if variant.dropout else "sum",
        "params": "BackwardParams",
        "deterministic": backward.ordered,
        "work_number": "work" if backward.ordered else "blockIdx.x",
        "adder_parameter": "const KeyBlock& block" if backward.ordered else "",
        "adder_argument": "block" if backward.ordered else "",
        # Stored tiles are taken from the last to the first.
        "place_of_tile": "tile.tile + query_tiles(p_) - 2 * (tile.i / kTileQ)" if masked else "tile.tile + 1",
        "tile_q": backward.tile_q,
        "wide": wide,
        "key_groups": backward.tile_kv // _KEYS,
        "keys_note": "of 64 keys, which both have" if wide else "of 64 keys, which one has each",
        "query_stages": backward.query_stages,
        "gradient_stages": backward.gradient_stages,
        "planned": backward.planned,
        "dq_rows": backward.dq_rows,
        "dq_note": "64 columns of all its rows" if slabs else "half of its rows",
        "dq_parts": head_slabs if slabs else _GROUPS,
        # Where in K a part's columns begin, and in dS its rows: a warpgroup has every other part.
        "dq_keys": f" + {part} * kTileKv * kSlabBytes" if slabs else "",
        "dq_slopes": "" if slabs else f" + {part} * kDqRows * kSlabBytes",
        "dq_column": "64 * part + " if slabs else "",
        "dq_row": "" if slabs else "kDqRows * part + ",
        "staged_slabs": backward.staged_slabs,
        "registers": backward.registers,
        "feeder_registers": backward.feeder_registers,
        "shared_bytes": backward.shared_bytes,
        "product": variant.dtype,  # as the instruction calls the type of its operands
        "scored": scored,
        # As was seen to be best on an H200, by hand-written kernels.
        "halves": not wide and (masked or backward.tile_q > _KEYS),
        "start_note": "lse" if scored else "-lse / scale, where scores start",
        "full_slopes": full,
        "partial_slopes": partial,
        "pair_slopes": of_pair,
        "param_grads": grads,
        "keeps_scores": backward.keeps_scores,
        "bands": () if banded is None else band_loads(variant, code, banded),
        "after_weights": "kKept" if variant.dropout else after_pairs,
        "after_pairs": after_pairs,
        "after_scores": after_scores,
        "rounded": exact,
        "noted_lse": "lse" if asks_rows else "lse == -kInfinity ? kInfinity : lse",
        **admission(code, variant),
        "asks_by_pair": False,
        "exclude": "exclude_pairs_unrolled" if short else "exclude_pairs",
        "tile_test": body(code, variant, code.tile_test),
        "cache_bytes": 32 << 20,  # of 50 MiB
        "turns_apart": backward.turns_apart,
        "words_of": "rows of blocks of each head" if by_head else "rows of blocks of each batch entry",
        "words_row": "(block.b * p.shape.heads + h)" if by_head else "static_cast<int64_t>(block.b)",
        "words_heads": "p.shape.heads * " if by_head else "",
        "words_batch": "static_cast<int32_t>(work / p.shape.heads)" if by_head else "static_cast<int32_t>(work)",
        "words_head": "static_cast<int32_t>(work % p.shape.heads)" if by_head else "0",
    }

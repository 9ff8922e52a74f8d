"""What the wgmma schedule's forward kernel chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ...expr import BandedScore, KernelCode
from ...runtime.language import Name, Read, parse, walk
from ...runtime.variant import Variant
from ...target import Device, Target
from ..pieces import scores

_SLAB = 64  # elements of a row that lie together in shared memory: 128 bytes, the widest swizzle
_ROWS = 64  # of a warpgroup, by the instruction
_STEP = 16  # keys of one product with values
_MOST_KEYS = 256  # of one product with keys, by the instruction
_GRANULE = 8  # registers are given in eights
# Registers of a thread that feeds, beside so many warpgroups: with fewer, ptxas was seen to spill what schedules.
# Beside two there are 40 where they are not needed, and always where a mask is to be asked for.
_LEAST_FEEDER = {1: 24, 2: 24, 3: 32}
_MOST_FEEDER = 40
_MOST_OF_THREE = 80  # columns of q, k and v: three, with 96 keys a tile, were seen to be faster up to there
_MOST_CONDITIONS = 2  # that are asked beside three warpgroups: with four (a window), ptxas was seen to spill
_MOST_BANDS = 2  # more take registers of a thread while they come, and shared memory


@dataclass(frozen=True)
class Forward:
    """Sizes of the forward kernel; see the constants at the top of a rendered one.

    ``groups`` warpgroups multiply, 64 query rows each, which are ``tile_q`` a block; ``tile_kv`` keys a tile, of which
    ``stages`` are in shared memory, beside ``query_stages`` blocks of query rows, ``shared_bytes`` in all; o leaves by
    way of it, ``staged_slabs`` of 64 columns of a warp's rows at a time; ``bands`` are the reads of params whose
    elements a tile's pairs have from there. A block has ``threads``; one of a warpgroup that multiplies has
    ``registers``, one of that which feeds them ``feeder_registers``. ``turns`` says when a warpgroup lets the next one
    start its products: after those of its "scores" or of its "sums", or "none". ``finds`` is what asks the mask for its
    tiles: the "scheduler" itself, or a "kernel" before it, which stores ``word_bytes`` for 32 tiles of a block of rows,
    of each head or (not ``by_head``) once for all; or "none".
    """

    tile_q: int
    tile_kv: int
    groups: int
    stages: int
    query_stages: int
    staged_slabs: int
    threads: int
    registers: int
    feeder_registers: int
    shared_bytes: int
    bands: int
    turns: str
    finds: str
    word_bytes: int
    by_head: bool
    optimize: str

    @property
    def boxes(self) -> tuple[int, int]:
        """Rows of the boxes that Q is copied by, a warpgroup's, and keys of those of K and V."""
        return _ROWS, self.tile_kv

    @property
    def draws(self) -> bool:
        """Whether blocks of rows are drawn: of a mask they take unlike times."""
        return self.finds != "none"


@dataclass(frozen=True)
class Reads:
    """How a score's pairs have elements of params: by ``bands`` in shared memory, each of one read, or (``loads``) by
    an access of their own."""

    bands: int
    loads: bool


def planned(stages: int) -> int:
    """Tiles that are known to be needed, of which some wait for room."""
    return 4 * stages


def shared_bytes(
    variant: Variant, groups: int, tile_kv: int, stages: int, bands: int, query_stages: int = 1, staged_slabs: int = 1
) -> int:
    """Shared memory of a block: Shared::kBytes of a rendered kernel."""
    head, value = (-(-dim // _SLAB) * _SLAB * 2 for dim in (variant.head_dim, variant.value_dim))
    barriers = 2 * 16 * stages + 16 * query_stages * groups + 16 * planned(stages)
    notes = 16 * planned(stages) + (16 + 16) * stages + 16 + 16 * 2 * planned(stages)
    staged = 4 * groups * staged_slabs * 16 * 2 * _SLAB
    tiles = query_stages * groups * _ROWS * head + stages * tile_kv * (head + value)
    diagonals = bands * groups * band_places(variant, groups) * (_ROWS + tile_kv) * 4
    return tiles + -(-(barriers + notes) // 128) * 128 + staged + diagonals


def band_places(variant: Variant, groups: int) -> int:
    """Where bands have no place but one, they are stored when the warpgroup's turn has come: its warps meet for that,
    and have read those of the tile before."""
    return 2 if groups == 1 or variant.tiles.turns == "none" else 1


def band_loads(variant: Variant, code: KernelCode, banded: BandedScore) -> tuple[Mapping[str, object], ...]:
    """How the templates print what a pair of each diagonal reads."""
    return tuple(
        {"name": band.name, "element": band.element, "load": scores(code, variant, band.load, tail=False)}
        for band in banded.bands
    )


def registers_needed(variant: Variant, reads: Reads, groups: int, tile_kv: int) -> int:
    """Of a thread that multiplies: sums, scores and weights, and the rest, of which ptxas was seen to need so much."""
    spare = 40 if groups < 3 else 32
    if variant.value_dim > 128:
        spare += 2 * _GRANULE
    if groups > 2 and (variant.score is not None or variant.sink or variant.dropout):
        spare += 2 * _GRANULE
    if reads.loads:
        spare += tile_kv // 2  # that are on their way, and where from
    return variant.value_dim // 2 + tile_kv // 2 + tile_kv // 4 + spare


def _reads_by_pair(variant: Variant) -> bool:
    """Whether the score reads a param for each pair of a query and a key."""
    if variant.score is None:
        return False
    tree = parse(variant.score.resolved, params={param.name: param for param in variant.params}, expect="score")
    reads = (node for node in walk(tree) if isinstance(node, Read))
    return any(isinstance(name, Name) and name.id in ("kv", "j") for read in reads for name in walk(read))


def reads_of(variant: Variant, banded: BandedScore | None, bands: int) -> Reads:
    """What pairs read with so many bands: those of ``banded``, or none."""
    return Reads(bands, banded.loads) if banded is not None and bands else Reads(0, _reads_by_pair(variant))


def registers_at_entry(device: Device, groups: int) -> int:
    """What every thread of a block begins with."""
    most = min(device.registers_per_sm // (128 * (groups + 1)), device.registers_per_thread)
    return most // _GRANULE * _GRANULE


def registers_of(device: Device, groups: int, feeder: int) -> tuple[int, int]:
    """What a thread that multiplies gets, and one that feeds, which is to have ``feeder``. With one warpgroup there is
    enough as it is: they stay alike."""
    if groups == 1:
        most = device.registers_per_thread // _GRANULE * _GRANULE
        return most, most
    total = registers_at_entry(device, groups) * (groups + 1)
    return min((total - feeder) // groups // _GRANULE * _GRANULE, 240), feeder


def _least_feeder(variant: Variant, groups: int) -> int:
    return _MOST_FEEDER if groups == 2 and variant.mask is not None else _LEAST_FEEDER[groups]


def _feeder(variant: Variant, reads: Reads, device: Device, groups: int, keys: int) -> int:
    """Registers of a thread that feeds: all that the others have no need of."""
    least, most = _least_feeder(variant, groups), _MOST_FEEDER
    enough = registers_of(device, groups, most)[0] >= registers_needed(variant, reads, groups, keys)
    return most if enough and least < most else least


def choose_forward(variant: Variant, target: Target, by_head: bool, code: KernelCode) -> tuple[Forward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    banded = code.banded_score
    device = target.device
    assert device is not None
    why: dict[str, str] = {}
    groups, stages = _groups(variant, why)
    reads = _reads(variant, banded, device, groups, stages, why)
    keys = _keys(variant, reads, device, groups, stages, why)
    why["tile_q"] = f"{_ROWS} rows, an instruction's, a warpgroup: {groups} of them"
    registers, feeder = registers_of(device, groups, _feeder(variant, reads, device, groups, keys))
    if groups > 1:
        why["registers"] = f"what {groups} warpgroups can have each when the one that feeds them gives up its own"
        why["feeder_registers"] = "for what schedules tiles and has them copied"
    else:
        why["registers"] = why["feeder_registers"] = "as many as a thread can have: all warps stay alike"
    query_stages, staged_slabs = _room(variant, reads, device, groups, keys, stages)
    why["staged_slabs"] = "o goes by way of shared memory, so much of a warp's rows at a time"
    why["query_stages"] = (
        "a block's queries come while another is multiplied" if query_stages > 1 else "there is no room for two"
    )
    bytes_ = shared_bytes(variant, groups, keys, stages, reads.bands, query_stages, staged_slabs)
    rows = f"{query_stages} × {groups * _ROWS} rows of Q, {stages} × {keys} rows of K and V"
    why["shared_bytes"] = f"{rows}, {staged_slabs} × 64 columns of each row of o, barriers and notes"
    if reads.bands:
        why["shared_bytes"] += f", {band_places(variant, groups)} × {_ROWS + keys} elements a band and warpgroup"
    why["threads"] = f"{groups} of the warpgroups multiply, one feeds them"
    if groups == 1:
        turns, why["turns"] = "none", "there is one warpgroup"
    elif variant.tiles.turns is not None:
        turns, why["turns"] = variant.tiles.turns, variant.tiles.why("turns")
    else:
        # As was seen to be best on an H200, by hand-written kernels.
        turns = "scores" if 64 < max(variant.head_dim, variant.value_dim) <= 128 else "sums"
        why["turns"] = "so that one's exponentials are computed while another multiplies"
    finds = _finds(variant, code, groups, why)
    why["by_head"] = "the mask tells heads apart" if by_head else "once for all heads"
    why["optimize"] = "the compiler's usual level"
    chosen = Forward(
        tile_q=groups * _ROWS,
        tile_kv=keys,
        groups=groups,
        stages=stages,
        query_stages=query_stages,
        staged_slabs=staged_slabs,
        threads=128 * (groups + 1),
        registers=registers,
        feeder_registers=feeder,
        shared_bytes=bytes_,
        bands=reads.bands,
        turns=turns,
        finds=finds,
        word_bytes=8 * groups if finds == "kernel" else 0,
        by_head=by_head,
        optimize="-O3",
    )
    return chosen, why


def _finds(variant: Variant, code: KernelCode, groups: int, why: dict[str, str]) -> str:
    """What asks the mask for its tiles."""
    if variant.mask is None:
        why["finds"] = why["word_bytes"] = "there is no mask"
        return "none"
    wide = code.wide
    if code.narrow is not None and groups == 3 and code.narrow.conditions > _MOST_CONDITIONS:
        wide = f"beside three warpgroups it has more than {_MOST_CONDITIONS} conditions"
    if not wide:
        why["finds"] = "the mask's test of a tile is short in 32 bits: what schedules tiles asks it beside the products"
        why["word_bytes"] = "no kernel before it finds tiles"
        return "scheduler"
    why["finds"] = f"the mask's test of a tile takes registers that what schedules tiles has not: {wide}"
    why["word_bytes"] = "of each warpgroup two bits a tile: whether the mask admits some pairs, and all"
    return "kernel"


def _groups(variant: Variant, why: dict[str, str]) -> tuple[int, int]:
    """Warpgroups and stages."""
    narrow = max(variant.head_dim, variant.value_dim) <= _MOST_OF_THREE
    groups = 3 if narrow and not variant.params else 2
    if groups == 3:
        why["groups"] = f"three: sums of {variant.value_dim} columns leave registers for them"
    else:
        taken = "what params take" if narrow else "sums and scores"
        why["groups"] = f"two: {taken} would not fit the registers of three"
    stages = 2
    why["stages"] = "two: one is read while the other comes"
    tiles = variant.tiles
    if tiles.q is not None:
        groups, why["groups"] = tiles.q // _ROWS, tiles.why("q")
    if tiles.stages is not None:
        stages, why["stages"] = tiles.stages, tiles.why("stages")
    return groups, stages


def _reads(
    variant: Variant, banded: BandedScore | None, device: Device, groups: int, stages: int, why: dict[str, str]
) -> Reads:
    """How pairs have elements of params."""
    keys = variant.tiles.kv or _STEP
    bands, why["bands"] = held_bands(
        banded,
        "a warpgroup",
        lambda count: shared_bytes(variant, groups, keys, stages, count) <= device.shared_per_block,
    )
    return reads_of(variant, banded, bands)


def held_bands(banded: BandedScore | None, loader: str, fits: Callable[[int], bool]) -> tuple[int, str]:
    """How many reads along diagonals shared memory holds, all or none, and why."""
    bands = len(banded.bands) if banded is not None else 0
    if bands == 0:
        return 0, "no param is read along diagonals"
    if bands > _MOST_BANDS:
        return 0, f"{bands} reads along diagonals are more than {_MOST_BANDS}: pairs load their elements"
    if not fits(bands):
        return 0, "there is no room for what is read along diagonals: pairs load their elements"
    return bands, f"a tile's pairs share what is read along diagonals, which {loader} loads once"


def _keys(variant: Variant, reads: Reads, device: Device, groups: int, stages: int, why: dict[str, str]) -> int:
    """Keys of a tile."""
    if variant.tiles.kv is not None:
        why["tile_kv"] = variant.tiles.why("kv")
        return variant.tiles.kv
    keys = next(fitting_keys(variant, reads, device, groups, stages), _STEP)
    # Measured on an H200: larger ones are 1 % faster where rows are long, but leave no room for a second block of
    # queries, and of a partial tile more pairs count for nothing; short rows lose 3 to 5 %.
    if keys > 128:
        keys = 128
        why["tile_kv"] = "128 keys: larger tiles were seen to be slower where rows are short"
    elif groups == 3 and (roomy := _roomy_keys(variant, reads, device, groups, keys, stages)) < keys:
        keys, why["tile_kv"] = roomy, f"{roomy} keys: of more there is no room for a second block of queries"
    else:
        why["tile_kv"] = f"{keys} keys are what registers and {device.shared_per_block >> 10} KiB of shared memory hold"
    return keys


def _roomy_keys(variant: Variant, reads: Reads, device: Device, groups: int, most: int, stages: int) -> int:
    """Of at most so many keys, those that leave room for two blocks of query rows."""
    for keys in range(most, most // 2, -_STEP):
        if shared_bytes(variant, groups, keys, stages, reads.bands, query_stages=2) <= device.shared_per_block:
            return keys
    return most


def _room(variant: Variant, reads: Reads, device: Device, groups: int, keys: int, stages: int) -> tuple[int, int]:
    """Blocks of query rows, and slabs of a warp's rows of o, that shared memory holds beside the tiles."""
    for queries, slabs in product((2, 1), (4, 2, 1)):
        if slabs > -(-variant.value_dim // _SLAB):
            continue
        if shared_bytes(variant, groups, keys, stages, reads.bands, queries, slabs) <= device.shared_per_block:
            return queries, slabs
    return 1, 1


def fitting_keys(variant: Variant, reads: Reads, device: Device, groups: int, stages: int) -> Iterator[int]:
    """Keys a tile that registers and shared memory hold, from the most on."""
    registers, _ = registers_of(device, groups, _least_feeder(variant, groups))
    for keys in range(_MOST_KEYS, 0, -_STEP):
        held = shared_bytes(variant, groups, keys, stages, reads.bands) <= device.shared_per_block
        if held and registers_needed(variant, reads, groups, keys) <= registers:
            yield keys

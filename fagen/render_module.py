"""The files of a published module that are rendered: its host unit, its Python front and the types of that front.

Everything a template prints is decided here; the templates only lay it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .render import environment
from .runtime.shapes import argument_names, gradient_params, shape_of, tensor_shape
from .runtime.variant import TORCH_DTYPES, Expression, Param, Variant

# How the host unit is compiled and linked, besides `-I` for torch's include/ and fagen's templates/include/ and `-L`
# for torch's lib/. No rpath: torch is in the process before the library is loaded.
HOST_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-DTORCH_TARGET_VERSION=0x020a000000000000",
)
LINK_FLAGS = ("-shared", "-ltorch_cpu", "-lc10", "-ldl")

_MACHINES = {
    "cpu": (("CPU", "machine"),),
    # Tensors on the CPU go to the emulator, where there is one.
    "cuda": (("CUDA", "cuda_driver"), ("CPU", "emulated")),
}
_EXTENTS = {"B": "kB", "H": "kH", "Hk": "kHk", "Sq": "kSq", "Skv": "kSkv", "n": "kAny"}
_CPP_DTYPES = {"bool": "boolean"}


@dataclass(frozen=True)
class Image:
    """What a forward kernel for a device is launched with: ``tile_q`` query rows, ``threads`` and ``shared_bytes`` a
    block; ``box_q`` and ``box_kv`` are the rows of the boxes that it copies by, 0 if it takes no tensor maps; ``draws``
    says whether its blocks of threads draw their work; ``word_bytes`` is what a kernel before it stores of 32 tiles of
    its mask, 0 if there is none, ``by_head`` whether for each head. ``symbol`` is the start of its fatbin in the
    library, ``target`` its target."""

    target: str
    symbol: str
    tile_q: int
    threads: int
    shared_bytes: int
    box_q: int = 0
    box_kv: int = 0
    draws: bool = False
    word_bytes: int = 0
    by_head: bool = False


@dataclass(frozen=True)
class BackwardImage:
    """What the backward kernels of a variant are launched with: ``kernels`` are threads and bytes of shared memory of a
    block, by what they are for (the fields of BackwardImage in host/driver.h); ``tile_q`` query rows and ``tile_kv``
    keys a tile, ``note_bytes`` and ``sum_bytes`` of a query row's notes and sums of dQ, ``turns`` whether there are
    counters of tiles; ``box_q`` and ``box_kv``, ``word_bytes`` and ``by_head`` as in Image. ``symbol`` is the start of
    its fatbin in the library."""

    symbol: str
    kernels: Mapping[str, tuple[int, int]]
    tile_q: int
    tile_kv: int
    note_bytes: int
    sum_bytes: int
    turns: bool
    box_q: int = 0
    box_kv: int = 0
    word_bytes: int = 0
    by_head: bool = False


_KERNELS = ("prepare", "kernel", "finish", "sink", "round", "find", "mend")  # in BackwardImage's order


@dataclass(frozen=True)
class _BackwardImageText:
    """A backward image as the binding prints it."""

    symbol: str
    kernels: tuple[str, ...]
    tile_q: int
    tile_kv: int
    note_bytes: int
    sum_bytes: int
    turns: str
    box_q: int
    box_kv: int
    word_bytes: int
    by_head: str


@dataclass(frozen=True)
class _ImageText:
    """An image as the binding prints it."""

    symbol: str
    number: str
    exact: str
    tile_q: int
    threads: int
    shared_bytes: int
    box_q: int
    box_kv: int
    run: str
    draws: str
    find: str
    word_bytes: int
    by_head: str


@dataclass(frozen=True)
class _ParamText:
    """A param as the templates print it: C++ first, then Python."""

    name: str
    dtype: str
    grad: str
    rank: int
    extents: str
    doc: str


@dataclass(frozen=True)
class _VariantText:
    """A variant as the templates print it: C++ first, then Python."""

    name: str
    dtype: str
    head_dim: int
    value_dim: int
    heads_first: str
    sink: str
    dropout: str
    backward: bool
    params: tuple[_ParamText, ...]
    params_table: str
    schemas: tuple[str, ...]
    summary: str
    arguments: tuple[str, ...]
    tensors: str
    options: tuple[str, ...]
    stub_options: tuple[str, ...]
    given: str
    docs: tuple[str, ...]
    gradient: str
    image: _ImageText | None
    backward_image: _BackwardImageText | None
    run_backward: str
    backward_row: str


@dataclass(frozen=True)
class _ModuleText:
    name: str
    namespace: str
    spec_file: str
    features: tuple[str, ...]
    device: str
    target: str
    backward: bool
    machines: tuple[tuple[str, str], ...]


def render_module(
    name: str,
    variants: Sequence[Variant],
    *,
    namespace: str,
    features: Sequence[str] = (),
    spec_file: str = "",
    images: Mapping[str, Image] | None = None,
    backward_images: Mapping[str, BackwardImage] | None = None,
) -> dict[str, str]:
    """File name to text: ``binding.cpp``, ``name.cpp``, ``__init__.py``, its ``.pyi``, ``__main__.py``, ``py.typed``.

    ``namespace`` is where torch finds the ops (``torch.ops.<namespace>``) and must name this build alone; of the C++
    only ``name.cpp``, which is compiled in no time, holds it;
    ``features`` are the CPU features that any of the kernels needs, as ``__builtin_cpu_supports`` calls them;
    ``spec_file`` is the spec's file name, for comments; ``images`` are those of all variants, by name, if they are for
    a CUDA target, ``backward_images`` those of its variants with backward. The Python files expect fagen/runtime/
    beside them as runtime/.
    """
    device = "cuda" if images else "cpu"
    context = {
        "module": _ModuleText(
            name=name,
            namespace=namespace,
            spec_file=_printable(spec_file or f"{name}.yaml"),
            features=tuple(features),
            device=device,
            target=", ".join(dict.fromkeys(image.target for image in (images or {}).values())),
            backward=any(variant.backward for variant in variants),
            machines=_MACHINES[device],
        ),
        "variants": [
            _variant_text(variant, (images or {}).get(variant.name), (backward_images or {}).get(variant.name))
            for variant in variants
        ],
    }
    files = {
        file: environment().get_template(f"module/{file}.j2").render(context)
        for file in ("binding.cpp", "name.cpp", "__init__.py", "__init__.pyi", "__main__.py")
    }
    return {**files, "py.typed": ""}


def schemas(variant: Variant) -> tuple[str, ...]:
    """The torch schemas of a variant's ops, without a namespace."""
    extra = "".join(f", Tensor {argument}" for argument in argument_names(variant))
    name = variant.name
    numbers = "float scale" + ", float dropout_p" * variant.dropout
    ops = [
        f"{name}_forward(Tensor q, Tensor k, Tensor v{extra}, {numbers}) -> (Tensor o, Tensor lse)",
        f"{name}_forward_out(Tensor q, Tensor k, Tensor v{extra}, {numbers}, Tensor(a!) out) -> Tensor",
        f"{name}_tile_counts(Tensor q, Tensor k{_param_arguments(variant)}) -> Tensor",
    ]
    if variant.backward:
        results = ["dq", "dk", "dv"] + ["d_sink"] * variant.sink + [f"d_{p.name}" for p in gradient_params(variant)]
        ops.append(
            f"{name}_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse{extra}, "
            f"{numbers}, int needs) -> ({', '.join(f'Tensor {result}' for result in results)})"
        )
    return tuple(ops)


def _param_arguments(variant: Variant) -> str:
    return "".join(f", Tensor param_{param.name}" for param in variant.params)


def _variant_text(variant: Variant, image: Image | None, backward: BackwardImage | None) -> _VariantText:
    params = tuple(_param_text(param) for param in variant.params)
    arguments = ("sink",) * variant.sink + tuple(param.name for param in variant.params)
    return _VariantText(
        name=variant.name,
        dtype=variant.dtype,
        head_dim=variant.head_dim,
        value_dim=variant.value_dim,
        heads_first=_truth(variant.layout == "bhsd"),
        sink=_truth(variant.sink),
        dropout=_truth(variant.dropout),
        backward=variant.backward,
        params=params,
        params_table=f"k_{variant.name}_params" if params else "nullptr",
        schemas=schemas(variant),
        summary=_summary(variant),
        arguments=arguments,
        tensors=f"({', '.join(arguments)}{',' * (len(arguments) == 1)})",
        options=("dropout_p: float = 0.0", "rng_state: _torch.Tensor | None = None") * variant.dropout,
        stub_options=("dropout_p: float = ...", "rng_state: _Tensor | None = ...") * variant.dropout,
        given=", dropout_p, rng_state" * variant.dropout,
        docs=tuple(f"    {line}".rstrip() for line in _docs(variant, params)),
        gradient=_gradient(variant),
        image=None if image is None else _image_text(variant.name, image),
        backward_image=None if backward is None else _backward_image_text(variant.name, backward),
        run_backward="nullptr" if backward is None else _run_backward(backward),
        backward_row="nullptr" if backward is None else f"&k_{variant.name}_backward",
    )


def _backward_image_text(name: str, image: BackwardImage) -> _BackwardImageText:
    return _BackwardImageText(
        symbol=image.symbol,
        kernels=tuple(_kernel(name, kernel, image.kernels.get(kernel)) for kernel in _KERNELS),
        tile_q=image.tile_q,
        tile_kv=image.tile_kv,
        note_bytes=image.note_bytes,
        sum_bytes=image.sum_bytes,
        turns=_truth(image.turns),
        box_q=image.box_q,
        box_kv=image.box_kv,
        word_bytes=image.word_bytes,
        by_head=_truth(image.by_head),
    )


def _kernel(name: str, kernel: str, block: tuple[int, int] | None) -> str:
    """A kernel as C++ has it: the main one is called as the unit, the others after it."""
    if block is None:
        return "{}"
    suffix = "" if kernel == "kernel" else f"_{kernel}"
    return f'{{"fagen_{name}_backward{suffix}", {block[0]}, {block[1]}}}'


def _run_backward(image: BackwardImage) -> str:
    return "run_backward_with_maps" if image.box_q else "run_backward_on_device"


def _image_text(name: str, image: Image) -> _ImageText:
    number = image.target.removeprefix("sm_")
    return _ImageText(
        symbol=image.symbol,
        number=number.removesuffix("a"),
        exact=_truth(number.endswith("a")),
        tile_q=image.tile_q,
        threads=image.threads,
        shared_bytes=image.shared_bytes,
        box_q=image.box_q,
        box_kv=image.box_kv,
        draws=_truth(image.draws),
        find=f'"fagen_{name}_find_tiles"' if image.word_bytes else "nullptr",
        word_bytes=image.word_bytes,
        by_head=_truth(image.by_head),
        run="run_with_maps" if image.box_q else "run_on_device",
    )


def _param_text(param: Param) -> _ParamText:
    extents = [_EXTENTS[extent] if isinstance(extent, str) else str(extent) for extent in param.shape]
    grad = "differentiable" if param.grad else "no gradient"
    return _ParamText(
        name=param.name,
        dtype=_CPP_DTYPES.get(param.dtype, param.dtype),
        grad=_truth(param.grad),
        rank=len(param.shape),
        extents=", ".join(extents),
        doc=f"{shape_of(param)} torch.{TORCH_DTYPES[param.dtype]}; {grad}",
    )


def _summary(variant: Variant) -> str:
    parts = [f"head_dim {variant.head_dim}"]
    if variant.value_dim != variant.head_dim:
        parts.append(f"value_dim {variant.value_dim}")
    parts.append(f"torch.{TORCH_DTYPES[variant.dtype]}")
    parts += ["masked"] * (variant.mask is not None) + ["changed scores"] * (variant.score is not None)
    return ", ".join(parts + ["a sink"] * variant.sink + ["dropout"] * variant.dropout)


def _docs(variant: Variant, params: tuple[_ParamText, ...]) -> tuple[str, ...]:
    dtype = f"torch.{TORCH_DTYPES[variant.dtype]}"
    scale = "1/sqrt(head_dim)" if variant.scale is None else repr(variant.scale)
    row = "i + (Skv - Sq)" if variant.align == "bottom_right" else "i"
    lines = [
        *(f"{what} ``{_printable(part.text)}``" for what, part in _expressions(variant)),
        *[f"with query row i at position {row}", ""][: 2 * bool(_expressions(variant))],
        f"q: {tensor_shape(variant, 'q')} {dtype}, any strides",
        f"k: {tensor_shape(variant, 'k')} {dtype}; H a multiple of Hk",
        f"v: {tensor_shape(variant, 'v')} {dtype}",
    ]
    if variant.sink:
        lines.append("sink: [H] torch.float32, natural-log units, unscaled; differentiable")
    lines += [f"{param.name}: {param.doc}" for param in params]
    if variant.dropout:
        lines += [
            "dropout_p: the share of weights that are dropped, 0 <= dropout_p < 1; others are divided by 1 - dropout_p",
            "rng_state: [2] torch.int64, seed and offset of the random numbers: the same ones drop the same weights;",
            "    None draws them from torch's generator of the tensors' device",
        ]
    lines += [
        f"scale: what q . k is multiplied by, in natural-log units; None means {scale}",
        "return_lse: also return lse, [B, H, Sq] torch.float32, natural log; -inf for a row without keys",
        f"out: where to write o: {tensor_shape(variant, 'o')} {dtype}, any strides; no gradient then",
    ]
    return tuple(lines)


def _expressions(variant: Variant) -> list[tuple[str, Expression]]:
    parts = (("mask", variant.mask), ("score", variant.score))
    return [(what, expression) for what, expression in parts if expression is not None]


def _gradient(variant: Variant) -> str:
    if not variant.backward:
        return "Built without backward: an argument that requires grad is a ValueError."
    return "Differentiable once in every floating argument but those marked; lse too."


def _printable(text: str) -> str:
    """Text from a user, fit for a comment or a docstring of any language: one line of plain characters."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain.replace("\\", "/").replace('"', "'")


def _truth(value: bool) -> str:
    return "true" if value else "false"

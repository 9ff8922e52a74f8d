"""A published module: its manifest, its variants by name, and what can be asked of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import library, ops
from .dispatch import Dispatcher
from .dropout import dropout_mask
from .tiles import TileCounts
from .variant import Variant

if TYPE_CHECKING:
    from .check.report import VariantReport
    from .kernel import Kernel


def _module_named(name: str) -> Module:
    module: Module = importlib.import_module(name)._module
    return module


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and "fagen" in manifest:
            return manifest
    except (OSError, ValueError):
        pass
    raise ImportError(f"fagen module {folder.name}: its manifest.json is missing or damaged; build or copy it again")


class Module:
    """What a rendered ``__init__.py`` is the front of. Loading it loads the library (ImportError says why not)."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self.folder = folder
        self.manifest = _manifest(folder)
        self.spec_file: str = self.manifest["spec"]["file"]
        # Where its tensors must be, as torch calls it; on the CPU, too, while there is an emulator.
        self.device: str = self.manifest.get("device", "cpu")
        self.emulator: Any = None
        self._variants = {
            entry["variant"]["name"]: Variant.from_json(entry["variant"]) for entry in self.manifest["variants"]
        }
        library.load(folder, self.manifest, self._register)
        self.library = library.path_of(self.manifest["namespace"])
        self.ops = {name: ops.find(self.manifest["namespace"], variant) for name, variant in self._variants.items()}
        self.kernels: dict[str, Kernel] = {}
        self._dispatcher = Dispatcher(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _module_named, (self.name,)  # pickled and copied as what the package of that name loads

    def _register(self, fragment: torch.library.Library) -> None:
        for variant in self._variants.values():
            ops.register(fragment, variant)

    def add(self, kernel: Kernel) -> None:
        """Called by each kernel as it is made."""
        self.kernels[kernel.name] = kernel

    def variants(self) -> tuple[Variant, ...]:
        """What the module can compute, in the order of its spec."""
        return tuple(self._variants.values())

    def variant(self, name: str) -> Variant:
        """The variant called ``name``; ``ValueError`` names those there are."""
        if name not in self._variants:
            raise ValueError(f"no variant {name!r} in {self.name}; it has {', '.join(self._variants)}")
        return self._variants[name]

    def tile_counts(self, name: str, q: Tensor, k: Tensor, **params: Tensor) -> TileCounts:
        """How the mask of variant ``name`` falls into tiles for these q, k and params."""
        variant = self.variant(name)
        wanted = [param.name for param in variant.params]
        if set(params) != set(wanted):
            raise TypeError(f"tile_counts({name!r}): expected params {wanted}, found {list(params)}")
        counts = self.ops[name].tile_counts(q, k, *(params[param] for param in wanted))
        return TileCounts(*counts.tolist())

    dropout_mask = staticmethod(dropout_mask)

    def check(self, name: str, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> VariantReport:
        """Check variant ``name`` against the float64 reference on these tensors, gradients too: a VariantReport.

        ``arguments`` are scale, sink, params, dropout_p and rng_state as the variant takes them; see
        runtime/check/tensors.py.
        """
        from .check.cases import Tiling
        from .check.tensors import check_call

        kernel: Any = self.kernels[self.variant(name).name]
        plan = next(entry["plan"] for entry in self.manifest["variants"] if entry["variant"]["name"] == kernel.name)
        return check_call(kernel, Tiling.of(plan), q, k, v, **arguments)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: str | None = None,
        score: str | None = None,
        *,
        scale: float | None = None,
        sink: Tensor | None = None,
        dropout_p: float = 0.0,
        rng_state: Tensor | None = None,
        return_lse: bool = False,
        out: Tensor | None = None,
        align: str = "bottom_right",
        layout: str | None = None,
        fallback: str | None = None,
        **params: Tensor,
    ) -> Any:
        """Attention by whichever variant computes it: same head dims, dtype, device, mask and score.

        ``mask`` and ``score`` are expressions in the language of specs, compared by what they mean: "kv <= q" finds a
        variant whose mask is `causal`. ``scale`` None is 1/sqrt(head_dim), whatever a variant's spec sets: one that
        sets another scale is found only by a call that passes ``scale``, which any variant takes. ``align`` says which
        position query row i has: i + Skv - Sq ("bottom_right") or i ("top_left"); variants whose expressions read q
        must have the same. ``dropout_p`` and ``rng_state`` are for variants with dropout, of which none is needed where
        no weights are dropped. ``layout`` ("bshd" or "bhsd") is needed only where variants differ in nothing else. Of
        two of which one is `deterministic`, that is called while torch.use_deterministic_algorithms asks for such.

        No variant, or more than one, is a ``ValueError`` that says what to add or pass; ``fallback="reference"``
        computes the formula in plain torch instead, and warns once. The fallback takes ``layout`` for granted only
        where all variants of the module have the same.
        """
        return self._dispatcher(
            q, k, v, mask, score, params, scale=scale, sink=sink, dropout_p=dropout_p, rng_state=rng_state,
            return_lse=return_lse, out=out, align=align, layout=layout, fallback=fallback,
        )  # fmt: skip

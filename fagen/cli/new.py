"""Writing a first spec: a commented one to edit, or the one that a model's layers need."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import LockError, Problem
from .model_config import Layer, Model, read_model

_STARTER = """\
# Build, check and publish: fagen build {path}
# `fagen schema > schema.json` and a first line `# yaml-language-server: $schema=schema.json` make editors help.
fagen: 1                        # version of this format
name: {name}                    # -> generated/{name}, `from generated import {name}`
target: cpu
defaults: {{dtype: bf16, layout: bshd, backward: true}}   # tensors are [batch, sequence, head, dim]

# Run-time inputs that expressions may read, with their extents: B, H (query heads), Hk (key heads), Sq, Skv,
# an integer, or n (any length). `grad: true` gives them a gradient.
params:
  slope: {{dtype: f32, shape: [H], grad: true}}

variants:
  # `causal`, `window(left, right)`, `prefix(n)`, `document(ids)` are ready masks; any condition on the positions
  # q and kv will do, as `q - kv < 4096 and q - kv >= 0`.
  - name: causal_d{{head_dim}}    # one variant for each value of the matrix
    matrix: {{head_dim: [64, 128]}}
    mask: causal

  # `score` changes the scaled score s before the softmax.
  - name: softcap_d64
    head_dim: 64
    mask: causal and q - kv < 4096
    score: softcap(50)

  - name: alibi_d64
    head_dim: 64
    mask: causal
    score: "s - slope[h] * abs(q - kv)"
"""


def new_spec(name: str, config: Path | None, path: Path, *, force: bool) -> Path:
    """Write the spec ``name`` to ``path``; from a Hugging Face config if one is given.

    An existing file is left alone unless ``force``. Raises :class:`SpecError` for a config that cannot be turned into
    a spec, and :class:`LockError` if the file is there or cannot be written.
    """
    text = _STARTER.format(name=name, path=path) if config is None else spec_text(name, read_model(config))
    _check(text, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise LockError(Problem(f"{path} exists", hint="choose another --out, or overwrite it with --force")) from None
    except OSError as error:
        raise LockError(
            Problem(f"{path} cannot be written: {os.strerror(error.errno or 0)}", hint="see --out")
        ) from None
    return path


def spec_text(name: str, model: Model) -> str:
    """The spec of a model's layers."""
    lines = [
        f"# The attentions of a {model.model_type} model, as its config.json describes them ({model.heads}).",
        *(f"# {remark}." for remark in model.remarks),
        "fagen: 1",
        f"name: {name}",
        "target: cpu",
        f"defaults: {{dtype: {model.dtype}, layout: bhsd, backward: true}}   # as Transformers keeps its tensors",
    ]
    params = {param: shape for layer in model.layers for param, shape in layer.params.items()}
    if params:
        lines += ["params:", *(f"  {param}: {shape}" for param, shape in params.items())]
    lines.append("variants:")
    for layer in model.layers:
        lines += _variant(layer)
    return "\n".join(lines) + "\n"


def _variant(layer: Layer) -> list[str]:
    lines = [f"  - name: {layer.name}   # {layer.why}", f"    head_dim: {layer.head_dim}"]
    if layer.value_dim is not None:
        lines.append(f"    value_dim: {layer.value_dim}")
    if layer.scale is not None:
        lines.append(f"    scale: {layer.scale!r}")
    if layer.sink:
        lines.append("    sink: true")
    if layer.mask is not None:
        lines.append(f'    mask: "{layer.mask}"')
    if layer.score is not None:
        lines.append(f'    score: "{layer.score}"')
    return lines


def _check(text: str, path: Path) -> None:
    """Refuse to write what a build would refuse (a bad name, a head dim that no target takes)."""
    from ..spec import expand, load_text

    expand(load_text(text, str(path)))

"""Modules of plain-loop kernels (naive.cpp): everything of a published module but the kernels fagen renders."""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch

from fagen.render_module import HOST_FLAGS, LINK_FLAGS, render_module
from fagen.resources import templates_dir
from fagen.runtime.fakes import DTYPES
from fagen.runtime.language import parse, unparse
from fagen.runtime.variant import Expression, Param, Variant

HERE = Path(__file__).parent
SLOPE = Param("slope", "f32", ("H",), grad=True)
BIAS = Param("bias", "f32", (), grad=False)
PAIR = Param("pair", "f32", ("n", "n"))
DOC = Param("doc", "i32", ("B", "n"))


def _expression(text: str, what: str, *params: Param) -> Expression:
    return Expression(text, unparse(parse(text, params={p.name: p for p in params}, expect=what)), 1, 1)


CAUSAL = _expression("causal", "mask")
VARIANTS = (
    Variant("causal_d16", 16, 16, "f32", mask=CAUSAL, line=4),
    Variant("plain_d16", 16, 16, "f32", scale=0.5, line=5),
    Variant("alibi_d16", 16, 16, "f32", score=_expression("alibi(slope)", "score", SLOPE), params=(SLOPE,), line=6),
    Variant("doc_d16", 16, 16, "f32", mask=_expression("document(doc)", "mask", DOC), params=(DOC,), line=7),
    Variant("scalar_d16", 16, 16, "f32", score=_expression("s + bias", "score", BIAS), params=(BIAS,), line=8),
    Variant("pair_d16", 16, 16, "f32", score=_expression("s + pair[q, kv]", "score", PAIR), params=(PAIR,), line=11),
    Variant("sink_d16", 16, 8, "f32", mask=CAUSAL, sink=True, line=9),
    Variant("bare_d16", 16, 16, "f32", layout="bhsd", mask=CAUSAL, backward=False, line=10),
)
_DEFINES = {
    "causal_d16": ["CAUSAL"],
    "plain_d16": [],
    "alibi_d16": ["ALIBI"],
    "doc_d16": ["DOCUMENT"],
    "scalar_d16": ["SCALAR"],
    "pair_d16": ["PAIR"],
    "sink_d16": ["CAUSAL", "SINK"],
    "bare_d16": ["CAUSAL"],
}


def draw(
    variant: Variant, B: int = 2, Sq: int = 5, Skv: int = 7, H: int = 4, Hk: int = 2
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """(q, k, v) and the tensors after them by name, random, for a call of ``variant``."""

    def tensor(length: int, heads: int, dim: int) -> torch.Tensor:
        middle = (heads, length) if variant.layout == "bhsd" else (length, heads)
        return torch.randn(B, *middle, dim)

    named = {"sink": torch.randn(H)} if variant.sink else {}
    sizes = {"B": B, "H": H, "Hk": Hk, "Sq": Sq, "Skv": Skv, "n": max(Sq, Skv)}
    for param in variant.params:
        shape = [sizes.get(str(extent), extent) for extent in param.shape]
        numbers = torch.randint(0, 2, shape) if param.dtype == "i32" else torch.rand(shape)
        named[param.name] = numbers.to(DTYPES[param.dtype])
    dims = ((Sq, H, variant.head_dim), (Skv, Hk, variant.head_dim), (Skv, Hk, variant.value_dim))
    return tuple(tensor(*each) for each in dims), named


def publish(
    folder: Path,
    *,
    namespace: str,
    variants: Sequence[Variant] = VARIANTS,
    features: Sequence[str] = (),
    defines: Mapping[str, Sequence[str]] = _DEFINES,
) -> Path:
    """Compile and lay out a module at ``folder``, whose name is the module's; ``defines`` choose each kernel."""
    work = folder.parent / f".{folder.name}_work"
    work.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    include = f"-I{templates_dir() / 'include'}"
    objects = []
    for variant in variants:
        target = work / f"{variant.name}.o"
        words = [f"-DNAME={variant.name}", f"-DHEAD_DIM={variant.head_dim}", f"-DVALUE_DIM={variant.value_dim}"]
        words += [f"-D{word}" for word in defines[variant.name]]
        _run("g++", "-std=c++17", "-O1", "-fPIC", *words, include, "-c", HERE / "naive.cpp", "-o", target)
        objects.append(target)
    files = render_module(
        folder.name, variants, namespace=namespace, features=features, spec_file=f"{folder.name}.yaml"
    )
    torch_root = Path(torch.__file__).parent
    for name in [name for name in files if name.endswith(".cpp")]:
        source, target = work / name, work / f"{name}.o"
        source.write_text(files.pop(name))
        _run("g++", *HOST_FLAGS, "-Werror", include, f"-isystem{torch_root / 'include'}", "-c", source, "-o", target)
        objects.append(target)
    for name, text in files.items():
        (folder / name).write_text(text)
    library = f"library_{namespace[-8:]}.so"
    _run("g++", *objects, f"-L{torch_root / 'lib'}", *LINK_FLAGS, "-o", folder / library)
    runtime = Path(sys.modules["fagen"].__file__ or "").parent / "runtime"
    shutil.copytree(runtime, folder / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    manifest = {
        "fagen": "0",
        "name": folder.name,
        "namespace": namespace,
        "library": library,
        "torch": ">=2.10",
        "isa": {"name": "portable", "features": list(features), "machine": platform.machine()},
        "target": "cpu",
        "spec": {"file": f"{folder.name}.yaml", "sha256": "0" * 64},
        "variants": [{"variant": variant.to_json()} for variant in variants],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def load(folder: Path, package: str | None = None) -> ModuleType:
    """Import the module at ``folder`` as ``package`` (by default its own name, its parent on sys.path)."""
    if package is None:
        sys.path.insert(0, str(folder.parent))
        try:
            return importlib.import_module(folder.name)
        finally:
            sys.path.remove(str(folder.parent))
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

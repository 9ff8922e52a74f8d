"""Loading a module: from anywhere, twice, beside other builds, on a machine that cannot run it."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import naive
import pytest
import torch

from fagen.runtime import library


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)


def test_needs_torch_alone(small_folder: Path, tmp_path: Path) -> None:
    """A copy in a folder with a space and a letter beyond ASCII, imported where no other package can be."""
    root = tmp_path / "päckages of mine" / "generated"
    root.mkdir(parents=True)
    shutil.copytree(small_folder, root / "small")
    allowed = {"torch", "small", "generated", "typing_extensions", "sympy", "mpmath", "filelock", "fsspec", "networkx"}
    done = _python(
        "import sys, importlib.abc\n"
        "import torch, torch._dynamo  # whatever torch itself needs is loaded now\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('fagen', 'jinja2', 'yaml', 'pydantic', 'rich', 'typer', 'ninja', 'numpy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"sys.path[:] = [p for p in sys.path if p not in ('', {str(Path.cwd())!r})] + [{str(root.parent)!r}]\n"
        "before = {name.split('.')[0] for name in sys.modules}\n"
        "from generated import small\n"
        "q = torch.randn(1, 3, 2, 16, requires_grad=True)\n"
        "small.causal_d16(q, q, q).sum().backward()\n"
        "small.attention(q, q, q, mask='kv <= q'), small.causal_d16.reference(q, q, q)\n"
        "new = {name.split('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)\n"
        f"assert new <= {allowed!r}, new\n"
        "assert small.__file__.startswith(sys.path[-1])\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kept", [100, 0, None])
def test_a_damaged_manifest(kept: int | None, small_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(small_folder, tmp_path / "small")
    manifest = tmp_path / "small" / "manifest.json"
    if kept is None:
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:kept])
    done = _python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport small")
    assert "ImportError: fagen module small: its manifest.json is missing or damaged" in done.stderr


def test_import_is_quick(small_folder: Path) -> None:
    """Importing a module does not import torch's compiler (2 s), nor much else."""
    done = _python(
        f"import sys; sys.path.insert(0, {str(small_folder.parent)!r})\n"
        "import torch, time\n"
        "start = time.process_time()\n"
        "import small\n"
        "print(time.process_time() - start)\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.0


def test_twice_and_under_two_names(small: ModuleType, small_folder: Path, tmp_path: Path) -> None:
    """The same build again, from the same folder and from a copy, is the same ops."""
    again = naive.load(small_folder, "small_again")
    shutil.copytree(small_folder, tmp_path / "copied")
    copied = naive.load(tmp_path / "copied", "small_copied")
    qkv, _ = naive.draw(small.causal_d16.variant)
    for module in (again, copied):
        assert module.causal_d16 is not small.causal_d16
        assert module.causal_d16.ops.forward is small.causal_d16.ops.forward
        leaf = qkv[0].clone().requires_grad_()
        module.causal_d16(leaf, *qkv[1:]).sum().backward()
        assert torch.equal(module.causal_d16(*qkv), small.causal_d16(*qkv)) and leaf.grad is not None


def test_import_again_after_one_that_failed(small_folder: Path, tmp_path: Path) -> None:
    """Whatever registration failed of: the next import is a whole one, also from a copy of the folder."""
    shutil.copytree(small_folder, tmp_path / "again" / "small")
    done = _python(
        "import sys, torch, torch.library\n"
        f"sys.path.insert(0, {str(small_folder.parent)!r})\n"
        "register, calls = torch.library.register_fake, []\n"
        "def fail(*arguments, **options):\n"
        "    calls.append(arguments)\n"
        "    if len(calls) == 3: raise MemoryError('planted')\n"
        "    return register(*arguments, **options)\n"
        "torch.library.register_fake = fail\n"
        "for path in (sys.path[0], sys.argv[1]):\n"
        "    sys.path[0] = path\n"
        "    try:\n"
        "        import small\n"
        "    except MemoryError as error: print(error)\n"
        "    for name in [name for name in sys.modules if name.split('.')[0] == 'small' and len(calls) == 3]:\n"
        "        del sys.modules[name]\n"
        "q = torch.randn(1, 3, 2, 16, requires_grad=True)\n"
        "small.causal_d16(q, q, q).sum().backward()\n"
        "assert q.grad is not None and small.causal_d16.ops.tile_counts(*[q.to('meta')] * 2).is_meta\n",
        str(tmp_path / "again"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "planted\n"


def test_two_builds_coexist(small: ModuleType, tmp_path: Path) -> None:
    """Another build of a spec, with other kernels under the same names; old handles still work."""
    old = small.causal_d16
    variants = (naive.VARIANTS[0],)
    folder = naive.publish(
        tmp_path / "small", namespace="fagen_small_00000002", variants=variants, defines={"causal_d16": []}
    )
    other = naive.load(folder, "small_other")
    qkv, _ = naive.draw(old.variant)
    assert torch.equal(other.causal_d16(*qkv), small.plain_d16(*qkv, scale=0.25))  # built without its mask
    torch.testing.assert_close(old(*qkv), old.reference(*qkv).float())
    assert other.causal_d16.ops.forward is not old.ops.forward


def test_fork_then_load(small_folder: Path) -> None:
    done = _python(
        f"import os, sys; sys.path.insert(0, {str(small_folder.parent)!r})\n"
        "import torch\n"
        "torch.set_num_threads(1)\n"
        "child = os.fork()\n"
        "import small\n"
        "q = torch.randn(1, 3, 2, 16)\n"
        "small.causal_d16(q, q, q)\n"
        "if child == 0: os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    assert done.returncode == 0, done.stderr


def _with(folder: Path, root: Path, **changes: object) -> Path:
    shutil.copytree(folder, root / "changed")
    manifest = json.loads((root / "changed/manifest.json").read_text())
    (root / "changed/manifest.json").write_text(json.dumps({**manifest, "namespace": "fagen_changed", **changes}))
    return root / "changed"


def test_cpu_without_the_instruction_set(small_folder: Path, tmp_path: Path) -> None:
    """Refused before the library is touched: it is not even there."""
    isa = {"name": "avx1024", "features": ["sse2", "avx1024f", "avx1024_bf16"], "machine": platform.machine()}
    folder = _with(small_folder, tmp_path, isa=isa)
    (folder / json.loads((folder / "manifest.json").read_text())["library"]).unlink()
    with pytest.raises(ImportError) as error:
        naive.load(folder, "without_isa")
    for words in ("small was built for a CPU with", "isa: avx1024", "lacks avx1024f, avx1024_bf16", "small.yaml"):
        assert words in str(error.value)


def test_another_machine(small_folder: Path, tmp_path: Path) -> None:
    folder = _with(small_folder, tmp_path, isa={"name": "portable", "features": [], "machine": "pdp11"})
    with pytest.raises(ImportError, match=f"built for pdp11, and this machine is {platform.machine()}"):
        naive.load(folder, "other_machine")


def test_the_library_checks_the_cpu_too(tmp_path: Path) -> None:
    """Where a system does not list CPU features, the op says what is missing instead of dying of it."""
    lacking = next((f for f in ("avx512vp2intersect", "sse4a", "fma4") if not _supports(f)), None)
    if lacking is None:
        pytest.skip("this CPU has every feature the test knows")
    variants = (naive.VARIANTS[0],)
    folder = naive.publish(
        tmp_path / "lacking", namespace="fagen_lacking_00000003", variants=variants, features=["sse2", lacking]
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "isa": {**manifest["isa"], "features": []}}))
    module = naive.load(folder, "lacking")
    qkv, _ = naive.draw(variants[0])
    for call in (lambda: module.causal_d16(*qkv), lambda: module.tile_counts("causal_d16", *qkv[:2])):
        with pytest.raises(RuntimeError, match=f"lacking is built for a CPU with {lacking}, which this one lacks"):
            call()


def _supports(feature: str) -> bool:
    present = library.cpu_features()
    return present is not None and feature in present


def test_cpu_features_are_read_as_compilers_spell_them(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nflags\t\t: fpu sse4_2 avx512_bf16 avx512f\nprocessor\t: 1\n")
    assert library.cpu_features(listing) == {"fpu", "sse42", "avx512bf16", "avx512f"}
    assert library.cpu_features(tmp_path / "nowhere") is None
    for feature in ("sse4.2", "avx512bf16", "avx512f"):
        assert library._plain(feature) in library.cpu_features(listing)


def test_old_torch_is_refused(small_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"small needs torch 99\.1 or newer, found"):
        naive.load(_with(small_folder, tmp_path, torch=">=99.1"), "too_new")
    library.require_torch({"name": "x", "torch": ">=2.10"})
    assert library._version("2.9.1+cu128") < library._version("2.10") < library._version("2.13.0a0+git1")


def test_a_library_that_does_not_load(small_folder: Path, tmp_path: Path) -> None:
    folder = _with(small_folder, tmp_path)
    path = folder / json.loads((folder / "manifest.json").read_text())["library"]
    path.write_bytes(b"not a library")
    with pytest.raises(ImportError, match=f"small: cannot load {path}"):
        naive.load(folder, "broken")

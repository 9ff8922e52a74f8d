"""Object keys of whole specs: what must change them, and what must not."""

from __future__ import annotations

from pathlib import Path

DIFFERENT = {
    "nothing": "sink: false",
    "score": "score: softcap(30)",
    "another score": "score: softcap(15)",
    "mask": "mask: causal",
    "another mask": "mask: causal and q - kv < 5",
    "one more": "mask: causal and q - kv < 6",
    "align": "mask: causal\n    align: top_left",
    "dtype": "dtype: bf16",
    "sink": "sink: true",
    "value dim": "value_dim: 16",
    "tiles": "tiles: {kv: 64}",
}
# These change what the module does with the same forward kernel: an argument's default is its Python's business, the
# order of dims the binding's, and backward has a kernel of its own.
SAME_KERNEL = {"scale": "scale: 0.25", "layout": "layout: bhsd", "backward": "backward: true"}


def keys(folder: Path, text: str, name: str = "tiny.yaml") -> dict[str, str]:
    """The object keys, by unit, of a spec; nothing is compiled."""
    from fagen.build.module_job import make_job
    from fagen.toolchain import find_compiler, find_torch

    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    job = make_job(path, None, find_compiler(), find_torch(), None, "off")
    return {unit.label: unit.key for unit in job.units} | {"library": job.library}


def one(more: str = "mask: causal", isa: str = "portable") -> str:
    return (
        f"fagen: 1\nname: tiny\ntarget: cpu\nisa: {isa}\ndefaults: {{dtype: f32, backward: false}}\n"
        f"variants:\n  - name: a\n    head_dim: 8\n    {more}\n"
    )


def test_specs_that_differ_in_one_field_share_no_kernel(tmp_path: Path) -> None:
    found = {what: keys(tmp_path, one(more)) for what, more in DIFFERENT.items()}
    found |= {isa: keys(tmp_path, one("sink: false", isa)) for isa in ("avx2", "avx512")}
    assert len({key["a forward"] for key in found.values()}) == len(found)
    assert len({key["library"] for key in found.values()}) == len(found)
    for what, more in SAME_KERNEL.items():
        same = keys(tmp_path, one(more))
        assert same["a forward"] == found["nothing"]["a forward"]
        assert (same["library"] == found["nothing"]["library"]) is (what == "scale")


def test_what_must_not_change_keys(tmp_path: Path) -> None:
    """Another folder, the order of YAML keys, comments, and other variants around it."""
    alone = keys(tmp_path, one())
    assert keys(tmp_path / "ö ö", one()) == alone
    assert keys(tmp_path, "# a comment\n\n" + one("mask:   causal  # another")) == alone
    assert (
        keys(tmp_path, one().replace("    head_dim: 8\n    mask: causal", "    mask: causal\n    head_dim: 8")) == alone
    )
    before = one().replace("variants:\n", "variants:\n  - {name: b, head_dim: 16}\n")
    assert keys(tmp_path, before)["a forward"] == alone["a forward"]

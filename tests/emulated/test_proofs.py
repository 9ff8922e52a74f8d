"""Kernels for sm_90a give what they gave on an H200: copies and whole numbers bit for bit, sums as near as they are."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fagen import emulate

from .fixtures.proofs import Proof, Tile, bytes_of, kept, proofs

FILE = Path(__file__).parent / "fixtures" / "proofs.json"
PROOFS = proofs()


@cache
def recorded() -> dict[str, Any]:
    """What record_proofs.py wrote."""
    if not FILE.exists():
        pytest.skip(f"{FILE.name} is not there: record_proofs.py makes it on an H200")
    return json.loads(FILE.read_text())


def emulated(proof: Proof) -> None:
    """Runs it; its tensors are as the emulator leaves them."""
    args = [
        emulate.encode_tiled(each.tensor, each.box, swizzle=each.swizzle, element_strides=each.steps)
        if isinstance(each, Tile)
        else each
        for each in proof.args
    ]
    cluster = None if proof.cluster == 1 else proof.cluster
    emulate.launch(
        proof.ptx, proof.kernel, proof.grid, proof.block, args,
        shared=proof.shared, cluster=cluster, memory=proof.memory(),
    )  # fmt: skip


def test_what_was_recorded_and_where() -> None:
    made = recorded()
    assert made["device"] == "NVIDIA H200" and made["capability"] == "9.0" and made["date"] and made["driver"]
    assert set(made["proofs"]) == set(PROOFS)


@pytest.mark.parametrize("name", PROOFS)
def test_a_proof(name: str) -> None:
    card = recorded()["proofs"][name]
    proof = PROOFS[name]()
    assert proof.asked() == card["asked"], "it is another now: record it anew"
    emulated(proof)
    if proof.near is None:
        assert hashlib.sha256(bytes_of(proof.out)).hexdigest() == card["sha256"]
        return
    found = kept(proof.out)
    data = bytearray(zlib.decompress(base64.b64decode(card["kept"])))
    wanted = torch.frombuffer(data, dtype=proof.out.dtype)
    assert (found.double() - wanted.double()).abs().max() <= proof.near * wanted.double().abs().max()

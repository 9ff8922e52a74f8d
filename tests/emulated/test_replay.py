"""Every instruction form gives what it gave on an H200, bit for bit where the ISA defines the bits."""

from __future__ import annotations

from typing import Any

import pytest

from .fixtures.form import Form, module, pack, swept
from .fixtures.record import digests
from .fixtures.table import families
from .replay import RECORDED, differences, emulated, recorded, values_of

EACH = 56  # forms a program
FORMS = families()
PARTS = [(name, at) for name, forms in FORMS.items() for at in range(0, len(forms), EACH)]


@pytest.mark.parametrize("family", FORMS)
def test_what_was_recorded_and_where(family: str) -> None:
    made = recorded(family)
    assert made["device"] == "NVIDIA H200" and made["date"] and made["driver"] and made["made_by"].endswith("record.py")
    assert made["refused"] == {}
    assert set(made["forms"]) == {form.name for form in FORMS[family]}
    assert set(made["sweeps"]) == {form.name for form in FORMS[family] if form.sweep}


def test_every_family_was_recorded() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(FORMS)
    assert sum(len(recorded(family)["forms"]) for family in FORMS) >= 1000


def card_of(family: str, form: Form) -> list[tuple[int, ...]]:
    """What a card gave, after a look whether it was asked the same."""
    made: dict[str, Any] = recorded(family)["forms"][form.name]
    assert made["body"] == form.body, f"{form.name} is another now: record it anew"
    given = [(name, kind, values_of(kind, text)) for name, kind, text in made["in"]]
    assert given == [(name, kind, tuple(values)) for name, kind, values in form.inputs], form.name
    assert [(name, kind) for name, kind, _ in made["out"]] == list(form.outputs)
    return [values_of(kind, text) for _, kind, text in made["out"]]


@pytest.mark.parametrize(("family", "at"), PARTS, ids=[f"{name}{at}" for name, at in PARTS])
def test_forms(family: str, at: int) -> None:
    forms = FORMS[family][at : at + EACH]
    ptx = module(forms)
    wrong = [line for form in forms for line in differences(form, card_of(family, form), emulated(ptx, form))]
    assert not wrong, f"{len(wrong)} cases\n" + "\n".join(wrong[:40])


SWEPT = [(family, form) for family, forms in FORMS.items() for form in forms if form.sweep]
SWEEPS = range(0, len(SWEPT), 16)


@pytest.mark.parametrize("at", SWEEPS)
def test_sweeps(at: int) -> None:
    """65,536 patterns of each; of what the card gave there are checksums."""
    forms = [(family, swept(form)) for family, form in SWEPT[at : at + 16]]
    ptx = module([form for _, form in forms])
    wrong = [
        form.name
        for family, form in forms
        if digests(form, emulated(ptx, form)) != recorded(family)["sweeps"][form.name]
    ]
    assert not wrong


def test_a_difference_is_seen() -> None:
    """One bit in one case of a form, and one unit more than its error in another."""
    whole, near = (
        next(form for form in FORMS["floats"] if form.name == name) for name in ("add.rn.f32", "ex2.approx.f32")
    )
    for form, most in ((whole, 0), (near, 4)):
        card = card_of("floats", form)
        made = list(card[0])
        case = next(n for n, value in enumerate(made) if 0x3F000000 < value < 0x40000000)
        made[case] += most
        assert not list(differences(form, card, pack("b32", made)))
        made[case] += 1
        (line,) = differences(form, card, pack("b32", made))
        assert line.startswith(f"{form.name}: r = {made[case]:#x}, on the card {card[0][case]:#x}, of a=")

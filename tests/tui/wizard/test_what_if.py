"""The wizard's what-if: dials, and the cards that a computer might have."""

from __future__ import annotations

from typing import Any

from localspec.tui.wizard.what_if import CONTEXT_SIZES, MachineProfiles, WhatIf, gpu_name, list_gpus
from tests.support.wizards import PLACE


def test_dials_go_round() -> None:
    what = WhatIf()
    for _ in CONTEXT_SIZES:
        what = what.turn_dial("context", 1)
    assert what == WhatIf()
    assert what.turn_dial("kv", -1).kv == "q4_0"
    assert what.turn_dial("gpu", 1).turn_dial("gpu", -1) == what


def test_every_card_is_one_place_and_none_costs_a_look_at_this_computer() -> None:
    looks = []

    def here() -> Any:
        looks.append(1)
        return PLACE

    places = MachineProfiles(here)
    assert places.get_loaded(None) is None
    places.load(None)
    for card in list_gpus():
        device = places.load(card).devices[0]
        assert device.simulated and gpu_name(card).partition(",")[0] in device.description
    assert len(looks) == 1
    assert places.get_loaded(None) is PLACE

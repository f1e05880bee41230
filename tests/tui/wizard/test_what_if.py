"""The wizard's what-if: the cards that a computer might have."""

from typing import Any

from localspec.tui.wizard.what_if import MachineProfiles, gpu_name, list_gpus
from tests.support.wizards import PLACE


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
        assert (
            device.simulated and gpu_name(card).partition(",")[0] in device.description
        )
    assert len(looks) == 1
    assert places.get_loaded(None) is PLACE

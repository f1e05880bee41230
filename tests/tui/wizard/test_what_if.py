"""The wizard's what-if: the cards that a computer might have."""

import pytest

from localspec.fit.machine_profile import MachineProfile
from localspec.machine.gpu_catalog import GpuSpec
from localspec.tui.wizard.what_if import MachineProfiles, gpu_name, list_gpus
from tests.support.wizards import PLACE


def test_this_computer_is_unknown_until_it_has_been_probed() -> None:
    profiles = MachineProfiles(lambda: PLACE)
    assert profiles.get_loaded(None) is None
    profiles.load(None)
    assert profiles.get_loaded(None) is PLACE


def test_this_computer_is_probed_once_for_all_cards() -> None:
    probes: list[MachineProfile] = []

    def probe() -> MachineProfile:
        probes.append(PLACE)
        return PLACE

    profiles = MachineProfiles(probe)
    for gpu in (None, *list_gpus()):
        profiles.load(gpu)
    assert len(probes) == 1


@pytest.mark.parametrize("gpu", list_gpus(), ids=gpu_name)
def test_with_another_card_its_device_is_simulated(gpu: GpuSpec) -> None:
    device = MachineProfiles(lambda: PLACE).load(gpu).devices[0]
    assert device.simulated
    assert gpu.name in device.description

"""The wizard's what-if: the cards that a computer might have."""

import pytest
from msgspec.structs import replace

from localspec.fit.machine_profile import MachineProfile
from localspec.fit.plan import Plan
from localspec.machine.gpu_catalog import GpuSpec
from localspec.protocol.wire import ContextSettings, KvType
from localspec.tui.wizard.what_if import (
    CONTEXT_SIZES,
    KV_TYPES,
    Dial,
    MachineProfiles,
    WhatIf,
    dials_line,
    gpu_name,
    list_gpus,
)
from tests.support import wizards
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


# --- what auto stands for
# --------------------------------------------------------------------------------------


def make_plan(*, n_ctx: int = 32768, kv: KvType = "f16") -> Plan:
    """A plan whose automatic settings are these."""
    plan = wizards.fit(wizards.PRICES["phi-4+lookup"])
    settings = ContextSettings(n_ctx=n_ctx, kv_type=kv)
    return replace(plan, load=replace(plan.load, target_settings=settings))


@pytest.mark.parametrize("n_ctx", CONTEXT_SIZES)
def test_a_step_from_the_automatic_context_goes_to_the_next_size(n_ctx: int) -> None:
    index = CONTEXT_SIZES.index(n_ctx)
    more = WhatIf().turn_dial("context", 1, make_plan(n_ctx=n_ctx))
    less = WhatIf().turn_dial("context", -1, make_plan(n_ctx=n_ctx))
    assert more.ctx == (*CONTEXT_SIZES, CONTEXT_SIZES[0])[index + 1]
    assert less.ctx == CONTEXT_SIZES[index - 1]


@pytest.mark.parametrize("kv", KV_TYPES)
def test_a_step_from_the_automatic_cache_goes_to_the_next_type(kv: KvType) -> None:
    index = KV_TYPES.index(kv)
    turned = WhatIf().turn_dial("kv", 1, make_plan(kv=kv))
    assert turned.kv == (*KV_TYPES, KV_TYPES[0])[index + 1]


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("dial", ["context", "kv"])
def test_a_dial_comes_round_to_auto(dial: Dial, by: int) -> None:
    """Also if the plan is known only later."""
    for plan in (None, make_plan(), make_plan(n_ctx=10_000)):
        turned = WhatIf().turn_dial(dial, by, plan)
        seen = [turned]
        while turned != WhatIf():
            turned = turned.turn_dial(dial, by, plan)
            assert turned not in seen
            seen.append(turned)
        assert len(seen) >= len(KV_TYPES)


def test_a_context_that_equals_the_automatic_one_is_left_by_one_step() -> None:
    """It was chosen when auto stood for another size."""
    chosen = WhatIf(ctx=16384)
    assert chosen.turn_dial("context", 1, make_plan(n_ctx=16384)).ctx == 32768


@pytest.mark.parametrize("width", [40, 57, 76, 116])
def test_the_dials_say_what_is_automatic_and_fit(width: int) -> None:
    gpus = (None, *list_gpus())
    lines = [dials_line(WhatIf(gpu), "gpu", make_plan(), width) for gpu in gpus]
    assert all("auto (32k)" in line.plain for line in lines)
    assert max(line.cell_length for line in lines) <= width
    chosen = dials_line(WhatIf(ctx=32768), "context", make_plan(), width)
    assert "auto (32k)" not in chosen.plain

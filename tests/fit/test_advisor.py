"""fit/advisor.py: the settings if not everything fits, and the savings that are offered."""

import re
from itertools import pairwise
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.fit import advisor as advisor_module
from localspec.fit import machine_profile, pair_shapes
from localspec.fit.advisor import (
    SettingsAdvisor,
    SettingsRequest,
    estimate_tokens_per_second,
)
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.plan import Plan
from localspec.launch.start import describe_transfer
from localspec.machine import gpu_catalog
from localspec.machine.device import HOST, Device, DeviceLink
from localspec.models import catalog
from localspec.models.gguf import reader
from localspec.protocol.wire import ContextSettings, KvType, LoadCommand
from tests.support import shapes
from tests.support.zoo import Zoo

GIB = 1 << 30
MIB = 1 << 20


def machine(
    card: str | None = None, vram: float | None = None, ram: float = 28
) -> MachineProfile:
    cpu = replace(shapes.CPU, free=int(ram * GIB))
    if card is None:
        return shapes.machine(cpu=cpu)
    return shapes.machine(gpu_catalog.find(card).as_device(vram), cpu=cpu)


def advisor(pair: str, profile: MachineProfile) -> SettingsAdvisor:
    return SettingsAdvisor(*shapes.catalog_pair(pair).shapes, profile)


def request(draft: bool = True, **fields: Any) -> SettingsRequest:
    load = LoadCommand("target", None, ContextSettings(n_ctx=fields.get("ctx")))
    if draft:
        load = replace(load, draft="draft")
    return SettingsRequest(load, **fields)


def advise(pair: str, profile: MachineProfile, **fields: Any) -> Plan:
    return advisor(pair, profile).advise(request(**fields))


def test_what_fits_runs_as_usual() -> None:
    found = advise("qwen3-8b+qwen3-0.6b", machine())
    settings = found.load.target_settings
    assert settings.n_ctx == 8192
    assert settings.kv_type == "f16"
    assert settings.n_gpu_layers == -1
    assert found.verdict == "fits"
    assert "of this computer's memory stay free" in found.explanation


def test_every_type_of_kv_cache_has_sizes_and_a_score() -> None:
    """A missing size would read as a damaged model file."""
    for kv in get_args(KvType):
        found = advise("qwen3-8b+qwen3-0.6b", machine(), kv=kv)
        assert found.load.target_settings.kv_type == kv
        assert found.verdict == "fits"
    assert set(advisor_module._KV_TYPE_SCORES) == set(get_args(KvType))


def remote_device(bytes_per_second: float) -> Device:
    """A CPU on another computer."""
    link = DeviceLink("box:50052", round_trip_ms=0.3, bytes_per_second=bytes_per_second)
    return Device(
        "RPC0[box:50052]", free=60 * GIB, total=64 * GIB, backend=HOST, link=link
    )


def advise_with_remote(pair: str, device: Device) -> Plan:
    both = machine_profile.with_remote(machine(), [device])
    settings = ContextSettings(remote_hosts=both.remote_hosts)
    load = LoadCommand("target", "draft", settings)
    plan = advisor(pair, both).advise(SettingsRequest(load, can_skip_remote=True))
    assert plan.verdict in ("fits", "tight")
    return plan


def test_another_computer_is_not_used_if_a_pair_is_as_fast_here() -> None:
    plan = advise_with_remote("qwen3-4b+qwen3-0.6b", remote_device(1e8))
    assert plan.load.target_settings.remote_hosts == ()
    assert not describe_transfer(plan)


def test_another_computer_holds_what_does_not_fit_here() -> None:
    plan = advise_with_remote("llama-3.3-70b+llama-3.2-1b", remote_device(1e8))
    assert plan.load.target_settings.remote_hosts == ("box:50052",)
    sent = r"Loading sends 4\d\.\d GB to box:50052: about [67] min \d+ s\."
    assert re.fullmatch(sent, describe_transfer(plan))


def test_another_computers_card_is_used_if_it_is_faster() -> None:
    card = replace(
        remote_device(1e9), description="NVIDIA GeForce RTX 4090", backend="RPC"
    )
    plan = advise_with_remote("qwen3-8b+qwen3-0.6b", card)
    assert plan.load.target_settings.remote_hosts == ("box:50052",)
    assert describe_transfer(plan)


def test_exact_mode_stores_keys_so_that_every_width_is_computed_alike() -> None:
    usual = advise("qwen3-4b+qwen3-0.6b", machine())
    assert usual.load.target_settings.kv_type == "f16"
    assert usual.exact_note == ""

    exact = advise("qwen3-4b+qwen3-0.6b", machine(), exact=True)

    assert exact.load.target_settings.kv_type == "q8_0/f16"
    assert exact.load.draft_settings.kv_type == "f16", "drafts do not decide the text"
    usual_bytes = sum(usual.memory.total_by_device.values())
    exact_bytes = sum(exact.memory.total_by_device.values())
    assert exact_bytes < usual_bytes
    assert "q8_0/f16" in exact.explanation
    assert "q8_0/f16" in exact.exact_note


def test_exact_mode_takes_a_wish_that_stores_no_key_in_f16() -> None:
    chosen = advise("qwen3-4b+qwen3-0.6b", machine(), exact=True, kv="q8_0")
    assert chosen.load.target_settings.kv_type == "q8_0"


def test_exact_mode_is_refused_where_passes_of_different_widths_differ(
    zoo: Zoo,
) -> None:
    pair = "qwen3-4b+qwen3-0.6b"
    large = machine("RTX 4090")
    small = machine("RTX 3060 12GB")
    with pytest.raises(UsageError, match=r"RTX 4090|CUDA0"):
        advise(pair, large, exact=True)
    with pytest.raises(UsageError, match=r"RTX 3060|CUDA0"):
        advise(pair, small, exact=True, n_gpu_layers=10)
    with pytest.raises(UsageError, match="f16"):
        advise(pair, machine(), exact=True, kv="f16")
    assert advise(pair, large, exact=True, n_gpu_layers=0)
    without = ContextSettings(flash_attn="off")
    with pytest.raises(UsageError, match="flash attention"):
        advisor(pair, machine()).advise(
            SettingsRequest(LoadCommand("target", None, without), exact=True)
        )
    narrow = SettingsAdvisor(
        shapes.from_header(reader.read(zoo["target"])), None, machine()
    )
    with pytest.raises(UsageError, match="keys in q8_0"):
        narrow.advise(request(draft=False, exact=True))


def test_a_model_larger_than_the_card_leaves_layers_to_the_cpu() -> None:
    found = advise("qwen3-32b+qwen3-1.7b", machine("RTX 3060 12GB"))
    layers = found.load.target_settings.n_gpu_layers
    assert 0 < layers < 64
    assert found.verdict in ("fits", "tight")
    assert f"{layers} of 65 layers" in found.explanation
    fixed = advise("qwen3-32b+qwen3-1.7b", machine("RTX 3060 12GB"), n_gpu_layers=60)
    assert fixed.load.target_settings.n_gpu_layers == 60


def test_an_unknown_amount_of_memory_is_said_to_be_unknown() -> None:
    card = Device("Vulkan0", "some card", backend="Vulkan", free=None, total=None)
    found = advise("qwen3-8b+qwen3-0.6b", shapes.machine(card))
    assert found.verdict == "unknown"
    assert "unknown" in found.explanation


def test_beside_a_gpu_of_unknown_memory_the_rest_still_gets_room() -> None:
    """The default settings would use half of what RAM has in reserve."""
    card = Device("Vulkan0", "some card", backend="Vulkan", free=None, total=None)
    pair = "qwen3-14b+qwen3-0.6b"
    asked = request(draft=False, n_gpu_layers=1)
    roomy = advisor(pair, shapes.machine(card))
    default = roomy.estimate(roomy.default_settings(asked))
    free = default.host.needed + default.host.reserve // 2
    tight = advisor(pair, shapes.machine(card, cpu=replace(shapes.CPU, free=free)))
    assert tight.estimate(default.load).host.verdict == "tight"

    found = tight.advise(asked)

    assert found.verdict == "unknown"
    assert found.has_room


def test_more_layers_on_the_gpu_than_there_are_means_all() -> None:
    plan = advise("qwen3-8b+qwen3-0.6b", machine("RTX 4090"), n_gpu_layers=99)
    assert not plan.has_layers_in_ram
    assert not plan.is_partly_in_ram
    assert "layers on the GPU" not in plan.explanation
    some = advise("qwen3-8b+qwen3-0.6b", machine("RTX 4090"), n_gpu_layers=30)
    assert some.has_layers_in_ram
    assert "30 of 37 layers on the GPU" in some.explanation


def test_options_save_what_they_say_and_what_fits_comes_first() -> None:
    settings_advisor = advisor("qwen3-14b+qwen3-0.6b", machine("RTX 4060"))
    default = settings_advisor.estimate(
        LoadCommand("t", "d", ContextSettings(n_ctx=8192))
    )
    assert default.verdict == "no"
    options = settings_advisor.list_memory_savings(default)
    assert {option.flags for option in options} >= {
        "--kv q8_0",
        "--draft none",
        "--ctx 4096",
    }
    assert all(option.saved_bytes > 0 for option in options)
    fits = [option.plan.verdict.can_load for option in options]
    assert fits == sorted(fits, reverse=True)
    name = default.tightest.device.name
    for option in options:
        assert option.saved_bytes == total(default, name) - total(option.plan, name)


def total(fit: Plan, name: str) -> int:
    return next(each.total for each in fit.all_fits if each.device.name == name)


@pytest.mark.parametrize("pair", ["qwen3-8b+qwen3-0.6b", "gpt-oss-20b+lookup"])
def test_every_card_gets_an_answer_and_more_memory_is_never_worse(pair: str) -> None:
    speeds = []
    for gib in (2, 4, 6, 8, 12, 16, 24, 48):
        sold = gpu_catalog.find("RTX 4090").as_device()
        card = replace(sold, free=gib * GIB, total=gib * GIB)
        profile = replace(shapes.machine(sold), devices=(card,))
        found = advisor(pair, profile).advise(request(draft="lookup" not in pair))
        if found.verdict.can_load:
            # A longer context is worth some speed.
            n_ctx = found.load.target_settings.n_ctx or 0
            speeds.append(estimate_tokens_per_second(found) * n_ctx**0.25)
    assert len(speeds) > 5
    for less, more in pairwise(speeds):
        assert more >= less * 0.8


def test_a_card_with_room_gets_a_longer_context_and_keeps_its_reserve() -> None:
    cards = ("RTX 3060", "RTX 4080", "RTX 3090")
    found = {card: advise("qwen3-14b+qwen3-0.6b", machine(card)) for card in cards}
    contexts = {card: each.load.target_settings.n_ctx for card, each in found.items()}
    assert contexts == {"RTX 3060": 8192, "RTX 4080": 16384, "RTX 3090": 32768}
    assert {each.verdict for each in found.values()} == {"fits"}
    requested = advise("qwen3-14b+qwen3-0.6b", machine("RTX 3090"), ctx=4096)
    assert requested.load.target_settings.n_ctx == 4096, (
        "a requested context is not changed"
    )


def test_a_recurrent_state_is_copied_for_no_more_tokens_than_are_drafted() -> None:
    """Ten copies of the state of a 27B are 1.5 GiB."""
    pair = "qwen3.8-27b+lookup"
    card = machine("RTX 3090")
    plan = advise(pair, card, draft=False)
    assert plan.verdict == "fits"
    assert plan.load.snapshots == 6
    longer_drafts = advisor(pair, card).estimate(replace(plan.load, snapshots=16))
    assert 1.4 * GIB < longer_drafts.total - plan.total < 1.7 * GIB


HYBRID = "qwen3.8-27b+lookup"


def test_a_hybrid_copies_as_many_tokens_as_were_asked_for() -> None:
    """A checkpoint of 150 MiB and 26 rows of logits more than usual, 26 MiB."""
    card = machine("RTX 3090")

    usual = advise(HYBRID, card, draft=False)
    longer = advise(HYBRID, card, draft=False, draft_length=32)

    assert usual.load.draft_max == 6
    assert (longer.load.draft_max, longer.load.snapshots) == (32, 6)
    assert longer.verdict == "fits"
    same_context = advisor(HYBRID, card).estimate(
        replace(longer.load, draft_max=usual.load.draft_max)
    )
    assert 150 * MIB < longer.total - same_context.total < 240 * MIB


def test_fewer_draft_tokens_than_a_hybrid_keeps_states_for_change_nothing() -> None:
    usual = advise(HYBRID, machine("RTX 3090"), draft=False)

    fewer = advise(HYBRID, machine("RTX 3090"), draft=False, draft_length=3)

    assert fewer.load == usual.load


def test_a_hybrid_without_room_for_long_copies_says_how_long_they_are() -> None:
    """Of a card with room for the usual settings, and 100 MiB more."""
    asked = request(draft=False, ctx=8192, kv="f16")
    usual = advise(HYBRID, machine("RTX 3090"), ctx=8192, kv="f16", draft=False)
    (fit,) = usual.device_fits
    card = replace(fit.device, total=fit.device.total, free=fit.needed + fit.reserve)
    card = replace(card, free=(card.free or 0) + 100 * MIB)
    settings = advisor(HYBRID, shapes.machine(card, cpu=shapes.CPU))

    plan = settings.advise(replace(asked, draft_length=62))

    assert plan.verdict == "fits"
    assert plan.load.draft_max == 6
    assert "drafts of up to 6 tokens" in plan.chosen


def test_two_cards_share_a_mixture_by_bytes() -> None:
    """The layers without experts are small.

    As many layers on each card left 19 GiB of one of them empty.
    """
    one = gpu_catalog.find("RTX 3090").as_device()
    cards = (one, replace(one, name="CUDA1"))
    profile = shapes.machine(
        *cards, cpu=replace(shapes.CPU, free=60 * GIB, total=64 * GIB)
    )
    model = catalog.load().models["gpt-oss-120b"]
    shape = pair_shapes.shape_from_catalog(model)
    assert shape is not None
    settings = SettingsAdvisor(shape, None, profile)
    plan = settings.advise(request(draft=False))
    assert plan.verdict == "fits"
    assert plan.load.target_settings.cpu_moe > 0
    for device_fit in plan.device_fits:
        assert 0 <= (device_fit.headroom or 0) < 1.5 * GIB

    equal_layers = ContextSettings(tensor_split=(1.0, 1.0))
    wish = SettingsRequest(LoadCommand("t", None, equal_layers))
    assert settings.advise(wish).load.target_settings.tensor_split == (1.0, 1.0)


def test_a_model_is_whole_where_other_programs_keep_what_they_need() -> None:
    """Although it is tight there: of a card of 24 GB, 1.2 GB are reserved."""
    asked = request(draft=False, ctx=8192, kv="f16")
    seen = set[tuple[bool, str]]()
    for mib in range(19 * 1024, 25 * 1024, 256):
        found = advisor("qwen3-32b+lookup", machine("RTX 3090", mib / 1024))
        usual = found.estimate(found.default_settings(asked))
        (card,) = usual.device_fits
        left = (card.device.free or 0) - card.needed

        plan = found.advise(asked)

        if left >= 512 * MIB:
            assert not plan.is_partly_in_ram, (mib, left)
        seen.add((plan.is_partly_in_ram, plan.verdict))
    assert seen == {(True, "fits"), (False, "tight"), (False, "fits")}


def test_a_display_needs_more_of_its_card() -> None:
    """0.8 GB of a card of 22 GB are left; with a display, other programs need 1 GB."""
    asked = request(draft=False, ctx=8192, kv="f16")
    profile = machine("RTX 3090", 21.75)
    (card,) = profile.devices
    with_display = replace(profile, devices=(replace(card, drives_display=True),))
    plans = {}
    for name, each in (("none", profile), ("attached", with_display)):
        found = advisor("qwen3-32b+lookup", each)
        plans[name] = found.estimate(found.default_settings(asked))

    assert {plan.verdict for plan in plans.values()} == {"tight"}
    assert plans["none"].is_safely_whole
    assert not plans["attached"].is_safely_whole


def test_a_mac_leaves_no_layers_to_its_cpu_for_the_gpus_reserve() -> None:
    """They would be in the same memory: 8 GB, of which 2 stay free in either case."""
    profile = machine_profile.with_catalog_gpu(machine(), gpu_catalog.find("M1"), 8)

    plan = advisor("llama-3.1-8b+lookup", profile).advise(request(draft=False))

    assert not plan.is_partly_in_ram
    assert plan.host.verdict == "fits"
    assert (plan.device_fits[0].headroom or 0) < 0

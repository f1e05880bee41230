"""fit/advisor.py: settings chosen if not everything fits, and the memory savings
offered.
"""

import re
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.errors import UsageError
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
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import shapes
from tests.support.zoo import Zoo

GIB = 1 << 30


def machine(
    card: str | None = None, vram: float | None = None, ram: float = 28
) -> MachineProfile:
    devices = (gpu_catalog.find(card).as_device(vram),) if card else ()
    return shapes.machine(*devices, cpu=replace(shapes.CPU, free=int(ram * GIB)))


def advisor(pair: str, profile: MachineProfile) -> SettingsAdvisor:
    return SettingsAdvisor(*shapes.catalog_pair(pair).shapes, profile)


def request(draft: bool = True, **fields: Any) -> SettingsRequest:
    settings = ContextSettings(n_ctx=fields.get("ctx"))
    return SettingsRequest(
        LoadCommand("target", "draft" if draft else None, settings), **fields
    )


def advise(pair: str, profile: MachineProfile, **fields: Any) -> Plan:
    return advisor(pair, profile).advise(request(**fields))


def test_what_fits_runs_as_usual() -> None:
    found = advise("qwen3-8b+qwen3-0.6b", machine())
    settings = found.load.target_settings
    assert (settings.n_ctx, settings.kv_type, settings.n_gpu_layers) == (
        8192,
        "f16",
        -1,
    )
    assert found.verdict == "fits"
    assert "of this computer's memory stay free" in found.explanation


def test_other_computers_share_what_is_too_large_or_too_slow_here() -> None:
    for pair, kind, line, is_shared in [
        (
            "qwen3-4b+qwen3-0.6b",
            "cpu",
            1e8,
            False,
        ),  # fits here, and the other is no faster
        ("llama-3.3-70b+llama-3.2-1b", "cpu", 1e8, True),  # fits no other way
        ("qwen3-8b+qwen3-0.6b", "cuda", 1e9, True),  # fits here, but a card is faster
    ]:
        device = Device(
            "RPC0[box:50052]",
            "NVIDIA GeForce RTX 4090" if kind == "cuda" else "",
            free=60 * GIB,
            total=64 * GIB,
            backend="RPC" if kind == "cuda" else HOST,
            link=DeviceLink("box:50052", round_trip_ms=0.3, bytes_per_second=line),
        )
        both = machine_profile.with_remote(machine(), [device])
        shared = ContextSettings(remote_hosts=both.remote_hosts)
        asked = SettingsRequest(
            LoadCommand("target", "draft", shared), can_skip_remote=True
        )
        fit = advisor(pair, both).advise(asked)
        assert fit.verdict in ("fits", "tight")
        used = ("box:50052",) if is_shared else ()
        assert fit.load.target_settings.remote_hosts == used
        assert bool(describe_transfer(fit)) == is_shared
        if pair.startswith("llama"):
            sent = describe_transfer(fit)
            assert re.fullmatch(
                r"Loading sends 4\d\.\d GB to box:50052: about [67] min \d+ s\.", sent
            )


def test_exact_mode_stores_keys_so_that_every_width_is_computed_alike() -> None:
    found = advise("qwen3-4b+qwen3-0.6b", machine(), exact=True)
    target, draft = found.load.target_settings, found.load.draft_settings
    assert (target.kv_type, draft.kv_type) == ("q8_0/f16", "f16"), (
        "drafts do not decide the text"
    )
    usual = advise("qwen3-4b+qwen3-0.6b", machine())
    assert (usual.load.target_settings.kv_type, usual.exact_note) == ("f16", "")
    needed = [sum(fit.memory.total_by_device.values()) for fit in (found, usual)]
    assert needed[0] < needed[1]
    assert "q8_0/f16" in found.explanation and "q8_0/f16" in found.exact_note
    chosen = advise("qwen3-4b+qwen3-0.6b", machine(), exact=True, kv="q8_0")
    assert chosen.load.target_settings.kv_type == "q8_0", "no key is in f16"


def test_exact_mode_is_refused_where_passes_of_different_widths_differ(
    zoo: Zoo,
) -> None:
    on_card, small = machine("RTX 4090"), machine("RTX 3060 12GB")
    for profile, given, reason in (
        (on_card, {}, "RTX 4090|CUDA0"),
        (small, {"n_gpu_layers": 10}, "RTX 3060|CUDA0"),
        (machine(), {"kv": "f16"}, "f16"),
    ):
        with pytest.raises(UsageError, match=reason):
            advise("qwen3-4b+qwen3-0.6b", profile, exact=True, **given)
    advise("qwen3-4b+qwen3-0.6b", on_card, exact=True, n_gpu_layers=0)
    without = ContextSettings(flash_attn="off")
    with pytest.raises(UsageError, match="flash attention"):
        advisor("qwen3-4b+qwen3-0.6b", machine()).advise(
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
    assert 0 < layers < 64 and found.verdict in ("fits", "tight")
    assert f"{layers} of 65 layers" in found.explanation
    fixed = advise("qwen3-32b+qwen3-1.7b", machine("RTX 3060 12GB"), n_gpu_layers=60)
    assert fixed.load.target_settings.n_gpu_layers == 60


def test_an_unknown_amount_of_memory_is_said_to_be_unknown() -> None:
    card = Device("Vulkan0", "some card", "gpu", None, None, "Vulkan")
    found = advise("qwen3-8b+qwen3-0.6b", shapes.machine(card))
    assert found.verdict == "unknown" and "unknown" in found.explanation


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
    fits = [option.plan.verdict != "no" for option in options]
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
        if found.verdict != "no":
            speeds.append(
                estimate_tokens_per_second(found)
                * (found.load.target_settings.n_ctx or 0) ** 0.25
            )
    assert len(speeds) > 5 and all(
        more >= less * 0.8 for less, more in pairwise(speeds)
    )


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
    pair, card = "qwen3.8-27b+lookup", machine("RTX 3090")
    fit = advise(pair, card, draft=False)
    assert fit.verdict == "fits" and fit.load.draft_max == 6
    more = advisor(pair, card).estimate(replace(fit.load, draft_max=16))
    assert 1.4 * GIB < more.total - fit.total < 1.7 * GIB


def test_two_cards_share_a_mixture_by_bytes() -> None:
    """The layers without experts are small: as many layers each left 19 GiB of one card
    empty.
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
    fit = settings.advise(request(draft=False))
    assert fit.verdict == "fits" and fit.load.target_settings.cpu_moe > 0
    assert all(0 <= (each.headroom or 0) < 1.5 * GIB for each in fit.device_fits)
    asked = SettingsRequest(
        LoadCommand("t", None, ContextSettings(tensor_split=(1.0, 1.0)))
    )
    assert settings.advise(asked).load.target_settings.tensor_split == (1.0, 1.0)

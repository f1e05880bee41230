"""Tokens a second: published runs, what must always hold, and what is not claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.fit import device_speed, pass_cost
from localspec.fit.device_speed import DeviceSpeed, HardwareSpeed
from localspec.fit.speed_estimate import SpeedEstimate, UseCase, estimate_speed
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST
from localspec.models import synthetic_header
from localspec.models.gguf.header import Header
from localspec.models.gguf.validation import SplitInfo
from localspec.models.synthetic_header import ModelShape
from localspec.protocol.wire import ContextSettings, LoadCommand, MeasuredCosts
from tests.families import FAMILIES

LLAMA = ModelShape(
    architecture="llama",
    layers=32,
    embd=4096,
    ff=14336,
    heads=32,
    kv_heads=8,
    vocab=128256,
    context=131072,
    rope_factors=True,
)
SMALL = replace(LLAMA, layers=16, embd=2048, ff=8192, head_dim=64, tied=True)
BIG = synthetic_header.build(LLAMA, "Q4_K_M")
DRAFT = synthetic_header.build(SMALL, "Q4_K_M")
MOE = synthetic_header.build(FAMILIES["qwen3moe"].full, "Q4_K_M")
LOAD = LoadCommand("target", "draft")
CARD = Device("CUDA0", "a card", "gpu", 24 << 30, 24 << 30, "CUDA")
EMPTY = ContextSettings()
MIB = 1 << 20


def here(
    gpu: float | None = 800.0, cpu: float | None = 40.0, eta: float = 0.75, fixed: float = 1.5
) -> HardwareSpeed:
    rates = {
        "CUDA0": DeviceSpeed(gpu, eta, fixed),
        HOST: DeviceSpeed(cpu, 0.7, 0.3, "cpu"),
    }
    return HardwareSpeed((CARD,), rates)


def told(load: LoadCommand, where: HardwareSpeed, use: UseCase | None = None) -> SpeedEstimate:
    return estimate_speed(load, BIG, DRAFT, where, use)


def middle(one: SpeedEstimate) -> float:
    assert one.plain is not None
    return sum(one.plain) / 2


# --- published runs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "bandwidth", "eta", "fixed", "ms", "within"),
    [
        (BIG, 800, 0.783, 1.66, 8.75, 0.05),  # RX 7900 XT, 8B
        (DRAFT, 800, 0.783, 1.66, 2.66, 0.12),  # 1B; sizes were known to a percent or two
        (BIG, 273, 0.840, 1.67, 21.2, 0.05),  # M4 Pro, 8B
        (DRAFT, 273, 0.840, 1.67, 4.62, 0.12),
        (MOE, 800, 0.783, 1.66, 1e3 / 152, 0.05),  # 30B with 3B active
        (MOE, 273, 0.840, 1.67, 1e3 / 71, 0.05),
    ],
)
def test_public_runs_of_llama_cpp_are_met(
    model: Header, bandwidth: float, eta: float, fixed: float, ms: float, within: float
) -> None:
    """From llmfit's community runs: fitted η and a, times of single models."""
    where = here(bandwidth, eta=eta, fixed=fixed)
    found = pass_cost.estimate_ms(pass_cost.count_reads(model, EMPTY, where.devices), where)
    assert found == pytest.approx(ms, rel=within)


def test_an_rtx_3090_reads_a_large_model_as_was_seen() -> None:
    """A 27B in Q4 reached 634 of 936 GB/s, so this is what a pass of 16 GB took."""
    rate = device_speed.from_devices([gpu_catalog.find("RTX 3090").as_device()]).find_speed(
        "CUDA0", "Q4_K"
    )
    assert rate.fixed_ms + rate.read_ms(16e9) == pytest.approx(
        16e9 / 634e6, rel=device_speed.TABLE_ERROR
    )


@pytest.mark.parametrize(
    ("kind", "family", "width", "seen", "within"),
    [
        ("gpu", "Q4_K", 8, 2.39, 0.15),  # RTX 3090, 27B
        ("gpu", "Q4_K", 8, 2.08, 0.15),  # RTX 3090, 0.6B
        ("metal", "Q4_K", 8, 6.54, 0.20),  # M4, 27B
        ("metal", "BF16", 8, 1.6, 0.05),  # M4, 0.6B
        ("cpu", "BF16", 8, 1.65, 0.10),  # Xeon, one thread
    ],
)
def test_usual_verify_curves_are_near_what_was_measured(
    kind: device_speed.CurveKind, family: str, width: int, seen: float, within: float
) -> None:
    assert DeviceSpeed(1.0, kind=kind).verify_cost(width, family) == pytest.approx(seen, rel=within)


@pytest.mark.parametrize(
    ("kind", "gamma", "low", "high"),
    [
        ("gpu", 2, 1.41, 1.67),  # RTX 3090
        ("gpu", 2, 1.34, 1.34),  # RTX 5090
        ("gpu", 4, 1.54, 1.72),
        ("gpu", 2, 1.65, 1.65),  # R9700
        ("gpu", 4, 1.95, 1.95),
        ("gpu", 2, 1.24, 1.24),  # Ryzen AI Max
        ("gpu", 4, 1.78, 1.78),
        ("metal", 2, 2.46, 2.46),  # M4
    ],
)
def test_rounds_of_public_pairs_cost_about_what_was_implied(
    kind: device_speed.CurveKind, gamma: int, low: float, high: float
) -> None:
    """Qwen3.8-27B with MTP, whose step is a 25th of a pass: within 20 %."""
    cost = DeviceSpeed(1.0, kind=kind).verify_cost(gamma + 1, "Q4_K") + gamma / 25
    assert low / 1.2 <= cost <= high * 1.2


def test_speculation_gains_nothing_where_wide_passes_are_dear() -> None:
    """M4, 27B: 0.99 times plain at 2.44 tokens a round."""
    where = device_speed.from_devices([gpu_catalog.find("M4").as_device()])
    assert told(LOAD, where, UseCase("chat", 0.0)).best_gamma == 0
    assert (
        told(
            LOAD,
            device_speed.from_devices([gpu_catalog.find("RTX 4060").as_device()]),
            UseCase("code"),
        ).best_gamma
        > 0
    )


# --- what must always hold ----------------------------------------------------------------

LAYERS = st.integers(0, 33)


@given(st.floats(60, 2000), st.floats(1.01, 3), LAYERS)
def test_more_bandwidth_is_faster(bandwidth: float, more: float, layers: int) -> None:
    settings = ContextSettings(n_gpu_layers=max(1, layers))
    load = replace(LOAD, target_settings=settings)
    assert middle(told(load, here(bandwidth * more))) > middle(told(load, here(bandwidth)))
    on_cpu = replace(LOAD, target_settings=ContextSettings(n_gpu_layers=min(32, layers)))
    faster = middle(told(on_cpu, here(cpu=20 * more)))
    assert faster > middle(told(on_cpu, here(cpu=20)))


@given(st.integers(0, 32))
def test_more_layers_on_the_card_are_faster(layers: int) -> None:
    fewer, more = (
        replace(LOAD, target_settings=ContextSettings(n_gpu_layers=n)) for n in (layers, layers + 1)
    )
    assert middle(told(more, here())) > middle(told(fewer, here()))


@given(st.integers(0, 100_000), st.integers(1, 30_000), LAYERS)
def test_more_context_is_slower(context: int, more: int, layers: int) -> None:
    load = replace(LOAD, target_settings=ContextSettings(n_gpu_layers=layers))
    short, long = (told(load, here(), UseCase(context=n)) for n in (context, context + more))
    assert middle(short) > middle(long)


@given(
    st.floats(50, 2000),
    LAYERS,
    st.sampled_from(["chat", "code", "writing", "documents"]),
    st.floats(0, 2),
    st.integers(0, 16),
    st.booleans(),
)
def test_ranges_are_ordered_and_speculation_costs_little(
    bandwidth: float, layers: int, workload: str, heat: float, longest: int, drafts: bool
) -> None:
    settings = ContextSettings(n_gpu_layers=layers)
    load = LoadCommand("t", "d" if drafts else None, settings, settings, longest)
    draft = DRAFT if drafts else None
    found = estimate_speed(load, BIG, draft, here(bandwidth), UseCase(workload, heat))
    assert found.plain is not None
    assert found.speculative is not None
    assert 0 < found.plain[0] < found.plain[1]
    assert found.plain[0] * 0.96 < found.speculative[0] < found.speculative[1]
    assert found.speculative[1] >= found.plain[1]
    assert 0 <= found.best_gamma <= longest
    for one in found.by_workload.values():
        assert one.tokens_per_second[0] < one.tokens_per_second[1]
        assert 0.96 < one.speedup[0] <= one.speedup[1]
        assert 0 <= one.acceptance_rate[0] <= one.acceptance_rate[1] <= 1
    if longest == 0:
        assert found.speculative[1] == found.plain[1]


@given(st.floats(0, 1))
def test_heat_and_prose_are_harder_to_guess(heat: float) -> None:
    found = told(LOAD, here(), UseCase(temperature=heat)).by_workload
    cold = told(LOAD, here(), UseCase(temperature=0.0)).by_workload
    assert found["code"].speedup[1] >= found["chat"].speedup[1] >= found["writing"].speedup[1]
    assert cold["code"].acceptance_rate[1] >= found["code"].acceptance_rate[1]


def test_a_draft_counts_with_its_fixed_part() -> None:
    """1B beside 8B on an RX 7900 XT is 0.30 of a pass, not the 0.17 of its bytes."""
    costs = told(LOAD, here(eta=0.783, fixed=1.66), UseCase(context=0)).costs
    assert costs is not None
    assert costs.c == pytest.approx(0.31, abs=0.02)


def test_a_mixture_gains_less_than_a_dense_model() -> None:
    dense = pass_cost.estimate_verify_curve(pass_cost.count_reads(BIG, EMPTY, [CARD]), here(), 9)
    mixed = pass_cost.estimate_verify_curve(pass_cost.count_reads(MOE, EMPTY, [CARD]), here(), 9)
    assert mixed[8] > 1.5 * dense[8]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_priced(name: str) -> None:
    family = FAMILIES[name]
    model = synthetic_header.build(family.full, family.quantisation)
    found = estimate_speed(replace(LOAD, draft=None), model, None, here(gpu=2000))
    assert found.plain is not None
    assert found.speculative is not None
    read = pass_cost.count_reads(model, EMPTY, [CARD])
    assert 0 < read.weights <= model.weight_bytes * 1.01 + (600 * MIB if "gemma" in name else 0)
    assert read.weight_type


# --- what is not claimed ------------------------------------------------------------------


def test_nothing_is_said_where_a_bandwidth_is_unknown() -> None:
    found = told(LOAD, here(gpu=None))
    assert (found.plain, found.speculative, found.calibrated) == (None, None, False)
    assert "CUDA0" in found.explanation
    half = replace(LOAD, target_settings=ContextSettings(n_gpu_layers=16))
    assert told(half, here(cpu=None)).plain is None
    assert told(LOAD, device_speed.from_devices([])).plain is None
    assert (
        told(LOAD, device_speed.from_devices([replace(CARD, description="Frobnicator 9")])).plain
        is None
    )


def test_an_assumed_processor_is_called_so_and_wide() -> None:
    found = told(LOAD, device_speed.from_devices([], device_speed.TYPICAL_CPU_SPEED))
    assert found.plain is not None
    assert found.plain[1] >= 2.9 * found.plain[0]
    assert "assumed" in found.explanation
    assert not found.calibrated


def test_a_model_in_parts_is_not_guessed_by_its_first() -> None:
    part = replace(BIG, tensors=BIG.tensors[:40], split=SplitInfo(0, 3, len(BIG.tensors)))
    found = estimate_speed(LOAD, part, DRAFT, here())
    assert found.plain is None
    assert "parts" in found.explanation
    whole = replace(BIG, split=SplitInfo(0, 3, len(BIG.tensors)))
    assert estimate_speed(LOAD, whole, DRAFT, here()).plain is not None


def test_a_memory_that_cannot_be_cut_is_not_speculated_with() -> None:
    model = synthetic_header.build(FAMILIES["mamba2"].full, "Q4_K_M")
    found = estimate_speed(LOAD, model, DRAFT, here())
    assert found.speculative == found.plain
    assert "take back" in found.explanation


# --- what the pair has shown --------------------------------------------------------------

SHOWN = MeasuredCosts(10.0, {"1": 1.0, "4": 1.2, "8": 1.6}, c=0.2)


def test_what_the_pair_has_shown_goes_first() -> None:
    found = told(replace(LOAD, measured=SHOWN), here(), UseCase(context=0))
    assert found.calibrated
    assert found.plain == pytest.approx((92, 108))
    assert found.costs is not None
    assert found.costs.c == pytest.approx(0.2)
    assert found.costs.verify_cost(4) == pytest.approx(1.2)
    assert "own passes" in found.explanation


def test_guesses_counted_here_go_before_what_is_usual() -> None:
    def kept(share: float, tried: float = 90) -> MeasuredCosts:
        counts = {"place": {str(i): [share * tried, tried] for i in range(6)}}
        return replace(SHOWN, survival={"coupled": counts, "greedy": {"place": {}}})

    good, poor, few, none = (
        told(replace(LOAD, measured=one), here(), UseCase("chat"))
        for one in (kept(0.9), kept(0.2), kept(0.9, 5), SHOWN)
    )
    assert good.speculative is not None
    assert poor.speculative is not None
    assert good.speculative[0] > poor.speculative[1]
    assert good.best_gamma > 2
    assert poor.best_gamma == 0
    assert "90 % of" in good.explanation.replace("90%", "90 %")
    assert few.speculative == none.speculative

"""fit/speed.py: published runs, invariants, bytes read for a token, heads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.fit import machine_profile
from localspec.fit.advisor import SettingsAdvisor
from localspec.fit.speed import (
    CPU_EXPERTS_SHARE,
    TYPICAL_CPU_SPEED,
    DeviceSpeed,
    HardwareSpeed,
    SpeedEstimate,
    UseCase,
    estimate_ms,
    expert_read_factor,
    from_devices,
)
from localspec.machine import gpu_catalog
from localspec.machine.device import HOST, Device
from localspec.protocol.wire import ALL_LAYERS, ContextSettings, LoadCommand
from tests.support import families, headshapes, shapes, synthetic_header
from tests.support.families import FAMILIES

LLAMA = FAMILIES["llama"].full
BIG = families.header("llama")
DRAFT = families.header("llama-tied")
MOE = families.header("qwen3moe")
LOAD = LoadCommand("target", "draft")
CARD = Device("CUDA0", "a card", free=24 << 30, total=24 << 30, backend="CUDA")
EMPTY = ContextSettings()
MIB = 1 << 20


def hardware_speed(
    gpu: float | None = 800.0,
    cpu: float | None = 40.0,
    eta: float = 0.75,
    fixed: float = 1.5,
) -> HardwareSpeed:
    rates = {
        "CUDA0": DeviceSpeed(gpu, eta, fixed),
        HOST: DeviceSpeed(cpu, 0.7, 0.3, "cpu"),
    }
    return HardwareSpeed((CARD,), rates)


def estimate(
    load: LoadCommand, hardware: HardwareSpeed, use: UseCase | None = None
) -> SpeedEstimate:
    return shapes.estimate_speed(load, BIG, DRAFT, hardware, use=use)


def middle(one: SpeedEstimate) -> float:
    assert one.plain is not None
    return sum(one.plain) / 2


LLAMA_3B = synthetic_header.build(
    replace(LLAMA, layers=28, embd=3072, ff=8192, heads=24, tied=True), "Q4_K_M"
)
GPT_OSS = families.header("gpt-oss")


def test_small_and_sparse_models_on_fast_cards() -> None:
    """Published runs lie in the range that is shown.

    They begin with an empty context.  Not listed are a 4070 Ti and a 4090, which are
    above the range.
    """
    for card, model, tokens_per_second in [
        ("RTX 3080 Ti", LLAMA_3B, 263.2),
        ("RTX 3060", GPT_OSS, 84.0),
        ("RTX A4000", GPT_OSS, 93.6),
        ("RTX 5080", GPT_OSS, 190.1),
        ("M4 Pro", MOE, 70.6),
        ("GB10", GPT_OSS, 84.0),
        ("M3 Ultra", GPT_OSS, 115.3),
        ("R9700", GPT_OSS, 163.3),
        ("RX 7900 XT", MOE, 151.8),
        ("Ryzen AI Max+ 395", GPT_OSS, 79.8),
    ]:
        hardware = from_devices([gpu_catalog.find(card).as_device()])
        load = LoadCommand("target", None, ContextSettings(n_ctx=4096))
        use = UseCase(context=128)
        plain = shapes.estimate_speed(load, model, None, hardware, use=use).plain
        assert plain is not None
        low, high = plain
        assert low <= tokens_per_second <= high, (low, high)


def test_a_mixture_on_a_large_card() -> None:
    """30B with 3B active, as we measured it (docs/gpu.md)."""
    hardware = from_devices([gpu_catalog.find("H100").as_device()])
    load = LoadCommand("target", None, ContextSettings(n_ctx=4096))
    found = shapes.estimate_speed(load, MOE, None, hardware)
    assert middle(found) == pytest.approx(285, rel=0.05)


def test_layers_beside_a_mac_s_gpu_are_read_from_the_same_memory() -> None:
    """A 24 GB M4 Pro: 16 GiB of it are its GPU's, and the CPU reads the rest."""
    machine = machine_profile.with_gpu("M4 Pro", 24)
    speed = machine.hardware.find_speed(HOST, "Q4_K")
    assert speed.read_ms(1e9) == pytest.approx(2 * 1e3 / 273)
    assert "assumed" in speed.basis
    assert not speed.measured
    beside_card = machine_profile.with_gpu("RTX 4090").hardware.find_speed(HOST, "Q4_K")
    assert beside_card == machine_profile.detect().hardware.find_speed(HOST, "Q4_K")


def test_usual_verify_curves_are_near_what_was_measured() -> None:
    for card, family, width, seen, within in [
        ("RTX 3090", "Q4_K", 8, 2.39, 0.15),  # 27B
        ("RTX 3090", "Q4_K", 8, 2.08, 0.20),  # 0.6B
        ("Ryzen AI Max+ 395", "Q4_K", 4, 1.35, 0.15),
        ("M4", "Q4_K", 8, 6.54, 0.20),  # 27B
        ("M4", "BF16", 8, 1.6, 0.05),  # 0.6B
    ]:
        device = gpu_catalog.find(card).as_device()
        speed = from_devices([device]).find_speed(device.name, "Q4_K")
        assert speed.verify_cost(width, family) == pytest.approx(seen, rel=within)


def test_curves_of_mixtures_are_near_what_was_measured() -> None:
    for card, model, curve, within in [
        ("GB10", GPT_OSS, {2: 1.71, 4: 2.14, 8: 2.55, 16: 3.24}, 0.30),
        ("GB10", MOE, {2: 1.80, 4: 2.26, 8: 2.98, 16: 3.96}, 0.30),
        ("M2 Ultra", GPT_OSS, {2: 1.56, 4: 2.46, 8: 4.21, 16: 6.40}, 0.35),
    ]:
        device = gpu_catalog.find(card).as_device()
        reads = shapes.count_reads(model, EMPTY, [device])
        hardware = from_devices([device])
        t1 = estimate_ms(reads, hardware)
        found = {width: estimate_ms(reads, hardware, width) / t1 for width in curve}
        assert found == pytest.approx(curve, rel=within)


@given(
    st.floats(60, 2000), st.floats(1.01, 3), st.integers(0, 32), st.integers(0, 100_000)
)
def test_more_of_it_is_faster(
    bandwidth: float, more: float, layers: int, context: int
) -> None:
    def speed(
        gpu: float = bandwidth, cpu: float = 20, n: int = layers, context: int = context
    ) -> float:
        load = replace(LOAD, target_settings=ContextSettings(n_gpu_layers=n))
        return middle(
            estimate(load, hardware_speed(gpu, cpu), UseCase(context=context))
        )

    assert speed(bandwidth * more, n=max(1, layers)) > speed(n=max(1, layers))
    assert speed(cpu=20 * more) > speed()
    assert speed(n=layers + 1) > speed()
    assert speed(context=context + 1000) < speed()


@given(st.floats(0, 1))
def test_high_temperature_and_prose_have_lower_acceptance(temperature: float) -> None:
    found = estimate(
        LOAD, hardware_speed(), UseCase(temperature=temperature)
    ).by_workload
    cold = estimate(LOAD, hardware_speed(), UseCase(temperature=0.0)).by_workload
    assert (
        found["code"].speedup[1]
        >= found["chat"].speedup[1]
        >= found["writing"].speedup[1]
    )
    assert cold["code"].speedup[1] >= found["code"].speedup[1]


def test_a_dense_model_reads_all_but_its_table_of_tokens() -> None:
    """llama.cpp puts 4403.49 MiB on the GPU; the token embeddings stay on the CPU."""
    found = shapes.count_reads(BIG, EMPTY, [CARD], 1000)
    assert found.weights == pytest.approx(4403.49 * MIB, rel=1e-4)
    assert list(found.by_device) == ["CUDA0"]
    assert found.by_device["CUDA0"].kv_cache == 128 * 1024 * 1000
    assert not found.shape.is_moe


def test_a_mixture_reads_the_experts_it_uses() -> None:
    found = shapes.count_reads(MOE, EMPTY, [CARD])
    experts = sum(one.n_bytes for one in MOE.tensors if "_exps" in one.name)
    table = next(one.n_bytes for one in MOE.tensors if one.name == "token_embd.weight")
    dense = MOE.weight_bytes - experts - table
    # 8 of 128 experts are used.  Their matrices are small, so they take 1.19 times as
    # long as others of their size.
    factor = expert_read_factor(found.shape)
    assert factor == pytest.approx(1.19, abs=0.02)
    assert found.weights == pytest.approx(dense + experts / 16 * factor, rel=1e-5)
    used = [8 * found.experts_used_ratio(width) for width in range(1, 6)]
    assert used == pytest.approx([8, 15.5, 22.5, 29.1, 35.3], abs=0.06)
    assert 8 * found.experts_used_ratio(8) == pytest.approx(51.6, abs=0.06)


def test_experts_can_stay_with_the_cpu() -> None:
    found = shapes.count_reads(MOE, ContextSettings(cpu_moe=ALL_LAYERS), [CARD])
    assert found.by_device[HOST].dense == 0
    assert found.by_device["CUDA0"].experts == 0
    on_gpu = shapes.count_reads(MOE, EMPTY, [CARD]).by_device["CUDA0"]
    assert found.by_device["CUDA0"].dense == on_gpu.dense
    read = on_gpu.experts / expert_read_factor(found.shape)
    slower = read / CPU_EXPERTS_SHARE
    assert found.by_device[HOST].experts == pytest.approx(slower)
    half = shapes.count_reads(MOE, ContextSettings(cpu_moe=24), [CARD]).by_device
    assert half[HOST].experts == found.by_device[HOST].experts / 2
    assert half["CUDA0"].experts == pytest.approx(on_gpu.experts / 2)


@pytest.mark.parametrize("kind", [*headshapes.HEADS, "mtp-qwen35"])
def test_a_head_costs_less_than_a_small_model_but_is_not_free(kind: str) -> None:
    """A head of block drafting costs one pass, however long the block is."""
    machine = machine_profile.with_gpu("RTX 4090")
    load = LoadCommand("t", "d", ContextSettings(n_ctx=8192))
    pair = shapes.from_headers(*headshapes.pair(kind))
    advisor = SettingsAdvisor(*pair, machine, UseCase("code"))
    found = advisor.estimate(load).speed
    assert found.plain is not None
    assert found.speculative is not None
    assert found.costs is not None
    gains = found.by_workload["code"].speedup[1] > 1
    assert (found.speculative[1] > found.plain[1]) == gains
    assert gains or headshapes.pair(kind)[0].hparam("expert_count"), (
        "a mixture gains less"
    )
    assert "heads (code)" in found.explanation
    if kind.startswith(("dflash", "dspark")):
        assert found.costs.c == 0
        assert 0.1 < found.costs.host < 1
    else:
        assert 0.03 < found.costs.c < 0.25


def test_no_estimate_with_an_unknown_bandwidth_of_the_card() -> None:
    found = estimate(LOAD, hardware_speed(gpu=None))

    assert found.plain is None
    assert found.speculative is None
    assert not found.calibrated
    assert "CUDA0" in found.explanation


def test_no_estimate_of_a_split_model_with_an_unknown_bandwidth_of_the_cpu() -> None:
    half = replace(LOAD, target_settings=ContextSettings(n_gpu_layers=16))

    assert estimate(half, hardware_speed(cpu=None)).plain is None


def test_no_estimate_with_no_card_or_an_unknown_one() -> None:
    unknown_card = replace(CARD, description="Frobnicator 9")

    assert estimate(LOAD, from_devices([])).plain is None
    assert estimate(LOAD, from_devices([unknown_card])).plain is None


def test_an_assumed_processor_is_called_so_and_wide() -> None:
    found = estimate(LOAD, from_devices([], TYPICAL_CPU_SPEED))
    assert found.plain is not None
    low, high = found.plain
    assert high >= 2.9 * low
    assert "assumed" in found.explanation
    assert not found.calibrated

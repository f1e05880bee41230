"""fit/verdict.py: ten pairs on GPUs of every size; sums add up and grow with the context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.cli import fit as fit_command
from localspec.fit import pair_shapes, verdict
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.machine import gpu_catalog
from localspec.machine.device import HOST, Device, reserve_bytes
from localspec.machine.gpu_catalog import GpuSpec
from localspec.models import catalog
from localspec.protocol.wire import ContextSettings, LoadCommand

GIB = 1 << 30
CPU = Device("CPU", kind="cpu", free=28 * GIB, total=32 * GIB, unified=True)
PAIRS = (
    "llama-3.2-3b+llama-3.2-1b",
    "llama-3.1-8b+llama-3.2-1b",
    "qwen3-8b+qwen3-0.6b",
    "qwen3-30b-a3b+qwen3-0.6b",
    "qwen2.5-coder-32b+qwen2.5-coder-0.5b",
    "gemma-3-12b+gemma-3-270m",
    "gpt-oss-20b+lookup",
    "llama-3.3-70b+llama-3.2-1b",
    "smollm2-1.7b+smollm2-135m",
    "granite-4.1-8b+granite-4.0-350m",
)


def settings(n_ctx: int, kv: str = "f16") -> LoadCommand:
    both = ContextSettings(n_ctx=n_ctx, kv_type=kv)  # type: ignore[arg-type]
    return LoadCommand("target", "draft", both, both)


@pytest.mark.parametrize("card", gpu_catalog.load()[::12], ids=lambda card: card.name)
def test_cards_by_ten_pairs(card: GpuSpec) -> None:
    device = card.as_device()
    machine = MachineProfile((device,), CPU, from_devices((device,), TYPICAL_CPU_SPEED))
    known = catalog.load().pairs
    for name in PAIRS:
        pair = pair_shapes.from_catalog(known[name])
        assert pair is not None, name
        totals = []
        for load in (settings(2048), settings(8192, "q8_0"), settings(8192), settings(32768)):
            fit = verdict.estimate_fit(load, *pair.shapes, machine)
            totals.append(fit.device_fits[0].total)
            assert fit.verdict in ("fits", "tight", "no")
            assert (fit.verdict == "no") == (fit.missing_bytes > 0)
            check(fit)
        assert totals == sorted(totals), name


def check(fit: verdict.FitReport) -> None:
    for device_fit in fit.all_fits:
        name = HOST if device_fit is fit.host else device_fit.device.name
        sums = fit.memory_estimate.of(name).total + device_fit.output + device_fit.overhead
        assert device_fit.total == sums
        free = device_fit.device.free or 0
        assert device_fit.headroom == free - reserve_bytes(device_fit.device) - device_fit.needed
    assert fit.speed.plain is not None
    assert fit.speed.speculative is not None
    low, high = fit.speed.plain
    assert 0 < low < high < 3000
    assert fit.speed.speculative[0] >= 0.9 * low


def test_vulkans_copy_of_a_quantised_cache_is_counted() -> None:
    """128 MiB for a model of 8 B with a context of 32k; llama.cpp's own sums lack it."""
    pair = pair_shapes.from_catalog(catalog.load().pairs["llama-3.1-8b+llama-3.2-1b"])
    assert pair is not None
    overheads = {}
    for backend, kv in (("Vulkan", "f16"), ("Vulkan", "q8_0"), ("CUDA", "q8_0")):
        device = Device(f"{backend}0", free=24 * GIB, total=24 * GIB, backend=backend)
        machine = MachineProfile((device,), CPU, from_devices((device,)))
        load = replace(settings(32768, kv), draft=None)
        fit = verdict.estimate_fit(load, *pair.shapes, machine)
        (overheads[backend, kv],) = (each.overhead for each in fit.device_fits)
        safety = int(0.05 * fit.device_fits[0].target.compute)
        overheads[backend, kv] -= safety
    assert overheads["Vulkan", "q8_0"] == pytest.approx(128 << 20, abs=8)
    assert max(overheads["Vulkan", "f16"], overheads["CUDA", "q8_0"]) < 8


# --- memory that GPUs share with this computer


def shared_machine(kind: str, free: float) -> MachineProfile:
    """As detected: the GPU may use three quarters of what is available."""
    most = int(0.75 * free * GIB)
    backend = "Metal" if kind == "gpu" else "Vulkan"
    gpu = Device(f"{backend}0", "a GPU in the processor", kind, most, most, backend, unified=True)  # type: ignore[arg-type]
    cpu = Device("CPU", kind="cpu", free=int(free * GIB), total=int(free * GIB), unified=True)
    speed = from_devices((gpu,), TYPICAL_CPU_SPEED)
    return MachineProfile((gpu,), cpu, speed)


def in_shared_memory(kind: str, free: float, **settings: int) -> verdict.FitReport:
    pair = pair_shapes.from_catalog(catalog.load().pairs["qwen2.5-coder-32b+qwen2.5-coder-0.5b"])
    assert pair is not None
    load = LoadCommand("target", "draft", ContextSettings(n_ctx=4096, **settings))  # type: ignore[arg-type]
    return verdict.estimate_fit(load, *pair.shapes, shared_machine(kind, free))


@pytest.mark.parametrize("kind", ["igpu", "gpu"])
def test_a_gpu_and_the_cpu_share_one_memory(kind: str) -> None:
    """Each had room for its half: 10 of 18 GiB on the GPU and 10 of 24 GiB on the CPU."""
    split = in_shared_memory(kind, 24, n_gpu_layers=33)
    (gpu,) = split.device_fits
    assert min(gpu.total, split.host.total) > 8 * GIB
    assert split.host.needed == split.total == gpu.total + split.host.total
    assert sum(split.host.memory_parts.values()) == split.host.needed
    assert split.verdict == "fits" and split.tightest in (gpu, split.host)
    less = in_shared_memory(kind, 18, n_gpu_layers=33)
    assert less.device_fits[0].verdict == "fits", "of itself it has room"
    assert less.verdict == less.host.verdict == "no"
    assert less.tightest is less.host
    assert less.missing_bytes == less.total - 18 * GIB, "nothing is missing twice"


def test_what_is_said_of_shared_memory() -> None:
    pair = pair_shapes.from_catalog(catalog.load().pairs["qwen2.5-coder-32b+qwen2.5-coder-0.5b"])
    assert pair is not None
    advisor = SettingsAdvisor(*pair.shapes, shared_machine("igpu", 18))
    load = LoadCommand("target", "draft", ContextSettings(n_ctx=4096))
    advice = advisor.advise(SettingsRequest(load, 4096, n_gpu_layers=33))
    assert not advice.fits and "of this computer's memory, which has 18.0 GiB" in advice.explanation
    savings = advisor.list_memory_savings(advice.fit)
    assert "--draft-gpu-layers 0" not in {saving.flags for saving in savings}, "the same memory"
    text = "\n".join(fit_command.format_fit(advice, savings, pair))
    assert "shared with this computer" in text and "with the GPU's" in text
    shown = fit_command.fit_to_json(advice, savings, pair)
    assert shown["host"]["shared"] == shown["devices"][0]["total"]

"""Memory of earlier loads on this computer corrects later estimates and their error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec import launch
from localspec.fit import machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.fit.verdict import FitReport
from localspec.machine.device import HOST, Device
from localspec.machine.measurements import MemoryMeasurement
from localspec.protocol.wire import ContextSettings, KvType, LoadCommand
from tests import shapes, synthetic_header
from tests.families import FAMILIES
from tests.zoo import Zoo

GIB = 1 << 30
MIB = 1 << 20
GPU = Device("CUDA0", "a card", "gpu", 24 * GIB, 24 * GIB, "CUDA")
CPU = Device("CPU", kind="cpu", free=28 * GIB, total=32 * GIB, unified=True)
QWEN = synthetic_header.build(FAMILIES["qwen3"].full, "Q4_K_M")
LOAD = LoadCommand("target", None, ContextSettings(n_ctx=8192))


def estimate(*past: MemoryMeasurement, gpu: Device = GPU) -> FitReport:
    machine = MachineProfile((gpu,), CPU, from_devices([gpu], TYPICAL_CPU_SPEED), past)
    return shapes.estimate_fit(LOAD, QWEN, None, machine)


def past_load(size: int, used: int, error: int, *architectures: str) -> MemoryMeasurement:
    return MemoryMeasurement(
        {"CUDA0": size}, {"CUDA0": used}, error=error, architectures=architectures
    )


def gpu_error(*past: MemoryMeasurement) -> int:
    return estimate(*past).device_fits[0].error


def test_loads_that_were_as_estimated_narrow_the_error() -> None:
    close = past_load(5 * GIB, 5 * GIB - 20 * MIB, 200 * MIB, "qwen3")
    assert gpu_error(close, close) == gpu_error() > 0
    assert gpu_error(close, close, close) == int(0.25 * gpu_error()), "other settings may differ"
    half = past_load(5 * GIB, 5 * GIB - 80 * MIB, 200 * MIB, "qwen3")
    assert gpu_error(close, close, half) == pytest.approx(0.8 * gpu_error(), rel=1e-6)
    assert estimate(close, close, close).verdict == estimate().verdict


def test_a_load_beyond_its_error_widens_it_at_once() -> None:
    far = past_load(5 * GIB, 5 * GIB - 150 * MIB, 100 * MIB, "qwen3")
    assert gpu_error(far) == pytest.approx(3 * gpu_error(), rel=1e-6)


def test_other_architectures_and_devices_say_nothing_about_the_error() -> None:
    other = past_load(5 * GIB, 5 * GIB, 100 * MIB, "mamba2")
    before = past_load(5 * GIB, 5 * GIB, 0, "qwen3")  # stored by an earlier version
    elsewhere = MemoryMeasurement(
        {"CUDA1": 5 * GIB}, {"CUDA1": 5 * GIB}, error=MIB, architectures=("qwen3",)
    )
    assert gpu_error(*[other] * 3, *[before] * 3, *[elsewhere] * 3) == gpu_error()


def test_what_needed_more_than_estimated_is_not_said_to_fit_again() -> None:
    """Whatever its architecture: 4 % more than estimated, seen on this device."""
    plain = estimate()
    needed = plain.device_fits[0].total
    size = plain.memory_estimate.of("CUDA0").total
    seen = past_load(size, int(1.04 * size), 100 * MIB, "llama")
    gpu = replace(GPU, free=int(1.02 * needed), total=int(1.02 * needed))
    assert estimate(gpu=gpu).verdict != "no"
    assert estimate(seen, gpu=gpu).verdict == "no"
    small = past_load(size // 8, int(1.04 * (size // 8)), 100 * MIB, "llama")
    assert estimate(small, gpu=gpu).verdict != "no", "a few MiB of a small model are no share"


def test_a_gpu_that_is_not_here_has_no_past() -> None:
    simulated = replace(GPU, simulated=True)
    close = past_load(5 * GIB, 5 * GIB, 200 * MIB, "qwen3")
    now, before = (estimate(*past, gpu=simulated) for past in ([close] * 3, []))
    assert now.device_fits == before.device_fits


def test_real_loads_are_remembered(zoo: Zoo) -> None:
    path = str(zoo["target"])
    kv_types: tuple[KvType, ...] = ("f16", "bf16", "f32")
    errors = []
    for kv_type in kv_types:
        settings = ContextSettings(n_ctx=256, n_threads=1)
        request = SettingsRequest(LoadCommand(path, None, settings), 256, kv_type)
        engine = launch.start_engine(request)
        engine.close()
        advice = launch.choose_settings(request)
        assert advice is not None
        errors.append(advice.fit.error / advice.fit.memory_estimate.error)
    loads = machine_profile.detect().past_loads
    assert len(loads) == 3
    for load in loads:
        assert 0 <= load.predicted[HOST] - load.used[HOST] <= load.error
    assert errors[:2] == [1.0, 1.0] and errors[2] < 0.6

"""Memory of earlier loads on this computer corrects later estimates and their error."""

from __future__ import annotations

from dataclasses import replace

from localspec import launch
from localspec.fit import machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.fit.verdict import FitReport
from localspec.machine.device import HOST, Device
from localspec.machine.measurements import MemoryMeasurement
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import shapes, synthetic_header
from tests.families import FAMILIES
from tests.support.zoo import Zoo

GIB = 1 << 30
MIB = 1 << 20
GPU = Device("CUDA0", "a card", "gpu", 24 * GIB, 24 * GIB, "CUDA")
CPU = Device("CPU", kind="cpu", free=28 * GIB, total=32 * GIB, unified=True)
QWEN = synthetic_header.build(FAMILIES["qwen3"].full, "Q4_K_M")
LOAD = LoadCommand("target", None, ContextSettings(n_ctx=8192))


def estimate(*past: MemoryMeasurement, gpu: Device = GPU) -> FitReport:
    machine = MachineProfile((gpu,), CPU, from_devices([gpu], TYPICAL_CPU_SPEED), past)
    return shapes.estimate_fit(LOAD, QWEN, None, machine)


def past_load(size: int, used: int) -> MemoryMeasurement:
    return MemoryMeasurement({"CUDA0": size}, {"CUDA0": used})


def test_what_needed_more_than_estimated_is_not_said_to_fit_again() -> None:
    """Whatever its architecture: 4 % more than estimated, seen on this device."""
    plain = estimate()
    needed = plain.device_fits[0].total
    size = plain.memory_estimate.of("CUDA0").total
    seen = past_load(size, int(1.04 * size))
    gpu = replace(GPU, free=int(1.02 * needed), total=int(1.02 * needed))
    assert estimate(gpu=gpu).verdict != "no"
    assert estimate(seen, gpu=gpu).verdict == "no"
    small = past_load(size // 8, int(1.04 * (size // 8)))
    assert estimate(small, gpu=gpu).verdict != "no", "a few MiB of a small model are no share"


def test_a_gpu_that_is_not_here_has_no_past() -> None:
    simulated = replace(GPU, simulated=True)
    now, before = (estimate(*past, gpu=simulated) for past in ([past_load(5 * GIB, 6 * GIB)], []))
    assert now.device_fits == before.device_fits


def test_real_loads_are_remembered(zoo: Zoo) -> None:
    path = str(zoo["target"])
    settings = ContextSettings(n_ctx=256, n_threads=1)
    launch.start_engine(SettingsRequest(LoadCommand(path, None, settings), 256)).close()
    (load,) = machine_profile.detect().past_loads
    assert 0 <= load.predicted[HOST] - load.used[HOST] <= 16 * MIB

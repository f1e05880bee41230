"""fit/verdict.py: llama.cpp's count decides where the error of the estimate is too large."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.fit import pair_shapes
from localspec.fit import verdict as verdict_
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.fit.verdict import FitReport
from localspec.machine.device import HOST, Device
from localspec.machine.memory_probe import ProbeError
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import shapes, synthetic_header
from tests.families import FAMILIES

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="module")
def model() -> tuple[LoadCommand, Header]:
    family = FAMILIES["mamba2"]
    settings = ContextSettings(n_ctx=4096, n_threads=1, n_gpu_layers=0)
    load = LoadCommand("mamba2", target_settings=settings)
    return load, synthetic_header.build(family.full, family.quantisation)


def machine(free: int, *devices: Device) -> MachineProfile:
    cpu = Device("CPU", kind="cpu", free=free, total=32 * GIB, backend="CPU")
    return MachineProfile(devices, cpu, from_devices(devices, TYPICAL_CPU_SPEED))


def estimate(model: tuple[LoadCommand, Header], free: int, *devices: Device) -> FitReport:
    return shapes.estimate_fit(model[0], model[1], None, machine(free, *devices))


def test_only_a_close_fit_is_worth_a_count(model: tuple[LoadCommand, Header]) -> None:
    needed = estimate(model, 64 * GIB).host.total
    for free, verdict, is_close in (
        (64 * GIB, "fits", False),
        (needed + GIB, "tight", True),
        (needed + MIB, "tight", True),
        (needed - MIB, "no", True),
        (needed - GIB, "no", False),
    ):
        fit = estimate(model, free)
        assert (fit.verdict, fit.is_too_close) == (verdict, is_close), free


def test_a_count_may_find_that_it_fits(model: tuple[LoadCommand, Header]) -> None:
    """The estimate is an upper bound."""
    _, header = model
    free = estimate(model, 64 * GIB).host.total - 5 * MIB
    fit = estimate(model, free)
    counted = verdict_.count_fit(fit, pair_shapes.from_headers(header, None), machine(free))
    assert (fit.verdict, counted.verdict) == ("no", "tight")
    assert counted.memory_estimate.method == "exact"
    assert counted.host.target.compute < fit.host.target.compute
    assert counted.host.target.weights == fit.host.target.weights


def test_a_count_on_other_devices_is_refused(model: tuple[LoadCommand, Header]) -> None:
    """llama.cpp does not list a GPU that the fit uses."""
    gpu = Device("CUDA0", free=8 * GIB, total=8 * GIB, backend="CUDA")
    load = replace(model[0], target_settings=replace(model[0].target_settings, n_gpu_layers=-1))
    fit = shapes.estimate_fit(load, model[1], None, machine(64 * GIB, gpu))
    assert set(fit.memory_estimate.target.on) == {"CUDA0", HOST}
    with pytest.raises(ProbeError, match="other devices"):
        verdict_.count_fit(fit, pair_shapes.from_headers(model[1], None), machine(64 * GIB, gpu))

"""Replaces the estimated buffers of a fit by llama.cpp's own counts, from the probe."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit import memory, report
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import DeviceFit, FitReport
from localspec.fit.speed_estimate import UseCase
from localspec.machine import probe
from localspec.machine.probe import ProbeError
from localspec.models.gguf.header import Header


def confirm_fit(
    fit: FitReport, pair: PairHeaders, machine: MachineProfile, use: UseCase | None = None
) -> FitReport:
    """The same settings with llama.cpp's counts; if the probe fails, the given fit with a note.

    Takes about a second.  Only for the devices of this computer: a fit with simulated ones or
    workers stays an estimate.
    """
    if any(device.simulated or device.worker for device in machine.devices):
        return fit
    try:
        return count_fit(fit, pair.headers, machine, use)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, memory_estimate=replace(fit.memory_estimate, note=note))


def count_fit(
    fit: FitReport,
    headers: tuple[Header, Header | None],
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """As `confirm_fit`.  Raises ProbeError, also if llama.cpp uses other devices than the fit."""
    counted = probe.count_buffers(fit.load, *headers)
    exact = memory.replace_counted(fit.memory_estimate, fit.load, headers, counted)
    if {name for name, part in exact.target.on.items() if part.compute} != {
        name for name, part in fit.memory_estimate.target.on.items() if part.compute
    }:
        raise ProbeError("llama.cpp uses other devices")
    return report.from_memory_estimate(fit.load, headers, exact, machine, use)


def is_too_close(fit: FitReport) -> bool:
    """Whether a count, which takes a second, could change the verdict.

    With workers nothing is counted: each serves one process at a time.
    """
    is_local = not fit.load.target_settings.workers
    return is_local and any(map(_is_device_too_close, fit.all_fits))


def _is_device_too_close(device_fit: DeviceFit) -> bool:
    if device_fit.headroom is None or device_fit.device.free is None or not device_fit.needed:
        return False
    missing = device_fit.needed - device_fit.device.free
    is_uncertain = missing <= device_fit.error and device_fit.headroom <= device_fit.error
    return is_uncertain or device_fit.verdict == "tight"

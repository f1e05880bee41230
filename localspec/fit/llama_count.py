"""llama.cpp's own counts in place of the estimated buffers of a fit, from the probe."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit import memory, verdict
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.speed_estimate import UseCase
from localspec.fit.verdict import FitReport
from localspec.machine import memory_probe
from localspec.machine.memory_probe import ProbeError


def confirm_fit(
    fit: FitReport, pair: PairShapes, machine: MachineProfile, use: UseCase | None = None
) -> FitReport:
    """The same settings with llama.cpp's counts; if the probe fails, the given fit with a note.

    Takes about a second.  Only for files, and for the devices of this computer: a fit with
    simulated ones or workers stays an estimate.
    """
    if any(device.simulated or device.worker for device in machine.devices) or not pair.headers:
        return fit
    try:
        return count_fit(fit, pair, machine, use)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, memory_estimate=replace(fit.memory_estimate, note=note))


def count_fit(
    fit: FitReport, pair: PairShapes, machine: MachineProfile, use: UseCase | None = None
) -> FitReport:
    """As `confirm_fit`.  Raises ProbeError, also if llama.cpp uses other devices than the fit."""
    if pair.headers is None:
        raise ProbeError("there is no file")
    counted = memory_probe.count_buffers(fit.load, *pair.headers)
    exact = memory.replace_counted(fit.memory_estimate, fit.load, pair.shapes, counted)
    if {name for name, part in exact.target.on.items() if part.compute} != {
        name for name, part in fit.memory_estimate.target.on.items() if part.compute
    }:
        raise ProbeError("llama.cpp uses other devices")
    return verdict.from_memory_estimate(fit.load, pair.shapes, exact, machine, use)


def is_too_close(fit: FitReport) -> bool:
    """Whether a count, which takes a second, could change the verdict.

    With workers nothing is counted: each serves one process at a time.
    """
    return not fit.load.target_settings.workers and any(each.is_close for each in fit.all_fits)

"""Replaces the estimated buffers of a fit by llama.cpp's own counts, from the probe."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit import memory, report
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_headers import PairHeaders, PairMember
from localspec.fit.report import DeviceFit, FitReport
from localspec.fit.speed_estimate import UseCase
from localspec.machine.probe import MemoryProbe, ProbeError
from localspec.models.gguf.header import Header
from localspec.protocol.wire import LoadCommand


def confirm_fit(
    fit: FitReport,
    pair: PairHeaders,
    machine: MachineProfile,
    probe: MemoryProbe,
    use: UseCase | None = None,
) -> FitReport:
    """The same settings with llama.cpp's counts; if the probe fails, the given fit with a note.

    Only for the devices of this computer: a fit with simulated ones stays an estimate.
    """
    if any(device.simulated for device in machine.devices):
        return fit
    try:
        files = _resolve_files(fit.load, pair, probe)
        return count_fit(fit, files, pair.headers, machine, probe, use)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, memory_estimate=replace(fit.memory_estimate, note=note))


def count_fit(
    fit: FitReport,
    files: LoadCommand,
    headers: tuple[Header, Header | None],
    machine: MachineProfile,
    probe: MemoryProbe,
    use: UseCase | None = None,
) -> FitReport:
    """As `confirm_fit`; `files` is the load command with local paths.

    Raises ProbeError, also if llama.cpp uses other devices than the fit.
    """
    exact = memory.replace_counted(fit.memory_estimate, files, headers, probe.count_buffers(files))
    if {name for name, part in exact.target.on.items() if part.compute} != {
        name for name, part in fit.memory_estimate.target.on.items() if part.compute
    }:
        raise ProbeError("llama.cpp uses other devices")
    return report.from_memory_estimate(fit.load, headers, exact, machine, use)


def is_too_close(fit: FitReport) -> bool:
    """Whether a count, which takes a second, could change the verdict."""
    return any(map(_is_device_too_close, fit.all_fits))


def _is_device_too_close(device_fit: DeviceFit) -> bool:
    if device_fit.headroom is None or device_fit.device.free is None or not device_fit.total:
        return False
    missing = device_fit.total - device_fit.device.free
    is_uncertain = missing <= device_fit.error and device_fit.headroom <= device_fit.error
    return is_uncertain or device_fit.verdict == "tight"


def _resolve_files(load: LoadCommand, pair: PairHeaders, probe: MemoryProbe) -> LoadCommand:
    """Sets local paths, of header-only files for models not downloaded.  Raises ProbeError."""

    def local_path(member: PairMember) -> str:
        return str(member.path or probe.write_header_only_file(member.header))

    draft = local_path(pair.draft) if pair.draft and load.draft else None
    return replace(load, target=local_path(pair.target), draft=draft)

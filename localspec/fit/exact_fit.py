"""Replaces the memory estimate of a fit by llama.cpp's own, measured by the probe."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit import report
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_headers import PairHeaders, PairMember
from localspec.fit.report import FitReport
from localspec.fit.speed_estimate import UseCase
from localspec.machine.probe import MemoryProbe, ProbeError
from localspec.protocol.wire import LoadCommand


def confirm_fit(
    fit: FitReport,
    pair: PairHeaders,
    machine: MachineProfile,
    probe: MemoryProbe,
    use: UseCase | None = None,
) -> FitReport:
    """The same settings with exact memory; if the probe fails, the given fit with a note."""
    is_local = not any(device.simulated for device in machine.devices)
    try:
        load = _resolve_files(fit.load, pair, probe)
        exact = probe.estimate_memory(load, None if is_local else machine.devices)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, memory_estimate=replace(fit.memory_estimate, note=note))
    return report.from_memory_estimate(fit.load, pair.headers, exact, machine, use)


def _resolve_files(load: LoadCommand, pair: PairHeaders, probe: MemoryProbe) -> LoadCommand:
    """Sets local paths, of header-only files for models not downloaded.  Raises ProbeError."""

    def local_path(member: PairMember) -> str:
        return str(member.path or probe.write_header_only_file(member.header))

    draft = local_path(pair.draft) if pair.draft and load.draft else None
    return replace(load, target=local_path(pair.target), draft=draft)

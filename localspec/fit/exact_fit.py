"""A pair priced by llama.cpp itself, where that can be asked; else by formulas, and why."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit import report
from localspec.fit.pair_headers import PairHeaders, PairMember
from localspec.fit.report import FitReport, MachineProfile
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
    """The same settings with llama.cpp's own sums; as it was, with a note, where they fail."""
    here = not any(device.simulated for device in machine.devices)
    try:
        load = _resolve_files(fit.load, pair, probe)
        found = probe.estimate_memory(load, None if here else machine.devices)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, memory_estimate=replace(fit.memory_estimate, note=note))
    headers = pair.target.header, pair.draft.header if pair.draft else None
    return report.from_memory_estimate(fit.load, headers, found, machine, use)


def _resolve_files(load: LoadCommand, pair: PairHeaders, probe: MemoryProbe) -> LoadCommand:
    """A file that is here, or a ghost of one that is not.  Raises ProbeError."""

    def file(part: PairMember) -> str:
        return str(part.path or probe.write_header_only_file(part.header))

    draft = file(pair.draft) if pair.draft and load.draft else None
    return replace(load, target=file(pair.target), draft=draft)

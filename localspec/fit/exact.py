"""A pair priced by llama.cpp itself, where that can be asked; else by formulas, and why."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit import report
from localspec.fit.report import Fit, Place
from localspec.fit.speed import Use
from localspec.fit.subject import Part, Subject
from localspec.machine.probe import Probe, ProbeError
from localspec.protocol.wire import Load


def confirmed(
    fit: Fit, subject: Subject, place: Place, probe: Probe, use: Use | None = None
) -> Fit:
    """The same settings with llama.cpp's own sums; as it was, with a note, where they fail."""
    here = not any(device.pretend for device in place.devices)
    try:
        load = _with_files(fit.load, subject, probe)
        found = probe.project(load, None if here else place.devices)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, projection=replace(fit.projection, note=note))
    headers = subject.target.header, subject.draft.header if subject.draft else None
    return report.judged(fit.load, headers, found, place, use)


def _with_files(load: Load, subject: Subject, probe: Probe) -> Load:
    """A file that is here, or a ghost of one that is not.  Raises ProbeError."""

    def file(part: Part) -> str:
        return str(part.path or probe.ghost(part.header))

    draft = file(subject.draft) if subject.draft and load.draft else None
    return replace(load, target=file(subject.target), draft=draft)

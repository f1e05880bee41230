"""The engine of a loaded pair, which saves its measurements."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from localspec import extras
from localspec.engine_process.client import EngineProcess
from localspec.errors import Hint
from localspec.fit import calibration
from localspec.fit.advisor import SettingsRequest
from localspec.fit.plan import Plan
from localspec.machine import measurements
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.machine.device import HOST
from localspec.machine.measurements import MemoryMeasurement
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.protocol import wire
from localspec.protocol.events import EngineReady, Notice
from localspec.sanitize import sanitize

SETTINGS_NOTICE = "settings"  # Code of the notice about the chosen settings.
HEAD_NOTICE = "head"  # Code of the notice about an automatically found head.
EXACT_NOTICE = "exact"  # Code of the notice about what exact mode does.

_SAVE_INTERVAL = 1.0
"""Seconds between two writes: a write takes longer than a short answer."""


class EngineClient(EngineProcess):
    """An engine that saves its measurements after answers.

    It does so at most once per `_SAVE_INTERVAL`. Costs measured while other programs
    used the CPUs do not replace trusted ones.
    """

    def __init__(self, store: measurements.MeasurementStore, key: str) -> None:
        """`key` is that of the pair's measurements in the store."""
        super().__init__()
        self._store = store
        self._key = key
        initial = store.read_costs(key)
        self.measured = initial
        self._initial = initial
        self._saved = initial
        self._saved_at = -_SAVE_INTERVAL
        self._trusted: wire.MeasuredCosts | None = None
        """The last costs that were measured on a quiet computer."""
        self._pair_reads: measurements.PairReads | None = None
        self._cpu_load = OtherCpuLoad(self.pid, os.getpid())
        self._began = 0.0
        self._other_load: float | None = None
        if initial is not None:
            if measurements.is_trusted(initial):
                self._trusted = initial
            # An unknown load counts as that of a busy computer.
            self._other_load = 1.0 if initial.other_load is None else initial.other_load

    def add_notices(self, plan: Plan | None, request: SettingsRequest) -> None:
        """Add to `ready` what only this process knows.

        Called once, when the pair is loaded.
        """
        if plan is not None:
            if not plan.load.target_settings.remote_hosts:
                self._pair_reads = calibration.summarize_reads(plan.speed)
            self.ready = self._with_estimate(plan)
            target = Path(plan.load.target)
            if not plan.device_fits:
                self._add_cpu_notices(target)
        if plan is not None and plan.skipped_draft:
            path = shlex.quote(sanitize(request.load.draft or "", multiline=False))
            hint = Hint(f"To use it anyway: {{draft={path}}}.")
            self._add_notice(Notice("info", HEAD_NOTICE, plan.skipped_draft, hint))
        elif request.draft_note and self.ready.draft:
            hint = Hint("To disable: {draft=none}.")
            self._add_notice(Notice("info", HEAD_NOTICE, request.draft_note, hint))

    def _add_cpu_notices(self, target: Path) -> None:
        """What the extras say about a target that the CPU computes."""
        suggestions: list[Callable[[Path, Header], Notice | None]]
        suggestions = extras.load("CPU_NOTICES")
        for suggest in suggestions:
            self._add_notice(suggest(target, reader.read_model(target)))

    def _add_notice(self, notice: Notice | None) -> None:
        if notice is not None:
            self.ready = replace(self.ready, notices=(*self.ready.notices, notice))

    def _with_estimate(self, plan: Plan) -> EngineReady:
        """Add the memory estimate and the reason for the settings to `ready`.

        The estimate is saved together with the memory that is used.
        """
        ready = self.ready
        predicted = dict(plan.memory.total_by_device)
        projector = plan.projector
        if projector is not None and projector.device:
            # What is used counts it, too.
            before = predicted.get(projector.device, 0)
            predicted[projector.device] = before + projector.needed
        used: dict[str, int] = {}
        for name, size in ready.memory.items():
            if name in predicted and size:
                used[name] = size
        # The mapped file counts with the GPU's part.
        if plan.load.target_settings.cpu_moe:
            used.pop(HOST, None)
        if used:
            self._store.write_memory(self._key, MemoryMeasurement(predicted, used))
        memory = ready.memory | {"predicted": sum(predicted.values())}
        why = f"{plan.explanation[0].upper()}{plan.explanation[1:]}."
        notices = [Notice("info", SETTINGS_NOTICE, why)]
        if plan.exact_note:
            notices.append(Notice("info", EXACT_NOTICE, plan.exact_note))
        return replace(ready, memory=memory, notices=(*ready.notices, *notices))

    def close(self) -> None:
        self._save_if_changed()
        super().close()

    def _on_start(self, command: wire.EngineCommand) -> None:
        if isinstance(command, wire.GenerateCommand | wire.ProbeCommand):
            self._cpu_load.start()
            self._began = time.monotonic()

    def _on_done(self, command: wire.EngineCommand) -> None:
        if isinstance(command, wire.ProbeCommand):
            self._record_load(0.0)
            self._save_if_changed()
        elif isinstance(command, wire.GenerateCommand):
            if self.measured is not None and self.measured is not self._initial:
                n_passes = (time.monotonic() - self._began) * 1e3 / self.measured.t1_ms
                self._record_load((1 - wire.NEW_TIME_WEIGHT) ** n_passes)
            if time.monotonic() - self._saved_at >= _SAVE_INTERVAL:
                self._save_if_changed()

    def _save_if_changed(self) -> None:
        if self.measured is not None and self.measured is not self._saved:
            self._save(self.measured)

    def _save(self, measured: wire.MeasuredCosts) -> None:
        costs = replace(measured, other_load=self._other_load)
        if measurements.is_trusted(costs):
            self._trusted = costs
        elif self._trusted is not None:
            # Other programs change the times, not which draft tokens are accepted.
            costs = replace(self._trusted, survival=measured.survival)
        self._store.write_costs(self._key, costs, self._pair_reads)
        self._saved = measured
        self._saved_at = time.monotonic()

    def _record_load(self, weight_before: float) -> None:
        """Update the share of the CPUs that other programs used during the measurement.

        `weight_before` is the weight that times measured earlier have in the costs. With
        0.75, a share of 0.2 before and of 0.6 now give 0.3.
        """
        load = self._cpu_load.read()
        if load is None:
            return
        before = load if self._other_load is None else self._other_load
        self._other_load = round(load + weight_before * (before - load), 3)

"""A running engine whose measurements are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from localspec import paths
from localspec.errors import (
    DoesNotFitError,
    ModelFileError,
    OutOfMemoryError,
)
from localspec.fit import calibration, machine_profile, pair_headers
from localspec.fit.advisor import SettingsAdvice, SettingsAdvisor, SettingsRequest
from localspec.fit.report import FitReport
from localspec.machine import device_detection, measurements
from localspec.machine.memory_by_device import HOST
from localspec.protocol.events import EngineReady, Event, Notice, TokenScore
from localspec.protocol.wire import (
    CountCommand,
    GenerateCommand,
    InspectCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
)
from localspec.sanitize import sanitize
from localspec.units import gib
from localspec.worker import crashes
from localspec.worker.engine_process import EngineProcess

SETTINGS_NOTICE = "settings"
"""The code of the notice that says what was chosen, and why."""
HEAD_NOTICE = "head"
"""That of the one that says what drafts, where nobody named it."""

_SAVE_INTERVAL = 1.0
"""Seconds between two writes: one takes longer than a short answer."""


class Engine(Protocol):
    """A loaded pair, wherever it runs."""

    ready: EngineReady

    @property
    def measured(self) -> MeasuredCosts | None:
        """What is known of the pair's costs on this machine."""
        ...

    def generate(self, request: GenerateCommand) -> Iterator[Event]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


def start_engine(
    request: LoadCommand | SettingsRequest,
    *,
    probe: bool = False,
    notify: Callable[[Event], None] = lambda _: None,
    on_worker: Callable[[EngineProcess], None] = lambda _: None,
) -> MeasuredEngine:
    """Load the pair in a process of its own, with what earlier runs of it have shown.

    `probe`: measure what passes cost where nothing is known; `say` hears how that goes, and
    first a warning where the pair keeps crashing.  `hold` is given the process before it loads,
    so that another thread may close it.  Raises as `fitted`, and what the engine raised, or died
    of.
    """
    wish = request if isinstance(request, SettingsRequest) else SettingsRequest(request)
    advice = choose_settings(wish) if isinstance(request, SettingsRequest) else None
    load = advice.fit.load if advice else wish.load
    if (past := crashes.crash_loop_notice(load)) is not None:
        notify(past)
    store = measurements.MeasurementStore(paths.data_dir() / "measured.sqlite")
    name = measurements.make_key(load)
    known = store.read_costs(name)
    worker = EngineProcess()
    on_worker(worker)
    try:
        _load_pair(worker, replace(load, measured=known), advice)
        if probe and known is None:
            for event in worker.probe(ProbeCommand()):
                notify(event)
    except BaseException:
        worker.close()
        raise
    found = wish.draft_note if load.draft else ""
    return MeasuredEngine(worker, store, name, known, advice, head_notice=found)


def _load_pair(worker: EngineProcess, load: LoadCommand, advice: SettingsAdvice | None) -> None:
    """What ran out of memory says what was expected."""
    try:
        worker.load(load)
    except OutOfMemoryError as error:
        if advice is None:
            raise
        room = advice.fit.tightest
        was, now = room.device.free or 0, device_detection.query_free(room.device.name) or 0
        words = f"Expected {gib(room.total)}, with {gib(was)} free; {gib(now)} are free now."
        raise OutOfMemoryError(f"{error.message} {words}", error.hint) from error


def _describe_pair(load: LoadCommand) -> measurements.PairReads:
    """What the pair reads for a token, so that others can be priced by what it shows."""
    headers = [
        pair_headers.read_model_header(Path(path)) for path in (load.target, load.draft) if path
    ]
    place = machine_profile.detect()
    return calibration.summarize_reads(load, headers[0], (*headers, None)[1], place.hardware)


class MeasuredEngine:
    """An engine whose measurements are kept: after an answer, but not of every short one."""

    def __init__(
        self,
        worker: EngineProcess,
        store: measurements.MeasurementStore,
        name: str,
        initial: MeasuredCosts | None = None,
        advice: SettingsAdvice | None = None,
        *,
        head_notice: str = "",
    ) -> None:
        self._worker, self._store, self._key, self._initial = worker, store, name, initial
        self._pair_description = _describe_pair(advice.fit.load) if advice else None
        self._saved_at = -_SAVE_INTERVAL
        self._saved = None if worker.measured is None else self._save(worker.measured)
        self.ready = self._add_prediction(worker.ready, advice) if advice else worker.ready
        if head_notice and self.ready.draft:
            said = Notice("info", HEAD_NOTICE, head_notice)
            self.ready = replace(self.ready, notices=(*self.ready.notices, said))

    def _add_prediction(self, ready: EngineReady, advice: SettingsAdvice) -> EngineReady:
        """With what was foretold beside what is used, which is kept; and why these settings."""
        fit = advice.fit
        names = {
            name
            for ledger in (fit.memory_estimate.target, fit.memory_estimate.draft)
            if ledger
            for name in ledger.on
        }
        predicted = {name: fit.memory_estimate.of(name).total for name in names}
        predicted[HOST] = predicted.get(HOST, 0) + fit.memory_estimate.output
        used = {name: size for name, size in ready.memory.items() if name in predicted and size}
        if used:
            self._store.write_memory(self._key, measurements.MemoryMeasurement(predicted, used))
        memory = ready.memory | {"predicted": sum(predicted.values())}
        why = Notice("info", SETTINGS_NOTICE, f"Chosen: {advice.explanation}.")
        return replace(ready, memory=memory, notices=(*ready.notices, why))

    @property
    def worker(self) -> EngineProcess:
        """For what only a process of its own can be asked: whether it is alive."""
        return self._worker

    @property
    def measured(self) -> MeasuredCosts | None:
        return self._worker.measured or self._initial

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        yield from self._worker.generate(request)
        if time.monotonic() - self._saved_at >= _SAVE_INTERVAL:
            self._save_if_changed()

    def count(self, count: CountCommand) -> int:
        """The tokens of a text, or of a chat's prompt.  Raises as `Worker.count`."""
        return self._worker.count(count)

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]:
        """What the target gives to an answer's tokens.  Raises as `Worker.inspect`."""
        return self._worker.inspect(inspect)

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        """Measure what passes cost.  Raises as `Worker.probe`."""
        return self._worker.probe(probe)

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        """Feed an answer to the target alone.  Raises as `Worker.replay`."""
        return self._worker.replay(replay)

    def _save_if_changed(self) -> None:
        told = self._worker.measured
        if told is not None and told is not self._saved:
            self._save(told)

    def _save(self, new: MeasuredCosts) -> MeasuredCosts:
        self._store.write_costs(self._key, new, self._pair_description)
        self._saved, self._saved_at = new, time.monotonic()
        return new

    def stop(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._save_if_changed()
        self._worker.close()


# --- The settings that suit this machine, or why none do.


def choose_settings(request: SettingsRequest) -> SettingsAdvice | None:
    """The settings that suit this machine, as far as they were left open.

    None where the files' sizes make no sense: llama.cpp has the last word on them.  Raises
    DoesNotFitError where it would need more memory than is free, UsageError where the context is
    absurd.
    """
    load = request.load
    target = pair_headers.read_model_header(Path(load.target))
    draft = pair_headers.read_model_header(Path(load.draft)) if load.draft else None
    advisor = SettingsAdvisor(target, draft, machine_profile.detect(refresh=True))
    try:
        advice = advisor.advise(request)
    except ModelFileError:
        return None
    fit = advice.fit
    if (
        fit.verdict == "no"
        and fit.missing_bytes > fit.memory_estimate.error
        and not request.skip_memory_check
    ):
        raise _does_not_fit_error(advisor, fit, Path(load.target).name)
    return advice


def _does_not_fit_error(advisor: SettingsAdvisor, fit: FitReport, name: str) -> DoesNotFitError:
    room = fit.tightest
    free, where = room.device.free or 0, room.device.description or room.device.name
    where = "this computer" if room.device.kind == "cpu" else sanitize(where, multiline=False)
    name = sanitize(name, multiline=False)
    what = f"{name} would take {gib(room.total)}; {where} has {gib(free)} free."
    others = [
        one.flags
        for one in advisor.list_memory_savings(fit)
        if one.fit.verdict != "no" and one.flags
    ]
    if (longest := advisor.find_longest_context(fit)) is not None:
        others = [f"--ctx {longest}", *(flags for flags in others if "--ctx" not in flags)]
    hint = f"This fits: {' or '.join(others)}." if others else "Smaller: localspec pair suggest."
    return DoesNotFitError(what, f"{hint} More: localspec fit; all the same: run --anyway")

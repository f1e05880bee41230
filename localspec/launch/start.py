"""Starting an engine with suitable settings, and saving its measurements."""

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
from localspec.fit import calibration, exact_fit, machine_profile, pair_headers
from localspec.fit.advisor import SettingsAdvice, SettingsAdvisor, SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.report import FitReport
from localspec.machine import device_detection, measurements
from localspec.machine.memory_by_device import HOST
from localspec.machine.probe import MemoryProbe, ProbeError
from localspec.models.gguf.header import Header
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
"""Code of the notice about the chosen settings."""
HEAD_NOTICE = "head"
"""Code of the notice about an automatically found head."""

_SAVE_INTERVAL = 1.0
"""Seconds between two writes: a write takes longer than a short answer."""


class Engine(Protocol):
    """A loaded pair."""

    ready: EngineReady

    @property
    def measured(self) -> MeasuredCosts | None:
        """The measured pass costs of the pair on this machine."""
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
    """Load the pair in a separate process, with the costs measured in earlier runs.

    With `probe`, measures pass costs if there are none yet. `notify` receives the events of that
    measurement, and before them a warning if the pair crashed repeatedly. `on_worker` receives the
    process before it loads, so that another thread can close it. Raises as `choose_settings`, and
    the errors of the engine.
    """
    settings = request if isinstance(request, SettingsRequest) else SettingsRequest(request)
    advice = choose_settings(settings) if isinstance(request, SettingsRequest) else None
    load = advice.fit.load if advice else settings.load
    if (crash_notice := crashes.crash_loop_notice(load)) is not None:
        notify(crash_notice)
    store = measurements.MeasurementStore(paths.data_dir() / "measured.sqlite")
    key = measurements.make_key(load)
    costs = store.read_costs(key)
    worker = EngineProcess()
    on_worker(worker)
    try:
        _load_pair(worker, replace(load, measured=costs), advice)
        if probe and costs is None:
            for event in worker.probe(ProbeCommand()):
                notify(event)
    except BaseException:
        worker.close()
        raise
    head_notice = settings.draft_note if load.draft else ""
    return MeasuredEngine(worker, store, key, costs, advice, head_notice=head_notice)


def choose_settings(request: SettingsRequest) -> SettingsAdvice | None:
    """Choose the settings that were left open, to fit this machine.

    Returns None if a file's header is not plausible: then llama.cpp decides whether to load it.
    Raises DoesNotFitError if the pair needs more memory than is free, UsageError if the context is
    far too long.
    """
    load = request.load
    target = pair_headers.read_model_header(Path(load.target))
    draft = pair_headers.read_model_header(Path(load.draft)) if load.draft else None
    machine = machine_profile.detect(refresh=True)
    advisor = SettingsAdvisor(target, draft, machine)
    try:
        advice = advisor.advise(request)
    except ModelFileError:
        return None
    advice = replace(advice, fit=_count_if_close(advice.fit, (target, draft), machine))
    fit = advice.fit
    if (
        fit.verdict == "no"
        and fit.missing_bytes > fit.memory_estimate.error
        and not request.skip_memory_check
    ):
        raise _does_not_fit_error(advisor, fit, Path(load.target).name)
    return advice


def _count_if_close(
    fit: FitReport, headers: tuple[Header, Header | None], machine: MachineProfile
) -> FitReport:
    """llama.cpp's own count, if the error of the estimate could change the verdict."""
    if not exact_fit.is_too_close(fit):
        return fit
    try:
        with MemoryProbe() as probe:
            return exact_fit.count_fit(fit, fit.load, headers, machine, probe)
    except (ProbeError, OSError):
        return fit


def _does_not_fit_error(advisor: SettingsAdvisor, fit: FitReport, name: str) -> DoesNotFitError:
    tightest = fit.tightest
    device, free = tightest.device, tightest.device.free or 0
    where = sanitize(device.description or device.name, multiline=False)
    where = "this computer" if device.kind == "cpu" else where
    name = sanitize(name, multiline=False)
    message = f"{name} needs {gib(tightest.total)}; {where} has {gib(free)} free."
    options = [
        saving.flags
        for saving in advisor.list_memory_savings(fit)
        if saving.fit.verdict != "no" and saving.flags
    ]
    if (longest := advisor.find_longest_context(fit)) is not None:
        options = [f"--ctx {longest}", *(flags for flags in options if "--ctx" not in flags)]
    hint = (
        f"This fits: {' or '.join(options)}."
        if options
        else "Smaller models: localspec pair suggest."
    )
    return DoesNotFitError(message, f"{hint} Details: localspec fit. Load anyway: run --anyway")


def _load_pair(worker: EngineProcess, load: LoadCommand, advice: SettingsAdvice | None) -> None:
    """Load, and add the memory estimate to an out-of-memory error."""
    try:
        worker.load(load)
    except OutOfMemoryError as error:
        if advice is None:
            raise
        fit = advice.fit.tightest
        before, now = fit.device.free or 0, device_detection.query_free(fit.device.name) or 0
        estimate = f"Estimated {gib(fit.total)}, with {gib(before)} free; now {gib(now)} free."
        raise OutOfMemoryError(f"{error.message} {estimate}", error.hint) from error


def _summarize_reads(load: LoadCommand) -> measurements.PairReads:
    """Bytes the pair reads per token: its measurements also price other models."""
    headers = [
        pair_headers.read_model_header(Path(path)) for path in (load.target, load.draft) if path
    ]
    hardware = machine_profile.detect().hardware
    return calibration.summarize_reads(load, headers[0], (*headers, None)[1], hardware)


class MeasuredEngine:
    """An engine that saves its measurements after answers, at most once per `_SAVE_INTERVAL`."""

    def __init__(
        self,
        worker: EngineProcess,
        store: measurements.MeasurementStore,
        key: str,
        initial: MeasuredCosts | None = None,
        advice: SettingsAdvice | None = None,
        *,
        head_notice: str = "",
    ) -> None:
        self._worker, self._store, self._key, self._initial = worker, store, key, initial
        self._pair_reads = _summarize_reads(advice.fit.load) if advice else None
        self._saved_at = -_SAVE_INTERVAL
        self._saved = None if worker.measured is None else self._save(worker.measured)
        self.ready = self._add_prediction(worker.ready, advice) if advice else worker.ready
        if head_notice and self.ready.draft:
            notice = Notice("info", HEAD_NOTICE, head_notice)
            self.ready = replace(self.ready, notices=(*self.ready.notices, notice))

    def _add_prediction(self, ready: EngineReady, advice: SettingsAdvice) -> EngineReady:
        """Add the memory estimate and the reason for the settings; save estimate and real use."""
        fit = advice.fit
        names = {
            name
            for memory in (fit.memory_estimate.target, fit.memory_estimate.draft)
            if memory
            for name in memory.on
        }
        predicted = {name: fit.memory_estimate.of(name).total for name in names}
        predicted[HOST] = predicted.get(HOST, 0) + fit.memory_estimate.output
        used = {name: size for name, size in ready.memory.items() if name in predicted and size}
        if used:
            self._store.write_memory(self._key, measurements.MemoryMeasurement(predicted, used))
        memory = ready.memory | {"predicted": sum(predicted.values())}
        reason = Notice("info", SETTINGS_NOTICE, f"Chosen: {advice.explanation}.")
        return replace(ready, memory=memory, notices=(*ready.notices, reason))

    @property
    def worker(self) -> EngineProcess:
        return self._worker

    @property
    def measured(self) -> MeasuredCosts | None:
        return self._worker.measured or self._initial

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        yield from self._worker.generate(request)
        if time.monotonic() - self._saved_at >= _SAVE_INTERVAL:
            self._save_if_changed()

    def count(self, count: CountCommand) -> int:
        return self._worker.count(count)

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]:
        return self._worker.inspect(inspect)

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        return self._worker.probe(probe)

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        return self._worker.replay(replay)

    def _save_if_changed(self) -> None:
        measured = self._worker.measured
        if measured is not None and measured is not self._saved:
            self._save(measured)

    def _save(self, costs: MeasuredCosts) -> MeasuredCosts:
        self._store.write_costs(self._key, costs, self._pair_reads)
        self._saved, self._saved_at = costs, time.monotonic()
        return costs

    def stop(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._save_if_changed()
        self._worker.close()

"""A running engine whose measurements are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from localspec import paths
from localspec.errors import (
    OutOfMemoryError,
)
from localspec.fit import calibration, places, subject
from localspec.fit.advisor import Advice, Wish
from localspec.launch import fitting
from localspec.machine import devices, measured
from localspec.machine.ledger import HOST
from localspec.protocol.events import Event, Notice, Place, Ready
from localspec.protocol.wire import (
    Count,
    Generate,
    Inspect,
    Load,
    Measured,
    Probe,
    Replay,
    Replayed,
)
from localspec.units import gib
from localspec.worker import crashes
from localspec.worker.client import Worker

SETTINGS = "settings"
"""The code of the notice that says what was chosen, and why."""
HEAD = "head"
"""That of the one that says what drafts, where nobody named it."""

_PAUSE = 1.0
"""Seconds between two writes: one takes longer than a short answer."""


class Engine(Protocol):
    """A loaded pair, wherever it runs."""

    ready: Ready

    @property
    def measured(self) -> Measured | None:
        """What is known of the pair's costs on this machine."""
        ...

    def generate(self, request: Generate) -> Iterator[Event]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


def start(
    asked: Load | Wish,
    *,
    probe: bool = False,
    say: Callable[[Event], None] = lambda _: None,
    hold: Callable[[Worker], None] = lambda _: None,
) -> Remembering:
    """Load the pair in a process of its own, with what earlier runs of it have shown.

    `probe`: measure what passes cost where nothing is known; `say` hears how that goes, and
    first a warning where the pair keeps crashing.  `hold` is given the process before it loads,
    so that another thread may close it.  Raises as `fitted`, and what the engine raised, or died
    of.
    """
    wish = asked if isinstance(asked, Wish) else Wish(asked)
    advice = fitting.fitted(wish) if isinstance(asked, Wish) else None
    load = advice.fit.load if advice else wish.load
    if (past := crashes.warning(load)) is not None:
        say(past)
    store = measured.Store(paths.state() / "measured.sqlite")
    name = measured.key(load)
    known = store.read(name)
    worker = Worker()
    hold(worker)
    try:
        _load(worker, replace(load, measured=known), advice)
        if probe and known is None:
            for event in worker.probe(Probe()):
                say(event)
    except BaseException:
        worker.close()
        raise
    found = wish.found if load.draft else ""
    return Remembering(worker, store, name, known, advice, found=found)


def _load(worker: Worker, load: Load, advice: Advice | None) -> None:
    """What ran out of memory says what was expected."""
    try:
        worker.load(load)
    except OutOfMemoryError as error:
        if advice is None:
            raise
        room = advice.fit.tightest
        was, now = room.device.free or 0, devices.free(room.device.name) or 0
        words = f"Expected {gib(room.total)}, with {gib(was)} free; {gib(now)} are free now."
        raise OutOfMemoryError(f"{error.message} {words}", error.hint) from error


def _about(load: Load) -> measured.About:
    """What the pair reads for a token, so that others can be priced by what it shows."""
    headers = [subject.of_file(Path(path)) for path in (load.target, load.draft) if path]
    place = places.here()
    return calibration.about(load, headers[0], (*headers, None)[1], place.hardware)


class Remembering:
    """An engine whose measurements are kept: after an answer, but not of every short one."""

    def __init__(
        self,
        worker: Worker,
        store: measured.Store,
        name: str,
        known: Measured | None = None,
        advice: Advice | None = None,
        *,
        found: str = "",
    ) -> None:
        self._worker, self._store, self._name, self._known = worker, store, name, known
        self._about = _about(advice.fit.load) if advice else None
        self._at = -_PAUSE
        self._kept = None if worker.measured is None else self._keep(worker.measured)
        self.ready = self._foretold(worker.ready, advice) if advice else worker.ready
        if found and self.ready.draft:
            said = Notice("info", HEAD, found)
            self.ready = replace(self.ready, notices=(*self.ready.notices, said))

    def _foretold(self, ready: Ready, advice: Advice) -> Ready:
        """With what was foretold beside what is used, which is kept; and why these settings."""
        fit = advice.fit
        names = {
            name
            for ledger in (fit.projection.target, fit.projection.draft)
            if ledger
            for name in ledger.on
        }
        predicted = {name: fit.projection.of(name).total for name in names}
        predicted[HOST] = predicted.get(HOST, 0) + fit.projection.output
        used = {name: size for name, size in ready.memory.items() if name in predicted and size}
        if used:
            self._store.write_memory(self._name, measured.Memory(predicted, used))
        memory = ready.memory | {"predicted": sum(predicted.values())}
        why = Notice("info", SETTINGS, f"Chosen: {advice.why}.")
        return replace(ready, memory=memory, notices=(*ready.notices, why))

    @property
    def worker(self) -> Worker:
        """For what only a process of its own can be asked: whether it is alive."""
        return self._worker

    @property
    def measured(self) -> Measured | None:
        return self._worker.measured or self._known

    def generate(self, request: Generate) -> Iterator[Event]:
        yield from self._worker.generate(request)
        if time.monotonic() - self._at >= _PAUSE:
            self._keep_news()

    def count(self, count: Count) -> int:
        """The tokens of a text, or of a chat's prompt.  Raises as `Worker.count`."""
        return self._worker.count(count)

    def inspect(self, inspect: Inspect) -> tuple[Place, ...]:
        """What the target gives to an answer's tokens.  Raises as `Worker.inspect`."""
        return self._worker.inspect(inspect)

    def probe(self, probe: Probe) -> Iterator[Event]:
        """Measure what passes cost.  Raises as `Worker.probe`."""
        return self._worker.probe(probe)

    def replay(self, replay: Replay) -> Replayed:
        """Feed an answer to the target alone.  Raises as `Worker.replay`."""
        return self._worker.replay(replay)

    def _keep_news(self) -> None:
        told = self._worker.measured
        if told is not None and told is not self._kept:
            self._keep(told)

    def _keep(self, told: Measured) -> Measured:
        self._store.write(self._name, told, self._about)
        self._kept, self._at = told, time.monotonic()
        return told

    def stop(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._keep_news()
        self._worker.close()

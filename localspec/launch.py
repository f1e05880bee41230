"""From what a person typed to a running engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from localspec import paths
from localspec.clean import clean
from localspec.errors import NotFoundError
from localspec.machine import measured
from localspec.models import catalog, header, store
from localspec.protocol.events import Event, Place, Ready
from localspec.protocol.wire import Generate, Inspect, Load, Measured, Probe
from localspec.worker import crashes
from localspec.worker.client import Worker


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


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to run, and how their pair wants to speculate."""

    target: Path
    draft: Path | None
    spec: str = "auto"
    why: str = ""


def choose(model: str | None, draft: str) -> Choice:
    """The files for a model argument and a --draft argument (a path, `auto` or `none`).

    Raises NotFoundError, AccessError or ModelFileError: every file is looked at before it is used.
    """
    pairs = catalog.load().pairs
    name = model or "demo"
    pair = pairs.get(name)
    if pair is None and not _looks_like_path(name):
        raise NotFoundError(
            f"There is no pair called {clean(name, multiline=False)}.",
            f"Known: {', '.join(list(pairs)[:5])}, … A file is given by its path: ./model.gguf",
        )
    choice = _known(pair) if pair else Choice(_path(name), None)
    if draft == "none":
        choice = replace(choice, draft=None, spec="auto", why="")
    elif draft != "auto":
        choice = replace(choice, draft=_draft_file(draft, pairs), spec="auto", why="")
    header.check(choice.target)
    if choice.draft is not None:
        header.check(choice.draft)
    return choice


def _known(pair: catalog.Pair) -> Choice:
    draft = _on_disk(pair.draft) if pair.draft else None
    return Choice(_on_disk(pair.target), draft, pair.spec, pair.why)


def _on_disk(model: catalog.Model) -> Path:
    """Raises NotFoundError where it was not downloaded yet."""
    stored = store.find(model.repo, model.file) if model.repo else None
    found = model.path or (stored.path if stored else None)
    if found is None:
        raise NotFoundError(f"{model.title} is not here.", f"Get it: localspec pull {model.id}")
    return found


def _draft_file(name: str, pairs: Mapping[str, catalog.Pair]) -> Path:
    pair = pairs.get(name)
    return _on_disk(pair.draft) if pair and pair.draft else _path(name)


def _path(name: str) -> Path:
    """Absolute: the engine's process has a folder of its own."""
    return Path(os.path.abspath(os.path.expanduser(name)))


def _looks_like_path(name: str) -> bool:
    return name.endswith(".gguf") or "/" in name or "\\" in name or Path(name).exists()


def start(
    load: Load,
    *,
    probe: bool = False,
    say: Callable[[Event], None] = lambda _: None,
    hold: Callable[[Worker], None] = lambda _: None,
) -> Remembering:
    """Load the pair in a process of its own, with what earlier runs of it have shown.

    `probe`: measure what passes cost where nothing is known; `say` hears how that goes, and
    first a warning where the pair keeps crashing.  `hold` is given the process before it loads,
    so that another thread may close it.  Raises what the engine raised, or died of.
    """
    if (past := crashes.warning(load)) is not None:
        say(past)
    store = measured.Store(paths.state() / "measured.sqlite")
    name = measured.key(load)
    known = store.read(name)
    worker = Worker()
    hold(worker)
    try:
        worker.load(replace(load, measured=known))
        if probe and known is None:
            for event in worker.probe(Probe()):
                say(event)
    except BaseException:
        worker.close()
        raise
    return Remembering(worker, store, name, known)


class Remembering:
    """An engine whose measurements are kept after every answer."""

    def __init__(
        self, worker: Worker, store: measured.Store, name: str, known: Measured | None = None
    ) -> None:
        self._worker, self._store, self._name, self._known = worker, store, name, known
        self._kept = None if worker.measured is None else self._keep(worker.measured)
        self.ready = worker.ready

    @property
    def worker(self) -> Worker:
        """For what only a process of its own can be asked: to probe, to replay."""
        return self._worker

    @property
    def measured(self) -> Measured | None:
        return self._worker.measured or self._known

    def generate(self, request: Generate) -> Iterator[Event]:
        yield from self._worker.generate(request)
        told = self._worker.measured
        if told is not None and told is not self._kept:
            self._keep(told)

    def inspect(self, inspect: Inspect) -> tuple[Place, ...]:
        """What the target gives to an answer's tokens.  Raises as `Worker.inspect`."""
        return self._worker.inspect(inspect)

    def _keep(self, told: Measured) -> Measured:
        self._store.write(self._name, told)
        self._kept = told
        return told

    def stop(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._worker.close()

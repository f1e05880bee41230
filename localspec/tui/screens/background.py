"""Background threads of screens: a measurement run, and a worker that runs only the latest job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from textual.message import Message

from localspec.errors import LocalspecError
from localspec.tui.engine_runner import PostMessage

ItemT = TypeVar("ItemT")
ItemProducer = Callable[[Callable[[], bool]], Iterator[ItemT]]
"""Yields items; its argument returns True to stop."""


class BackgroundItemsReady(Message, bubble=False):
    """Posted once when the first item is queued; posted again only after a fetch."""


@dataclass(frozen=True, slots=True)
class BackgroundRunEnded:
    """The last item; `error` if the run failed."""

    error: LocalspecError | None = None


class BackgroundRun(Generic[ItemT]):
    """Starts at once, on a daemon thread, so that quitting does not wait for it."""

    def __init__(self, produce: ItemProducer[ItemT], post: PostMessage) -> None:
        self._produce, self._post = produce, post
        self._items: list[ItemT | BackgroundRunEnded] = []
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="experiment")
        self._thread.start()

    def stop(self) -> None:
        """Asks the producer to stop soon; items already queued stay."""
        self._stop_event.set()

    @property
    def is_stopped(self) -> bool:
        return self._stop_event.is_set()

    def fetch(self) -> list[ItemT | BackgroundRunEnded]:
        """All items since the last call."""
        with self._lock:
            items, self._items = self._items, []
        return items

    def _run(self) -> None:
        error: LocalspecError | None = None
        try:
            for item in self._produce(self._stop_event.is_set):
                self._add(item)
        except LocalspecError as failure:
            error = failure
        self._add(BackgroundRunEnded(error))

    def _add(self, item: ItemT | BackgroundRunEnded) -> None:
        with self._lock:
            self._items.append(item)
            first = len(self._items) == 1
        if first:
            self._post(BackgroundItemsReady())


class LatestOnlyWorker:
    """Runs one job at a time; a newer job replaces a waiting one. The thread ends when idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next_job: Callable[[], None] | None = None
        self._busy = False

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._next_job = job
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, daemon=True, name=self._name).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                job, self._next_job = self._next_job, None
                if job is None:
                    self._busy = False
                    return
            try:
                job()
            except BaseException:
                with self._lock:
                    self._busy = False
                raise

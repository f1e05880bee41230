"""A bench or a check with a loaded pair: made on a thread, fetched by a screen."""

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
"""What is told, given whether it should stop."""


class BackgroundItemsReady(Message, bubble=False):
    """There is something to fetch.  Sent once until it is fetched."""


@dataclass(frozen=True, slots=True)
class BackgroundRunEnded:
    """Nothing more will come; `error`: what it ended of, if not of itself."""

    error: LocalspecError | None = None


class BackgroundRun(Generic[ItemT]):
    """Begun at once; a daemon, so that to quit need not wait for an answer's end."""

    def __init__(self, produce: ItemProducer[ItemT], post: PostMessage) -> None:
        self._produce, self._post = produce, post
        self._items: list[ItemT | BackgroundRunEnded] = []
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="experiment")
        self._thread.start()

    def stop(self) -> None:
        """Soon; what was found is kept."""
        self._stop_event.set()

    @property
    def is_stopped(self) -> bool:
        return self._stop_event.is_set()

    def fetch(self) -> list[ItemT | BackgroundRunEnded]:
        """Everything since the last call."""
        with self._lock:
            told, self._items = self._items, []
        return told

    def _run(self) -> None:
        error: LocalspecError | None = None
        try:
            for told in self._produce(self._stop_event.is_set):
                self._add(told)
        except LocalspecError as failure:
            error = failure
        self._add(BackgroundRunEnded(error))

    def _add(self, item: ItemT | BackgroundRunEnded) -> None:
        with self._lock:
            self._items.append(item)
            first = len(self._items) == 1
        if first:
            self._post(BackgroundItemsReady())


# --- A thread that does the latest of what it is asked; what was overtaken is never begun.


class LatestOnlyWorker:
    """One piece of work at a time; the thread lives while there is any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next_job: Callable[[], None] | None = None
        self._busy = False

    def submit(self, job: Callable[[], None]) -> None:
        """Returns at once."""
        with self._lock:
            self._next_job = job
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, daemon=True, name=self._name).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._next_job = self._next_job, None
                if work is None:
                    self._busy = False
                    return
            try:
                work()
            except BaseException:
                with self._lock:
                    self._busy = False
                raise

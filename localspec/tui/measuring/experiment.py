"""A bench or a check with a loaded pair: made on a thread, fetched by a screen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from textual.message import Message

from localspec.errors import LocalspecError
from localspec.tui.runner import Post

Told = TypeVar("Told")
Making = Callable[[Callable[[], bool]], Iterator[Told]]
"""What is told, given whether it should stop."""


class ExperimentSpoke(Message, bubble=False):
    """There is something to fetch.  Sent once until it is fetched."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more will come; `error`: what it ended of, if not of itself."""

    error: LocalspecError | None = None


class Experiment(Generic[Told]):
    """Begun at once; a daemon, so that to quit need not wait for an answer's end."""

    def __init__(self, make: Making[Told], post: Post) -> None:
        self._make, self._post = make, post
        self._told: list[Told | Ended] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="experiment")
        self._thread.start()

    def stop(self) -> None:
        """Soon; what was found is kept."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def fetch(self) -> list[Told | Ended]:
        """Everything since the last call."""
        with self._lock:
            told, self._told = self._told, []
        return told

    def _work(self) -> None:
        error: LocalspecError | None = None
        try:
            for told in self._make(self._stop.is_set):
                self._add(told)
        except LocalspecError as failure:
            error = failure
        self._add(Ended(error))

    def _add(self, told: Told | Ended) -> None:
        with self._lock:
            self._told.append(told)
            first = len(self._told) == 1
        if first:
            self._post(ExperimentSpoke())

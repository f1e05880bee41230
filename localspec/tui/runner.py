"""The engine's side of the app: threads that load a pair and listen to its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from textual.message import Message

from localspec import errors, launch
from localspec.fit.advisor import Wish
from localspec.launch import Engine
from localspec.protocol.events import Dead, Event, Place
from localspec.protocol.wire import Count, Inspect, Probe, Replay, Replayed
from localspec.tui.messages import (
    AnswerEnded,
    AnswerInspected,
    EngineOpened,
    EngineRefused,
    EngineSpoke,
    EngineTold,
)
from localspec.worker import ending

Post = Callable[[Message], object]
"""Thread-safe: a widget's `post_message`."""


class Closing(Protocol):
    """What can be ended while it loads."""

    def close(self) -> None: ...


class Inspecting(Engine, Protocol):
    """An engine that can also count, look at an answer afterwards, and be measured."""

    def count(self, count: Count) -> int: ...

    def inspect(self, inspect: Inspect) -> tuple[Place, ...]: ...

    def probe(self, probe: Probe) -> Iterator[Event]: ...

    def replay(self, replay: Replay) -> Replayed: ...


Writing = Callable[[Inspecting], Iterator[Event]]
"""One answer by an engine."""


class Opener(Protocol):
    """Loads a pair; blocks until it is loaded and measured."""

    def __call__(
        self,
        asked: Wish,
        *,
        probe: bool,
        say: Callable[[Event], None],
        hold: Callable[[Closing], None],
    ) -> Inspecting: ...


class Runner:
    """One engine at a time, for one screen at a time.

    Threads are daemons, not Textual's workers: to quit must not wait for a load.
    """

    def __init__(self, opener: Opener = launch.start) -> None:
        self._opener = opener
        self._generation = 0
        """Counts openings: what an older one still brings is closed, unheard."""
        self.engine: Inspecting | None = None
        self._loaded: Wish | None = None
        self._loading: Closing | None = None
        self._closing: threading.Thread | None = None
        self._inbox: list[Event | AnswerEnded] = []
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether an engine is there, or on its way."""
        return self.engine is not None or self._loading is not None

    def open(self, asked: Wish, post: Post) -> None:
        """Load a pair; posts `EngineOpened` or `EngineRefused`, and `EngineTold` on the way.

        A pair that is loaded and well is kept as it is.
        """
        if self.engine is not None and self._loaded == asked:
            post(EngineOpened(self.engine))
            return
        self.close()
        generation = self._generation

        def say(event: Event) -> None:
            post(EngineTold(event))

        def hold(process: Closing) -> None:
            self._loading = process
            if generation != self._generation:  # closed before there was anything to close
                process.close()

        before = self._closing

        def work() -> None:
            if before is not None:
                before.join()  # two pairs at once may not fit
            try:
                engine = self._opener(asked, probe=True, say=say, hold=hold)
            except (errors.LocalspecError, OSError) as error:
                if generation == self._generation:
                    post(EngineRefused(_explained(error)))
                return
            if generation != self._generation:
                engine.close()
                return
            self.engine, self._loading, self._loaded = engine, None, asked
            post(EngineOpened(engine))

        threading.Thread(target=work, daemon=True, name="open").start()

    def ask(
        self, write: Writing, post: Post, heard: Callable[[Event], None] = lambda _: None
    ) -> None:
        """Answer; posts `EngineSpoke` whenever `fetch` has something new.

        `heard` is given every event on the thread that listens.
        """
        engine, generation = self.engine, self._generation
        assert engine is not None, "asked before a pair was opened"

        def add(item: Event | AnswerEnded) -> None:
            if generation == self._generation:  # else nobody waits for it any more
                self._add(item, post)

        def work() -> None:
            error: errors.LocalspecError | None = None
            dead = False
            try:
                for event in write(engine):
                    if isinstance(event, Dead):
                        error, dead = ending.error(event), True
                    heard(event)
                    add(event)
            except errors.LocalspecError as failure:
                error = failure
            if dead:
                if self.engine is engine:
                    self.engine = None
                _end(engine)  # its pipes
            add(AnswerEnded(error, dead=dead))

        threading.Thread(target=work, daemon=True, name="answer").start()

    def inspect(self, inspect: Inspect, post: Post) -> None:
        """Look at an answer that was written without its chances; posts `AnswerInspected`."""
        engine = self.engine
        assert engine is not None, "asked before a pair was opened"

        def work() -> None:
            try:
                places = engine.inspect(inspect)
            except errors.LocalspecError as error:
                post(AnswerInspected((), error))
            else:
                post(AnswerInspected(places))

        threading.Thread(target=work, daemon=True, name="inspect").start()

    def _add(self, item: Event | AnswerEnded, post: Post) -> None:
        with self._lock:
            self._inbox.append(item)
            first = len(self._inbox) == 1
        if first:
            post(EngineSpoke())

    def fetch(self) -> list[Event | AnswerEnded]:
        """Everything since the last call."""
        with self._lock:
            items, self._inbox = self._inbox, []
        return items

    def stop(self) -> None:
        """End the answer in progress."""
        if self.engine is not None:
            self.engine.stop()

    def close(self, wait: float = 0.0) -> None:
        """End the engine, and whatever is being loaded; that may take a second.

        `wait`: seconds to stay until it is gone.
        """
        self._generation += 1
        held, self.engine, self._loading = self.engine or self._loading, None, None
        self.fetch()
        if held is not None:
            self._closing = threading.Thread(target=_end, args=(held,), daemon=True, name="close")
            self._closing.start()
        if wait and self._closing is not None:
            self._closing.join(wait)


def _end(engine: Closing) -> None:
    with suppress(errors.LocalspecError):
        engine.close()


def _explained(error: errors.LocalspecError | OSError) -> errors.LocalspecError:
    """A file may go between the look at it and its loading."""
    if isinstance(error, errors.LocalspecError):
        return error
    return errors.AccessError(
        f"A file cannot be read: {error.strerror}.", "Check that it is there."
    )

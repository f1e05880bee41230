"""Threads that load a pair and run its requests, and the messages they post to the screens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from textual.message import Message

from localspec import errors, launch
from localspec.chat.context_window import ContextOverflow
from localspec.chat.settings import OverflowPolicy
from localspec.errors import LocalspecError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine
from localspec.protocol.events import EngineExit, Event, TokenScore
from localspec.protocol.wire import (
    CountCommand,
    InspectCommand,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
)
from localspec.worker import crashes

PostMessage = Callable[[Message], object]
"""Thread-safe: a widget's `post_message`."""


class ClosableEngine(Protocol):
    """An engine that may still be loading."""

    def close(self) -> None: ...


class InspectableEngine(Engine, Protocol):
    def count(self, count: CountCommand) -> int: ...

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]: ...

    def probe(self, probe: ProbeCommand) -> Iterator[Event]: ...

    def replay(self, replay: ReplayCommand) -> ReplayResult: ...


AnswerWriter = Callable[[InspectableEngine], Iterator[Event]]
"""Generates one answer: yields its events on a background thread."""


class PairLoader(Protocol):
    """Blocks until the pair is loaded and measured."""

    def __call__(
        self,
        request: SettingsRequest,
        *,
        probe: bool,
        notify: Callable[[Event], None],
        on_worker: Callable[[ClosableEngine], None],
    ) -> InspectableEngine: ...


class EngineRunner:
    """One engine at a time, for one screen at a time.

    The threads are daemons, not Textual workers: quitting must not wait for a load.
    """

    def __init__(self, loader: PairLoader = launch.start_engine) -> None:
        self._loader = loader
        self._generation = 0
        """Number of loads and closes; events of an older load are dropped."""
        self.engine: InspectableEngine | None = None
        self._loaded_request: SettingsRequest | None = None
        self._loading: ClosableEngine | None = None
        self._closing: threading.Thread | None = None
        self._inbox: list[Event | AnswerEnded] = []
        self._lock = threading.Lock()

    @property
    def has_engine(self) -> bool:
        """Whether an engine is loaded or loading."""
        return self.engine is not None or self._loading is not None

    def load(self, request: SettingsRequest, post: PostMessage) -> None:
        """Posts `EngineLoaded` or `EngineLoadFailed`, and `EngineLoadEvent`s before that.

        If the same request is loaded already, posts `EngineLoaded` at once.
        """
        if self.engine is not None and self._loaded_request == request:
            post(EngineLoaded(self.engine))
            return
        self.close()
        generation = self._generation

        def notify(event: Event) -> None:
            post(EngineLoadEvent(event))

        def on_worker(process: ClosableEngine) -> None:
            self._loading = process
            if generation != self._generation:  # `close` was called before the process existed
                process.close()

        closing = self._closing

        def run_load() -> None:
            if closing is not None:
                closing.join()  # two pairs at once may not fit
            try:
                engine = self._loader(request, probe=True, notify=notify, on_worker=on_worker)
            except (errors.LocalspecError, OSError) as error:
                if generation == self._generation:
                    post(EngineLoadFailed(_as_localspec_error(error)))
                return
            if generation != self._generation:
                engine.close()
                return
            self.engine, self._loading, self._loaded_request = engine, None, request
            post(EngineLoaded(engine))

        threading.Thread(target=run_load, daemon=True, name="open").start()

    def start_answer(
        self,
        write_answer: AnswerWriter,
        post: PostMessage,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """Posts `AnswerEventsReady` when `take_events` has new events.

        `on_event` is called with every event on the background thread.
        """
        engine, generation = self.engine, self._generation
        assert engine is not None, "no pair is loaded"

        def add(item: Event | AnswerEnded) -> None:
            if generation == self._generation:  # else it belongs to a closed engine
                self._enqueue(item, post)

        def work() -> None:
            error: errors.LocalspecError | None = None
            engine_died = False
            try:
                for event in write_answer(engine):
                    if isinstance(event, EngineExit):
                        error, engine_died = crashes.exit_error(event), True
                    on_event(event)
                    add(event)
            except errors.LocalspecError as failure:
                error = failure
            if engine_died:
                if self.engine is engine:
                    self.engine = None
                _close_quietly(engine)  # closes its pipes
            add(AnswerEnded(error, engine_died=engine_died))

        threading.Thread(target=work, daemon=True, name="answer").start()

    def inspect(self, inspect: InspectCommand, post: PostMessage) -> None:
        """Computes the probabilities of an answer afterwards; posts `AnswerInspected`."""
        engine = self.engine
        assert engine is not None, "no pair is loaded"

        def work() -> None:
            try:
                scores = engine.inspect(inspect)
            except errors.LocalspecError as error:
                post(AnswerInspected((), error))
            else:
                post(AnswerInspected(scores))

        threading.Thread(target=work, daemon=True, name="inspect").start()

    def _enqueue(self, item: Event | AnswerEnded, post: PostMessage) -> None:
        with self._lock:
            self._inbox.append(item)
            was_empty = len(self._inbox) == 1
        if was_empty:
            post(AnswerEventsReady())

    def take_events(self) -> list[Event | AnswerEnded]:
        """The events since the last call."""
        with self._lock:
            items, self._inbox = self._inbox, []
        return items

    def stop_answer(self) -> None:
        if self.engine is not None:
            self.engine.stop()

    def close(self, wait: float = 0.0) -> None:
        """Closes the engine, also while it loads, on a thread; it may take a second.

        `wait`: how long to block until it has closed, in seconds.
        """
        self._generation += 1
        engine, self.engine, self._loading = self.engine or self._loading, None, None
        self.take_events()
        if engine is not None:
            self._closing = threading.Thread(
                target=_close_quietly, args=(engine,), daemon=True, name="close"
            )
            self._closing.start()
        if wait and self._closing is not None:
            self._closing.join(wait)


def _close_quietly(engine: ClosableEngine) -> None:
    with suppress(errors.LocalspecError):
        engine.close()


def _as_localspec_error(error: errors.LocalspecError | OSError) -> errors.LocalspecError:
    """An OSError means that a file was removed between the check and the load."""
    if isinstance(error, errors.LocalspecError):
        return error
    return errors.StorageError(f"A file cannot be read: {error.strerror}.", "Check that it exists.")


class EngineLoaded(Message):
    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine


class EngineLoadFailed(Message):
    """A pair could not be loaded, or its engine exited while loading."""

    def __init__(self, error: LocalspecError) -> None:
        super().__init__()
        self.error = error


class EngineLoadEvent(Message):
    """An event while a pair is loaded or measured."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class AnswerEventsReady(Message, bubble=False):
    """`take_events` has events.  Posted once until it is called."""


class OverflowRequest(Message):
    """The context is full; the answer's thread waits until `answer` is called."""

    def __init__(self, full: ContextOverflow) -> None:
        super().__init__()
        self.full = full
        self._answered = threading.Event()
        self._decision: OverflowPolicy = "stop"

    def answer(self, decision: OverflowPolicy) -> None:
        self._decision = decision
        self._answered.set()

    def wait(self) -> OverflowPolicy:
        """Called on the answer's thread."""
        self._answered.wait()
        return self._decision


class AnswerEnded(Message):
    """The last item of an answer.

    `error`: why the answer failed; `engine_died`: the engine process has exited.
    """

    def __init__(self, error: LocalspecError | None, *, engine_died: bool = False) -> None:
        super().__init__()
        self.error, self.engine_died = error, engine_died


class AnswerInspected(Message):
    """Probabilities of the last answer's tokens; only of the first ones, if it was stopped."""

    def __init__(
        self, token_logprobs: tuple[TokenScore, ...], error: LocalspecError | None = None
    ) -> None:
        super().__init__()
        self.token_logprobs, self.error = token_logprobs, error

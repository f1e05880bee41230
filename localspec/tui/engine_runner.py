"""The engine's side of the app: threads that load a pair and listen to its answers."""

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
    """What can be ended while it loads."""

    def close(self) -> None: ...


class InspectableEngine(Engine, Protocol):
    """An engine that can also count, look at an answer afterwards, and be measured."""

    def count(self, count: CountCommand) -> int: ...

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]: ...

    def probe(self, probe: ProbeCommand) -> Iterator[Event]: ...

    def replay(self, replay: ReplayCommand) -> ReplayResult: ...


AnswerWriter = Callable[[InspectableEngine], Iterator[Event]]
"""One answer by an engine."""


class PairLoader(Protocol):
    """Loads a pair; blocks until it is loaded and measured."""

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

    Threads are daemons, not Textual's workers: to quit must not wait for a load.
    """

    def __init__(self, loader: PairLoader = launch.start_engine) -> None:
        self._loader = loader
        self._generation = 0
        """Counts openings: what an older one still brings is closed, unheard."""
        self.engine: InspectableEngine | None = None
        self._loaded_request: SettingsRequest | None = None
        self._loading: ClosableEngine | None = None
        self._closing: threading.Thread | None = None
        self._inbox: list[Event | AnswerEnded] = []
        self._lock = threading.Lock()

    @property
    def has_engine(self) -> bool:
        """Whether an engine is there, or on its way."""
        return self.engine is not None or self._loading is not None

    def load(self, request: SettingsRequest, post: PostMessage) -> None:
        """Load a pair; posts `EngineOpened` or `EngineRefused`, and `EngineTold` on the way.

        A pair that is loaded and well is kept as it is.
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
            if generation != self._generation:  # closed before there was anything to close
                process.close()

        before = self._closing

        def run_load() -> None:
            if before is not None:
                before.join()  # two pairs at once may not fit
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
        """Answer; posts `EngineSpoke` whenever `fetch` has something new.

        `heard` is given every event on the thread that listens.
        """
        engine, generation = self.engine, self._generation
        assert engine is not None, "asked before a pair was opened"

        def add(item: Event | AnswerEnded) -> None:
            if generation == self._generation:  # else nobody waits for it any more
                self._enqueue(item, post)

        def work() -> None:
            error: errors.LocalspecError | None = None
            dead = False
            try:
                for event in write_answer(engine):
                    if isinstance(event, EngineExit):
                        error, dead = crashes.exit_error(event), True
                    on_event(event)
                    add(event)
            except errors.LocalspecError as failure:
                error = failure
            if dead:
                if self.engine is engine:
                    self.engine = None
                _close_quietly(engine)  # its pipes
            add(AnswerEnded(error, engine_died=dead))

        threading.Thread(target=work, daemon=True, name="answer").start()

    def inspect(self, inspect: InspectCommand, post: PostMessage) -> None:
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

    def _enqueue(self, item: Event | AnswerEnded, post: PostMessage) -> None:
        with self._lock:
            self._inbox.append(item)
            first = len(self._inbox) == 1
        if first:
            post(AnswerEventsReady())

    def take_events(self) -> list[Event | AnswerEnded]:
        """Everything since the last call."""
        with self._lock:
            items, self._inbox = self._inbox, []
        return items

    def stop_answer(self) -> None:
        """End the answer in progress."""
        if self.engine is not None:
            self.engine.stop()

    def close(self, wait: float = 0.0) -> None:
        """End the engine, and whatever is being loaded; that may take a second.

        `wait`: seconds to stay until it is gone.
        """
        self._generation += 1
        held, self.engine, self._loading = self.engine or self._loading, None, None
        self.take_events()
        if held is not None:
            self._closing = threading.Thread(
                target=_close_quietly, args=(held,), daemon=True, name="close"
            )
            self._closing.start()
        if wait and self._closing is not None:
            self._closing.join(wait)


def _close_quietly(engine: ClosableEngine) -> None:
    with suppress(errors.LocalspecError):
        engine.close()


def _as_localspec_error(error: errors.LocalspecError | OSError) -> errors.LocalspecError:
    """A file may go between the look at it and its loading."""
    if isinstance(error, errors.LocalspecError):
        return error
    return errors.StorageError(
        f"A file cannot be read: {error.strerror}.", "Check that it is there."
    )


# --- What the engine's threads tell the screens.


class EngineLoaded(Message):
    """A pair is loaded."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine


class EngineLoadFailed(Message):
    """A pair could not be loaded, or died while it was."""

    def __init__(self, error: LocalspecError) -> None:
        super().__init__()
        self.error = error


class EngineLoadEvent(Message):
    """Something happened while a pair was being loaded or measured."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class AnswerEventsReady(Message, bubble=False):
    """There are events of the answer to fetch.  Sent once until they are fetched."""


class OverflowRequest(Message):
    """The context is full; a thread waits until `answer` is called."""

    def __init__(self, full: ContextOverflow) -> None:
        super().__init__()
        self.full = full
        self._answered = threading.Event()
        self._decision: OverflowPolicy = "stop"

    def answer(self, decision: OverflowPolicy) -> None:
        self._decision = decision
        self._answered.set()

    def wait(self) -> OverflowPolicy:
        """On the thread that writes the answer."""
        self._answered.wait()
        return self._decision


class AnswerEnded(Message):
    """No more events will come; `error` is why there was no proper answer.

    `dead`: the engine is gone.
    """

    def __init__(self, error: LocalspecError | None, *, engine_died: bool = False) -> None:
        super().__init__()
        self.error, self.engine_died = error, engine_died


class AnswerInspected(Message):
    """What the model gives to the tokens of the last answer; the first of them, if stopped."""

    def __init__(
        self, token_logprobs: tuple[TokenScore, ...], error: LocalspecError | None = None
    ) -> None:
        super().__init__()
        self.token_logprobs, self.error = token_logprobs, error

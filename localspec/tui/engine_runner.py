"""Threads that load a pair and run its requests, and the messages they post to the screens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from localspec import errors, launch
from localspec.chat.answer import AnswerDelta
from localspec.chat.context_window import ContextOverflow, OverflowChooser
from localspec.chat.settings import OverflowPolicy
from localspec.errors import LocalspecError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import EngineExit, Event, Notice, TokenScore
from localspec.protocol.wire import (
    CountCommand,
    InspectCommand,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
)

if TYPE_CHECKING:
    from localspec.api.engine_thread import EngineTurns

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


AnswerWriter = Callable[[InspectableEngine, OverflowChooser], Iterator[AnswerDelta]]
"""Generates one answer on a background thread."""


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


class EngineSharer(Protocol):
    """A server that uses the engine too."""

    turns: EngineTurns

    @property
    def port(self) -> int: ...

    def can_serve(self, request: SettingsRequest) -> bool: ...

    def share(self, engine: InspectableEngine) -> InspectableEngine: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    error: LocalspecError | None
    """Why the answer failed."""
    engine_died: bool
    """Whether the engine process has exited."""


class EngineRunner:
    """One engine at a time, for one screen at a time.

    The threads are daemons, not Textual workers: quitting must not wait for a load.
    """

    def __init__(self, loader: PairLoader = launch.start_engine) -> None:
        self._loader = loader
        self._generation = 0
        """Number of loads and closes; events of an older load are dropped."""
        self.engine: InspectableEngine | None = None
        self.server: EngineSharer | None = None
        self._loaded_request: SettingsRequest | None = None
        self._loading: ClosableEngine | None = None
        self._closing: threading.Thread | None = None
        self._inbox: list[AnswerDelta] = []
        self._ended: AnswerEnded | None = None
        self._overflow_request: OverflowRequest | None = None
        """The last one posted by the answer's thread."""
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
        self._close_for(request)
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
            self.engine, self._loading = self._in_turns(engine), None
            self._loaded_request = request
            post(EngineLoaded(self.engine))

        threading.Thread(target=run_load, daemon=True, name="open").start()

    def start_answer(self, write_answer: AnswerWriter, post: PostMessage) -> None:
        """Posts `DeltasReady` when `take_deltas` has something new."""
        engine, generation = self.engine, self._generation
        assert engine is not None, "no pair is loaded"
        if self.server is not None and not self.server.turns.is_free:
            text = "The server is answering a request; your answer is next."
            post(EngineLoadEvent(Notice("info", "turn", text)))

        def put(delta: AnswerDelta | None, ended: AnswerEnded | None) -> None:
            if generation == self._generation:  # else it belongs to a closed engine
                self._put(delta, ended, post)

        def choose_policy(full: ContextOverflow) -> OverflowPolicy:
            self._overflow_request = request = OverflowRequest(full)
            return request.wait() if post(request) else "stop"

        def work() -> None:
            error: errors.LocalspecError | None = None
            engine_died = False
            try:
                for delta in write_answer(engine, choose_policy):
                    engine_died = isinstance(delta.event, EngineExit)
                    put(delta, None)
            except errors.LocalspecError as failure:
                error = failure
            if engine_died:
                if self.engine is engine:
                    self.engine = None
                _close_quietly(engine)  # closes its pipes
            put(None, AnswerEnded(error, engine_died))

        threading.Thread(target=work, daemon=True, name="answer").start()

    def _put(self, delta: AnswerDelta | None, ended: AnswerEnded | None, post: PostMessage) -> None:
        with self._lock:
            was_empty = not self._inbox and self._ended is None
            if delta is not None:
                self._inbox.append(delta)
            self._ended = ended
        if was_empty:
            post(DeltasReady())

    def take_deltas(self) -> tuple[list[AnswerDelta], AnswerEnded | None]:
        """The deltas since the last call, and the end of the answer if it came after them."""
        with self._lock:
            deltas, self._inbox = self._inbox, []
            ended, self._ended = self._ended, None
        return deltas, ended

    def cancel_overflow_request(self) -> None:
        """Lets the answer's thread end although nobody answers its question."""
        if self._overflow_request is not None:
            self._overflow_request.answer("stop")

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

    def stop_answer(self) -> None:
        if self.engine is not None:
            self.engine.stop()

    # --- a server that shares the engine --------------------------------------------------

    @property
    def server_note(self) -> str:
        """For the title of a chat; empty without a server."""
        return f"serving :{self.server.port}" if self.server is not None else ""

    def share(self, server: EngineSharer) -> None:
        """From now on the engine is used in turns. Called while it is idle."""
        assert self.engine is not None, "no pair is loaded"
        self.server = server
        self.engine = self._in_turns(self.engine)

    def _in_turns(self, engine: InspectableEngine) -> InspectableEngine:
        return self.server.share(engine) if self.server is not None else engine

    def stop_server(self) -> None:
        """Does not wait."""
        server, self.server = self.server, None
        if server is not None:
            server.stop()

    def close(self, wait: float = 0.0) -> None:
        """Closes the engine, also while it loads, on a thread; it may take a second.

        Ends a server that shares it. `wait`: how long to block until the engine has closed, in
        seconds.
        """
        self.stop_server()
        self._close_engine(wait)

    def _close_for(self, request: SettingsRequest) -> None:
        """Close the engine; a server goes on with the same pair only."""
        if self.server is not None and not self.server.can_serve(request):
            self.stop_server()
        self._close_engine()

    def _close_engine(self, wait: float = 0.0) -> None:
        self._generation += 1
        engine, self.engine, self._loading = self.engine or self._loading, None, None
        self.take_deltas()
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


class DeltasReady(Message, bubble=False):
    """`take_deltas` has something new.  Posted once until it is called."""


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


class AnswerInspected(Message):
    """Probabilities of the last answer's tokens; only of the first ones, if it was stopped."""

    def __init__(
        self, token_logprobs: tuple[TokenScore, ...], error: LocalspecError | None = None
    ) -> None:
        super().__init__()
        self.token_logprobs, self.error = token_logprobs, error

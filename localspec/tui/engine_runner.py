"""The engine of the app: its jobs, the messages they post, and a server that shares it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct
from textual.message import Message

from localspec import launch, serve
from localspec.chat.answer import AnswerDelta
from localspec.chat.context_window import ContextOverflow
from localspec.chat.conversation import Turn
from localspec.chat.session import ChatSession
from localspec.chat.settings import OverflowPolicy
from localspec.chat.tool_loop import CallState
from localspec.errors import LocalspecError, StorageError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine, StartEngine
from localspec.launch.engine_host import EngineHost, EngineJob
from localspec.protocol.events import EngineExit, Notice, TokenScore
from localspec.protocol.wire import InspectCommand, LoadEvent
from localspec.sanitize import sanitize
from localspec.tools.approval import CallDecision, CallRequest
from localspec.tools.tool_types import StopSignal
from localspec.tui.scheduling import explain_failure

if TYPE_CHECKING:
    from localspec.serve.http_server import HttpServer

PostMessage = Callable[[Message], object]  # Thread-safe: a widget's `post_message`.


class StepStart(Struct, frozen=True):
    """The results of an answer's calls are saved in a turn, whose answer begins."""

    turn: Turn


AnswerUpdate = AnswerDelta | CallState | StepStart
"""What an answer's thread reports to the screen, in order."""


class AnswerEnded(Struct, frozen=True):
    error: LocalspecError | None  # Why the answer failed.
    engine_died: bool  # Whether the engine process has exited.


class LoadJob(EngineJob[Engine]):
    """Posts `EngineLoadEvent`s, then `EngineLoaded` or `EngineLoadFailed`."""

    def __init__(self, runner: EngineRunner, post: PostMessage) -> None:
        super().__init__(lambda engine: engine)
        self._runner = runner
        self._post = post
        self._host = runner.host

    def notify(self, event: LoadEvent) -> None:
        self._post(EngineLoadEvent(event))

    def finish(self, error: BaseException | None = None) -> None:
        super().finish(error)
        if self._runner.host is not self._host:  # closed meanwhile
            return
        if error is None:
            if self._runner.server is not None:
                self._runner.server.set_ready(self.result().ready)
            self._post(EngineLoaded(self.result()))
            return
        self._runner.close_host()
        if isinstance(error, OSError):
            # A file was removed between the check and the load.
            what = f"A file cannot be read: {error.strerror}."
            error = StorageError(what, "Check that it exists.")
        if not isinstance(error, Exception):
            raise error
        self._post(EngineLoadFailed(explain_failure(error)))


class ScreenToolFrontEnd:
    """A `ToolFrontEnd` on the answer's thread: the screen asks and shows."""

    def __init__(
        self, host: EngineHost, put: Callable[[AnswerUpdate], None], post: PostMessage
    ) -> None:
        self._host = host
        self._put = put
        self._post = post
        self._question: CallQuestioned | None = None

    def ask_call(self, request: CallRequest, stop: StopSignal) -> CallDecision:
        """While it waits for the person, the server's requests use the engine."""
        question = CallQuestioned(request)
        self._question = question
        if not self._post(question):
            return CallDecision("stopped")
        self._host.run_others(lambda: question.is_answered() or stop.is_set())
        question.answer(CallDecision("stopped"))  # unless it has been answered
        return question.decision

    def show_call(self, state: CallState) -> None:
        self._put(state)

    def begin_turn(self, turn: Turn) -> None:
        self._put(StepStart(turn))

    def cancel(self) -> None:
        """Lets the answer's thread end although nobody answers its question."""
        if self._question is not None:
            self._question.answer(CallDecision("stopped"))


class EngineRunner:
    """One engine at a time, for one screen at a time.

    Its thread is a daemon, not a Textual worker: quitting must not wait for a load.
    """

    def __init__(self, start: StartEngine = launch.start_engine) -> None:
        self._start = start
        self.host: EngineHost | None = None  # Of the engine that is loaded or loading.
        self.server: SharedServer | None = None  # Uses the engine too.
        self._request: SettingsRequest | None = None
        self._closing_host: EngineHost | None = None
        self._closing: threading.Thread | None = None
        # The answer or inspection in progress; an answer has a session.
        self._job: EngineJob[AnswerEnded] | EngineJob[None] | None = None
        self._session: ChatSession | None = None
        self._overflow_request: OverflowRequest | None = None
        """The last one posted by the answer's thread."""
        self._tool_front_end: ScreenToolFrontEnd | None = None

    @property
    def engine(self) -> Engine | None:
        if self.host is None:
            return None
        return self.host.engine

    def load(self, request: SettingsRequest, post: PostMessage) -> None:
        """Posts `EngineLoadEvent`s, then `EngineLoaded` or `EngineLoadFailed`.

        If the same request is loaded already, posts `EngineLoaded` at once.
        """
        if self.engine is not None and self._request == request:
            post(EngineLoaded(self.engine))
            return
        if self.server is not None and not self.server.can_serve(request):
            self.stop_server()
        self.close_host()
        self._request = request
        self._job = None
        self.host = EngineHost(
            request,
            probe=True,
            start=self._start,
            after=self._closing_host,
            reloads=False,
        )
        if self.server is not None:
            self.server.set_host(self.host)
        self.host.submit(LoadJob(self, post))

    def start_answer(
        self, session: ChatSession, post: PostMessage, *, probabilities: bool = False
    ) -> None:
        """Answers the turn that was started.

        Posts `UpdatesReady` when `take_updates` has something, and `CallQuestioned` when
        a person is asked about a call.
        """
        host = self.host
        assert host is not None, "no pair is loaded"
        if self.server is not None and host.is_busy:
            text = "The server is answering a request; your answer is next."
            post(EngineLoadEvent(Notice("info", "turn", text)))

        def choose_policy(full: ContextOverflow) -> OverflowPolicy:
            request = OverflowRequest(full)
            self._overflow_request = request
            if not post(request):
                return "stop"
            host.run_others(request.is_answered)
            return request.decision

        def write(engine: Engine) -> AnswerEnded:
            error: LocalspecError | None = None
            engine_died = False
            front_end = ScreenToolFrontEnd(host, job.put, post)
            self._tool_front_end = front_end
            deltas = session.stream_answer(
                engine, choose_policy, probabilities=probabilities, tools=front_end
            )
            try:
                for delta in deltas:
                    engine_died = isinstance(delta.event, EngineExit)
                    job.put(delta)
            except LocalspecError as failure:
                error = failure
            if engine_died and self.host is host:
                self.close_host()
            return AnswerEnded(error, engine_died)

        job = EngineJob(write)
        job.on_update = lambda: post(UpdatesReady())
        self._job = job
        self._session = session
        host.submit(job)

    def take_updates(self) -> tuple[list[AnswerUpdate], AnswerEnded | None]:
        """The updates since the last call, and the end of the answer if it has ended."""
        job = self._job
        if job is None:
            return [], None
        is_done = job.is_done  # Before the updates are taken: none may follow them.
        updates = job.take()
        if not is_done:
            return updates, None
        self._job = None
        return updates, job.result()

    def cancel_questions(self) -> None:
        """Lets the answer's thread end although nobody answers its question."""
        if self._overflow_request is not None:
            self._overflow_request.answer("stop")
        if self._tool_front_end is not None:
            self._tool_front_end.cancel()

    def inspect(self, inspect: InspectCommand, post: PostMessage) -> None:
        """Computes the probabilities of an answer afterwards; posts `AnswerInspected`."""
        assert self.host is not None, "no pair is loaded"

        def work(engine: Engine) -> None:
            try:
                scores = () if job.stop_requested else engine.inspect(inspect)
            except Exception as error:  # The screen waits for an end.
                post(AnswerInspected((), explain_failure(error)))
            else:
                post(AnswerInspected(scores))

        job = EngineJob(work)
        self._job = job
        self._session = None
        self.host.submit(job)

    def run(self, work: Callable[[], None]) -> None:
        """Runs work with the engine on its thread; the server's requests wait."""
        assert self.host is not None, "no pair is loaded"
        self.host.submit(EngineJob(lambda _: work()))

    def stop_answer(self) -> None:
        """Stops the answer or the inspection."""
        job = self._job
        host = self.host
        if job is None or host is None:
            return
        if self._session is not None:
            self._session.stop()
        if host.engine is not None and host.withdraw(job):
            # It waits for its turn. Stopped, it does not use the engine, so it may run
            # here, and end at once.
            job.stop_requested = True
            job.run(host.engine)
            job.finish()
        else:
            host.stop(job)

    @property
    def server_note(self) -> str:
        """For a title; empty without a server."""
        if self.server is None:
            return ""
        note = f"serving :{self.server.port}"
        n_waiting = self.server.thread.activity.n_waiting
        return f"{note}, {n_waiting} waiting" if n_waiting else note

    @property
    def n_waiting_for_chat(self) -> int:
        """Requests of clients that wait while the engine writes the chat's answer."""
        if self.server is None:
            return 0
        activity = self.server.thread.activity
        return 0 if activity.n_processing else activity.n_waiting

    def stop_server(self) -> None:
        """Does not wait."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    def close(self, wait: float = 0.0) -> None:
        """Closes the engine, also while it loads, on a thread; it may take a second.

        Ends a server that shares it. `wait`: how long to block until the engine has
        closed, in seconds.
        """
        self.stop_server()
        self.close_host()
        self._job = None
        if wait and self._closing is not None:
            self._closing.join(wait)

    def close_host(self) -> None:
        """Does not wait."""
        host = self.host
        if host is None:
            return
        self.host = None
        host.end()  # so that a load that has no engine process yet creates none
        self._closing_host = host
        self._closing = threading.Thread(target=host.close, daemon=True, name="close")
        self._closing.start()


class SharedServer:
    """Shares the engine of a chat, with the settings that the chat has at the start."""

    def __init__(self, host: EngineHost, session: ChatSession) -> None:
        """Raises UsageError without the packages of the server."""
        assert session.loaded is not None
        self._pair = session.pair
        http_server = serve.import_http_server()

        name = sanitize(session.pair.target.stem, multiline=False)
        model = http_server.ServedModel(
            name,
            session.pair,
            session.settings,
            template=session.loaded.template_override,
        )

        def listen(port: int) -> HttpServer:
            options = http_server.ServerOptions((model,), port=port)
            server: HttpServer = http_server.HttpServer(options, host, owns_host=False)
            return server

        try:
            self._server = listen(http_server.DEFAULT_PORT)
        except UsageError:  # the port is in use
            self._server = listen(0)
        self.set_host = self._server.set_host
        self.set_ready = self._server.api.set_ready
        self.thread = http_server.ServerThread(self._server)

    @property
    def port(self) -> int:
        return self._server.port

    def can_serve(self, request: SettingsRequest) -> bool:
        """Whether the request loads the pair that is served."""
        draft = str(self._pair.draft) if self._pair.draft is not None else None
        load = request.load
        return load.target == str(self._pair.target) and load.draft == draft

    def stop(self) -> None:
        """Does not wait."""

        def close() -> None:
            with suppress(LocalspecError):
                self.thread.close()

        self._server.stop()
        threading.Thread(target=close, daemon=True, name="close server").start()


@dataclass(eq=False)
class EngineLoaded(Message):
    engine: Engine


@dataclass(eq=False)
class EngineLoadFailed(Message):
    """A pair could not be loaded, or its engine exited while loading."""

    error: LocalspecError


@dataclass(eq=False)
class EngineLoadEvent(Message):
    event: LoadEvent


class UpdatesReady(Message, bubble=False):
    """`take_updates` has something new."""


class CallQuestioned(Message, bubble=False):
    """A person is asked whether a call may run; the answer waits for `answer`."""

    def __init__(self, request: CallRequest) -> None:
        super().__init__()
        self.request = request
        self._lock = threading.Lock()
        self._decision: CallDecision | None = None

    def is_answered(self) -> bool:
        return self._decision is not None

    @property
    def decision(self) -> CallDecision:
        assert self._decision is not None, "nobody has answered"
        return self._decision

    def answer(self, decision: CallDecision) -> None:
        """The first answer holds."""
        with self._lock:
            if self._decision is None:
                self._decision = decision


class OverflowRequest(Message):
    """The context is full; the answer waits until `answer` is called."""

    def __init__(self, full: ContextOverflow) -> None:
        super().__init__()
        self.full = full
        self.decision: OverflowPolicy = "stop"
        self._answered = threading.Event()
        self.is_answered = self._answered.is_set

    def answer(self, decision: OverflowPolicy) -> None:
        self.decision = decision
        self._answered.set()


@dataclass(eq=False)
class AnswerInspected(Message):
    """Probabilities of the last answer's tokens; if stopped, of the first ones."""

    token_logprobs: tuple[TokenScore, ...]
    error: LocalspecError | None = None

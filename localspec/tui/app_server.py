"""A server in the app that shares the engine of a chat: each command waits for its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from localspec import serve
from localspec.api.engine_thread import EngineTurns
from localspec.chat.session import ChatSession
from localspec.errors import LocalspecError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import MeasuredEngine
from localspec.protocol.events import Event, GenerationFinished, Notice, TokenScore
from localspec.protocol.wire import (
    CountCommand,
    GenerateCommand,
    InspectCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
)
from localspec.sanitize import sanitize
from localspec.serve import api_error
from localspec.serve.api_error import ApiError
from localspec.tui.engine_runner import EngineRunner, InspectableEngine
from localspec.tui.screens.serve import SharedServeScreen
from localspec.worker.engine_process import EngineProcess

if TYPE_CHECKING:
    from localspec.serve.http_server import HttpServer
    from localspec.tui.screens.chat import ChatScreen

T = TypeVar("T")


def show(screen: ChatScreen) -> None:
    """Serves the model of a chat, unless it is served, and shows the server's board."""
    runner = screen.runner
    if runner.server is None:
        if screen.phase != "ready":
            screen.notify("Wait until the model is ready.", markup=False)
            return
        try:
            server = AppServer(runner, screen.session)
        except LocalspecError as error:
            screen.show_warning(error)
            return
        runner.share(server)
        server.start()
    thread = cast(AppServer, runner.server).thread
    board = SharedServeScreen(thread, screen.options, runner.stop_server)
    screen.app.push_screen(board, lambda _: screen.draw())


class SharedEngine:
    """The chat's view of the engine. `stop` ends no answer of the server."""

    def __init__(self, engine: InspectableEngine, turns: EngineTurns) -> None:
        self.engine, self._turns = engine, turns
        self.ready = engine.ready
        self._stop_requested = self._has_turn = False
        self._is_answer_cancelled = False
        """Stopped while the count before the answer waited."""

    @property
    def measured(self) -> MeasuredCosts | None:
        return self.engine.measured

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        if not self._is_answer_cancelled:
            has_turn = yield from self._stream(lambda: self.engine.generate(request))
            if has_turn:
                return
        self._is_answer_cancelled = False
        yield GenerationFinished("cancelled")

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield from self._stream(lambda: self.engine.probe(probe))

    def _stream(self, run: Callable[[], Iterator[Event]]) -> Generator[Event, None, bool]:
        """Returns False if it was stopped before its turn."""
        self._stop_requested = False
        with self._turns.take(lambda: self._stop_requested) as has_turn:
            self._has_turn = has_turn
            try:
                if has_turn:
                    yield from run()
            finally:
                self._has_turn = False
            return has_turn

    def count(self, count: CountCommand) -> int:
        self._stop_requested = False
        with self._turns.take(lambda: self._stop_requested) as has_turn:
            if has_turn:
                return self.engine.count(count)
        self._is_answer_cancelled = True
        return 0

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]:
        return self._wait(lambda: self.engine.inspect(inspect))

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        return self._wait(lambda: self.engine.replay(replay))

    def _wait(self, work: Callable[[], T]) -> T:
        with self._turns.take():
            self._has_turn = True
            try:
                return work()
            finally:
                self._has_turn = False

    def stop(self) -> None:
        self._stop_requested = True
        if self._has_turn:
            self.engine.stop()

    def close(self) -> None:
        self.engine.close()


class AppServer:
    """Serves until `stop`, with the settings that the chat has at the start."""

    def __init__(self, runner: EngineRunner, session: ChatSession) -> None:
        """Raises UsageError without the packages of the server."""
        assert session.loaded is not None
        self.turns = EngineTurns()
        self._runner, self._choice = runner, session.choice
        http_server = serve.import_http_server()

        def listen(port: int) -> HttpServer:
            options = http_server.ServerOptions(
                session.choice,
                sanitize(session.choice.target.stem, multiline=False),
                session.settings,
                template=session.loaded.template_override if session.loaded else None,
                port=port,
            )
            server: HttpServer = http_server.HttpServer(
                options, self._borrow_engine, turns=self.turns
            )
            return server

        try:
            self._server = listen(http_server.DEFAULT_PORT)
        except UsageError:  # the port is in use
            self._server = listen(0)
        self._start_thread = http_server.ServerThread

    def start(self) -> None:
        """Called when the runner's engine is shared."""
        self.thread = self._start_thread(self._server)

    @property
    def port(self) -> int:
        return self._server.port

    def can_serve(self, request: SettingsRequest) -> bool:
        """Whether the pair of a request is the one that is served."""
        files = self._choice.target, self._choice.draft
        return [request.load.target, request.load.draft] == [
            str(path) if path else None for path in files
        ]

    def share(self, engine: InspectableEngine) -> SharedEngine:
        """The engine for the chat; also after it was loaded again."""
        self._server.set_ready(engine.ready)
        own = engine.engine if isinstance(engine, SharedEngine) else engine
        return SharedEngine(own, self.turns)

    def stop(self) -> None:
        """Does not wait."""

        def close() -> None:
            with suppress(LocalspecError):
                self.thread.close()

        self._server.stop()
        threading.Thread(target=close, daemon=True, name="close server").start()

    def _borrow_engine(
        self, on_worker: Callable[[EngineProcess], None], notify: Callable[[Notice], None]
    ) -> MeasuredEngine:
        shared = self._runner.engine
        if not isinstance(shared, SharedEngine):
            raise api_error.loading()
        engine = cast(MeasuredEngine, shared.engine)
        if not engine.worker.alive:
            raise ApiError(500, "The engine has stopped. Load the model again in the app: f5.")
        return engine

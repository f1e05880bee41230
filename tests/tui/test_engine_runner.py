"""Loading a pair while another is loaded, and cancelling a load."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import psutil
import pytest
from textual.message import Message
from textual.pilot import Pilot

from localspec import launch
from localspec.chat.session import ChatSession
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine
from localspec.launch.engine_host import EngineJob
from localspec.protocol.events import Event
from localspec.protocol.wire import LoadCommand
from localspec.serve import http_server
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import (
    EngineLoaded,
    EngineRunner,
    SharedServer,
)
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.serve import SharedServeScreen
from tests.support.downloads import wait_for
from tests.support.scenes import shown_tokens
from tests.support.scripted_engine import LIMIT, ScriptedEngine, answer, painted, wait_until
from tests.support.zoo import Zoo

ONE, OTHER = (
    SettingsRequest(LoadCommand("one.gguf", None)),
    SettingsRequest(LoadCommand("other.gguf", None)),
)


class Leaving(ScriptedEngine):
    """An engine whose close blocks until the test allows it."""

    def __init__(self, name: str, loader: Loader) -> None:
        super().__init__(lambda: answer(["hello"]))
        self._name, self._loader = name, loader

    def close(self) -> None:
        self._loader.told.append(f"{self._name} leaves")
        self._loader.leaving.set()
        self._loader.let_go.wait(LIMIT)
        self._loader.told.append(f"{self._name} is gone")


@dataclass
class Loader:
    """A loader that records what it does, and blocks until `finish` is set."""

    told: list[str] = field(default_factory=list)
    leaving: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)

    def __call__(
        self,
        request: SettingsRequest,
        *,
        probe: bool,
        notify: Callable[[Event], None],
        on_worker: Callable[[Engine], None] = lambda _: None,
    ) -> Engine:
        name = request.load.target.removesuffix(".gguf")
        engine = Leaving(name, self)
        self.told.append(f"{name} loads")
        on_worker(engine)
        self.begun.set()
        assert self.finish.wait(LIMIT)
        return engine


def test_a_pair_is_gone_before_another_is_measured_and_loaded() -> None:
    """Else the first pair's memory would count as used, and both may not fit."""
    loader = Loader()
    loader.finish.set()
    runner = EngineRunner(loader)
    opened: Queue[Message] = Queue()
    runner.load(ONE, opened.put)
    assert isinstance(opened.get(timeout=LIMIT), EngineLoaded)
    runner.load(OTHER, opened.put)
    assert loader.leaving.wait(LIMIT)
    assert "other loads" not in loader.told
    loader.let_go.set()
    assert isinstance(opened.get(timeout=LIMIT), EngineLoaded)
    assert loader.told == ["one loads", "one leaves", "one is gone", "other loads"]


def test_a_load_is_stopped_while_it_loads() -> None:
    others = set(threading.enumerate())  # hosts of other tests in this process
    loader = Loader()
    loader.let_go.set()
    runner = EngineRunner(loader)
    heard: list[Message] = []
    runner.load(ONE, heard.append)
    assert loader.begun.wait(LIMIT)
    runner.close()
    wait_for(lambda: len(loader.told) >= 3)
    assert loader.told[:3] == ["one loads", "one leaves", "one is gone"]
    loader.finish.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(LIMIT)
    assert heard == [], "a cancelled load posts nothing"
    assert runner.engine is None


# --- a server shares the engine ----------------------------------------------------------------


@asynccontextmanager
async def real_chat(
    session: ChatSession,
) -> AsyncIterator[tuple[Pilot[None], LocalspecApp, EngineRunner]]:
    """The app with a chat whose engine is a process."""
    runner, options = EngineRunner(), AppOptions()
    app = LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options))
    try:
        async with app.run_test(size=(100, 30)) as pilot:
            await wait_until(pilot, lambda: getattr(app.screen, "phase", "") == "ready", 60)
            yield pilot, app, runner
    finally:
        runner.close(wait=5)


posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
HEADERS = {"Content-Type": "application/json"}


def send(port: int, **body: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = json.dumps({"prompt": "a"} | body)
    connection.request("POST", "/v1/completions", data, HEADERS)
    return connection


def server_of(runner: EngineRunner) -> SharedServer:
    assert isinstance(runner.server, SharedServer)
    return runner.server


async def open_board(pilot: Pilot[None], runner: EngineRunner) -> SharedServer:
    await pilot.press("ctrl+r")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, SharedServeScreen))
    await wait_until(pilot, lambda: server_of(runner).thread.ready is not None, 60)
    return server_of(runner)


async def ask(pilot: Pilot[None]) -> ChatScreen:
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ChatScreen))
    chat = pilot.app.screen
    assert isinstance(chat, ChatScreen)
    await pilot.press(*"one")
    pilot.app.simulate_key("enter")  # a press would wait for the end of the answer
    await wait_until(pilot, lambda: chat.phase == "answering")
    return chat


@contextmanager
def busy(runner: EngineRunner) -> Iterator[None]:
    """The engine works at the job of another."""
    assert runner.host is not None
    end = threading.Event()
    runner.host.submit(EngineJob(lambda _: end.wait(60)))
    try:
        yield
    finally:
        end.set()


@posix
@pytest.mark.timeout(200)
async def test_a_chat_and_clients_share_one_engine(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "DEFAULT_PORT", 0)  # other tests may use 8080
    session = ChatSession(launch.ResolvedPair(zoo["chatter"], None))
    async with real_chat(session) as (pilot, app, runner):
        server = await open_board(pilot, runner)
        activity, port = server.thread.activity, server.port
        with closing(send(port, max_tokens=3)) as connection:
            await wait_until(pilot, lambda: activity.finished_by_state["done"] == 1, 60)
            assert connection.getresponse().status == 200
        await wait_until(pilot, lambda: "1 done" in painted(app.screen))
        await pilot.press("escape")
        with busy(runner):  # as a long answer of the server
            chat = await ask(pilot)
            assert f"serving :{port}" in painted(chat)
            with closing(send(port)):
                await wait_until(pilot, lambda: activity.running)
                assert activity.running[0].state == "queued"
            await wait_until(pilot, lambda: activity.finished_by_state["cancelled"] == 1, 60)
            assert not session.answer.rounds, "it waits for its turn"
            app.simulate_key("escape")
            await wait_until(pilot, lambda: chat.phase == "ready")
            await ask(pilot)
        await wait_until(pilot, lambda: session.answer.rounds, 60)
        app.simulate_key("escape")
        await wait_until(pilot, lambda: chat.phase == "ready")
        await open_board(pilot, runner)
        await pilot.press("q")
        await wait_until(pilot, lambda: not server.thread.is_running, 60)
        assert app.screen is chat and runner.server is None
        await ask(pilot)
        await wait_until(pilot, lambda: session.answer.rounds, 60)


# --- the engine dies ---------------------------------------------------------------------------


QUESTION = "def kilo(n):"


@posix
@pytest.mark.timeout(200)
async def test_an_engine_that_is_killed_in_mid_answer(zoo: Zoo) -> None:
    """With a real model whose answer never ends: what came is kept, f5 goes on."""
    session = ChatSession(launch.ResolvedPair(zoo["chatter"], zoo["chatter"]))
    session.change_settings(max_tokens=60_000)
    async with real_chat(session) as (pilot, app, _):
        screen = app.screen
        assert isinstance(screen, ChatScreen)
        await pilot.press(*QUESTION)
        app.simulate_key("enter")
        for tokens in (0, 700):
            await kill(pilot, screen, tokens)
            app.simulate_key("f5")  # a press would wait for the end of the answer
            await wait_until(pilot, lambda: screen.phase == "answering", 60)
            assert not screen.transcript.has_error
        await wait_until(pilot, lambda: shown_tokens(screen) > 10)
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.phase == "ready")


async def kill(pilot: Pilot[Any], screen: ChatScreen, tokens: int) -> None:
    """Kills the engine once the answer has `tokens` tokens."""
    dialogue = screen.session
    await wait_until(pilot, lambda: shown_tokens(screen) >= tokens)
    assert screen.phase == "answering"
    engines = [
        child for child in psutil.Process().children() if "localspec.engine" in child.cmdline()
    ]
    max(engines, key=psutil.Process.create_time).kill()  # others may be of other tests
    await wait_until(pilot, lambda: screen.phase == "failed")
    shown = screen.transcript.plain_text
    assert "the system killed it" in shown
    assert "enter reload" in shown
    said = dialogue.conversation.turns[-1].answer
    assert len(dialogue.conversation.turns) == 1
    assert dialogue.conversation.turns[0].question == QUESTION
    flow = screen.transcript.turns[-1].token_text
    assert "".join(token.text for token in flow.tokens) == said

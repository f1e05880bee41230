"""Loading a pair while another is loaded, and cancelling a load."""

import http.client
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from queue import Queue
from typing import Any

import pytest
from textual.message import Message
from textual.pilot import Pilot

from localspec import launch
from localspec.chat.session import ChatSession
from localspec.fit.advisor import SettingsRequest
from localspec.launch.engine_host import EngineJob
from localspec.protocol.wire import LoadCommand
from localspec.serve import http_server
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineLoaded, EngineRunner, SharedServer
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.serve import SharedServeScreen
from tests.support.downloads import wait_for
from tests.support.scripted_engine import (
    LIMIT,
    Gate,
    Opening,
    ScriptedEngine,
    answer,
    painted,
    wait_until,
)
from tests.support.zoo import Zoo

ONE = SettingsRequest(LoadCommand("one.gguf", None))
OTHER = SettingsRequest(LoadCommand("other.gguf", None))


class SlowToClose(ScriptedEngine):
    """Closes when it is allowed to, and counts the loads until then."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(lambda: answer(["hello"]))
        self.is_closing = threading.Event()
        self.may_close = threading.Event()
        self.n_loads = 0  # When it has closed.
        self._opening = opening

    def close(self) -> None:
        self.is_closing.set()
        self.may_close.wait(LIMIT)
        self.n_loads = len(self._opening.loads)
        super().close()


def test_a_pair_is_closed_before_another_is_measured_and_loaded() -> None:
    """Else the first pair's memory would count as used, and both may not fit."""
    opening = Opening([])
    first = SlowToClose(opening)
    opening.engines = [first, ScriptedEngine()]
    runner = EngineRunner(opening)
    posted = Queue[Message]()
    runner.load(ONE, posted.put)
    assert isinstance(posted.get(timeout=LIMIT), EngineLoaded)
    runner.load(OTHER, posted.put)
    assert first.is_closing.wait(LIMIT)
    assert posted.empty()
    first.may_close.set()
    assert isinstance(posted.get(timeout=LIMIT), EngineLoaded)
    assert first.n_loads == 1
    assert len(opening.loads) == 2


def test_a_load_that_is_cancelled_closes_its_engine_and_posts_nothing() -> None:
    other_threads = set(threading.enumerate())  # Hosts of other tests.
    engine = ScriptedEngine()
    gate = Gate()
    opening = Opening([engine], gate=gate)
    runner = EngineRunner(opening)
    posted: list[Message] = []
    runner.load(ONE, posted.append)
    wait_for(lambda: bool(opening.loads))
    runner.close()
    wait_for(lambda: engine.closed)
    gate.set()
    for thread in set(threading.enumerate()) - other_threads:
        thread.join(LIMIT)
    assert posted == []
    assert runner.engine is None


@asynccontextmanager
async def real_chat(
    session: ChatSession,
) -> AsyncIterator[tuple[Pilot[None], LocalspecApp, EngineRunner]]:
    """A chat with a real engine, which has loaded."""
    runner = EngineRunner()
    options = AppOptions()
    app = LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options))
    try:
        async with app.run_test(size=(100, 30)) as pilot:
            await wait_until(pilot, lambda: getattr(app.screen, "phase", "") == "ready")
            yield pilot, app, runner
    finally:
        runner.close(wait=5)


HEADERS = {"Content-Type": "application/json"}


def send(port: int, **body: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = json.dumps({"prompt": "a", **body})
    connection.request("POST", "/v1/completions", data, HEADERS)
    return connection


async def open_board(pilot: Pilot[None], runner: EngineRunner) -> SharedServer:
    await pilot.press("ctrl+r")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, SharedServeScreen))
    assert runner.server is not None
    server = runner.server
    await wait_until(pilot, lambda: server.thread.ready is not None)
    return server


async def ask(pilot: Pilot[None]) -> ChatScreen:
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ChatScreen))
    chat = pilot.app.screen
    assert isinstance(chat, ChatScreen)
    await pilot.press(*"one")
    pilot.app.simulate_key("enter")  # a press would wait for the end of the answer
    await wait_until(pilot, lambda: chat.phase == "answering")
    return chat


@pytest.fixture
def served(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> ChatSession:
    """A session whose server takes any port: other tests may use 8080."""
    monkeypatch.setattr(http_server, "DEFAULT_PORT", 0)
    return ChatSession(launch.ResolvedPair(zoo["chatter"], None))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.timeout(200)
async def test_a_chat_and_clients_share_one_engine(served: ChatSession) -> None:
    async with real_chat(served) as (pilot, app, runner):
        server = await open_board(pilot, runner)
        port = server.port
        activity = server.thread.activity

        # A client gets its answer.
        with closing(send(port, max_tokens=3)) as connection:
            await wait_until(pilot, lambda: activity.finished_by_state["done"] == 1)
            assert connection.getresponse().status == 200
        await wait_until(pilot, lambda: "1 done" in painted(app.screen))
        await pilot.press("escape")

        # While the engine works for others, the chat and a client wait.
        assert runner.host is not None
        others = threading.Event()
        runner.host.submit(EngineJob(lambda _: others.wait(60)))
        chat = await ask(pilot)
        await wait_until(pilot, lambda: f"serving :{port}" in painted(chat))
        with closing(send(port)):
            await wait_until(pilot, lambda: activity.running)
            assert activity.running[0].state == "queued"
        await wait_until(pilot, lambda: activity.finished_by_state["cancelled"] == 1)
        assert not served.answer.rounds

        # A question that waits can be stopped; the next one is answered in its turn.
        app.simulate_key("escape")
        await wait_until(pilot, lambda: chat.phase == "ready")
        await ask(pilot)
        others.set()
        await wait_until(pilot, lambda: served.answer.rounds)
        app.simulate_key("escape")
        await wait_until(pilot, lambda: chat.phase == "ready")

        # The chat keeps the engine when the server ends.
        await open_board(pilot, runner)
        await pilot.press("q")
        await wait_until(pilot, lambda: not server.thread.is_running)
        await wait_until(pilot, lambda: app.screen is chat and runner.server is None)
        await ask(pilot)
        await wait_until(pilot, lambda: served.answer.rounds)

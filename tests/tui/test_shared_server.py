"""A server in the app: a chat and clients share one engine, in turns."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec import launch
from localspec.chat.session import ChatSession
from localspec.launch.engine_host import EngineJob
from localspec.serve import http_server
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner, SharedServer
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.serve import SharedServeScreen
from tests.support.scripted_engine import painted, wait_until
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
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


@pytest.mark.asyncio
@pytest.mark.timeout(200)
async def test_a_chat_and_clients_share_one_engine(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "DEFAULT_PORT", 0)  # other tests may use 8080
    runner, options = EngineRunner(), AppOptions()
    session = ChatSession(launch.ResolvedPair(zoo["chatter"], None))
    app = LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options))
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: getattr(app.screen, "phase", "") == "ready", 60)
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
    runner.close(wait=5)

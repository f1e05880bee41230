"""A server in the app: a chat and clients share one engine, in turns."""

from __future__ import annotations

import http.client
import json
import sys
from contextlib import closing
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec import launch
from localspec.api.engine_thread import EngineTurns
from localspec.chat.session import ChatSession
from localspec.protocol.events import GenerationFinished
from localspec.protocol.wire import GenerateCommand
from localspec.serve import http_server
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.app_server import AppServer, SharedEngine
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.serve import SharedServeScreen
from tests.tui.scripted import ScriptedEngine, answer, painted, wait_until
from tests.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
HEADERS = {"Content-Type": "application/json"}


def send(port: int, **body: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = json.dumps({"prompt": "a"} | body)
    connection.request("POST", "/v1/completions", data, HEADERS)
    return connection


def server_of(runner: EngineRunner) -> AppServer:
    assert isinstance(runner.server, AppServer)
    return runner.server


async def open_board(pilot: Pilot[None], runner: EngineRunner) -> AppServer:
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
        with server.turns.take():  # as a long answer of the server
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


def test_stopping_a_chat_stops_no_answer_of_the_server() -> None:
    engine, turns = ScriptedEngine(lambda: answer(["one"])), EngineTurns()
    shared = SharedEngine(engine, turns)
    with turns.take():
        shared.stop()
    events = list(shared.generate(GenerateCommand("a")))
    assert isinstance(events[-1], GenerationFinished) and events[-1].reason != "cancelled"


def test_turns_are_taken_in_order_and_left_when_cancelled() -> None:
    turns = EngineTurns()
    with turns.take() as first:
        assert first and not turns.is_free
        with turns.take(lambda: True) as second:
            assert not second
    assert turns.is_free

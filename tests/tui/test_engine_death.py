"""The engine is killed during an answer: the error is shown, the text kept, f5 reloads."""

from __future__ import annotations

import random
import sys
from typing import Any

import psutil
import pytest
from textual.pilot import Pilot

from localspec import launch
from localspec.chat.session import ChatSession
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from tests.support.scenes import shown_tokens
from tests.support.scripted_engine import wait_until
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

MOMENTS = 4
QUESTION = "def kilo(n):"


@pytest.mark.asyncio
@pytest.mark.timeout(200)
async def test_killed_at_some_moments(zoo: Zoo) -> None:
    """With real models whose answer never ends."""
    runner, options = EngineRunner(), AppOptions()
    dialogue = ChatSession(launch.ResolvedPair(zoo["chatter"], zoo["chatter"]))
    dialogue.change_settings(max_tokens=60_000)
    app = LocalspecApp(options, runner, lambda: ChatScreen(dialogue, runner, options))
    moments = random.Random(4)
    try:
        async with app.run_test(size=(100, 30)) as pilot:
            await wait_until(pilot, lambda: chat(app).phase == "ready", 60)
            await pilot.press(*QUESTION)
            app.simulate_key("enter")
            for _ in range(MOMENTS):
                await kill(pilot, chat(app), moments.randrange(1000))
                app.simulate_key("f5")  # a press would wait for the end of the answer
                await wait_until(pilot, lambda: chat(app).phase == "answering", 60)
                assert not chat(app).transcript.has_error
            await still_works(pilot, chat(app))
    finally:
        runner.close()


def chat(app: LocalspecApp) -> ChatScreen:
    assert isinstance(app.screen, ChatScreen)
    return app.screen


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


async def still_works(pilot: Pilot[Any], screen: ChatScreen) -> None:
    await wait_until(pilot, lambda: shown_tokens(screen) > 10)
    await pilot.press("escape")
    await wait_until(pilot, lambda: screen.phase == "ready")
    await pilot.press("ctrl+n", "x")  # the context of the old chat may be full
    pilot.app.simulate_key("enter")
    await wait_until(pilot, lambda: screen.session.conversation.turns[-1:])
    assert screen.session.conversation.turns[0].question == "x"
    await wait_until(pilot, lambda: shown_tokens(screen) > 4)
    await pilot.press("escape")
    await wait_until(pilot, lambda: screen.phase == "ready")

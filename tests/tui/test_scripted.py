"""The scripted engine works with the app like a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.chat.session import ChatSession
from localspec.errors import Hint, UsageError
from localspec.launch import ResolvedPair
from localspec.protocol.events import EngineExit, Event, GenerationFinished, Round
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.widgets.transcript import Transcript
from tests.support.scenes import shown_tokens
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    endless,
    pieces,
    ready,
    wait_until,
)

SMALLER = Hint("Try a smaller {ctx}.")
TEXT = "# Title\n\nSome *words*, 漢字 and 🙂.\n"


def app_of(*scripts: Callable[[], Script], **how: object) -> tuple[LocalspecApp, Opening]:
    opening = Opening([ScriptedEngine(*scripts, **how)])  # type: ignore[arg-type]
    options, runner = AppOptions(), EngineRunner(opening)
    choice = ResolvedPair(Path("target.gguf"), Path("draft.gguf"))
    return LocalspecApp(
        options, runner, lambda: ChatScreen(ChatSession(choice), runner, options)
    ), opening


def chat(app: LocalspecApp) -> ChatScreen:
    assert isinstance(app.screen, ChatScreen)
    return app.screen


@pytest.mark.asyncio
async def test_an_answer_and_its_gate() -> None:
    gate = Gate()

    def script() -> Script:
        said = answer(pieces(TEXT))
        return [*said[:6], gate, *said[6:]]

    app, _ = app_of(script)
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: chat(app).phase == "ready")
        await pilot.press(*"hi", "enter")
        await wait_until(pilot, lambda: shown_tokens(chat(app)) > 2)
        assert chat(app).phase == "answering"
        gate.set()
        await wait_until(pilot, lambda: chat(app).phase == "ready")
        assert chat(app).session.conversation.turns[-1].answer == TEXT
        kinds = {t.kind for r in chat(app).session.conversation.turns[-1].rounds for t in r.tokens}
        assert kinds == {"accepted", "bonus", "correction", "plain"}


@pytest.mark.asyncio
async def test_an_endless_answer_is_stopped() -> None:
    app, _ = app_of(lambda: endless(["one ", "two "]), ready=ready(chats=False), pace=0.002)
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: chat(app).phase == "ready")
        await pilot.press("a", "enter")
        await wait_until(pilot, lambda: shown_tokens(chat(app)) > 40)
        await pilot.press("escape")
        await wait_until(pilot, lambda: chat(app).phase == "ready")
        assert chat(app).session.conversation.turns[-1].finish_reason == "cancelled"


@pytest.mark.asyncio
async def test_errors_and_ends() -> None:
    app, opening = app_of(
        lambda: [UsageError("That cannot be asked.", "Ask otherwise.")],
        lambda: [
            *answer(["a ", "b "])[:-1],
            EngineExit("oom-system", (), Hint("Try a smaller {ctx}.")),
        ],
    )
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: chat(app).phase == "ready")
        await pilot.press("a", "enter")
        await wait_until(pilot, lambda: app.screen.query_one(Transcript).has_error)
        assert chat(app).phase == "ready"
        await pilot.press("b", "enter")
        await wait_until(pilot, lambda: chat(app).phase == "failed")
        assert chat(app).session.conversation.turns[-1].answer == "a b "
    assert len(opening.loads) == 1


def test_every_script_is_made_of_events() -> None:
    said = answer(list("abcdefgh"), tail="z")
    spoken: list[Event] = [event for event in said if isinstance(event, Round)]
    assert [len(e.tokens) for e in spoken if isinstance(e, Round)] == [1, 4, 3]
    assert isinstance(said[-1], GenerationFinished)

"""Chats in both front ends: same actions, same chats."""

import asyncio
import io
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

if sys.platform == "win32":
    pytest.skip("POSIX signals and terminals", allow_module_level=True)

from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.cli.answer_printer import OutputStyle
from localspec.cli.chat_front_end import LinearFrontEnd
from localspec.cli.chat_loop import ChatLaunchOptions, ChatLoop
from localspec.errors import EngineError, PromptTooLongError
from localspec.fit.advisor import SettingsRequest
from localspec.protocol.events import EngineExit
from localspec.protocol.wire import LoadCommand
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from tests.support import tinygguf
from tests.support.scenes import PAIR
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    ready,
    wait_until,
)

MARKERS = ("<think>", "</think>")
MESSAGE_TOKENS = 520
"""Size of each message: with that of the eighth turn the context is full."""


class Reached(Gate):
    """A gate that tells when the engine waits at it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_reached.set()
        return super().wait(timeout)


def says(*words: str) -> Callable[[], Script]:
    return lambda: answer(words)


def begins(*words: str, then: Any) -> Callable[[], Script]:
    """An answer that is cut off after its first words."""
    return lambda: [*answer(words)[:-1], then]


TOO_LONG = PromptTooLongError("The prompt has 9,000 tokens; the context has 8,192.")
KILLED = EngineExit("signal SIGKILL")
FAILED = EngineError("The model computed no numbers.")

STOP = "stop"
DROP = "drop"
LOAD = "load"
"""What happens besides typing.

The answer is stopped while it is written, the oldest turns are left out when asked, or
another engine is loaded for it.
"""
Action = tuple[str, Callable[[], Script] | None, str]


def journey(folder: Path, gate: Reached) -> tuple[list[Action], list[Action]]:
    """What is typed and answered, before and after the chat is opened again."""

    def typed(
        text: str, script: Callable[[], Script] | None = None, event: str = ""
    ) -> Action:
        return text, script, event

    return [
        typed("/system Be brief."),
        typed("/set temperature 0.5"),
        typed("one", says("1")),
        typed("two", says("<think>", "hm", "</think>", "2")),
        typed("three", begins("3 ", "and ", "so ", then=gate), STOP),
        typed("/regen", says("3 again")),
        typed("/edit THREE", says("THREE")),
        typed("/turns 2"),
        typed("TWO", says("TWO")),
        typed("/turns 2 1"),
        typed("/undo"),
        typed(f"/read {folder}/notes.txt"),
        typed("What does it say?", says("Seven.")),
        typed("far too long", lambda: [TOO_LONG]),  # nothing is stored
        typed("/regen", says("Seven", ", ", "it says.")),
        typed("four", begins("4 ", "and ", then=KILLED)),
        typed("/regen", says("4"), LOAD),
        typed("five", lambda: [KILLED]),
        typed("six", says("6"), LOAD),
        typed("seven", begins("7 ", "and ", then=FAILED)),
        typed(f"/regen {folder.parent}/other.gguf", says("7"), LOAD),
        typed("/think on"),
        typed("/spec 3"),
        typed(f"/save {folder}/chat.json"),
        typed("eight", says("8"), DROP),
    ], [
        typed("/turns"),
        typed(f"/model {folder.parent}/none.gguf"),  # refused: nothing changes
        typed("/ctx 4k", None, LOAD),  # until `/new`
        typed("nine", says("9")),
        typed("/clear"),
        typed("ten", says("10")),
        typed("/new", None, LOAD),
        typed("eleven", says("11")),
        typed("/private"),
        typed("twelve", says("12")),
    ]


FIRST_CHAT = [
    (1, None, "one", "1", "eog"),
    (2, 1, "two", "<think>hm</think>2", "eog"),
    (3, 2, "three", "3 and so ", "cancelled"),
    (4, 2, "three", "3 again", "eog"),
    (5, 2, "THREE", "THREE", "eog"),
    (6, 1, "TWO", "TWO", "eog"),
    (7, 2, "What does it say?", "Seven.", "eog"),
    (8, 2, "What does it say?", "Seven, it says.", "eog"),
    (9, 8, "four", "4", "eog"),
    (10, 9, "five", "", None),
    (11, 10, "six", "6", "eog"),
    (12, 11, "seven", "7 and ", "error"),
    (13, 11, "seven", "7", "eog"),
    (14, 13, "eight", "8", "eog"),
    (15, 14, "nine", "9", "eog"),
]
"""Id, parent, question, answer and end of its turns."""


def engines_of(actions: Sequence[Action]) -> list[ScriptedEngine]:
    scripts: list[list[Callable[[], Script]]] = [[]]
    for _, script, event in actions:
        if event == LOAD:
            scripts.append([])
        if script:
            scripts[-1].append(script)
    loaded = ready(thinking=MARKERS)
    return [
        ScriptedEngine(*s, ready=loaded, sizes=lambda n: MESSAGE_TOKENS * n)
        for s in scripts
    ]


def in_the_linear_chat(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[ChatSession]:
    gate = Reached()
    sessions = list[ChatSession]()
    for actions in journey(folder, gate):
        with closing(ChatHistory.open(folder / "chats.sqlite")) as history:
            saved = history.load_chat(1) if sessions else None
            session = ChatSession(PAIR, 1, history, saved)
            front_end = LinearFrontEnd(session, OutputStyle(quiet=True))
            options = ChatLaunchOptions(
                lambda _: SettingsRequest(LoadCommand("target.gguf", None))
            )
            opening = Opening(engines_of(actions))
            waiting = iter(actions)

            def type_line(_: str) -> str:
                text, _script, event = next(waiting, ("", None, "end"))  # noqa: B023
                if event == "end":
                    raise EOFError
                if event == STOP:
                    threading.Thread(target=press_ctrl_c_at, args=(gate,)).start()
                if event == DROP:
                    monkeypatch.setattr(sys, "stdin", io.StringIO("d\n"))
                return text

            assert ChatLoop(options, front_end, opening, type_line).run() == 0
            sessions.append(session)
    return sessions


def press_ctrl_c_at(gate: Reached) -> None:
    assert gate.is_reached.wait(60)
    os.kill(os.getpid(), signal.SIGINT)


async def in_the_app(folder: Path) -> list[ChatSession]:
    gate = Reached()
    sessions = list[ChatSession]()
    for actions in journey(folder, gate):
        with closing(ChatHistory.open(folder / "chats.sqlite")) as history:
            saved = history.load_chat(1) if sessions else None
            session = ChatSession(PAIR, 1, history, saved)
            runner = EngineRunner(Opening(engines_of(actions)))
            await run_app(session, runner, actions, gate)
            session.close()
            sessions.append(session)
    return sessions


async def run_app(
    session: ChatSession, runner: EngineRunner, actions: Sequence[Action], gate: Reached
) -> None:
    options = AppOptions()
    screen = ChatScreen(session, runner, options)
    async with LocalspecApp(options, runner, lambda: screen).run_test(
        size=(100, 30)
    ) as pilot:

        def is_idle() -> bool:
            return screen.phase in ("ready", "failed") and pilot.app.screen is screen

        await wait_until(pilot, is_idle)
        for text, _, event in actions:
            screen.composer.replace_text(text)
            await pilot.press("enter")
            if event == STOP:
                await wait_until(pilot, gate.is_reached.is_set)
                await pilot.press("escape")
            if event == DROP:
                await wait_until(
                    pilot, lambda: isinstance(pilot.app.screen, ContextFullScreen)
                )
                await pilot.pause()
                await pilot.press("enter")
            if text == "/turns":
                await pilot.press("escape")
            await pilot.pause()
            await wait_until(pilot, is_idle)


def stored(folder: Path) -> list[Any]:
    with closing(ChatHistory.open(folder / "chats.sqlite")) as history:
        chats = [history.load_chat(entry.id) for entry in history.list_chats()]
    return [
        (
            replace(chat.list_entry, created=0.0, updated=0.0),
            chat.settings,
            chat.conversation.seed,
            chat.conversation.system,
            chat.conversation.dropped,
            chat.conversation.head,
            chat.conversation.all_turns,
        )
        for chat in chats
    ]


def exported(folder: Path) -> dict[str, Any]:
    chat: dict[str, Any] = json.loads((folder / "chat.json").read_text())["chat"]
    return {
        name: value
        for name, value in chat.items()
        if name not in ("created", "updated")
    }


def test_both_store_the_same_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = tmp_path / "linear"
    app = tmp_path / "app"
    tinygguf.llama(0).write(tmp_path / "other.gguf")
    for folder in (linear, app):
        folder.mkdir()
        (folder / "notes.txt").write_text("seven\n")
    monkeypatch.setattr(random, "getrandbits", lambda _: 100)
    sessions = in_the_linear_chat(linear, monkeypatch)
    others = asyncio.run(in_the_app(app))
    assert stored(linear) == stored(app)
    eleven, ten, first = stored(linear)
    turns = [(t.id, t.parent, t.question, t.answer, t.finish_reason) for t in first[-1]]
    assert turns == FIRST_CHAT
    assert [chat[0].title for chat in (first, ten, eleven)] == ["one", "ten", "eleven"]
    assert [chat[2] for chat in (first, ten, eleven)] == [1, 1, 100]
    assert [chat[3] for chat in (first, ten, eleven)] == ["Be brief.", "Be brief.", ""]
    assert [chat[1].sampling.temperature for chat in (first, ten, eleven)] == [
        0.5,
        0.5,
        0.8,
    ]
    assert [chat[1].ctx for chat in (first, ten, eleven)] == [4096, 4096, None]
    models = {turn.id: turn.model for turn in first[-1]}
    assert [models[id_] for id_ in (12, 13, 14, 15)] == [
        "qwen3-8b",
        "other",
        "other",
        "qwen3-8b",
    ]
    assert exported(linear) == exported(app)
    for one, other in zip(sessions, others, strict=True):
        assert one.conversation.all_turns == other.conversation.all_turns
        assert one.settings == other.settings

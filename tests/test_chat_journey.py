"""Chats in both front ends: same actions, same chats; killed at any moment, nothing is lost."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import signal
import sqlite3
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("POSIX signals and terminals", allow_module_level=True)

from localspec.chat import export
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.recorder import CHECKPOINT_TOKENS
from localspec.chat.session import ChatSession
from localspec.cli.answer_printer import OutputStyle
from localspec.cli.chat_loop import ChatLaunchOptions, ChatLoop
from localspec.cli.slash_handlers import LinearChatView
from localspec.errors import EngineError, PromptTooLongError
from localspec.fit.advisor import SettingsRequest
from localspec.protocol.events import EngineExit, Prefill
from localspec.protocol.wire import LoadCommand
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from tests.support import tinygguf
from tests.support.pty_terminal import Terminal, text
from tests.support.run_command import command
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
from tests.support.zoo import CHATTER, Zoo

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

STOP, DROP, REOPEN = "stop", "drop", "reopen"
"""What happens besides typing: the answer is stopped while it is written, the oldest turns are
left out when asked, the chat is closed and opened again."""
ACTIONS: Sequence[tuple[str, str]] = (
    ("/system Be brief.", ""),
    ("/set temperature 0.5", ""),
    ("one", ""),
    ("two", ""),
    ("three", STOP),
    ("/regen", ""),
    ("/edit THREE", ""),
    ("/turns 2", ""),
    ("TWO", ""),
    ("/turns 2 1", ""),
    ("/undo", ""),
    ("/read {folder}/notes.txt", ""),
    ("What does it say?", ""),
    ("far too long", ""),  # refused: nothing is stored
    ("/regen", ""),
    ("four", ""),  # the engine is killed in the middle
    ("/regen", ""),
    ("five", ""),  # the engine is killed before the first token
    ("six", ""),
    ("seven", ""),  # the model fails in the middle
    ("/regen {models}/other.gguf", ""),  # another model answers, and goes on
    ("/think on", ""),
    ("/spec 3", ""),
    ("/save {folder}/chat.json", ""),
    ("eight", DROP),
    ("", REOPEN),
    ("/turns", ""),
    ("/model {models}/none.gguf", ""),  # refused: nothing changes
    ("/ctx 4k", ""),
    ("nine", ""),
    ("/clear", ""),
    ("ten", ""),
    ("/new", ""),
    ("eleven", ""),
    ("/private", ""),
    ("twelve", ""),
)


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


class Engines:
    """The engines of the journey: each is loaded after the one before was killed."""

    def __init__(self) -> None:
        self.gate = Reached()
        first = [
            says("1"),
            says("<think>", "hm", "</think>", "2"),
            begins("3 ", "and ", "so ", then=self.gate),
            says("3 again"),
            says("THREE"),
            says("TWO"),
            says("Seven."),
            lambda: [TOO_LONG],
            says("Seven", ", ", "it says."),
            begins("4 ", "and ", then=KILLED),
        ]
        second = [says("4"), lambda: [KILLED]]
        third = [
            says("6"),
            begins("7 ", "and ", then=FAILED),
        ]
        other = [says("7"), says("8")]
        reopened, smaller, new = [says("no")], [says("9"), says("10")], [says("11"), says("12")]
        self.runs = [
            [self._engine(s) for s in (first, second, third, other)],
            [self._engine(s) for s in (reopened, smaller, new)],
        ]
        """Before and after the chat is opened again; the context is smaller until `/new`."""

    def _engine(self, scripts: Sequence[Callable[[], Script]]) -> ScriptedEngine:
        loaded = ready(thinking=MARKERS)
        return ScriptedEngine(*scripts, ready=loaded, sizes=lambda n: MESSAGE_TOKENS * n)


def split_at_reopening(folder: Path) -> list[list[tuple[str, str]]]:
    folders = {"folder": folder, "models": folder.parent}
    actions = [(text.format(**folders), event) for text, event in ACTIONS]
    at = [event for _, event in actions].index(REOPEN)
    return [actions[:at], actions[at + 1 :]]


def open_session(history: ChatHistory, saved: SavedChat | None) -> ChatSession:
    return ChatSession(PAIR, 1, history, saved)


def in_the_linear_chat(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[ChatSession]:
    engines, sessions = Engines(), list[ChatSession]()
    for actions, run in zip(split_at_reopening(folder), engines.runs, strict=True):
        with closing(ChatHistory.open(folder / "chats.sqlite")) as history:
            saved = history.load_chat(1) if sessions else None
            session = open_session(history, saved)
            view = LinearChatView(session, OutputStyle(quiet=True))
            options = ChatLaunchOptions(lambda _: SettingsRequest(LoadCommand("target.gguf", None)))
            opening, waiting = Opening(run), iter(actions)

            def type_line(_: str) -> str:
                text, event = next(waiting, ("", REOPEN))  # noqa: B023
                if event == REOPEN:
                    raise EOFError
                if event == STOP:
                    threading.Thread(target=press_ctrl_c_at, args=(engines.gate,)).start()
                if event == DROP:
                    monkeypatch.setattr(sys, "stdin", io.StringIO("d\n"))
                return text

            assert ChatLoop(options, view, opening, type_line).run() == 0
            sessions.append(session)
    return sessions


def press_ctrl_c_at(gate: Reached) -> None:
    assert gate.is_reached.wait(20)
    os.kill(os.getpid(), signal.SIGINT)


async def in_the_app(folder: Path) -> list[ChatSession]:
    engines, sessions = Engines(), list[ChatSession]()
    for actions, run in zip(split_at_reopening(folder), engines.runs, strict=True):
        with closing(ChatHistory.open(folder / "chats.sqlite")) as history:
            saved = history.load_chat(1) if sessions else None
            session, runner = open_session(history, saved), EngineRunner(Opening(run))
            await run_app(session, runner, actions, engines.gate)
            session.close()
            sessions.append(session)
    return sessions


async def run_app(
    session: ChatSession,
    runner: EngineRunner,
    actions: Sequence[tuple[str, str]],
    gate: Reached,
) -> None:
    options = AppOptions()
    screen = ChatScreen(session, runner, options)
    async with LocalspecApp(options, runner, lambda: screen).run_test(size=(100, 30)) as pilot:

        def is_idle() -> bool:
            return screen.phase in ("ready", "failed") and pilot.app.screen is screen

        await wait_until(pilot, is_idle)
        for text, event in actions:
            screen.composer.replace_text(text)
            await pilot.press("enter")
            if event == STOP:
                await wait_until(pilot, gate.is_reached.is_set)
                await pilot.press("escape")
            if event == DROP:
                await wait_until(pilot, lambda: isinstance(pilot.app.screen, ContextFullScreen))
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
    return {name: value for name, value in chat.items() if name not in ("created", "updated")}


def test_both_store_the_same_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linear, app = tmp_path / "linear", tmp_path / "app"
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
    assert [chat[3] for chat in (first, ten, eleven)] == ["Be brief.", "Be brief.", ""]
    assert [chat[1].sampling.temperature for chat in (first, ten, eleven)] == [0.5, 0.5, 0.8]
    assert [chat[1].ctx for chat in (first, ten, eleven)] == [4096, 4096, None]
    models = {turn.id: turn.model for turn in first[-1]}
    assert [models[id_] for id_ in (12, 13, 14, 15)] == ["qwen3-8b", "other", "other", "qwen3-8b"]
    assert exported(linear) == exported(app)
    for one, other in zip(sessions, others, strict=True):
        assert one.conversation.all_turns == other.conversation.all_turns
        assert one.settings == other.settings


# --- `kill -9` of the app and of `localspec run` at random moments: nothing is lost -------------

ROUND = 16
"""The most tokens of one round."""
LONGEST = 800
"""Tokens of an answer, which takes some tenths of a second."""
SPAN = 2.5
"""The process is killed within this many seconds."""
GONE = 10.0
"""The engine must exit within this many seconds after that."""
DOWN, CTRL_N, F5 = b"\x1b[B", b"\x0e", b"\x1b[15~"
_PAINTED = re.compile(rb"\x1b\[(\d+);\d+H|q\d+q")
_STATUS = re.compile(r"· context [\d.]+k? / [\d.]+k?\s+> $")
"""The status of `run` below an answer, and the next prompt."""
_COMPOSER = 21
"""The first row of the composer."""


class Killed(Exception):  # noqa: N818  no error: the tests wait for it
    """The process has been killed."""


class Person(ABC):
    """Chats until the process is killed, and records what was shown as saved."""

    def __init__(self, terminal: Terminal, dice: random.Random) -> None:
        self.terminal, self.dice = terminal, dice
        self.sent: list[str] = []
        """Questions that were shown as sent."""
        self.ended: list[str] = []
        """Questions whose answer was shown as complete; repeated for each answer."""
        self.shown = 0
        """At least this many tokens of the last answer were shown."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def is_sent(self, question: str, new: bytes) -> bool: ...

    @abstractmethod
    def is_complete(self, new: bytes) -> bool:
        """Also updates `shown`."""

    def chat(self, began: Callable[[], None]) -> None:
        """Calls `began` when the first question can be asked."""
        with suppress(Killed):
            self.begin()
            began()
            while True:
                self.ask(f"q{self.dice.randrange(10**9)}q")

    def ask(self, question: str) -> None:
        asked_at = len(self.terminal.seen)
        self.type(question)
        self.wait(lambda new: question in text(new), asked_at)
        self.type("\r")
        self.wait(lambda new: self.is_sent(question, new), asked_at)
        self.sent.append(question)
        self.shown = 0
        self.wait(self.is_complete, asked_at)
        self.ended.append(question)

    def type(self, keys: str | bytes) -> None:
        self.terminal.type(keys)

    def wait(self, met: Callable[[bytes], bool], since: int = 0) -> None:
        """Raises Killed."""
        ended = False

        def over() -> bool:
            nonlocal ended
            ended = self.terminal.process.poll() is not None
            return met(self.terminal.seen[since:]) or ended

        self.terminal.wait_for(over)
        if ended:
            raise Killed

    def wait_for(self, words: str, since: int = 0) -> None:
        self.wait(lambda new: words in text(new), since)


class InTheApp(Person):
    """In the app: continues the last chat, or starts a new one."""

    before = 0
    """Upper bound of the context size when the last question was asked."""

    def begin(self) -> None:
        self.wait_for("Recent chats")
        self.type(DOWN + b"\r")
        self.wait_for("ctx")
        if self.dice.random() < 0.5:
            self.type(CTRL_N)
        for name, value in (("max_tokens", str(LONGEST)), ("overflow", "drop")):
            since = len(self.terminal.seen)
            self.type(f"/set {name} {value}\r")
            self.wait_for(f"{name}: {value}", since)

    def is_sent(self, question: str, new: bytes) -> bool:
        """Whether the question was painted between title and composer."""
        row = 0
        for found in _PAINTED.finditer(new):
            if found[1]:
                row = int(found[1])
            elif found[0] == question.encode() and 1 < row < _COMPOSER:
                return True
        return False

    def is_complete(self, new: bytes) -> bool:
        said = text(new)
        least = context(said)[0]
        self.shown = least if least > self.before else 0  # else it tells of an earlier one
        return "first token" in said

    def ask(self, question: str) -> None:
        self.before = context(text(self.terminal.seen))[1]
        super().ask(question)
        if self.dice.random() < 0.25:
            since = len(self.terminal.seen)
            self.type(F5)
            self.wait_for("first token", since)
            self.ended.append(question)


def context(said: str) -> tuple[int, int]:
    """Lower and upper bound of the context size, from the last status bar."""
    for number, thousands in re.findall(r"ctx ([\d.]+)(k?) /", said)[-1:]:
        if thousands:
            return int((float(number) - 0.05) * 1000), int((float(number) + 0.05) * 1000)
        return int(number), int(number)
    return 0, 0


class OnTheCommandLine(Person):
    """`localspec run`: a new chat or the last one."""

    def begin(self) -> None:
        self.wait_for("\n> ")
        self.type("/set overflow drop\r")
        self.wait_for("overflow: drop")

    def is_sent(self, question: str, new: bytes) -> bool:
        return self.words(new) > 0

    def is_complete(self, new: bytes) -> bool:
        self.shown = self.words(new)
        return _STATUS.search(text(new)) is not None

    def words(self, new: bytes) -> int:
        """Number of words of the answer; each is one token."""
        said = text(new).partition("\r\n")[2]
        return sum(word.split("\r")[0] in WORDS for word in said.split(" ")[:-1])


WORDS = {word.removeprefix("▁") for word in CHATTER}


class Death:
    """Stops a process, lists its children, and kills it."""

    def __init__(self, terminal: Terminal, after: float) -> None:
        self._pid = terminal.process.pid
        self.children: list[psutil.Process] = []
        self._timer = threading.Timer(after, self.come)

    def start(self) -> None:
        self._timer.start()

    def come(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        with suppress(psutil.NoSuchProcess):
            self.children = psutil.Process(self._pid).children(recursive=True)
        os.kill(self._pid, signal.SIGKILL)


class Chats:
    """One data folder, used by many processes that are killed."""

    def __init__(self, data: Path, model: Path, seed: int) -> None:
        self.data, self.model = data, model
        self.dice = random.Random(seed)
        self.sent = self.interrupted = 0
        self.questions: set[str] = set()
        """All questions that were ever shown as sent."""

    def one(self, number: int) -> None:
        """Chats, kills the process, and checks the data."""
        in_app = number % 2 == 1
        words = command() if in_app else self._run(number)
        env = {"LOCALSPEC_DATA_DIR": str(self.data)}
        with Terminal(words, env=env, answers=in_app) as terminal:
            person = (InTheApp if in_app else OnTheCommandLine)(terminal, self.dice)
            early = self.dice.random() < 0.1
            death = Death(terminal, self.dice.uniform(0, SPAN))
            if early:  # while it starts, too
                death.start()
            person.chat(began=lambda: None if early else death.start())
            terminal.process.wait()
            assert not psutil.wait_procs(death.children, timeout=GONE)[1]
        self._look(person)

    def _run(self, number: int) -> list[str]:
        again = ["--continue"] if number and self.dice.random() < 0.5 else [str(self.model)]
        return command("run", *again, "--max-tokens", str(LONGEST), "--spec", "off")

    def _look(self, person: Person) -> None:
        base = self.data / "chats" / "chats.sqlite"
        if not base.exists():
            return
        with closing(ChatHistory.open(base)) as history:
            assert history.take_notices() == []
            chats = [history.load_chat(one.id) for one in history.list_chats()]
            for chat in chats[:1]:
                history.acquire_lock(chat.location.chat_id).close()  # nobody has it any more
        with closing(sqlite3.connect(base)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        self.questions |= set(person.sent)
        kept = {turn.question for chat in chats for turn in chat.conversation.all_turns}
        assert set(person.sent) <= kept, set(person.sent) - kept
        assert self.questions <= kept, self.questions - kept
        self.sent += len(person.sent)
        for question in set(person.ended):
            assert answers(chats, question, whole=True) >= person.ended.count(question)
        if person.sent and person.sent[-1] not in person.ended:
            self._look_at_the_last(person, chats)

    def _look_at_the_last(self, person: Person, chats: list[SavedChat]) -> None:
        """An interrupted answer loses at most one checkpoint, and is marked."""
        chat = next(c for c in chats if answers([c], person.sent[-1]))
        turn = chat.conversation.turns[-1]
        assert turn.question == person.sent[-1]
        had = len(turn.tokens) + (self._read(chat) if isinstance(person, InTheApp) else 0)
        if not chat.conversation.dropped.turns:
            assert had >= person.shown - CHECKPOINT_TOKENS - ROUND, (had, person.shown)
        if turn.finish_reason is None:
            self.interrupted += 1
            assert export.render_markdown(chat).endswith("*(interrupted)*\n")

    def _read(self, chat: SavedChat) -> int:
        """Tokens of the last prompt; if not saved, an upper bound."""
        later = 0
        for turn in reversed(chat.conversation.turns):
            said = 0 if turn is chat.conversation.turns[-1] else len(turn.tokens)
            for event in turn.events:
                if isinstance(event, Prefill):
                    return event.total + said + later
            later += len(turn.question) + 2 + said
        return later


def answers(chats: list[SavedChat], question: str, *, whole: bool = False) -> int:
    """Number of turns with this question; `whole`: only complete ones."""
    turns = [turn for chat in chats for turn in chat.conversation.all_turns]
    return sum(t.question == question and (not whole or t.finish_reason is not None) for t in turns)


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(3600)
def test_killed_at_any_moment(times: int, zoo: Zoo, tmp_path: Path) -> None:
    chats = Chats(tmp_path / "data", zoo["chatter"], times)
    for number in range(times):
        chats.one(number)
    assert chats.sent >= times / 3
    assert times < 10 or chats.interrupted >= times / 10

"""`kill -9` of the app and of `localspec run` at random moments of a chat: nothing is lost."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("POSIX signals and terminals", allow_module_level=True)

from localspec.chat import export
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.recorder import CHECKPOINT_TOKENS
from localspec.protocol.events import Prefill
from tests.cli.command import command
from tests.support.pty_terminal import Terminal, text
from tests.support.zoo import CHATTER, Zoo

ROUND = 16
"""The most tokens of one round."""
LONGEST = 800
"""Tokens of an answer, which takes some tenths of a second."""
SPAN = 2.5
"""The process is killed within this many seconds."""
GONE = 2.0
"""The engine must exit within this many seconds after that."""
DOWN, CTRL_N, F5 = b"\x1b[B", b"\x0e", b"\x1b[15~"
_PAINTED = re.compile(rb"\x1b\[(\d+);\d+H|q\d+q")
_STATUS = re.compile(r"· context [\d.]+k? / [\d.]+k?\s+> $")
"""The status of `run` below an answer, and the next prompt."""
_COMPOSER = 21
"""The first row of the composer."""


class Killed(Exception):  # noqa: N818  no error: the tests wait for it
    """The process has been killed."""


class Person:
    """Chats until the process is killed, and records what was shown as saved."""

    ready = ""
    """Shown when input is possible."""

    def __init__(self, terminal: Terminal, dice: random.Random) -> None:
        self.terminal, self.dice = terminal, dice
        self.sent: list[str] = []
        """Questions that were shown as sent."""
        self.ended: list[str] = []
        """Questions whose answer was shown as complete; repeated for each answer."""
        self.shown = 0
        """At least this many tokens of the last answer were shown."""
        self.asked_at = 0

    def chat(self, began: Callable[[], None]) -> None:
        """Calls `began` when the first question can be asked."""
        with suppress(Killed):
            self.begin()
            began()
            while True:
                self.ask(f"q{self.dice.randrange(10**9)}q")

    def begin(self) -> None:
        raise NotImplementedError

    def ask(self, question: str) -> None:
        self.asked_at = len(self.terminal.seen)
        self.type(question)
        self.wait(lambda new: question in text(new), self.asked_at)
        self.type("\r")
        self.wait(lambda new: self.is_sent(question, new), self.asked_at)
        self.sent.append(question)
        self.shown = 0
        self.wait(self.is_complete, self.asked_at)
        self.ended.append(question)

    def is_sent(self, question: str, new: bytes) -> bool:
        raise NotImplementedError

    def is_complete(self, new: bytes) -> bool:
        """Also updates `shown`."""
        raise NotImplementedError

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
        self.at = 0.0
        self._timer = threading.Timer(after, self.come)

    def start(self) -> None:
        self._timer.start()

    def come(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        with suppress(psutil.NoSuchProcess):
            self.children = psutil.Process(self._pid).children(recursive=True)
        self.at = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)


class Chats:
    """One data folder, used by many processes that are killed."""

    def __init__(self, data: Path, model: Path, seed: int) -> None:
        self.data, self.model = data, model
        self.dice = random.Random(seed)
        self.sent = self.ended = self.interrupted = 0
        self.slowest = 0.0
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
            while any(map(runs, death.children)):
                assert time.monotonic() - death.at < GONE, f"still there: {death.children}"
                time.sleep(0.005)  # between two looks
            self.slowest = max(self.slowest, time.monotonic() - death.at)
            terminal.process.wait()
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
        self.sent, self.ended = self.sent + len(person.sent), self.ended + len(person.ended)
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


def runs(process: psutil.Process) -> bool:
    """A zombie counts as exited: it waits to be reaped."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def answers(chats: list[SavedChat], question: str, *, whole: bool = False) -> int:
    """Number of turns with this question; `whole`: only complete ones."""
    turns = [turn for chat in chats for turn in chat.conversation.all_turns]
    return sum(t.question == question and (not whole or t.finish_reason is not None) for t in turns)


@pytest.mark.parametrize("times", [5, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.timeout(3600)
def test_killed_at_any_moment(times: int, zoo: Zoo, tmp_path: Path) -> None:
    chats, began = Chats(tmp_path / "data", zoo["chatter"], times), time.monotonic()
    for number in range(times):
        chats.one(number)
    each = (time.monotonic() - began) / times
    print(f"{times} kills, {each:.1f} s each: {chats.sent} questions acknowledged, ", end="")
    print(f"{chats.ended} answers whole, {chats.interrupted} interrupted in the middle; ", end="")
    print(f"no engine seen {chats.slowest * 1e3:.0f} ms later")
    assert chats.sent >= times / 3
    assert times < 20 or chats.interrupted >= times / 10

"""Saving a running chat, and what happens when saving fails."""

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from localspec import data_files
from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import ChatHistory, schema
from localspec.chat.recorder import CHECKPOINT_TOKENS, ChatRecorder
from localspec.errors import StorageError
from localspec.protocol.events import Event, GenerationFinished, Notice
from tests.chat.saved_chats import PAIR, answer, said, spoken
from tests.support.run_command import ROOT, environment, finish

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


class Talk:
    """A conversation with its recorder, as on a screen."""

    def __init__(self, path: Path, chat: int | None = None) -> None:
        self.path = path
        self.history = ChatHistory.open(path)
        self.notices: list[Notice] = []
        saved = self.history.load_chat(chat) if chat is not None else None
        self.conversation = saved.conversation if saved else Conversation(5, "be brief")
        self.recorder = ChatRecorder(
            self.conversation,
            self.history,
            PAIR,
            saved_chat=saved,
            notify=self.notices.append,
        )

    def send(self, turn: Turn, *events: Event) -> None:
        self.answer = self.recorder.record_question()
        self.hear(*events)

    def hear(self, *events: Event) -> None:
        for event in events:
            self.answer.add(event)
            self.recorder.record_progress()
        if events and isinstance(events[-1], GenerationFinished):
            self.recorder.finish_answer()

    def ask(self, question: str, *texts: str) -> Turn:
        turn = self.conversation.ask(question)
        self.send(turn, *answer(*texts))
        return turn

    def on_disk(self) -> Conversation:
        """The chat as another process reads it now."""
        assert self.recorder.chat_id is not None
        with closing(ChatHistory.open(self.path)) as other:
            return other.load_chat(self.recorder.chat_id).conversation

    @property
    def codes(self) -> list[str]:
        return [notice.code for notice in self.notices]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats" / "chats.sqlite"


@pytest.fixture
def talk(path: Path) -> Iterator[Talk]:
    made = Talk(path)
    yield made
    made.recorder.close()
    made.history.close()


def test_a_disk_without_locks_is_said_once(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a network drive: the chat is still saved."""

    def none(_: int) -> None:
        raise OSError(38, "not supported")

    monkeypatch.setattr(data_files, "_take", none)
    talk.ask("a", "b")
    talk.ask("c", "d")
    assert talk.codes == ["no-locks"]
    assert "open each chat in one window only" in talk.notices[0].message
    assert talk.on_disk().all_turns == talk.conversation.all_turns


def test_all_but_a_checkpoint_is_on_the_disk(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    talk.send(talk.conversation.ask("q"))
    (turn,) = talk.on_disk().turns  # before the answer
    assert (turn.question, turn.answer, turn.finish_reason) == ("q", "", None)
    text = ""
    for n in range(200):
        now += 0.001
        talk.hear(spoken(f"word{n} ", n))
        text += f"word{n} "
        behind = text.removeprefix(talk.on_disk().turns[0].answer)
        assert len(behind.split()) * 2 < CHECKPOINT_TOKENS
    now += 1.0
    talk.hear(spoken("end", 200))  # a second has passed
    assert talk.on_disk().turns[0].answer == f"{text}end"


def test_an_answer_that_is_written_again_replaces_the_old_when_it_is_longer(
    talk: Talk,
) -> None:
    talk.send(talk.conversation.ask("q"))
    talk.hear(*answer("x" * 500)[:3])
    talk.recorder.close()
    again = Talk(talk.path, talk.recorder.chat_id)
    again.send(again.conversation.restart_answer())
    assert again.on_disk().turns[0].answer == "x" * 500
    for n in range(CHECKPOINT_TOKENS):
        again.hear(spoken("yyyy", n))
    assert again.on_disk().turns[0].answer == "x" * 500  # were it killed now
    for n in range(3 * CHECKPOINT_TOKENS):
        again.hear(spoken("yyyy", n))
    assert again.on_disk().turns[0].answer.startswith("y" * 4 * 100)
    again.hear(GenerationFinished("eog"))
    assert again.on_disk().all_turns == again.conversation.all_turns
    again.recorder.close()


def test_a_failed_save_is_said_once_and_made_good(talk: Talk) -> None:
    talk.ask("a", "b")
    with closing(sqlite3.connect(talk.path, isolation_level=None)) as other:
        talk.history._database._connection.execute("PRAGMA busy_timeout = 20")
        other.execute("BEGIN IMMEDIATE")  # a long write of another process
        mark = talk.conversation.take_snapshot()
        turn = talk.conversation.ask("too long")
        talk.send(turn)
        talk.conversation.restore(mark)
        talk.recorder.discard_turn(turn)
        talk.ask("c", "d")
        talk.ask("e", "f")
        assert talk.codes == ["not-saved"] and len(talk.on_disk().all_turns) == 1
        other.execute("ROLLBACK")
    talk.recorder.save_metadata()
    assert talk.codes == ["not-saved", "saved-again"]
    assert talk.on_disk().all_turns == talk.conversation.all_turns


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_file_that_goes_away_is_written_anew(when: str, talk: Talk) -> None:
    talk.ask("a", "b")
    if when != "before":
        talk.send(talk.conversation.ask("c"))
    if when == "after":
        talk.hear(*answer("d"))
    for file in talk.path.parent.glob("chats.sqlite*"):
        file.unlink()
    if when == "before":
        talk.send(talk.conversation.ask("c"))
    if when != "after":
        talk.hear(*answer("d"))
    talk.ask("e", "f")
    assert talk.on_disk().all_turns == talk.conversation.all_turns and talk.codes == []


FULL = """
import resource, sys
from pathlib import Path
from tests.chat.test_recorder import Talk
limit, path = int(sys.argv[1]), Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    talk = Talk(path)
except Exception as error:
    print("refused", type(error).__name__)
    raise SystemExit
for n in range(40):
    talk.ask(f"question {n} " * 9, f"answer {n} " * 20)
    if not talk.notices:
        print("safe", n, flush=True)
assert talk.codes == ["not-saved"], talk.codes
assert len(talk.conversation.turns) == 40
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
if len(sys.argv) > 3:  # space was freed
    talk.recorder.save_metadata()
    assert talk.codes == ["not-saved", "saved-again"], talk.codes
    assert talk.on_disk().all_turns == talk.conversation.all_turns
print("full", flush=True)
"""


@posix
@pytest.mark.parametrize(
    ("limit", "room"), [(1, []), (5000, ["room"]), (20_000, []), (120_000, ["room"])]
)
def test_a_full_disk_keeps_what_was_saved(
    limit: int, room: list[str], path: Path
) -> None:
    """RLIMIT_FSIZE limits the size of every file."""
    done = finish([sys.executable, "-c", FULL, str(limit), path, *room], cwd=ROOT)
    lines = done.text.split("\n")
    assert done.code == 0, done.err
    assert "refused StorageError" in lines or "full" in lines
    safe = sum(line.startswith("safe") for line in lines)
    with closing(ChatHistory.open(path)) as history:
        kept = [turn for turns in said(history).values() for turn in turns]
        assert len(kept) == 40 if room and "full" in lines else len(kept) >= safe
        assert history.take_notices() == []
    assert integrity(path) == "ok"


def test_a_file_that_a_full_disk_left_empty(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause is named, and chats are saved once there is room."""

    def fail(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(schema, "create_tables", fail)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(StorageError, match="disk is full"):
        ChatHistory.open(path)
    monkeypatch.undo()
    talk = Talk(path)
    talk.ask("one", "two")
    assert talk.on_disk().all_turns


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as base:
        return str(base.execute("PRAGMA integrity_check").fetchone()[0])


@posix
def test_killed_at_any_moment(path: Path) -> None:
    """No acknowledged data is lost, and at most one checkpoint of an answer."""
    dice = random.Random(6)
    for n in range(6):
        lines = killed(path, seed=n, after=dice.randrange(1, 400))
        with closing(ChatHistory.open(path)) as history:
            assert history.take_notices() == []
            for check in (sent, heard):
                check(lines, history)
            last = history.list_chats(1)
            assert not last or history.load_chat(last[0].id)
        assert integrity(path) == "ok"


def killed(path: Path, seed: int, after: int) -> list[list[str]]:
    """Kill the writer after so many lines; return all lines."""
    command = [sys.executable, "-m", "tests.chat.writer", str(path), str(seed)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdout is not None
    with process.stdout as out:
        lines = [line for _, line in zip(range(after), out, strict=False)]
        process.kill()
        with suppress(OSError):
            lines += out.readlines()
    process.wait()
    assert len(lines) >= after
    return [line.split() for line in lines if line.endswith("\n")]


def sent(lines: list[list[str]], history: ChatHistory) -> None:
    for what, chat, turn, question in lines:
        if what == "sent":
            asked = history.load_chat(int(chat)).conversation.turn(int(turn)).question
            assert asked.startswith(question)


def heard(lines: list[list[str]], history: ChatHistory) -> None:
    """The last reported state of each answer."""
    best = {(chat, turn): (what, n) for what, chat, turn, n in lines if what != "sent"}
    for (chat, turn), (what, n) in best.items():
        read = history.load_chat(int(chat)).conversation.turn(int(turn))
        tokens = sum(len(one.tokens) for one in read.rounds)
        assert tokens >= int(n) - (CHECKPOINT_TOKENS if what == "heard" else 0)
        assert read.answer == "".join(t.text for one in read.rounds for t in one.tokens)
        assert (read.finish_reason == "eog") or what == "heard"

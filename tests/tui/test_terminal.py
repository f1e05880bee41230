"""The app restores the terminal at every kind of exit, and handles resizing and suspending."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.segment import Segment
from textual.color import Color
from textual.events import Paste

from localspec.chat.history import ChatHistory
from localspec.sanitize import sanitize
from localspec.tui.terminal import ControlCharacterFilter, PasteParser
from tests.cli.command import TIMEOUT, command, environment
from tests.support.drive_app import SECRET
from tests.support.pty_terminal import Terminal, module, text
from tests.support.zoo import Zoo

if sys.platform == "win32":
    pytest.skip("POSIX signals and terminals", allow_module_level=True)


CTRL_C, CTRL_Q, CTRL_Z = b"\x03", b"\x11", b"\x1a"
F5, F12 = b"\x1b[15~", b"\x1b[24~"


@pytest.fixture
def home() -> Iterator[Terminal]:
    """The app on Home."""
    with Terminal(command()) as terminal:
        terminal.wait_for("Ready to run")
        yield terminal


@pytest.fixture
def answering(zoo: Zoo) -> Iterator[Terminal]:
    """A chat with an answer that never ends."""
    with Terminal(module("tests.support.drive_app", "chat", str(zoo["chatter"]))) as terminal:
        terminal.wait_for("Text-completion model")
        terminal.type(b"/set max_tokens 60000\rabc\r")
        terminal.wait_for("seven eight nine one")
        yield terminal


def engines(terminal: Terminal) -> list[psutil.Process]:
    return psutil.Process(terminal.process.pid).children(recursive=True)


def gone(processes: list[psutil.Process], limit: float = 5) -> bool:
    return not psutil.wait_procs(processes, timeout=limit)[1]


# --- ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_terminal_whole(
    answering: Terminal, number: signal.Signals, code: int
) -> None:
    children = engines(answering)
    assert children
    answering.process.send_signal(number)
    answering.ends_with(code, limit=5)
    answering.assert_whole()
    assert gone(children)


def test_a_closed_terminal_ends_app_and_engine(answering: Terminal) -> None:
    children = engines(answering)
    assert children
    answering.close()
    answering.process.wait(timeout=5)
    assert gone(children)


def test_a_closed_terminal_without_a_signal_ends_the_app() -> None:
    """Started by a program that gives it no controlling terminal."""
    with Terminal(command(), controls=False) as terminal:
        terminal.wait_for("Ready to run")
        terminal.close()
        assert terminal.process.wait(timeout=TIMEOUT) == 129


@pytest.mark.parametrize("reads", [True, False], ids=["read", "stopped"])
def test_a_terminal_that_goes_while_the_app_draws_ends_it_and_the_answer_is_saved(
    zoo: Zoo, reads: bool
) -> None:
    words = module("tests.support.drive_app", "chat", str(zoo["chatter"]))
    with Terminal(words, controls=False) as terminal:
        terminal.wait_for("Text-completion model")
        terminal.type(b"/set max_tokens 60000\rabc\r")
        terminal.wait_for("seven eight nine one")
        children = engines(terminal)
        if not reads:
            terminal.stop_reading()  # the event loop waits for the thread that writes
        terminal.close()
        assert terminal.process.wait(timeout=5) == 129
        assert gone(children)
    with closing(ChatHistory.open()) as history:
        (turn,) = history.load_chat(history.find_last_id()).conversation.turns
    assert "seven eight nine one" in turn.answer and turn.rounds


def test_ctrl_q_while_answering(answering: Terminal) -> None:
    children = engines(answering)
    began = time.monotonic()
    answering.type(CTRL_Q)
    answering.ends_with(0)
    assert time.monotonic() - began < 2
    answering.assert_whole()
    assert gone(children)
    assert "Traceback" not in text(answering.seen)


def test_ctrl_c_stops_and_twice_quits(answering: Terminal) -> None:
    answering.type(CTRL_C)
    answering.wait_for("stopped in")
    answering.type(CTRL_C + CTRL_C)
    answering.ends_with(130, limit=5)
    answering.assert_whole()


def test_a_crash_of_ours(tmp_path: Path) -> None:
    env = {"LOCALSPEC_DATA_DIR": str(tmp_path)}
    with Terminal(module("tests.support.drive_app", "crash"), env=env) as terminal:
        terminal.wait_for("Ready to run")
        terminal.type(F12)
        terminal.ends_with(1)
        terminal.assert_whole()
        said = text(terminal.seen[terminal.seen.rindex(b"\x1b[?1049l") :]).strip().splitlines()
    assert said[0] == f"localspec: Internal error: ZeroDivisionError: of {len(SECRET)}"
    assert said[1].startswith("  This is a bug.")
    log = (tmp_path / "crash.log").read_text(encoding="utf-8")
    assert "ZeroDivisionError" in log
    assert SECRET not in log + text(terminal.seen)


# --- no terminal ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nothing to read", "nowhere to write", "dumb"])
def test_without_a_terminal_there_is_help(how: str) -> None:
    if how == "dumb":
        with Terminal(command(), env={"TERM": "dumb"}) as terminal:
            terminal.ends_with(2)
            assert "Usage: localspec" in text(terminal.seen)
            assert b"\x1b" not in terminal.seen
            return
    ours, theirs = os.openpty()
    done = subprocess.run(
        command(),
        stdin=subprocess.DEVNULL if how == "nothing to read" else theirs,
        stdout=theirs if how == "nothing to read" else subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"TERM": "xterm-256color"}),
        timeout=TIMEOUT,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert b"Usage: localspec" in done.stderr
    assert b"\x1b" not in done.stderr


# --- what terminals do ------------------------------------------------------------------------


def test_bytes_that_are_no_text(home: Terminal) -> None:
    home.type(b"/gr\xfcn\xff\x80\xed\xa0\x80")
    home.wait_for("gr\ufffdn")
    home.type(CTRL_Q)
    home.ends_with(0)
    home.assert_whole()


def test_the_window_has_its_own_size() -> None:
    with Terminal(command(), env={"COLUMNS": "200", "LINES": "60"}) as terminal:
        terminal.wait_for("Ready to run")
        terminal.resize(90, 20)
        terminal.wait_for("quit", len(terminal.seen))
        moves = re.findall(rb"\x1b\[(\d+);(\d+)H", terminal.seen)
        assert moves and max(int(row) for row, _ in moves) <= 24
        assert max(int(column) for _, column in moves) <= 90


def feed(chunks: list[str]) -> list[str]:
    parser = PasteParser()
    messages = [message for chunk in chunks if chunk for message in parser.feed(chunk)]
    return [f"paste {m.text}" if isinstance(m, Paste) else getattr(m, "key", "?") for m in messages]


@given(
    st.text("ab\x1b[;20~1mJH\r\n\t\x03é", max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_a_paste_is_text_whatever_it_holds_and_however_it_comes(
    pasted: str, cuts: list[int]
) -> None:
    assume("\x1b[201~" not in pasted)
    data = f"a\x1b[A\x1b[200~{pasted}\x1b[201~b\x1b[200~again\x1b[201~"
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert feed(chunks) == ["a", "up", f"paste {pasted}", "b", "paste again"]


@given(
    st.lists(
        st.sampled_from(["<", "?", "0", "9" * 12, "57344", "1", ";", ":", "27", "55296", "$", "M"]),
        max_size=8,
    ),
    st.sampled_from("MmutA~yRc"),
)
def test_a_sequence_of_any_numbers_is_a_key_or_nothing(parts: list[str], end: str) -> None:
    parser = PasteParser()
    for message in [*parser.feed(f"\x1b[{''.join(parts)}{end}"), *parser.tick()]:
        (getattr(message, "character", None) or "").encode()


def test_an_editor_that_cannot_be_started_leaves_the_app_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text(json.dumps(["hello"]))
    drive = module("tests.support.drive_app", "says", str(tmp_path / "words.json"))
    with Terminal(drive, env={"EDITOR": str(tmp_path / "none"), "VISUAL": ""}) as terminal:
        terminal.wait_for("Type a message")
        terminal.type(b"unsent\x07")
        since = terminal.wait_for("Set VISUAL or EDITOR")
        terminal.type(b" text\x1c")  # in its own mode ctrl+\\ is no signal
        terminal.wait_for("text", since)
        terminal.type(CTRL_Q)
        terminal.ends_with(0)
        terminal.assert_whole()


def test_ctrl_z_and_fg(zoo: Zoo) -> None:
    """In a real shell with job control, during an answer."""
    shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with Terminal(shell, env={"PS1": "shell> ", "BASH_SILENCE_DEPRECATION_WARNING": "1"}) as here:
        here.wait_for("shell> ")
        typed = " ".join(module("tests.support.drive_app", "chat", str(zoo["chatter"])))
        here.type(f"{typed}\r")
        here.wait_for("Text-completion model")
        here.type(b"/set max_tokens 60000\rabc\r")
        before = here.wait_for("seven eight nine one")
        for _ in range(2):
            here.type(CTRL_Z)
            since = here.wait_for("Stopped", before)
            here.wait_for("shell> ", before)
            here.assert_whole()
            here.type(b"echo $((20 + 22)) is cooked\r")
            since = here.wait_for("42 is cooked", since)
            here.type(b"fg\r")
            before = here.wait_for("seven eight nine one", since)
        here.type(CTRL_Q)
        since = here.wait_for("shell> ", before)
        here.type(b"echo left with $?\r")
        here.wait_for("left with 0", since)
        here.assert_whole()
        here.type(b"exit\r")
        here.ends_with(0)


def test_forty_resizes_in_a_second(answering: Terminal) -> None:
    sizes = [(1, 1), (200, 60), (3, 50), (60, 15), (120, 2), (0, 0), (80, 24), (20, 5)]
    for number in range(40):
        answering.resize(*sizes[number % len(sizes)])
        time.sleep(1 / 40)
    since = len(answering.seen)
    answering.resize(100, 30)
    answering.wait_for("seven eight nine one", since)
    answering.type(b"\x1b")
    answering.wait_for("stopped in")
    answering.type(CTRL_Q)
    answering.ends_with(0)
    answering.assert_whole()


@pytest.mark.parametrize("size", [(1, 1), (300, 3)])
def test_strange_sizes_from_the_beginning(size: tuple[int, int]) -> None:
    with Terminal(command(), size=size) as terminal:
        terminal.wait_for(lambda: b"\x1b[?1049h" in terminal.seen)
        terminal.resize(80, 24)
        terminal.wait_for("Ready to run")
        terminal.type(CTRL_Q)
        terminal.ends_with(0)
        terminal.assert_whole()


# --- output filters ----------------------------------------------------------------------------


BLACK = Color(0, 0, 0)


@given(st.lists(st.text(max_size=12), max_size=4))
def test_only_what_clean_lets_through(texts: list[str]) -> None:
    kept = ControlCharacterFilter().apply([Segment(text) for text in texts], BLACK)
    for segment in kept:
        assert sanitize(segment.text, multiline=False) == segment.text


def test_clean_text_is_left_alone() -> None:
    line = [Segment("plain 漢字 👍")]
    assert ControlCharacterFilter().apply(line, BLACK) is line


def test_what_is_taken_out_leaves_its_room() -> None:
    (segment,) = ControlCharacterFilter().apply([Segment("a\x1b[31mb")], BLACK)
    assert len(segment.text) == len("a\x1b[31mb")

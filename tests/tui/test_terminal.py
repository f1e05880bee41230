"""The terminal is whole after every exit, and receives no bytes but the app's own.

The same walk through the screens with harmless words shows which sequences are the
app's own, whatever a model, a file or a paste says.
"""

import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import cycle, pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.segment import Segment
from textual.color import Color
from textual.constants import ESCAPE_DELAY
from textual.events import Paste

if sys.platform == "win32":
    pytest.skip("POSIX signals and terminals", allow_module_level=True)

from localspec import tui
from localspec.chat.conversation import Turn
from localspec.chat.history import ChatHistory
from localspec.launch import ResolvedPair, recent_pairs
from localspec.tui.key_parser import PasteParser
from localspec.tui.terminal import ControlCharacterFilter
from tests.support.drive_app import SECRET
from tests.support.long_cases import bulk, often
from tests.support.pty_terminal import SEQUENCE, Terminal, module, text
from tests.support.run_command import TIMEOUT, command, environment, harmful
from tests.support.terminal_keys import key_bytes
from tests.support.zoo import Zoo

CTRL_C = b"\x03"
CTRL_L = b"\x0c"
CTRL_P = b"\x10"
CTRL_Q = b"\x11"
CTRL_Z = b"\x1a"
ESCAPE = b"\x1b"
UP = b"\x1b[A"
DOWN = b"\x1b[B"
RIGHT = b"\x1b[C"
LEFT = b"\x1b[D"
BACK_TAB = b"\x1b[Z"
CTRL_END = b"\x1b[1;5F"
F7 = b"\x1b[18~"
TAB = b"\t"
F4 = b"\x1bOS"
F5 = b"\x1b[15~"
F12 = b"\x1b[24~"
SAID = "seven eight nine one"
ENDLESS = b"/set max_tokens 60000\rabc\r"


def chatting(zoo: Zoo) -> list[str]:
    """A chat whose answers never end."""
    return module("tests.support.drive_app", "chat", str(zoo["chatter"]))


def saying(words: Sequence[str], folder: Path) -> list[str]:
    """A chat with a scripted engine, whose answers have these words."""
    script = folder / "words.json"
    script.write_text(json.dumps(words))
    return module("tests.support.drive_app", "says", str(script))


def begin_answer(terminal: Terminal) -> list[psutil.Process]:
    """Asks, and returns the processes of the app's engine."""
    terminal.wait_for("Text-completion model")
    terminal.type(ENDLESS)
    terminal.wait_for(SAID)
    return psutil.Process(terminal.process.pid).children(recursive=True)


@pytest.fixture
def answering(zoo: Zoo) -> Iterator[tuple[Terminal, list[psutil.Process]]]:
    with Terminal(chatting(zoo)) as terminal:
        yield terminal, begin_answer(terminal)


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=TIMEOUT)[1]


# --- exits
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (signal.SIGTERM, 143),
        # "closed" below has its handler.
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
        (CTRL_Q, 0),
        (CTRL_C, 130),
    ],
)
def test_every_exit_leaves_the_terminal_whole_and_no_engine(
    answering: tuple[Terminal, list[psutil.Process]],
    how: signal.Signals | bytes,
    code: int,
) -> None:
    terminal, children = answering
    assert children
    if isinstance(how, signal.Signals):
        terminal.process.send_signal(how)
    else:
        terminal.type(how)
    if how == CTRL_C:  # It stops the answer; twice, it quits.
        terminal.wait_for("stopped in")
        terminal.type(CTRL_C + CTRL_C)
    terminal.ends_with(code)
    terminal.assert_whole()
    assert gone(children)
    assert "Traceback" not in text(terminal.seen)


def saved_turn() -> Turn:
    """The only one of the last saved chat."""
    with closing(ChatHistory.open()) as history:
        (turn,) = history.load_chat(history.find_last_id()).conversation.turns
    return turn


@pytest.mark.parametrize(
    "how", ["closed", "closed without a signal", "stopped reading"]
)
def test_a_terminal_that_goes_ends_app_and_engine_and_the_answer_is_saved(
    how: str, zoo: Zoo
) -> None:
    """Without a signal: started by a program that gives it no controlling terminal."""
    with Terminal(chatting(zoo), controls=how == "closed") as terminal:
        children = begin_answer(terminal)
        if how == "stopped reading":
            # The event loop then waits for the thread that writes.
            terminal.stop_reading()
        terminal.close()
        assert terminal.process.wait(timeout=TIMEOUT) == 129 or how == "closed"
        assert gone(children)
    turn = saved_turn()
    assert SAID in turn.answer
    assert turn.rounds


def test_a_crash_prints_two_lines_and_a_log_without_chat_text(tmp_path: Path) -> None:
    env = {"LOCALSPEC_DATA_DIR": str(tmp_path)}
    with Terminal(module("tests.support.drive_app", "crash"), env=env) as terminal:
        terminal.wait_for("Ready to run")
        terminal.type(F12)
        terminal.ends_with(1)
        terminal.assert_whole()
        app_left = terminal.seen.rindex(b"\x1b[?1049l")
        said = text(terminal.seen[app_left:]).strip().splitlines()
    assert said[0] == f"localspec: Internal error: ZeroDivisionError: of {len(SECRET)}"
    assert said[1].startswith("  This is a bug.")
    log = (tmp_path / "crash.log").read_text(encoding="utf-8")
    assert "ZeroDivisionError" in log
    assert SECRET not in log + text(terminal.seen)


def test_a_dumb_terminal_shows_help() -> None:
    with Terminal(command(), env={"TERM": "dumb"}) as terminal:
        terminal.ends_with(2)
        assert "Usage: localspec" in text(terminal.seen)
        assert b"\x1b" not in terminal.seen


@pytest.mark.parametrize("missing", ["input", "output"])
def test_without_a_terminal_there_is_help(missing: str) -> None:
    ours, theirs = os.openpty()
    stdin: int = theirs
    stdout: int = theirs
    if missing == "input":
        stdin = subprocess.DEVNULL
    else:
        stdout = subprocess.PIPE
    done = subprocess.run(
        command(),
        stdin=stdin,
        stdout=stdout,
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


# --- what terminals do
# ------------------------------------------------------------------------


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    with Terminal(command()) as terminal:
        terminal.wait_for("Ready to run")
        terminal.type(b"/gr\xfcn\xff\x80\xed\xa0\x80")
        terminal.wait_for("gr\ufffdn")
        terminal.type(CTRL_Q)
        terminal.ends_with(0)
        terminal.assert_whole()


QUITS = bytes([0x03, 0x11, 0x1A])
"""ctrl+c twice and ctrl+q quit, ctrl+z suspends."""
BEGINNINGS = (
    b"\r|\n|\t|\x1b|\x1b[|\x1b[A|\x1b[B|\x1bO|\x1b[<0;9;9M|\x1b[<0;9;9m|\x1b[200~|\x1b[201~|\x7f|/|q|?|"
    b"\x07|\x9b|\xff\xfe|\xc3|\xe2\x80|\x1b[1;5|\x1b[I|\x1b[O|\x1b[?|\x1b[99999999999|\x1bP|\x1b[M|"
    b"\x1b]52;c;|\xf0\x9f\x99\x82"
).split(b"|")
"""Keys, and beginnings of sequences."""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_bytes_end_the_app(tmp_path: Path) -> None:
    dice = random.Random(39)
    sizes = cycle([(80, 24), (100, 30), (20, 6)])
    drive = saying(["Well", ", ", "**hello**", "\n"], tmp_path)
    env = {"LOCALSPEC_DATA_DIR": str(tmp_path), "EDITOR": "true"}
    with Terminal(drive, env=env) as terminal:
        terminal.wait_for("Type a message")
        for i in range(bulk(400, 20_000)):
            known = b"".join(dice.choices(BEGINNINGS, k=dice.randint(1, 3)))
            any_bytes = dice.randbytes(dice.randint(1, 6)).translate(None, QUITS)
            terminal.type(known if dice.random() < 0.4 else any_bytes)
            if i % 100 == 99:
                resize_and_redraw(terminal, next(sizes))
                assert terminal.process.poll() is None, i
        terminal.type(b"\x1b\\\x1b[201~" + CTRL_Q)
        terminal.ends_with(0, 300)
        terminal.assert_whole()


def resize_and_redraw(terminal: Terminal, size: tuple[int, int]) -> None:
    """Returns when the app has written something for the new size."""
    n_seen = len(terminal.seen)
    terminal.resize(*size)
    terminal.wait_for(lambda: len(terminal.seen) > n_seen)


def test_the_window_has_its_own_size() -> None:
    with Terminal(command(), env={"COLUMNS": "200", "LINES": "60"}) as terminal:
        terminal.wait_for("Ready to run")
        since = len(terminal.seen)
        terminal.resize(90, 20)
        terminal.wait_for("quit", since)
        moves = re.findall(rb"\x1b\[(\d+);(\d+)H", terminal.seen)
        assert moves
        assert max(int(row) for row, _ in moves) <= 24
        assert max(int(column) for _, column in moves) <= 90


def feed(chunks: list[str]) -> list[str]:
    """Names of the keys, and texts of the pastes, that the parser reads."""
    parser = PasteParser()
    read: list[str] = []
    for chunk in chunks:
        if not chunk:  # It would be the end of the input.
            continue
        for message in parser.feed(chunk):
            if isinstance(message, Paste):
                read.append(f"paste {message.text}")
            else:
                read.append(getattr(message, "key", "?"))
    return read


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
        st.sampled_from(
            ["<", "?", "0", "9" * 12, "57344", "1", ";", ":", "27", "55296", "$", "M"]
        ),
        max_size=8,
    ),
    st.sampled_from("MmutA~yRc"),
)
def test_a_sequence_of_any_numbers_is_a_key_or_nothing(
    parts: list[str], end: str
) -> None:
    parser = PasteParser()
    for message in [*parser.feed(f"\x1b[{''.join(parts)}{end}"), *parser.tick()]:
        (getattr(message, "character", None) or "").encode()


@pytest.mark.parametrize("form", ["legacy", "modifyOtherKeys", "kitty"])
def test_alt_keys_of_a_message(form: str, zoo: Zoo) -> None:
    """alt+z undoes what was typed, alt+1 copies, and alt+enter begins a new line."""
    with Terminal(chatting(zoo)) as terminal:
        terminal.wait_for("Text-completion model")
        terminal.type("/set max_tokens 3\r")
        terminal.wait_for("max_tokens: 3")
        terminal.type(f"lost{key_bytes('alt+z', form)}")
        terminal.type(f"first half{key_bytes('alt+1', form)}")
        terminal.wait_for("No answer has a code block.")
        terminal.type(f"{key_bytes('alt+enter', form)}second half\r")
        terminal.wait_for("max-token limit")
        terminal.type(CTRL_Q)
        terminal.ends_with(0)
    assert saved_turn().question == "first half\nsecond half"


def test_escape_before_a_letter_is_escape() -> None:
    """Escape closes the search; the letter is not typed into it, nor a key with alt."""
    with Terminal(command()) as terminal:
        terminal.wait_for("Ready to run")
        terminal.type("/demo")
        terminal.wait_for("esc back")
        terminal.type(ESCAPE)
        time.sleep(3 * ESCAPE_DELAY)
        since = len(terminal.seen)
        terminal.type("o")
        terminal.wait_for("Open model files", since)
        terminal.type(CTRL_Q)
        terminal.ends_with(0)


def test_an_editor_that_cannot_be_started_leaves_the_app_as_it_was(
    tmp_path: Path,
) -> None:
    env = {"EDITOR": str(tmp_path / "none"), "VISUAL": ""}
    with Terminal(saying(["hello"], tmp_path), env=env) as terminal:
        terminal.wait_for("Type a message")
        terminal.type(b"unsent\x07")
        since = terminal.wait_for("Set VISUAL or")
        terminal.type(b" text\x1c")  # In the app's mode ctrl+\\ is no signal.
        terminal.wait_for("text", since)
        terminal.type(CTRL_Q)
        terminal.ends_with(0)
        terminal.assert_whole()


def test_ctrl_z_suspends_to_a_real_shell_and_fg_resumes_the_answer(zoo: Zoo) -> None:
    shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    env = {"PS1": "shell> ", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
    with Terminal(shell, env=env) as here:
        here.wait_for("shell> ")
        here.type(f"{' '.join(chatting(zoo))}\r")
        here.wait_for("Text-completion model")
        here.type(ENDLESS)
        before = here.wait_for(SAID)
        for _ in range(2):
            here.type(CTRL_Z)
            since = here.wait_for("Stopped", before)
            here.wait_for("shell> ", before)
            here.assert_whole()
            here.type(b"echo $((20 + 22)) is cooked\r")
            since = here.wait_for("42 is cooked", since)
            here.type(b"fg\r")
            before = here.wait_for(SAID, since)
        here.type(CTRL_Q)
        since = here.wait_for("shell> ", before)
        here.type(b"echo left with $?\r")
        here.wait_for("left with 0", since)
        here.assert_whole()
        here.type(b"exit\r")
        here.ends_with(0)


def test_resizes_while_an_answer_comes(
    answering: tuple[Terminal, list[psutil.Process]],
) -> None:
    terminal, _ = answering
    sizes = (
        (1, 1), (200, 60), (3, 50), (60, 15), (120, 2), (0, 0), (80, 24), (20, 5),
    )  # fmt: skip
    for size in sizes * 3:
        resize_and_redraw(terminal, size)
    since = len(terminal.seen)
    terminal.resize(100, 30)
    terminal.wait_for(SAID, since)
    terminal.type(ESCAPE)
    terminal.wait_for("stopped in")
    terminal.type(CTRL_Q)
    terminal.ends_with(0)
    terminal.assert_whole()


# --- filters
# ----------------------------------------------------------------------------------

BLACK = Color(0, 0, 0)


def test_clean_text_is_left_alone() -> None:
    line = [Segment("plain 漢字 👍")]
    assert ControlCharacterFilter().apply(line, BLACK) is line


def test_what_is_taken_out_leaves_its_room() -> None:
    (segment,) = ControlCharacterFilter().apply([Segment("a\x1b[31mb")], BLACK)
    assert len(segment.text) == len("a\x1b[31mb")


# --- every byte is the app's own
# --------------------------------------------------------------

ESC = "\x1b"
BEL = "\x07"
CSI = "\x9b"
OSC = "\x9d"
ST = "\x9c"
DCS = "\x90"
ATTACKS = (
    f"{ESC}]52;c;cHduZWQ={BEL}",  # writes the clipboard
    f"{ESC}]8;;http://evil/{ESC}\\link{ESC}]8;;{ESC}\\",
    f"{ESC}]0;owned{BEL}",
    f"{ESC}[31m",
    f"{ESC}[2J{ESC}[3J",
    f"{ESC}[6n",
    f"{CSI}33m{OSC}0;owned{ST}{DCS}q{ST}",
    f"{ESC}c{ESC}(0{ESC}P1$q{ESC}\\",
    "\x00\x08\x0e\x7f\r\x0b\x0c",
    "\u202egnp.\u2066x\u2069\u200f",
    "\ud800",
    ESC,  # a sequence over two tokens
    "]0;owned",
    BEL,
)

MARKUP = (
    "[/red]",
    "[@click=app.quit]x[/]",
    "[bold red on blue]loud",
    "[link=http://evil]y[/link]",
    "$accent ",
    "\n\n&#27;[31m &#x202e;abc &#x9b;31m &#155;31m &#7; &#x1b;]0;owned&#7;\n\n",
    "[click](javascript:alert(1)) [file](file:///etc/passwd) <http://evil/\x1b[31m> ![i](http://e/)\n\n",
    "<script>alert(1)</script>\n\n<a href='x'>b</a>\n\n",
    "| a[/red] | \x1b[31mb |\n|---|---|\n| &#27;[35m | `&#27;` |\n\n",
    "```[@click=app.quit]python\nprint('\x1b[31m')\n\x9b31m\n```\n\n",
    "# [/red] &#27;[31m\n\n- [ ] one\n- \u202e two\n\n> [$error]quoted\n\n",
    '[ref]: javascript:x "\x1b[31m"\n\n[ref]\n\n',
)

HARMLESS = (
    "one ",
    "**bold** ",
    "*leaning* ",
    "`code` ",
    "[link](http://a) ",
    "\n\n# head\n\n- [ ] a\n- b\n\n> quoted\n\n",
    "```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | `2` |\n\n<b>raw</b>\n\n",
)

UNCOVERED = "Tokens per step"
"""In the panel, where the settings cover it: seen again once they are gone."""

COLOUR = re.compile(rb"([34]8;2);\d+;\d+;\d+")

PLACE = re.compile(rb"\x1b\[\d+;\d+H")

ATTRIBUTES = {b"0", b"1", b"2", b"3", b"4", b"7", b"9", b"21", b"53", b"38;2", b"48;2"}
"""Of text, as the app sets them: no palette colours, which attackers use."""


def shapes(seen: bytes) -> set[bytes]:
    """The sequences, without the attributes that are the app's.

    Colours and places may have any numbers, which are left out.
    """
    found = set()
    without_colours = COLOUR.sub(rb"\1", seen)
    without_places = PLACE.sub(b"\x1b[y;xH", without_colours)
    for sequence in set(SEQUENCE.findall(without_places)):
        if sequence.endswith(b"m") and sequence.startswith(b"\x1b["):
            parts = re.findall(rb"[34]8;2|\d+", sequence)
            found |= set(parts) - ATTRIBUTES
        else:
            found.add(sequence)
    return found


def leaked(seen: bytes) -> list[str]:
    """What no sequence of the app's can be: controls, C1, overrides in the text."""
    return harmful(SEQUENCE.sub(b"", seen))


def pasted(words: str) -> bytes:
    """As terminals paste: they remove each ESC, which could end the paste itself."""
    content = words.replace(ESC, "").encode("utf-8", "replace")
    return b"\x1b[200~" + content + b"\x1b[201~"


def walk(here: Terminal, words: str) -> bytes:
    """Through a chat, its views, sheets and errors.

    All that is typed or pasted has these words.
    """

    def is_ready() -> bool:
        shown = text(here.seen)
        return "Type a message" in shown or "Text-completion" in shown

    here.wait_for(is_ready)
    ask(here, words, "LAST")
    inspect(here)
    change(here, words)
    ask(here, words, "send again")  # It is refused, and back in the box.
    ask(here, words, "reload")
    before = len(here.seen)
    here.type(CTRL_L)
    before = here.wait_for("engine.log", before)
    here.type(b"q")
    before = here.wait_for("f4 settings", before)
    line = " ".join(words.split())
    for slash in ("/nosuch", "/system", "/read", "/save", "/spec", "/set"):
        here.type(f"{slash} ".encode() + pasted(line) + b"\r")
    before = here.wait_for("There is no setting", before)
    here.type(CTRL_P)
    here.wait_for("Search for commands", before)
    here.type(pasted(line))
    before = here.wait_for("No matches", before)
    here.type(ESCAPE)
    before = here.wait_for("enter send", before)
    here.type(F5)  # loads it again, in vain
    here.wait_for("NOT AGAIN", before)
    here.type(CTRL_Q)
    here.ends_with(0)
    here.assert_whole()
    return here.seen


def inspect(here: Terminal) -> None:
    """Each token of the answer with its details, and the replay."""
    before = len(here.seen)
    here.type(TAB)
    before = here.wait_for("↑↓ round", before)
    here.type(UP + DOWN)
    before = walk_to_the_first(here)
    here.type(F7)
    before = here.wait_for("round 1 of", before)
    here.type(RIGHT + RIGHT + b"G" + b"q")
    # Only the chat shows how full the context is.
    before = here.wait_for(" / 8.2k", before)
    here.type(TAB + CTRL_END)
    here.wait_for("LAST", before)


def walk_to_the_first(here: Terminal) -> int:
    """Token by token: each is painted with its details."""
    begin = len(here.seen)
    searched = begin
    before = begin
    while "step 1 " not in here.new_text(searched, since=begin):
        searched = before
        here.type(LEFT)
        n_seen = before
        before = here.wait_for(lambda: len(here.seen) > n_seen)  # noqa: B023  called at once
    return before


def change(here: Terminal, words: str) -> None:
    """A setting that is none, and the system prompt."""
    before = len(here.seen)
    here.type(F4)
    before = here.wait_for("Settings for the next answer", before)
    here.type(pasted(words))
    before = here.wait_for("Possible", before)
    here.type(BACK_TAB + pasted(words) + F4)
    here.wait_for(UNCOVERED, before)


def ask(here: Terminal, words: str, until: str) -> None:
    before = len(here.seen)
    here.type(pasted(words) + b"\r")
    here.wait_for(until, before)


def says(words: Sequence[str], how: str, folder: Path) -> bytes:
    script = folder / f"{how}.json"
    script.write_text(json.dumps(words), encoding="utf-8")
    (folder / "engine.log").write_bytes("".join(words).encode("utf-8", "replace"))
    env = {"LOCALSPEC_DATA_DIR": str(folder), "COLORTERM": "truecolor"}
    drive = module("tests.support.drive_app", how, str(script))
    with Terminal(drive, size=(120, 40), env=env, answers=True) as terminal:
        return walk(terminal, "".join(words))


@pytest.mark.parametrize("how", often(("says", "completes"), ("says",)))
def test_nothing_but_the_apps_own_sequences(how: str, tmp_path: Path) -> None:
    own = says(HARMLESS, how, tmp_path)
    assert not leaked(own)
    seen = says((*ATTACKS, *MARKUP), how, tmp_path)
    assert not leaked(seen)
    assert not shapes(seen) - shapes(own)
    assert b"\x1b]" not in seen.replace(b"\x1b]22;default\x07", b"")
    for attack in ATTACKS:
        if len(attack) > 9:  # A short one may be a part of the app's own.
            assert attack.encode("utf-8", "replace") not in seen


def test_a_hostile_model_and_its_file_name(zoo: Zoo, tmp_path: Path) -> None:
    """From the list of recent pairs, with the real engine."""
    own = from_the_list(zoo["parrot"])
    name = "".join(ATTACKS[:4]) + "[red][$accent]\u202e[bold]x"
    if sys.platform == "linux":  # Others refuse names that are no UTF-8.
        name += os.fsdecode(b"bad\xff\xfe")
    path = tmp_path / f"{name.replace('/', '')}.gguf"
    shutil.copy(zoo["hostile"], path)
    seen = from_the_list(path, "Recent chats", DOWN * 2)  # past the chat that was kept
    assert "one" in text(seen)
    assert not leaked(seen)
    assert not shapes(seen) - shapes(own)


def from_the_list(model: Path, there: str = "Recent", down: bytes = DOWN) -> bytes:
    recent_pairs.add(ResolvedPair(model, None))
    env = {"COLORTERM": "truecolor"}
    with Terminal(command(), size=(120, 40), env=env, answers=True) as here:
        here.wait_for(there)  # The chats come last.
        here.type(down + b"\r")
        here.wait_for("Text-completion model")
        ask(here, "a", "tokens")  # The line under the answer.
        before = len(here.seen)
        here.type(TAB)
        here.wait_for("↑↓ round", before)
        before = walk_to_the_first(here)
        here.type(F7)
        here.wait_for("round 1 of", before)
        here.type(CTRL_Q)
        here.ends_with(0)
        return here.seen


PARSING = {"Static", "Label", "OptionList", "notify"}
"""They read markup unless told otherwise."""
TITLES = {"tooltip", "border_title", "border_subtitle"}
"""Attributes of widgets that read markup if they are text."""
CONTENT = re.compile(r"Content(\.styled|\.assemble)?\(")
SOURCES = sorted(Path(tui.__file__).parent.rglob("*.py"))


def last_name(node: ast.expr) -> str:
    """`update` of `self.line.update`."""
    return ast.unparse(node).rpartition(".")[2]


def calls(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names of what is called, and whether it is told to read no markup.

    `markup=markup` passes on what the own caller says, who is checked as well.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            keywords = {ast.unparse(keyword) for keyword in node.keywords}
            is_told = bool(keywords & {"markup=False", "markup=markup"})
            yield last_name(node.func), is_told


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_no_call_parses_markup(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for name, is_unmarked in calls(tree):
        assert name not in PARSING or is_unmarked, name
        assert name not in ("from_markup", "Tooltip")


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_no_widget_of_the_app_parses_markup(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {ast.unparse(base) for base in node.bases}
        if bases & PARSING:
            made = [
                is_unmarked for name, is_unmarked in calls(node) if name == "__init__"
            ]
            assert made, node.name
            assert all(made), node.name


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_no_title_of_a_widget_is_markup(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and not CONTENT.match(ast.unparse(node.value)):
            names = {last_name(target) for target in node.targets}
            assert not names & TITLES

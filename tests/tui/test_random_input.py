"""Random answers and random keys: no character is lost, and nothing ends the app."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style

from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.models.chat_template.thinking_tags import split_thinking
from localspec.sanitize import sanitize
from localspec.tui.text import markdown
from localspec.tui.text.turn_text import TurnText
from tests.support.app_driver import Chat
from tests.support.long_cases import bulk
from tests.support.scenes import PAIR
from tests.support.scripted_engine import ScriptedEngine, answer, ready
from tests.tui.text.test_markdown import BLOCKS

TAGS = ("<think>", "</think>")
CHARACTERS = "ab <>[]()!|`~*_#&;:-+.\\/\"' \n\t1é€漢🙂\u200d\u200c\u200f\x1b\x9d\x07\u2028\ud800"
MARKS = ("<url>", "List<String>", "```", "~~~", "<p>", "</p>", "<!--", "[1]: ", "![", "](http://a")
ANSWERS_PER_CHAT = 50


def random_answer(dice: random.Random) -> str:
    """Markdown, tags, links, fences and loose characters, after some thinking or none."""
    parts = ["<think>", random_text(dice), "</think>"] if dice.random() < 0.2 else []
    for _ in range(dice.randint(1, 6)):
        kind = dice.random()
        part = dice.choice(BLOCKS) if kind < 0.4 else dice.choice(MARKS)
        parts.append(part if kind < 0.6 else random_text(dice))
    return "".join(parts)


def random_text(dice: random.Random) -> str:
    return "".join(dice.choices(CHARACTERS, k=dice.randint(1, 30)))


def tokens_of(text: str, dice: random.Random) -> list[str]:
    tokens = []
    while text:
        n = dice.randint(1, 12)
        tokens.append(text[:n])
        text = text[n:]
    return tokens


class Styles(dict[str, Style]):
    def __missing__(self, name: str) -> Style:
        return Style()


def missing(turn: TurnText, text: str, width: int) -> Counter[str]:
    """The visible characters of an answer that are not drawn. Punctuation may be Markdown's."""
    turn.set_thinking_unfolded(True)
    lines = (turn.line(y, Styles()) for y in range(turn.height(width)))
    shown = Counter("".join(segment.text for line in lines for segment in line))
    wanted = Counter[str]()
    for part in split_thinking(text, TAGS):
        letters = markdown._LIST_NUMBER.sub("", sanitize(part.text))
        wanted += Counter(markdown._MARKUP.sub("", letters))
    return wanted - shown


@pytest.fixture
def history() -> Iterator[ChatHistory]:
    with closing(ChatHistory.open()) as opened:
        yield opened


async def chat_about(texts: list[str], history: ChatHistory, dice: random.Random) -> None:
    scripts = [partial(answer, tokens_of(text, dice)) for text in texts]
    chat = Chat(ScriptedEngine(*scripts, ready=ready(thinking=TAGS)))
    chat.screen.session = session = ChatSession(PAIR, 1, history)
    async with chat:
        for text in texts:
            await chat.send("q")
            turn = chat.screen.transcript.turns[-1]
            lost = missing(turn, text, dice.randint(12, 90))
            assert not lost, (text, lost)
    saved = history.load_chat(history.find_last_id())
    again = Chat()
    again.screen.session = ChatSession(PAIR, 1, history, saved)
    async with again:
        turns = again.screen.transcript.turns
        assert len(turns) == len(session.conversation.turns) == len(texts)
        for turn, text in zip(turns, texts, strict=True):
            lost = missing(turn, text, dice.randint(12, 90))
            assert not lost, ("reopened", text, lost)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_no_visible_character_of_an_answer_is_lost(history: ChatHistory) -> None:
    dice, n = random.Random(39), bulk(50, 2000)
    for _ in range(n // ANSWERS_PER_CHAT):
        texts = [random_answer(dice) for _ in range(ANSWERS_PER_CHAT)]
        await chat_about(texts, history, dice)
    print(f"{n} answers, streamed and reopened: no visible character lost")


KEYS = (
    *(b"\x1b", b"\x1b[", b"\x1b[A", b"\x1b[B", b"\x1bO", b"\x1b[<0;9;9M", b"\x1b[<0;9;9m"),
    *(
        b"\x1b[200~",
        b"\x1b[201~",
        b"\x1b]52;c;",
        b"\x07",
        b"\x9b",
        b"\xff\xfe",
        b"\xc3",
        b"\xe2\x80",
    ),
    *(b"\x1b[1;5", b"\x1b[I", b"\x1b[O", b"\x1b[?", b"\x1b[99999999999", b"\x1bP", b"\x1b[M"),
    *(b"\r", b"\n", b"\t", b"\x7f", b"/", b"q", b"?", b"\xf0\x9f\x99\x82", b"\xe2\x80"),
)
QUITS = bytes([0x03, 0x11, 0x1A])
"""ctrl+c twice and ctrl+q quit, ctrl+z suspends."""


def random_bytes(dice: random.Random) -> bytes:
    if dice.random() < 0.4:
        return b"".join(dice.choices(KEYS, k=dice.randint(1, 3)))
    return dice.randbytes(dice.randint(1, 6)).translate(None, QUITS)


def has_more(terminal: Any, n: int) -> bool:
    return terminal.process.poll() is not None or len(terminal.seen) > n


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_no_bytes_end_the_app(tmp_path: Path) -> None:
    from tests.support.pty_terminal import Terminal, module  # noqa: PLC0415  not on Windows

    dice, n, batch = random.Random(39), bulk(400, 20_000), 100
    (tmp_path / "words.json").write_text(json.dumps(["Well", ", ", "**hello**", "\n"]))
    drive = module("tests.support.drive_app", "says", str(tmp_path / "words.json"))
    env = {"LOCALSPEC_DATA_DIR": str(tmp_path), "EDITOR": "true"}
    with Terminal(drive, env=env) as terminal:
        terminal.wait_for("Type a message")
        for i in range(n // batch):
            sent = [random_bytes(dice) for _ in range(batch)]
            for part in sent:
                terminal.type(part)
            terminal.resize(*((80, 24), (100, 30), (20, 6))[i % 3])
            terminal.wait_for(partial(has_more, terminal, len(terminal.seen)))
            assert terminal.process.poll() is None, (i, sent)
        terminal.type(b"\x1b\\\x1b[201~")
        terminal.type(b"\x11")
        terminal.ends_with(0, 300)
        terminal.assert_whole()
    print(f"{n} byte strings: the app ended when it was told to")

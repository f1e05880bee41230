"""Saving a conversation to a file, and restarting answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat import copying, export
from localspec.chat.conversation import Conversation
from localspec.chat.history import ChatPair, SavedChat
from localspec.chat.settings import ChatSettings
from localspec.errors import StorageError
from localspec.protocol.events import GenerationFinished, Prefill, Round, RoundTimes, Token
from tests.chat.talk import add_events

MARKERS = ("<think>", "</think>")


def spoken(answer: str, *, inside: bool = False) -> tuple[Prefill, Round, GenerationFinished]:
    token = Token(1, answer, "plain")
    return (
        Prefill(1, 1, 0, inside),
        Round(0, None, "", 0, 0, (token,), RoundTimes(0, 1, 0)),
        GenerationFinished("eog"),
    )


@pytest.fixture
def chat() -> SavedChat:
    chat = Conversation(1, "be brief")
    chat.ask("hello")
    add_events(chat, spoken("hm</think>Hi\x1b[2J!", inside=True))
    chat.ask("")
    add_events(chat, spoken(" More."))
    return export.snapshot_chat(chat, ChatPair("m", name="m", thinking=MARKERS), ChatSettings())


def test_markdown(chat: SavedChat) -> None:
    assert export.render_markdown(chat) == (
        "# A chat with m\n\n## System\n\nbe brief\n\n## You\n\nhello\n\n## m\n\nHi!\n\n"
        "## m\n\n More.\n"
    )


def test_plain(chat: SavedChat) -> None:
    assert export.render_text(chat) == ("System: be brief\n\nYou: hello\n\nm: Hi!\n\nm:  More.\n")


def test_a_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    export.save_file(path, "one", overwrite=False)
    with pytest.raises(StorageError, match="already exists"):
        export.save_file(path, "two", overwrite=False)
    assert path.read_text() == "one"
    export.save_file(path, "two", overwrite=True)
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        export.save_file(tmp_path / "no" / "chat.md", "one", overwrite=False)


def test_what_was_cut_off_comes_again_with_its_seed() -> None:
    chat = Conversation(1)
    chat.ask("hello")
    seed = chat.derive_seed()
    add_events(chat, spoken("Hi")[:2])
    assert chat.restart_answer().answer == ""
    assert chat.derive_seed() == seed
    chat.retry()
    assert chat.derive_seed() != seed


def test_a_terminal_is_asked_to_copy() -> None:
    written: list[str] = []
    elsewhere = {"SSH_CONNECTION": "1", "DISPLAY": ":0"}  # no clipboard of the other computer
    assert "does not say" in copying.copy("hello", written.append, elsewhere)
    assert written == ["\x1b]52;c;aGVsbG8=\x07"]
    assert copying.copy("x" * 100_000, written.append, elsewhere) == ""
    assert copying.copy("hello", None, elsewhere) == ""

"""Documents in the app: read on a thread, chosen by parts, found after `@`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat import file_search
from localspec.chat.file_search import FileIndex
from localspec.documents.reading import FileRequest, read_file
from localspec.tui import document_reader, file_finder
from localspec.tui.dialogs.document_parts import DocumentPartsScreen
from localspec.tui.widgets.composer import CompletionList
from tests.support.app_driver import Chat
from tests.support.document_files import make_epub


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("import os\n")
    (tmp_path / "src" / "map.py").write_text("import re\n")
    (tmp_path / "notes.txt").write_text("seven\n")
    (tmp_path / "left out.log").write_text("")
    (tmp_path / ".gitignore").write_text("*.log\n")
    chapters = [
        f"<h1>Chapter {n}</h1><p>{'some words ' * 700}</p>" for n in range(1, 13)
    ]
    (tmp_path / "book.epub").write_bytes(make_epub(chapters))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class SlowReader:
    """Reads a file when `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, request: FileRequest) -> object:
        self.may_end.wait(60)
        return read_file(request)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowReader:
    reader = SlowReader()
    monkeypatch.setattr(document_reader, "read_file", reader)
    return reader


async def typed(chat: Chat, text: str) -> None:
    keys = {"/": "slash", " ": "space", "@": "at", ".": "full_stop"}
    await chat.press(*[keys.get(character, character) for character in text])


async def submit(chat: Chat, text: str) -> None:
    """Without waiting for what it starts."""
    chat.screen.composer.replace_text(text)
    await chat.pilot.press("enter")
    await chat.pilot.pause()


def attached(chat: Chat) -> list[str]:
    return [file.name for file in chat.screen.session.pending_attachments]


def listed(chat: Chat) -> list[str]:
    completions = chat.screen.query_one(CompletionList)
    if not completions.display:
        return []
    return [str(option.prompt).strip() for option in completions.options]


# --- reading


async def test_of_many_documents_the_first_is_named_and_the_size_of_all(
    folder: Path,
) -> None:
    """Their names would not have room in the lines above the message."""
    async with Chat() as chat:
        for name in ("notes.txt", "src/main.py", "src/map.py"):
            await chat.send(f"/read {name}")

        await chat.sees("+ notes.txt and 2 more, 23 characters", "/read - removes them")


async def test_a_message_waits_for_its_document(folder: Path, slow: SlowReader) -> None:
    async with Chat() as chat:
        await submit(chat, "/read notes.txt")
        assert "reading notes.txt …" in chat.shown
        await submit(chat, "what?")
        await chat.sees("Sends when notes.txt has been read.")
        assert not chat.questions

        slow.may_end.set()
        await chat.wait(lambda: chat.questions == ["what?"])

        (turn,) = chat.screen.session.conversation.turns
        assert [file.name for file in turn.attachments] == ["notes.txt"]


async def test_a_message_comes_back_if_its_document_cannot_be_read(
    folder: Path, slow: SlowReader
) -> None:
    async with Chat() as chat:
        await submit(chat, "/read missing.txt")
        await submit(chat, "what?")

        slow.may_end.set()
        await chat.sees("There is no file missing.txt.")

        assert chat.typed == "what?"
        assert not chat.questions


async def test_a_document_that_is_removed_while_it_is_read_stays_away(
    folder: Path, slow: SlowReader
) -> None:
    async with Chat() as chat:
        await submit(chat, "/read notes.txt")
        await submit(chat, "/read -")
        assert "reading notes.txt" not in chat.shown

        slow.may_end.set()
        await chat.pilot.pause(0.2)

        assert attached(chat) == []


async def test_a_long_document_is_attached_by_the_parts_that_are_chosen(
    folder: Path,
) -> None:
    async with Chat() as chat:
        await chat.send("/read book.epub")
        await chat.reaches(DocumentPartsScreen)
        await chat.sees(
            "Which chapters of book.epub?", "12 chapters, about", "Chapter 1"
        )
        assert "1-3" in chat.shown, "as many as have room"

        await chat.press("ctrl+u", *"2,", "4")
        await chat.sees("2 chapters, about")
        await chat.press("enter")

        assert attached(chat) == ["book.epub, chapters 2, 4 of 12"]
        await chat.sees("+ book.epub, chapters 2, 4 of 12")


async def test_parts_are_added_and_removed_in_the_list(folder: Path) -> None:
    async with Chat() as chat:
        await chat.send("/read book.epub chapters")
        await chat.reaches(DocumentPartsScreen)
        await chat.press("ctrl+u", "down", "space", "down", "down", "space")
        await chat.press("up", "space", "space", "enter")

        assert attached(chat) == ["book.epub, chapters 2, 4 of 12"]


async def test_numbers_of_no_part_attach_nothing(folder: Path) -> None:
    async with Chat() as chat:
        await chat.send("/read book.epub chapters")
        await chat.reaches(DocumentPartsScreen)
        await chat.press("ctrl+u", *"99", "enter")
        await chat.sees("No chapter has these numbers.")

        await chat.press("escape")

        assert chat.on_top
        assert attached(chat) == []


async def test_parts_that_are_chosen_before_are_attached_at_once(folder: Path) -> None:
    async with Chat() as chat:
        await chat.send("/read book.epub all")

        assert attached(chat) == ["book.epub"]
        await chat.sees("It may be too long.")


# --- @


async def test_at_lists_the_files_that_git_does_not_ignore(folder: Path) -> None:
    async with Chat() as chat:
        await typed(chat, "see @")
        await chat.wait(lambda: listed(chat))

        assert listed(chat) == ["book.epub", "notes.txt", "src/main.py", "src/map.py"]


async def test_a_file_that_is_chosen_is_attached_and_named_in_the_text(
    folder: Path,
) -> None:
    async with Chat() as chat:
        await typed(chat, "explain @smn")
        await chat.wait(lambda: listed(chat) == ["src/main.py"])

        await chat.press("enter")

        assert chat.typed == "explain src/main.py "
        assert attached(chat) == ["main.py"]
        assert not chat.questions


async def test_enter_after_fast_typing_takes_the_file_and_not_the_message(
    folder: Path,
) -> None:
    async with Chat() as chat:
        await typed(chat, "@")
        await chat.wait(lambda: listed(chat))

        await chat.press("n", "o", "t", "enter")

        assert chat.typed == "notes.txt "
        assert attached(chat) == ["notes.txt"]


async def test_an_at_that_names_no_file_is_sent(folder: Path) -> None:
    async with Chat() as chat:
        await typed(chat, "hi @")
        await chat.wait(lambda: listed(chat))
        await typed(chat, "xyz")
        await chat.wait(lambda: not listed(chat))

        await chat.press("enter")

        await chat.wait(lambda: chat.questions == ["hi @xyz"])


async def test_escape_closes_the_files_until_more_is_typed(folder: Path) -> None:
    async with Chat() as chat:
        await typed(chat, "@n")
        await chat.wait(lambda: listed(chat))
        await chat.press("escape")
        await chat.pilot.pause(0.2)
        assert not listed(chat)
        assert chat.on_top

        await typed(chat, "o")

        await chat.wait(lambda: listed(chat) == ["notes.txt"])


GAP = "… only the nearest 3 files are found; @./ lists any folder"


@pytest.fixture
def huge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk ends at the limit, before the folder `src`."""
    monkeypatch.setattr(file_search, "MAX_FILES", 2)
    (folder / "readme.md").write_text("")


async def test_the_list_says_that_a_limit_ended_the_walk(huge: None) -> None:
    async with Chat() as chat:
        await typed(chat, "@")
        await chat.wait(lambda: GAP in listed(chat))
        assert listed(chat) == ["book.epub", "notes.txt", "readme.md", GAP]

        await chat.press("up", "enter")

        assert attached(chat) == ["readme.md"], "the line is no file"


async def test_a_file_that_was_not_reached_is_not_said_to_be_missing(
    huge: None,
) -> None:
    async with Chat() as chat:
        await typed(chat, "hi @main")
        await chat.wait(lambda: listed(chat) == [GAP])

        await chat.press("enter")

        await chat.wait(lambda: chat.questions == ["hi @main"])


async def test_a_path_has_all_of_its_folder_also_in_a_huge_tree(huge: None) -> None:
    async with Chat() as chat:
        await typed(chat, "@")
        await chat.wait(lambda: GAP in listed(chat))
        await typed(chat, "./src/")

        await chat.wait(lambda: listed(chat) == ["./src/main.py", "./src/map.py"])


@pytest.mark.parametrize("text", ["a@n", "/system be @n", "say @n ow"])
async def test_other_ats_list_nothing(folder: Path, text: str) -> None:
    async with Chat() as chat:
        await typed(chat, text)
        await chat.pilot.pause(0.2)

        assert "notes.txt" not in listed(chat)


async def test_a_path_after_at_leaves_the_folder(folder: Path) -> None:
    async with Chat() as chat:
        await typed(chat, "@./sr")
        await chat.wait(lambda: listed(chat) == ["./src/"])
        await chat.press("tab")
        assert chat.typed == "@./src/"
        await chat.wait(lambda: "./src/map.py" in listed(chat))
        await chat.press("down", "tab")

        assert attached(chat) == ["map.py"]


async def test_keys_do_not_wait_for_a_huge_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    class EndlessIndex(FileIndex):
        def walk(self) -> Iterator[None]:
            yield from super().walk()
            may_end.wait(60)

    monkeypatch.setattr(file_finder, "FileIndex", EndlessIndex)
    async with Chat() as chat:
        await typed(chat, "@no")
        assert chat.typed == "@no"

        await chat.press("enter")

        assert attached(chat) == ["notes.txt"], "it was found already"
        may_end.set()

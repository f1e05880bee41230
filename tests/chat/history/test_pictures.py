"""Pictures in the chat history: kept once, read again, and gone with their last chat."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.chat.conversation import Conversation, PictureAttachment
from localspec.chat.history import ChatHistory, ChatLocation, schema
from localspec.errors import StorageError
from localspec.protocol.json_values import from_json
from tests.chat.saved_chats import about, add_events, answer
from tests.support.chat_pictures import (
    PHOTO,
    SKETCH,
    attachment,
    reading,
    seen,
    thumbnail,
)

PREVIOUS = Path(__file__).parents[2] / "previous_version" / "chats.sqlite"
BODIES = {attachment(data).sha256: data for data in (PHOTO, SKETCH)}
TURN_COLUMNS_OF_VERSION_1 = (
    "key, id, parent, question, attached, answer, reason, attempt, inside, model"
)
"""What the program of version 1 selects of a turn."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats" / "chats.sqlite"


@pytest.fixture
def history(path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(path)) as opened:
        yield opened


def chat(*pictures: PictureAttachment, question: str = "What is it?") -> Conversation:
    conversation = Conversation(7, "be brief")
    conversation.ask(question, (), pictures)
    add_events(conversation, answer("A photo."))
    return conversation


def put(history: ChatHistory, conversation: Conversation) -> ChatLocation:
    return history.save_chat(
        None, about(conversation), conversation.all_turns, BODIES.get
    )


def count_bodies(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        (n,) = database.execute("SELECT count(*) FROM pictures").fetchone()
    return int(n)


def test_a_picture_comes_back_with_its_bytes(history: ChatHistory) -> None:
    photo = replace(attachment(), n_rows=24, thumbnail=thumbnail())
    saved = chat(photo, attachment(SKETCH, "sketch.png"))

    loaded = history.load_chat(put(history, saved).chat_id)

    assert loaded.conversation.all_turns == saved.all_turns
    assert loaded.read_picture(photo.sha256) == PHOTO
    assert history.read_picture(attachment(SKETCH).sha256) == SKETCH
    assert history.read_picture("0" * 64) is None


def test_the_bytes_are_kept_once(history: ChatHistory, path: Path) -> None:
    branched = chat(attachment(), attachment())
    branched.retry()
    put(history, branched)
    put(history, chat(attachment(name="the same.png")))

    assert count_bodies(path) == 1


def test_a_picture_goes_with_the_last_chat_that_has_it(
    history: ChatHistory, path: Path
) -> None:
    first = put(history, chat(attachment(), attachment(SKETCH)))
    second = put(history, chat(attachment()))

    history.remove_chats([first.chat_id])
    assert history.read_picture(attachment().sha256) == PHOTO
    assert history.read_picture(attachment(SKETCH).sha256) is None

    history.remove_chats([second.chat_id])
    assert count_bodies(path) == 0
    files = [file for file in path.parent.iterdir() if file.is_file()]
    assert all(PHOTO not in file.read_bytes() for file in files)


def test_a_picture_goes_with_a_question_that_was_withdrawn(
    history: ChatHistory, path: Path
) -> None:
    conversation = chat(attachment())
    location = put(history, conversation)
    refused = conversation.ask("too long", (), [attachment(SKETCH)])
    history.save_chat(location, about(conversation), [refused], BODIES.get)
    assert count_bodies(path) == 2

    history.remove_turn(location, about(conversation), refused.id)

    assert count_bodies(path) == 1


def test_saving_a_turn_again_keeps_its_picture(history: ChatHistory) -> None:
    conversation = chat(attachment())
    location = put(history, conversation)

    # The bytes are no longer in memory.
    history.save_chat(location, about(conversation), conversation.all_turns)

    assert history.read_picture(attachment().sha256) == PHOTO


def test_what_an_answer_reports_of_a_picture_is_saved_with_it(
    history: ChatHistory,
) -> None:
    conversation = Conversation(7)
    conversation.ask("What is it?", (), [attachment(), attachment(SKETCH)])
    location = put(history, conversation)

    history.append_events(location, 1, seen("A", " photo."))

    loaded = history.load_chat(location.chat_id, with_events=False)
    first, second = loaded.conversation.turns[0].pictures
    assert (first.n_rows, first.thumbnail) == (24, thumbnail())
    assert second == attachment(SKETCH)


def test_a_search_finds_the_name_of_a_picture(history: ChatHistory) -> None:
    location = put(history, chat(attachment(name="receipt-2026.png")))
    put(history, chat(question="no picture"))

    (found,) = history.search_turns("receipt")
    (by_short_word,) = history.search_turns("-2")

    assert found.list_entry.id == by_short_word.list_entry.id == location.chat_id
    assert "receipt-2026.png" in found.excerpt


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE turns SET pictures = '[{'",
        "UPDATE turns SET pictures = '[{\"name\": 5}]'",
        "UPDATE turns SET pictures = x'ff00'",
        "UPDATE turns SET pictures = 7",
    ],
)
def test_a_damaged_list_of_pictures_hides_no_turn(
    damage: str, history: ChatHistory, path: Path
) -> None:
    location = put(history, chat(attachment()))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(damage)

    (turn,) = history.load_chat(location.chat_id).conversation.turns

    assert (turn.question, turn.answer) == ("What is it?", "A photo.")
    assert turn.pictures == ()
    assert history.search_turns("photo")


@pytest.mark.parametrize("damage", ["x'89504e47'", "'text'", "5"])
def test_a_damaged_picture_is_none(
    damage: str, history: ChatHistory, path: Path
) -> None:
    put(history, chat(attachment()))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(f"UPDATE pictures SET body = {damage}")

    assert history.read_picture(attachment().sha256) is None


# --- files of version 1


@pytest.fixture
def old_path(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    shutil.copyfile(PREVIOUS, path)
    return path


def read_schema(path: Path) -> dict[str, tuple[str, str, str]]:
    with closing(sqlite3.connect(path)) as database:
        entries = schema.read_schema(database)
    return {name: (each.kind, each.table, each.sql) for name, each in entries.items()}


def test_a_file_of_version_1_becomes_one_of_today(
    old_path: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(old_path)) as database:
        before = database.execute(
            f"SELECT {TURN_COLUMNS_OF_VERSION_1} FROM turns"
        ).fetchall()
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
    ChatHistory.open(tmp_path / "new" / "chats" / "chats.sqlite").close()

    with closing(ChatHistory.open(old_path)) as history:
        assert history.write_error is None
        assert not history.take_notices(), "nothing was damaged"
        location = put(history, chat(attachment()))
        assert history.read_picture(attachment().sha256) == PHOTO

    assert read_schema(old_path) == read_schema(
        tmp_path / "new" / "chats" / "chats.sqlite"
    )
    with closing(sqlite3.connect(old_path)) as database:
        query = f"SELECT {TURN_COLUMNS_OF_VERSION_1} FROM turns WHERE chat != ?"
        after = database.execute(query, (location.chat_id,)).fetchall()
        assert database.execute("PRAGMA user_version").fetchone() == (
            schema.SCHEMA_VERSION,
        )
    assert after == before


def test_the_program_of_version_1_reads_a_file_of_today(
    history: ChatHistory, path: Path
) -> None:
    location = put(history, chat(attachment()))
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        query = f"SELECT {TURN_COLUMNS_OF_VERSION_1} FROM turns WHERE chat = ?"
        (turn,) = database.execute(query, (location.chat_id,)).fetchall()

    assert turn[3] == "What is it?" and turn[5] == "A photo."
    # It reads attached files strictly, as pairs of two texts.
    assert from_json(list[tuple[str, str]], json.loads(turn[4])) == []


def test_a_file_of_version_1_that_cannot_be_written_is_read(
    old_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(old_path)) as database:
        n_turns = database.execute("SELECT count(*) FROM turns").fetchone()[0]
    before = old_path.read_bytes()

    def refuse(_: Path) -> sqlite3.Connection:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(schema, "open_for_writing", refuse)
    with closing(ChatHistory.open(old_path)) as history:
        assert isinstance(history.write_error, StorageError)
        chats = [history.load_chat(entry.id) for entry in history.list_chats()]
        assert history.search_turns("def")
        assert history.read_picture(attachment().sha256) is None

    assert sum(len(each.conversation.all_turns) for each in chats) == n_turns
    assert old_path.read_bytes() == before


def test_a_damaged_file_of_version_1_is_repaired_and_not_upgraded(
    old_path: Path,
) -> None:
    with closing(sqlite3.connect(old_path)) as database, database:
        n_turns = database.execute("SELECT count(*) FROM turns").fetchone()[0]
        database.execute("PRAGMA writable_schema = ON")
        database.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'question', 'questioo')"
        )
    damaged = old_path.read_bytes()

    with closing(ChatHistory.open(old_path)) as history:
        (notice,) = history.take_notices()
        chats = [history.load_chat(entry.id) for entry in history.list_chats()]

    assert notice.code == "history-repaired"
    assert sum(len(each.conversation.all_turns) for each in chats) == n_turns
    (kept,) = old_path.parent.glob("chats.sqlite.corrupt-*")
    header_size = 100  # Opening it has changed the kind of journal there.
    assert kept.read_bytes()[header_size:] == damaged[header_size:]


@pytest.mark.parametrize("was_upgraded", [False, True])
def test_a_repair_keeps_the_pictures(
    was_upgraded: bool, path: Path, request: pytest.FixtureRequest
) -> None:
    if was_upgraded:
        request.getfixturevalue("old_path")
    with closing(ChatHistory.open(path)) as history:
        location = put(history, chat(attachment(), attachment(SKETCH)))
    with path.open("r+b") as file:  # The number of pages is wrong: two.
        file.seek(28)
        file.write((2).to_bytes(4, "big"))

    with closing(ChatHistory.open(path)) as history:
        (turn,) = history.load_chat(location.chat_id).conversation.turns
        assert turn.pictures == (attachment(), attachment(SKETCH))
        assert [history.read_picture(each.sha256) for each in turn.pictures] == [
            PHOTO,
            SKETCH,
        ]


def test_reading_of_another_picture_changes_nothing() -> None:
    conversation = chat(attachment())

    turn = conversation.turns[-1].with_events([reading(SKETCH)])

    assert turn.pictures == (attachment(),)

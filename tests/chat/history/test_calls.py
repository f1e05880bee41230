"""Calls of tools in the chat history: saved with their results, found, and upgraded."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.chat.conversation import CallResult, Conversation
from localspec.chat.history import ChatHistory, ChatLocation, schema
from localspec.errors import InUseError, StorageError
from localspec.protocol.wire import ToolCall
from tests.chat.saved_chats import about, add_events, answer
from tests.chat.saved_chats import put as put_texts
from tests.support.chat_pictures import PHOTO, attachment, reading

CALL = ToolCall("call00100", "time_now", '{"zone": "UTC"}')
RESULT = CallResult("call00100", "time.now", "It is teatime.", False, "once")
TURN_COLUMNS_OF_VERSION_2 = (
    "key, id, parent, question, attached, answer, reason, attempt, inside, model, "
    "pictures"
)
"""What the program of version 2 selects of a turn."""
TABLES_OF_VERSION_2 = """
CREATE TABLE chats (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, seed INTEGER NOT NULL,
    system TEXT NOT NULL, settings TEXT NOT NULL, pair TEXT NOT NULL, head INTEGER,
    cut TEXT NOT NULL, turns INTEGER NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
    touched INTEGER NOT NULL);
CREATE TABLE turns (key INTEGER PRIMARY KEY AUTOINCREMENT, chat INTEGER NOT NULL, id INTEGER NOT NULL,
    parent INTEGER, question TEXT NOT NULL, attached TEXT NOT NULL, answer TEXT NOT NULL,
    reason TEXT, attempt INTEGER NOT NULL, inside INTEGER NOT NULL, changed INTEGER NOT NULL,
    model TEXT NOT NULL DEFAULT '', pictures TEXT NOT NULL DEFAULT '[]', UNIQUE (chat, id));
CREATE TABLE events (key INTEGER PRIMARY KEY, turn INTEGER NOT NULL, n INTEGER NOT NULL,
    body BLOB NOT NULL, UNIQUE (turn, n));
CREATE TABLE state (name TEXT NOT NULL, clock INTEGER NOT NULL);
CREATE INDEX touched ON chats (touched);
CREATE TABLE pictures (sha256 TEXT PRIMARY KEY, body BLOB NOT NULL);
INSERT INTO state VALUES ('abc', 0);
PRAGMA user_version = 2;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats" / "chats.sqlite"


@pytest.fixture
def history(path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(path)) as opened:
        yield opened


def chat(result: CallResult = RESULT) -> Conversation:
    """A question, a call, its result and the answer."""
    conversation = Conversation(7, "be brief")
    conversation.ask("How late is it?")
    turn = add_events(conversation, answer("Let me see."))
    conversation.update_turn(replace(turn, calls=(CALL,), call_format="generic"))
    conversation.add_results([result])
    add_events(conversation, answer("Time for tea."))
    return conversation


def put(history: ChatHistory, conversation: Conversation) -> ChatLocation:
    bodies = {attachment().sha256: PHOTO}
    return history.save_chat(
        None, about(conversation), conversation.all_turns, bodies.get
    )


def test_calls_and_results_come_back_as_they_were(history: ChatHistory) -> None:
    conversation = chat()

    saved = history.load_chat(put(history, conversation).chat_id)

    assert saved.conversation.turns == conversation.turns
    assert saved.list_entry.turn_count == 1


def test_a_search_finds_the_text_and_the_tool_of_a_result(
    history: ChatHistory,
) -> None:
    put(history, chat())

    by_text = history.search_turns("teatime")
    by_tool = history.search_turns("time.now")

    assert [hit.turn for hit in by_text] == [2]
    assert [hit.turn for hit in by_tool] == [2]
    assert "teatime" in by_text[0].excerpt


def test_a_picture_of_a_result_is_kept_until_its_chat_is_removed(
    history: ChatHistory,
) -> None:
    picture = attachment()
    with_picture = chat(replace(RESULT, pictures=(picture,)))
    other = put(history, chat())

    location = put(history, with_picture)
    history.remove_chats([other.chat_id])
    kept = history.read_picture(picture.sha256)
    history.remove_chats([location.chat_id])

    assert kept == PHOTO
    assert history.read_picture(picture.sha256) is None


def test_what_the_engine_reads_of_a_result_s_picture_is_saved(
    history: ChatHistory,
) -> None:
    conversation = chat(replace(RESULT, pictures=(attachment(),)))
    location = put(history, conversation)

    history.append_events(location, 2, [reading()])

    saved = history.load_chat(location.chat_id).conversation
    (picture,) = saved.turns[-1].results[0].pictures
    assert picture.n_rows == reading().rows


@pytest.mark.parametrize(
    "damaged",
    ["", "null", "[]", "{", '{"calls": 3}', '{"results": [{}]}', "[" * 100_000],
)
def test_damaged_calls_are_none_and_the_texts_stay(
    damaged: str, history: ChatHistory, path: Path
) -> None:
    location = put(history, chat())
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE turns SET calls = ?", (damaged,))

    turns = history.load_chat(location.chat_id).conversation.turns

    assert [turn.question for turn in turns] == ["How late is it?", ""]
    assert [turn.visible_answer(None) for turn in turns] == [
        "Let me see.",
        "Time for tea.",
    ]
    assert history.search_turns("tea")


def test_a_format_that_is_unknown_loses_no_text(
    history: ChatHistory, path: Path
) -> None:
    location = put(history, chat())
    with closing(sqlite3.connect(path)) as other, other:
        query = "UPDATE turns SET calls = replace(calls, 'generic', 'of tomorrow')"
        other.execute(query)

    turns = history.load_chat(location.chat_id).conversation.turns

    assert turns[0].visible_answer(None) == "Let me see."
    assert turns[0].calls == (CALL,)


# --- files of version 2


@pytest.fixture
def old_path(path: Path) -> Path:
    """A file of version 2 with a chat of one turn."""
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES_OF_VERSION_2)
        database.execute(
            "INSERT INTO chats VALUES (1, 'Rain', 7, '', '{}', '{}', 1, '', 1, 0, 0, 0)"
        )
        database.execute(
            "INSERT INTO turns VALUES (1, 1, 1, NULL, 'Rain?', '[]', 'No.', 'eog', "
            "0, 0, 1, '', '[]')"
        )
        database.commit()
    return path


def read_schema(path: Path) -> dict[str, tuple[str, str, str]]:
    with closing(sqlite3.connect(path)) as database:
        entries = schema.read_schema(database)
    return {name: (each.kind, each.table, each.sql) for name, each in entries.items()}


def test_a_file_of_version_2_becomes_one_of_today(
    old_path: Path, tmp_path: Path
) -> None:
    ChatHistory.open(tmp_path / "new" / "chats" / "chats.sqlite").close()

    with closing(ChatHistory.open(old_path)) as history:
        assert history.write_error is None
        assert not history.take_notices(), "nothing was damaged"
        location = put(history, chat())
        (old_turn,) = history.load_chat(1).conversation.turns
        new_turns = history.load_chat(location.chat_id).conversation.turns

    assert (old_turn.question, old_turn.answer, old_turn.calls) == ("Rain?", "No.", ())
    assert new_turns == chat().turns
    new_path = tmp_path / "new" / "chats" / "chats.sqlite"
    assert read_schema(old_path) == read_schema(new_path)


def test_the_program_of_version_2_opens_a_file_of_today_to_read_only(
    history: ChatHistory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = put(history, chat())
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        query = f"SELECT {TURN_COLUMNS_OF_VERSION_2} FROM turns WHERE chat = ?"
        first, second = database.execute(query, (location.chat_id,)).fetchall()

    assert first[3] == "How late is it?"
    assert (second[3], second[5]) == ("", "Time for tea.")
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 2)
    with closing(ChatHistory.open(path)) as older:
        assert isinstance(older.write_error, InUseError)
        assert "newer localspec" in older.write_error.message


def test_a_file_of_version_2_that_cannot_be_written_is_read(
    old_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old_path.read_bytes()

    def refuse(_: Path) -> sqlite3.Connection:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(schema, "open_for_writing", refuse)
    with closing(ChatHistory.open(old_path)) as history:
        assert isinstance(history.write_error, StorageError)
        (turn,) = history.load_chat(1).conversation.turns
        assert history.search_turns("rain")

    assert turn.answer == "No."
    assert old_path.read_bytes() == before


def test_a_damaged_file_of_version_2_is_repaired_into_one_of_today(
    old_path: Path,
) -> None:
    body = bytearray(old_path.read_bytes())
    at = body.index(b"CREATE TABLE turns")
    body[at + 10] ^= 1
    old_path.write_bytes(body)

    with closing(ChatHistory.open(old_path)) as history:
        (turn,) = history.load_chat(1).conversation.turns

    assert (turn.question, turn.answer) == ("Rain?", "No.")


def test_a_chat_of_texts_has_no_calls(history: ChatHistory, path: Path) -> None:
    put_texts(history, ("Rain?", "No."))

    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT calls FROM turns").fetchall() == [("",)]

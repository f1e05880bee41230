"""The chat history: saving, loading, searching, deleting, and file permissions."""

import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.conversation import Attachment
from localspec.chat.history import ChatHistory, records, schema
from localspec.chat.history.store import SearchIndex
from localspec.chat.settings import ChatSettings
from localspec.errors import InUseError, LocalspecError, NotFoundError, StorageError
from tests.chat.saved_chats import PAIR, about, add_events, answer, chat, put, said
from tests.support.flipped_bits import flip_database_bits

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats" / "chats.sqlite"


@pytest.fixture
def history(path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(path)) as known:
        yield known


def test_a_chat_comes_back_as_it_was(path: Path) -> None:
    talk = chat(("hello", "Hi!"), ("and?", "No."))
    talk.edit_turn(talk.turns[0].id, "hello\ud83d there\0")
    add_events(talk, answer("hm</think>", "Hello", thinking=True))
    talk.ask("read", [Attachment("a.py", "import os")])
    settings = (
        ChatSettings().with_value("temperature", "0.3").with_value("max_tokens", "99")
    )
    with closing(ChatHistory.open(path)) as first:
        place = first.save_chat(None, about(talk, settings), talk.all_turns)
    with closing(ChatHistory.open(path)) as second:
        kept = second.load_chat(place.chat_id)
    assert (kept.location, kept.settings, kept.list_entry.pair) == (
        place,
        settings,
        PAIR,
    )
    again = kept.conversation
    assert (again.seed, again.system, again.head) == (talk.seed, talk.system, talk.head)
    # a lone surrogate is not a character
    assert again.all_turns[2].question == "hello\ufffd there\0"
    assert [t.events for t in again.all_turns] == [t.events for t in talk.all_turns]
    assert [t.attachments for t in again.all_turns] == [
        t.attachments for t in talk.all_turns
    ]
    assert [
        (t.id, t.parent, t.attempt, t.answer, t.finish_reason) for t in again.all_turns
    ] == [
        (t.id, t.parent, t.attempt, t.answer, t.finish_reason) for t in talk.all_turns
    ]
    assert again.derive_seed() == talk.derive_seed()
    with closing(ChatHistory.open(path)) as third:
        turns = third.load_chat(place.chat_id, with_events=False).conversation.all_turns
        assert [turn.answer for turn in turns] == [
            turn.answer for turn in talk.all_turns
        ]
        assert not any(turn.rounds for turn in turns) and turns[2].starts_in_thinking
        for missing in (third.load_chat, third.find_entry):
            with pytest.raises(NotFoundError, match="no chat 9"):
                missing(9)


def test_the_last_used_comes_first(
    history: ChatHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(history, ("one", "1"))
    second = put(history, ("two", "2"))
    monkeypatch.setattr(time, "time", lambda: 5.0)  # the clock was set back
    third = put(history, ("three", "3"))
    ids = [place.chat_id for place in (third, second, first)]
    assert [one.id for one in history.list_chats()] == ids
    history.append_events(first, 1, answer("more"))
    assert [one.id for one in history.list_chats()] == [ids[2], *ids[:2]]
    assert [one.id for one in history.list_chats(1)] == [first.chat_id]
    assert history.find_last_id() == first.chat_id


def test_a_tree_that_makes_no_sense_is_one_again(
    history: ChatHistory, path: Path
) -> None:
    place = put(history, ("one", "1"), ("two", "2"), ("three", "3"))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE turns SET parent = 99, reason = 7 WHERE id = 2")
        other.execute("UPDATE turns SET attached = '[1', answer = x'ff' WHERE id = 3")
        other.execute(
            "UPDATE chats SET head = 77, settings = '{\"exact\": 5}', seed = 'x'"
        )
    kept = history.load_chat(place.chat_id)
    assert [turn.question for turn in kept.conversation.turns] == ["two", "three"]
    assert kept.settings == ChatSettings()


@given(st.binary(max_size=60))
def test_a_damaged_checkpoint_is_no_error(body: bytes) -> None:
    assert isinstance(records.unpack_events(body), list)
    whole = records.pack_events(answer("a", "b"))
    assert records.unpack_events(whole) == answer("a", "b")
    records.unpack_events(whole[: len(body)] + body)


TALKS = (
    ("Fibonacci in Python", "def fib(n): return n"),
    ("Überraschung?", "STRASSE und Straße"),
    ("漢字かな交じり文", "単語の間に空白がない"),
    ('a "quoted" AND word*', "NEAR(x) OR nothing"),
    ("fib again", "Python once more"),
)


def words_of(history: ChatHistory, text: str) -> list[tuple[int, int | None]]:
    return [(found.list_entry.id, found.turn) for found in history.search(text)]


def test_search(history: ChatHistory) -> None:
    places = [put(history, talk) for talk in TALKS]
    ids = [place.chat_id for place in places]
    assert words_of(history, "fib python") == [(ids[0], None), (ids[4], 1), (ids[0], 1)]
    assert words_of(history, "überr") == [(ids[1], None), (ids[1], 1)]
    assert words_of(history, "空白") == [(ids[2], 1)]
    assert words_of(history, "nothing at all") == words_of(history, "  ") == []
    history.append_events(places[0], 1, answer(" memoised"))
    (found,) = history.search("memoised")
    assert found.excerpt == "Fibonacci in Python def fib(n): return n memoised"
    with pytest.raises(NotFoundError):
        history.remove_chats([99])
    history.remove_chats([ids[0]])
    assert words_of(history, "fib") == [(ids[4], None), (ids[4], 1)]


@pytest.mark.parametrize("text", ["a", "strasse", '"', "の 空", "x) or"])
def test_the_index_is_whole(
    text: str, history: ChatHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for talk in TALKS:
        put(history, talk)
    quickly = history.search(text)
    # like an SQLite without FTS5
    monkeypatch.setattr(SearchIndex, "find_candidates", lambda *_: None)
    assert history.search(text) == quickly


def test_a_word_is_found_in_either_form_of_its_characters(history: ChatHistory) -> None:
    """macOS writes `ü` as two characters; and one character may be a word."""
    put(history, ("Größe u\u0308ber alles", "模型是什么"))
    for typed in ("Gro\u0308ße", "grö", "über", "u\u0308ber", "模"):
        assert len(history.search(typed)) >= 1, typed


def test_a_search_beside_waits_for_nobody_and_holds_nobody_up(
    history: ChatHistory,
) -> None:
    put(history, TALKS[0])
    with closing(history.open_again()) as other:
        assert words_of(other, "fib") == words_of(history, "fib")
        history._database._lock.acquire()  # a long write in progress
        try:
            thread = threading.Thread(target=lambda: other.search("python"))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        finally:
            history._database._lock.release()


@pytest.mark.parametrize("harm", [b"no database at all" * 99, b""])
def test_a_damaged_index_is_made_anew(
    harm: bytes, history: ChatHistory, path: Path
) -> None:
    put(history, TALKS[0])
    assert history.search("fib")
    path.with_name("words.sqlite").write_bytes(harm)
    assert history.search("fib") and history.search("fib")
    assert path.with_name("words.sqlite").stat().st_size > 1000


def traces(folder: Path, text: str) -> list[str]:
    """Files that contain a text, ignoring case."""
    forms = {text.encode(), text.lower().encode(), text[3:-3].encode()}
    return [
        file.name
        for file in folder.rglob("*")
        if file.is_file() and any(form in file.read_bytes() for form in forms)
    ]


def test_a_flipped_bit_in_the_index_hides_no_chat(memory_path: Path) -> None:
    """A damaged index is often readable, and misses turns."""
    path = memory_path / "chats" / "chats.sqlite"
    with closing(ChatHistory.open(path)) as history:
        for n in range(6):
            put(history, (f"Question {n} about tigers", f"They live in Asia {n} " * 5))
        expected = len(history.search("tigers"))
    index = path.with_name("words.sqlite")
    body = index.read_bytes()
    for place, harmed in flip_database_bits(body, left_out=range(0), stride=41):
        index.write_bytes(harmed)
        with closing(ChatHistory.open(path)) as history:
            assert len(history.search("tigers")) == expected, place


@pytest.mark.parametrize("clock", ["x", 10**9])
def test_a_damaged_clock_in_the_index_hides_no_chat(
    history: ChatHistory, path: Path, clock: object
) -> None:
    """Turns that were saved before that time are not indexed again."""
    put(history, ("Where are elephants?", "In Africa"))
    history.search("Africa")
    with closing(sqlite3.connect(path.with_name("words.sqlite"))) as index, index:
        index.execute("UPDATE seen SET clock = ?", (clock,))
    put(history, ("Where are tigers?", "In Asia"))

    assert history.search("tigers")


def test_nothing_is_left_of_what_was_removed(history: ChatHistory, path: Path) -> None:
    secret = "Xylophonsonate"
    other = put(history, *[(f"question {n}", f"answer {n} " * 50) for n in range(50)])
    place = put(history, *[(f"{secret} {n}", f"{secret} " * n) for n in range(200)])
    for n in range(60):
        history.append_events(place, 1 + n, answer(secret, f"{secret}s" * 9))
    history.rename_chat(place.chat_id, secret)
    assert history.search(secret) and traces(path.parent, secret)
    removed = history.remove_chats([place.chat_id])
    assert removed.wiped and removed.chats == 1 and traces(path.parent, secret) == []
    assert list(said(history)) == [other.chat_id]
    assert put(history, ("new", "1")).chat_id > place.chat_id  # ids are not reused


def test_a_reader_keeps_traces_and_that_is_said(
    history: ChatHistory, path: Path
) -> None:
    place = put(history, ("Xylophonsonate", "1"))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM chats").fetchall()
        assert not history.remove_chats([place.chat_id]).wiped
    assert history.remove_chats([put(history, ("b", "c")).chat_id]).wiped
    assert traces(path.parent, "Xylophonsonate") == []


def test_an_open_chat_stays(history: ChatHistory, path: Path) -> None:
    kept = put(history, ("a", "b"))
    open_ = put(history, ("c", "d"))
    with (
        closing(ChatHistory.open(path)) as other,
        closing(other.acquire_lock(open_.chat_id)),
    ):
        with pytest.raises(InUseError, match="another window"):
            history.acquire_lock(open_.chat_id)
        with pytest.raises(InUseError):
            history.remove_chats([kept.chat_id, open_.chat_id])
    assert len(history.list_chats()) == 2
    history.remove_chats([kept.chat_id, open_.chat_id])
    assert history.list_chats() == [] and list(path.parent.glob("open/*")) == []


@posix
def test_only_its_person_may_look(path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(ChatHistory.open(path)) as known:
            put(known, ("a", "b"))
            known.search("abc")
            known.acquire_lock(1).close()
            files = [file for file in path.parent.rglob("*") if file.is_file()]
            assert len(files) >= 4
            for file in files:
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
            for folder in (path.parent, path.parent / "open"):
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    path.parent.chmod(0o755)
    ChatHistory.open(path).close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_is_made_to_read_nothing(path: Path) -> None:
    with closing(ChatHistory.open(path, create=False)) as known:
        assert known.list_chats() == []
        with pytest.raises(LocalspecError):
            put(known, ("a", "b"))
    assert not path.parent.exists()


def test_another_version_is_read_and_never_written(path: Path) -> None:
    with closing(ChatHistory.open(path)) as known:
        put(known, *[(f"question {n}", f"answer {n} " * 20) for n in range(60)])
        put(known, ("c", "d"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with closing(ChatHistory.open(path)) as known:
        assert [len(turns) for turns in said(known).values()] == [1, 60]
        assert len(known.search("answer 41")) == 1
        writes = (
            lambda: put(known, ("c", "d")),
            lambda: known.remove_chats([1]),
            lambda: known.rename_chat(1, "x"),
            lambda: known.acquire_lock(1),
        )
        for write in writes:
            with pytest.raises(InUseError, match="newer"):
                write()
    assert path.read_bytes() == before


@posix
def test_somebody_elses_folder_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a folder of another user, who could read the chats."""
    theirs = path.parent.with_name("theirs")
    theirs.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(theirs, 4242, -1)
    path.parent.symlink_to(theirs)
    monkeypatch.setattr(os, "geteuid", lambda: 4243)
    with pytest.raises(StorageError, match="it belongs to another user"):
        ChatHistory.open(path)
    assert list(theirs.iterdir()) == []


def test_a_disk_that_takes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the system call is replaced."""
    with closing(ChatHistory.open(path)) as known:
        place = put(known, ("a", "b"))
    real = os.open

    def refusing(name: str | Path, flags: int, *more: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(name))
        return real(name, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    before = path.read_bytes()
    with closing(ChatHistory.open(path)) as known:
        assert said(known) == {place.chat_id: [("a", "b")]} and known.search("a")
        with pytest.raises(StorageError, match="Read-only"):
            put(known, ("c", "d"))
    assert path.read_bytes() == before


def test_many_at_once(path: Path) -> None:
    """Threads with their own connections: no write is lost or refused."""
    failed: list[BaseException] = []

    def work(name: int) -> None:
        try:
            with closing(ChatHistory.open(path)) as known:
                for n in range(10):
                    put(known, (f"{name}.{n}", "x"))
        except BaseException as error:  # checked on the main thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with closing(ChatHistory.open(path)) as known:
        titles = {one.title for one in known.list_chats()}
    assert titles == {f"{name}.{n}" for name in range(4) for n in range(10)}


# --- the time of the last turn
# --------------------------------------------------------------------------------------


def age(history: ChatHistory) -> float:
    """Makes all chats old, and returns the time that they have then."""
    history._database.run_write(lambda db: db.execute("UPDATE chats SET updated = 1"))
    return 1.0


def test_a_chat_is_as_recent_as_its_last_turn(history: ChatHistory) -> None:
    """So one that is opened, renamed or set otherwise keeps its place in lists."""
    talk = chat(("one", "1"), ("two", "2"))
    place = history.save_chat(None, about(talk), talk.all_turns)
    old = age(history)
    other = ChatSettings().with_value("temperature", "0.3")
    history.save_chat(place, about(talk, other))
    history.rename_chat(place.chat_id, "another title")
    history.remove_turn(place, about(talk), talk.all_turns[1].id)
    assert history.find_entry(place.chat_id).updated == old
    history.save_chat(place, about(talk), talk.all_turns[:1])
    assert history.find_entry(place.chat_id).updated > old
    age(history)
    history.append_events(place, talk.all_turns[0].id, answer("more"))
    assert history.find_entry(place.chat_id).updated > old

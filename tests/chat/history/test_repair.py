"""Damaged history files: the rest is recovered, and the damaged file is kept."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.history import ChatHistory, repair, schema
from localspec.errors import LocalspecError, StorageError
from tests.chat.saved_chats import put, said
from tests.support.flipped_bits import flip_database_bits

CHATS = 12
STEPS = [5003, pytest.param(389, marks=pytest.mark.long)]
"""Step between two cut positions, in bytes."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[int, Any]]:
    """A history file's bytes, and its chats."""
    return write_history(tmp_path_factory.mktemp("whole"), CHATS)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[int, Any]]:
    """As `whole`, for tests that repair a file a thousand times."""
    return write_history(tmp_path_factory.mktemp("small"), 2)


def write_history(folder: Path, n_chats: int) -> tuple[bytes, dict[int, Any]]:
    path = folder / "chats" / "chats.sqlite"
    with closing(ChatHistory.open(path)) as known:
        for n in range(n_chats):
            put(
                known,
                *[(f"question {n}.{m}", f"answer {n}.{m} " * 20) for m in range(3)],
            )
        known.search("answer")
        chats = said(known)
    assert not path.with_name("chats.sqlite-wal").exists()
    return path.read_bytes(), chats


def laid(memory_path: Path, body: bytes) -> Path:
    path = memory_path / "chats" / "chats.sqlite"
    path.parent.mkdir(exist_ok=True)
    for old in path.parent.iterdir():
        old.unlink()
    path.write_bytes(body)
    return path


def works(path: Path, body: bytes) -> dict[int, Any]:
    """Open a damaged file: writing works, the damaged copy remains.

    Returns what was recovered.
    """
    with closing(ChatHistory.open(path)) as known:
        place = put(known, ("after", "all"))
        found = said(known)
        assert found.pop(place.chat_id) == [("after", "all")] and known.search("after")
        notices = known.take_notices()
    aside = list(path.parent.glob("chats.sqlite.corrupt-*"))
    assert len(aside) == len(notices) <= 1
    if aside:
        assert aside[0].read_bytes() == body and str(aside[0]) in notices[0].hint
    with closing(sqlite3.connect(path)) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return found


@pytest.mark.parametrize("step", STEPS)
def test_cut_anywhere(
    step: int, whole: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    body, chats = whole
    best = 0
    for cut in range(0, len(body), step):
        found = works(laid(memory_path, body[:cut]), body[:cut])
        wrong = [
            turn
            for id_, turns in found.items()
            for turn in turns
            if turn not in chats[id_]
        ]
        assert len(wrong) <= 1, cut  # the turn that was cut
        best = max(best, len(found))
    assert best >= CHATS - 2  # a cut near the end loses little


def test_a_page_costs_its_own_chats(
    whole: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    body, chats = whole
    for page in range(1, len(body) // 4096):
        harmed = body[: page * 4096] + b"\xff" * 4096 + body[(page + 1) * 4096 :]
        found = works(laid(memory_path, harmed), harmed)
        read = {turn for turns in found.values() for turn in turns}
        every = {turn for turns in chats.values() for turn in turns}
        assert len(read & every) >= len(every) * 0.5 or page <= 4, page


def list_names() -> list[bytes]:
    """Every name that the tables of a history file have, each as its statement has it."""
    names: list[bytes] = []
    tables = schema.TABLES | schema.LATER_TABLES
    for table, columns in tables.items():
        names.append(f"CREATE TABLE {table} (".encode())
        for column in columns.partition(", UNIQUE")[0].split(","):
            words = column.split()
            names.append(" ".join(words[:2]).encode())
    return names


def test_a_damaged_name_of_any_table_or_column_loses_no_chat(
    whole: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    """SQLite's own check does not read names, and no row can be written any more."""
    body, chats = whole
    names = list_names()
    assert len(names) == 5 + 12 + 14 + 4 + 2 + 2
    for name in names:
        last = name.rindex(b" (") if name.endswith(b"(") else name.index(b" ")
        at = body.index(name) + last - 1
        harmed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        path = laid(memory_path, harmed)

        found = works(path, harmed)

        assert found == chats, name
        assert list(path.parent.glob("chats.sqlite.corrupt-*")), name


STRIDES = [31, pytest.param(1, marks=pytest.mark.long)]
VERSION = range(60, 64)
"""The bytes of the version of the tables. A later one is a file of a newer localspec."""


@pytest.mark.parametrize("stride", STRIDES)
def test_a_flipped_bit_in_the_first_page_loses_no_chat(
    stride: int, small: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    """The first page names the tables and says where their rows are."""
    body, chats = small
    first_page = body[:4096]
    for place, harmed in flip_database_bits(
        first_page, left_out=VERSION, stride=stride
    ):
        whole_file = harmed + body[4096:]

        assert works(laid(memory_path, whole_file), whole_file) == chats, place


def test_a_write_version_of_a_later_sqlite_is_damage(
    whole: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    """SQLite opens the file, and writes nothing: as if the file were read-only."""
    body, chats = whole
    harmed = body[:18] + b"\6" + body[19:]
    path = laid(memory_path, harmed)

    found = works(path, harmed)

    assert found == chats
    assert list(path.parent.glob("chats.sqlite.corrupt-*"))


def test_a_write_version_of_a_later_sqlite_is_damage_in_a_large_file_too(
    whole: tuple[bytes, dict[int, Any]],
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large file is not checked when it is opened."""
    body, chats = whole
    harmed = body[:18] + b"\6" + body[19:]
    path = laid(memory_path, harmed)
    monkeypatch.setattr(schema, "MAX_CHECKED_BYTES", 0)

    with closing(ChatHistory.open(path)) as known:
        assert known.write_error is None
        assert said(known) == chats


def test_a_file_that_may_not_be_written_is_read_only_and_not_damaged(
    whole: tuple[bytes, dict[int, Any]],
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a medium that takes no writes, where a superuser may not write either."""
    body, chats = whole
    path = laid(memory_path, body)
    real = os.access

    def refuse_to_write(name: Any, mode: int, **names: Any) -> bool:
        return not mode & os.W_OK and real(name, mode, **names)

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", refuse_to_write)
        with closing(ChatHistory.open(path)) as known:
            assert said(known) == chats
            assert "Permission denied" in str(known.write_error)
            assert known.take_notices() == []

    assert path.read_bytes() == body
    assert not list(path.parent.glob("chats.sqlite.corrupt-*"))


def test_rows_that_a_damaged_page_number_leads_to_do_not_become_chats(
    whole: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    body, chats = whole
    path = laid(memory_path, body)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema "
            "WHERE name = 'turns') WHERE name = 'chats'"
        )
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    harmed = path.read_bytes()

    assert works(laid(memory_path, harmed), harmed) == chats


@pytest.mark.parametrize("body", [b"", b"\0" * 4096, b"x", b"no database" * 1000])
def test_a_file_that_is_none(body: bytes, memory_path: Path) -> None:
    assert works(laid(memory_path, body), body) == {}


def test_a_file_damaged_while_open(
    whole: tuple[bytes, dict[int, Any]], memory_path: Path
) -> None:
    path = laid(memory_path, whole[0])
    with closing(ChatHistory.open(path)) as known:
        known.list_chats()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (len(whole[0]) - 4096))
        # it detects the damage and repairs the file
        with closing(ChatHistory.open(path)) as other:
            assert other.take_notices()
        put(known, ("after", "all"))  # switches to the new file
        assert ("after", "all") in [
            turn for turns in said(known).values() for turn in turns
        ]


CALLS = ("open", "link", "replace", "unlink")


def test_whatever_call_fails_the_damaged_file_is_there(
    whole: tuple[bytes, dict[int, Any]],
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fail the first call, then the second, … until no call fails."""
    body = whole[0][:-6000]
    for nth in range(1, 100):
        path = laid(memory_path, body)
        with monkeypatch.context() as patch:
            counter = Failing(nth, patch)
            with suppress(OSError, LocalspecError):
                repair.repair_file(path)
        kept = [path, *path.parent.glob("chats.sqlite.corrupt-*")]
        assert body in [file.read_bytes() for file in kept if file.exists()], nth
        works_after_all(path)
        if not counter.fired:
            return
    raise AssertionError("it never came through")


def works_after_all(path: Path) -> None:
    with closing(ChatHistory.open(path)) as known:
        assert put(known, ("after", "all"))


class Failing:
    """Makes the nth of some calls fail like a bad disk."""

    def __init__(self, nth: int, patch: pytest.MonkeyPatch) -> None:
        self.left = nth
        self.fired = False
        for name in CALLS:
            patch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.fired = True
                raise OSError(5, "Input/output error")
            return real(*arguments, **more)

        return call


def test_what_cannot_be_mended_is_left_alone(
    whole: tuple[bytes, dict[int, Any]],
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b"no database" * 1000
    path = laid(memory_path, body)

    def refused(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(repair, "_copy_readable_rows", refused)
    with pytest.raises(StorageError):
        ChatHistory.open(path)
    assert path.read_bytes() == body

"""Small JSON files of the data folder: what is damaged in one loses nothing else of it."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Struct

from localspec import data_files, paths
from localspec.chat.history import ChatHistory
from localspec.models.local_files import inventory, local_model
from localspec.paths import DataFile
from localspec.tui import crash_log, saved_chats
from localspec.tui.downloads import DownloadManager
from tests.chat.saved_chats import put

WRONG_ITEMS: tuple[object, ...] = (None, 3.5, [], {}, {"target": 1}, [1, 2], "\ud800")


class Pair(Struct, frozen=True):
    target: str
    draft: str | None = None


def write(name: str, body: object) -> None:
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    (paths.data_dir() / name).write_text(json.dumps(body), encoding="utf-8")


def test_a_mark_may_name_a_file_that_is_no_utf_8() -> None:
    mark = paths.data_dir() / "mark"

    data_files.write_mark(mark, "bad\udcff.gguf was used.")

    assert mark.read_bytes() == b"bad?.gguf was used.\n"


def test_a_crash_log_may_name_a_file_that_is_no_utf_8() -> None:
    crash_log.write_crash_log(ValueError("bad\udcff.gguf"))

    log = DataFile.CRASH_LOG.path
    assert log.read_bytes().endswith(b"bad?.gguf\n")


@pytest.mark.parametrize("text", ["", "{no", "3", "null", "[" * 100_000, '["\\x"]'])
def test_a_damaged_file_is_as_none(text: str) -> None:
    paths.data_dir().mkdir(parents=True)
    (paths.data_dir() / "pairs.json").write_text(text)
    assert data_files.read_json("pairs.json", Pair) is None
    assert data_files.read_list("pairs.json", Pair) == []
    assert data_files.read_table("pairs.json", Pair) == {}


@pytest.mark.parametrize("wrong", WRONG_ITEMS)
def test_a_wrong_item_of_a_list_loses_no_other(wrong: object) -> None:
    write("pairs.json", [{"target": "a"}, wrong, {"target": "b", "draft": "c"}])
    pairs = data_files.read_list("pairs.json", Pair)
    assert pairs == [Pair("a"), Pair("b", "c")]


@pytest.mark.parametrize("wrong", WRONG_ITEMS)
def test_a_wrong_value_of_a_table_loses_no_other(wrong: object) -> None:
    write("pairs.json", {"1": {"target": "a"}, "2": wrong, "3": {"target": "b"}})
    pairs = data_files.read_table("pairs.json", Pair)
    assert pairs == {"1": Pair("a"), "3": Pair("b")}


# --- the files themselves, by the functions that read them


def _pinned_chats(tmp_path: Path) -> int:
    with closing(ChatHistory.open(tmp_path / "chats.sqlite")) as history:
        first = put(history, ("Hello", "Hi")).chat_id
        second = put(history, ("Who?", "Me")).chat_id
        write("pinned.json", [first, "x", None, second])
        rows = saved_chats.recent_section(history, datetime.now(UTC)).rows
    return len([row for row in rows if "pinned" in row.note])


def _opened_pairs(tmp_path: Path) -> int:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    entry = {"target": str(model), "draft": None}
    write("recent.json", [entry, {"target": 1}, None, entry])
    return len(inventory.load_opened())


def _checksums(_: Path) -> int:
    right = [4, 5, "a" * 64]
    write("verified.json", {"/a": right, "/b": [4, 5], "/c": None, "/d": right})
    return len(local_model.load_checksums())


def _unfinished_downloads(_: Path) -> int:
    file = {"path": "m.gguf", "size": 9, "digest": "a" * 64}
    job = {"repo": "org/m", "commit": "c" * 40, "file": file}
    other = job | {"repo": "org/n"}
    write("downloads.json", [job, job | {"file": "m.gguf"}, None, other])
    downloads = DownloadManager()
    downloads.restore()
    return len(downloads.states())


READERS: tuple[Callable[[Path], int], ...] = (
    _pinned_chats,
    _opened_pairs,
    _checksums,
    _unfinished_downloads,
)


@pytest.mark.parametrize("count_right_items", READERS)
def test_every_list_of_the_data_folder_keeps_what_is_right(
    tmp_path: Path, count_right_items: Callable[[Path], int]
) -> None:
    assert count_right_items(tmp_path) == 2

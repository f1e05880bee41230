"""The tools that read a folder: what they answer, and that nothing outside is read."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import NotFoundError
from localspec.tools import folder_tools
from localspec.tools.folder_tools import FolderTools
from localspec.tools.tool_types import ToolResult

SECRET = "the secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with some files, beside a file that must stay unread."""
    inside = tmp_path / "inside"
    (inside / "src").mkdir(parents=True)
    (inside / "notes.txt").write_text("first\nSecond Line\nthird\n")
    (inside / "src" / "a.py").write_text("def second(): ...\n")
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    return inside


def call(folder: Path, tool: str, **arguments: Any) -> ToolResult:
    return FolderTools(folder).call(tool, arguments, threading.Event())


def test_the_listing_names_folders_and_sizes(folder: Path) -> None:
    result = call(folder, "list")

    assert result.text.splitlines() == ["notes.txt  24 bytes", "src/"]
    assert not result.is_error


def test_a_part_of_a_file_says_where_to_read_on(folder: Path) -> None:
    result = call(folder, "read", path="notes.txt", line=2, lines=1)

    assert result.text.splitlines() == [
        "Second Line",
        "[Lines 2 to 2 of 3. Read on with line=3.]",
    ]


def test_reading_on_reaches_the_end_of_a_long_file(folder: Path) -> None:
    lines = [f"{number} {'x' * 300}" for number in range(1000)]
    (folder / "long.txt").write_text("\n".join(lines))
    seen: list[str] = []

    while len(seen) < len(lines):
        result = call(folder, "read", path="long.txt", line=len(seen) + 1, lines=10_000)
        assert not result.is_error
        assert len(result.text) < 70_000
        seen += [each for each in result.text.splitlines() if not each.startswith("[")]

    assert seen == lines


def test_a_search_finds_lines_in_any_case_below_the_folder(folder: Path) -> None:
    result = call(folder, "search", text="SECOND")

    assert result.text.splitlines() == [
        "notes.txt:2: Second Line",
        "src/a.py:1: def second(): ...",
    ]


def test_a_search_can_choose_file_names(folder: Path) -> None:
    result = call(folder, "search", text="second", files="*.py")

    assert result.text == "src/a.py:1: def second(): ..."


def test_a_search_that_finds_nothing_says_what_it_read(folder: Path) -> None:
    assert call(folder, "search", text="zebra").text == "No line of 2 files has it."


PATHS_TO_THE_OUTSIDE = (
    "../secret.txt",
    "src/../../secret.txt",
    "./src/.././../secret.txt",
    "link.txt",
    "src/up/secret.txt",
    "absolute/secret.txt",
    "chain/secret.txt",
    "relative.txt",
    "dots.txt",
)


def make_links(folder: Path) -> None:
    outside = folder.parent / "outside"
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "src" / "up").symlink_to("../..")
    (folder / "absolute").symlink_to(outside)
    (folder / "chain").symlink_to("absolute")
    (folder / "relative.txt").symlink_to("../secret.txt")
    # The text of this link begins with the folder's own path.
    (folder / "dots.txt").symlink_to(f"{folder}/../secret.txt")


@pytest.mark.parametrize("path", PATHS_TO_THE_OUTSIDE)
def test_nothing_outside_the_folder_is_read(folder: Path, path: str) -> None:
    make_links(folder)

    read = call(folder, "read", path=path)
    listed = call(folder, "list", path=str(Path(path).parent))

    assert read.is_error
    assert "outside the folder" in read.text
    assert SECRET not in read.text
    assert "secret.txt" not in listed.text


def test_an_absolute_path_is_refused(folder: Path) -> None:
    result = call(folder, "read", path=str(folder.parent / "secret.txt"))

    assert result.is_error
    assert SECRET not in result.text


def test_a_folder_beside_it_whose_name_begins_alike_is_outside(folder: Path) -> None:
    beside = folder.parent / "inside-too"
    beside.mkdir()
    (beside / "secret.txt").write_text(SECRET)
    (folder / "sly").symlink_to(beside)

    assert call(folder, "read", path="sly/secret.txt").is_error
    assert call(folder, "read", path="../inside-too/secret.txt").is_error


def test_a_search_follows_no_link(folder: Path) -> None:
    make_links(folder)
    (folder / "loop").symlink_to(".")

    result = call(folder, "search", text=SECRET)

    assert result.text == "No line of 2 files has it."


def test_a_link_that_stays_inside_is_followed(folder: Path) -> None:
    (folder / "near").symlink_to("src/a.py")
    (folder / "far").symlink_to(folder / "src")
    (folder / "src" / "back").symlink_to("../notes.txt")

    for path in ("near", "far/a.py", "far/../near"):
        assert call(folder, "read", path=path).text == "def second(): ..."
    assert call(folder, "read", path="src/back").text.startswith("first")


def test_a_loop_of_links_ends(folder: Path) -> None:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")

    result = call(folder, "read", path="one")

    assert result.is_error
    assert "too many links" in result.text


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_leaks_nothing(
    folder: Path,
) -> None:
    """Another program renames as fast as it can while files are read."""
    (folder / "data").mkdir()
    (folder / "data" / "secret.txt").write_text("harmless")
    is_done = threading.Event()

    def exchange() -> None:
        while not is_done.is_set():
            (folder / "data").rename(folder / "away")
            (folder / "data").symlink_to(folder.parent / "outside")
            (folder / "data").unlink()
            (folder / "away").rename(folder / "data")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        until = time.monotonic() + 0.5
        texts = set()
        while time.monotonic() < until:
            texts.add(call(folder, "read", path="data/secret.txt").text)
            texts.add(call(folder, "search", text="secret").text)
    finally:
        is_done.set()
        thread.join()

    assert not any(SECRET in text for text in texts)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_and_a_device_are_no_files(folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    assert "not a regular file" in call(folder, "read", path="pipe").text
    assert "No line" in call(folder, "search", text="zebra").text
    assert "pipe  (no file)" in call(folder, "list").text


def test_a_binary_file_is_refused(folder: Path) -> None:
    (folder / "b.bin").write_bytes(b"\x00\x01" * 100)

    assert call(folder, "read", path="b.bin").is_error


def test_a_file_that_is_too_large_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_tools, "_MAX_FILE_BYTES", 1 << 20)
    (folder / "large.txt").write_bytes(b"x" * ((1 << 20) + 1))

    assert "more than 1 MB" in call(folder, "read", path="large.txt").text


def test_a_long_line_and_a_long_listing_are_cut(folder: Path) -> None:
    (folder / "line.txt").write_text("x" * 100_000)
    many = folder / "many"
    many.mkdir()
    for number in range(510):
        (many / f"{number:04}").touch()

    line = call(folder, "read", path="line.txt").text
    listing = call(folder, "list", path="many").text.splitlines()

    assert line.endswith("[98,000 more characters]")
    assert len(listing) == 501
    assert listing[-1] == "[There are more than 500 entries.]"


def test_a_stopped_search_returns_what_it_found(folder: Path) -> None:
    stop = threading.Event()
    stop.set()

    result = FolderTools(folder).call("search", {"text": "second"}, stop)

    assert result.text == "[The search ended early: it was stopped.]"


WRONG_ARGUMENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read", {}),
    ("read", {"path": 3}),
    ("read", {"path": "a\0b"}),
    ("read", {"path": "notes.txt", "line": 0}),
    ("read", {"path": "notes.txt", "line": 99}),
    ("read", {"path": "missing"}),
    ("read", {"path": "src"}),
    ("read", {"path": ""}),
    ("read", {"path": "notes.txt/x"}),
    ("read", {"path": "x" * 5000}),
    ("read", {"path": "\udcff"}),
    ("list", {"path": "notes.txt"}),
    ("list", {"path": "missing"}),
    ("search", {"text": ""}),
    ("remove", {"path": "notes.txt"}),
)


@pytest.mark.parametrize(("tool", "arguments"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_an_error_for_the_model(
    folder: Path, tool: str, arguments: dict[str, Any]
) -> None:
    result = call(folder, tool, **arguments)

    assert result.is_error
    assert "\n" not in result.text


def test_control_characters_of_a_name_are_not_listed(folder: Path) -> None:
    (folder / "a\x1b[31m\nb").touch()

    assert "\x1b" not in call(folder, "list").text
    assert "a b  0 bytes" in call(folder, "list").text


def test_a_folder_that_does_not_exist_is_an_error(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="no folder"):
        FolderTools(folder / "missing")


def test_the_way_without_relative_opens_refuses_the_outside_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows has no `openat`."""
    make_links(folder)
    monkeypatch.setattr(folder_tools, "_OPENS_RELATIVELY", False)

    assert call(folder, "read", path="src/a.py").text == "def second(): ..."
    assert "second" in call(folder, "search", text="second").text
    for path in PATHS_TO_THE_OUTSIDE:
        assert SECRET not in call(folder, "read", path=path).text
        assert call(folder, "read", path=path).is_error

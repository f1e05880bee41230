"""Paths of pictures as people type and terminals paste them, and the clipboard."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.chat import picture_sources
from localspec.chat.picture_sources import (
    find_dropped_files,
    read_clipboard,
    split_paths,
)
from localspec.errors import UsageError
from tests.support.chat_pictures import PHOTO

posix = pytest.mark.skipif(os.name != "posix", reason="paths and programs of POSIX")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "my photo (1).JPG"
    path.write_bytes(b"")
    return path


def escaped(path: Path) -> str:
    text = str(path)
    for character in " ()'":
        text = text.replace(character, f"\\{character}")
    return text


FORMS: dict[str, Callable[[Path], str]] = {
    "plain": str,
    "in single quotes": lambda path: f"'{path}'",
    "in double quotes": lambda path: f'"{path}"',
    "escaped": escaped,
    "an address": lambda path: path.as_uri(),
    "an address with a host": lambda path: path.as_uri().replace(
        "file:///", "file://localhost/"
    ),
    "with blanks around it": lambda path: f" '{path}' ",
    "with a line end": lambda path: f"{path}\n",
}


@posix
@pytest.mark.parametrize("form", FORMS)
def test_a_dropped_picture_is_found_in_each_form(form: str, photo: Path) -> None:
    assert find_dropped_files(FORMS[form](photo)) == [photo]


@posix
@pytest.mark.parametrize("form", FORMS)
def test_an_argument_may_have_each_form(form: str, photo: Path) -> None:
    assert split_paths(FORMS[form](photo)) == [photo]


@posix
@pytest.mark.parametrize("separator", [" ", "\n", "\n\n"])
def test_several_pictures_are_found(separator: str, photo: Path) -> None:
    second = photo.with_name("b.png")
    second.write_bytes(b"")

    text = separator.join([escaped(photo), f"'{second}'"])

    assert find_dropped_files(text) == [photo, second]
    if separator == " ":
        assert split_paths(text) == [photo, second]


@posix
def test_the_path_of_a_picture_at_home_is_found(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(photo.parent))
    assert find_dropped_files(f"~/{photo.name}") == [photo]


@posix
def test_any_other_text_is_a_message(photo: Path) -> None:
    notes = photo.with_name("notes.txt")
    notes.write_text("")
    folder = photo.with_name("folder.png")
    folder.mkdir()
    texts = [
        "",
        "  \n ",
        "photo.png",  # Not where it is.
        str(notes),
        str(folder),
        str(photo.with_name("missing.png")),
        f"Look at {photo}",
        f"{photo}\nWhat is it?",
        f"'{photo}",  # A quotation mark is missing.
        f"{photo} {notes}",
        "/" * 50_000 + ".png",
        "/" + "a" * 5_000 + ".png",
        f"\0{photo}",
        "https://example.org/photo.png",
        " ".join(["/x.png"] * 5_000),
    ]
    for text in texts:
        assert find_dropped_files(text) == [], text[:80]


def test_a_missing_file_is_named_as_typed(tmp_path: Path) -> None:
    assert split_paths(f"{tmp_path}/a b.png'") == [Path(f"{tmp_path}/a b.png'")]


# --- the clipboard


def install(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


WRITES_PHOTO = f"sys.stdout.buffer.write({PHOTO!r})"
WAYLAND = {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}
X11 = {"DISPLAY": ":0"}


@posix
def test_the_clipboard_of_wayland(programs: Path) -> None:
    install(
        programs,
        "wl-paste",
        f"assert sys.argv[1:] == ['--no-newline', '--type', 'image/png']; {WRITES_PHOTO}",
    )
    assert read_clipboard(WAYLAND) == PHOTO


@posix
def test_the_clipboard_of_x11_where_wayland_has_no_program(programs: Path) -> None:
    wanted = ["-selection", "clipboard", "-t", "image/png", "-o"]
    install(programs, "xclip", f"assert sys.argv[1:] == {wanted}; {WRITES_PHOTO}")
    assert read_clipboard(WAYLAND) == read_clipboard(X11) == PHOTO


@posix
@pytest.mark.parametrize("script", ["sys.exit(1)", "pass"])
def test_a_clipboard_without_a_picture(script: str, programs: Path) -> None:
    install(programs, "xclip", script)
    with pytest.raises(UsageError, match="no picture in the clipboard"):
        read_clipboard(X11)


@posix
def test_a_program_that_hangs_is_ended(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture_sources, "_TIMEOUT", 0.2)
    install(programs, "xclip", "import time; time.sleep(60)")
    with pytest.raises(UsageError, match="no picture"):
        read_clipboard(X11)


@posix
def test_without_a_program_the_hint_names_some(programs: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_clipboard(X11)
    assert "wl-clipboard" in refused.value.hint and "xclip" in refused.value.hint


def test_over_ssh_the_hint_is_a_path() -> None:
    with pytest.raises(UsageError, match="SSH") as refused:
        read_clipboard({"SSH_CONNECTION": "a", "DISPLAY": ":0"})
    assert "/image PATH" in refused.value.hint

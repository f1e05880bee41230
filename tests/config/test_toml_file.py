"""Changing config.toml: comments, order, unknown keys and the file's mode stay."""

import os
import re
import signal
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from localspec import config
from localspec.config import SETTINGS, toml_file
from localspec.config.toml_file import iterate_values
from localspec.errors import NotFoundError, StorageError, UsageError
from tests.config.conftest import changed_values

OWN = """\
# mine, since 2024
[screen]
theme = 'monochrome'   # the dark room

# what I type
[keys]                 # f-keys
chat.send = 'ctrl+s'

[tomorrow]
x = [1,
     2]
"""


def test_a_change_leaves_comments_order_and_the_unknown(file: Path) -> None:
    file.write_text(OWN)
    toml_file.set_value("screen.theme", "high-contrast")
    toml_file.set_value("screen.ascii", True)
    toml_file.set_value("keys.chat.send", "f9")
    toml_file.set_value("downloads.limit", 2.5)
    expected = OWN.replace("'monochrome'", '"high-contrast"').replace(
        "'ctrl+s'", '"f9"'
    )
    expected = expected.replace("room\n", "room\nascii = true\n")
    assert file.read_text() == f"{expected}\n[downloads]\nlimit = 2.5\n"
    toml_file.set_value("downloads.limit", None)
    assert "limit" not in file.read_text()
    assert changed_values(config.load()) == {
        "screen.theme": "high-contrast",
        "screen.ascii": True,
        "keys.chat.send": "f9",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "screen = {ascii = false}\n",
        "screen.ascii = false\n",
        toml_file.render_template(),
        "x = 1",
    ],
)
@pytest.mark.parametrize("key", ["screen.ascii", "chats.keep", "keys.chat.send"])
def test_whatever_there_is_a_change_is_read_back(
    file: Path, text: str, key: str
) -> None:
    file.write_text(text)
    value: object = "f9" if key.startswith("keys") else SETTINGS[key].default is False
    toml_file.set_value(key, value)
    found = dict(iterate_values(tomllib.loads(file.read_text())))
    assert found[key] == value
    toml_file.set_value(key, None)
    assert ("x = 1" in text) == ("x = 1" in file.read_text())
    assert key not in dict(iterate_values(tomllib.loads(file.read_text())))


def test_a_file_that_cannot_be_read_is_never_written(file: Path) -> None:
    for damage in (b"[screen\n# precious\n", b"\xff\xfe", b"#" * 1_000_001):
        file.write_bytes(damage)
        with pytest.raises(UsageError, match="Nothing was changed"):
            toml_file.set_value("screen.theme", "monochrome")
        assert file.read_bytes() == damage


@pytest.mark.skipif(
    sys.platform == "win32", reason="rights and links are different there"
)
def test_rights_and_links_stay(file: Path, tmp_path: Path) -> None:
    toml_file.set_value("screen.ascii", True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    dotfiles = tmp_path / "dotfiles.toml"
    dotfiles.write_text("")
    dotfiles.chmod(0o644)
    file.unlink()
    file.symlink_to(dotfiles)
    toml_file.set_value("screen.ascii", True)
    assert file.is_symlink() and "ascii = true" in dotfiles.read_text()
    assert stat.S_IMODE(dotfiles.stat().st_mode) == 0o644


def test_a_failed_write_keeps_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(OWN)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        toml_file.set_value("screen.ascii", True)
    assert (
        file.read_text() == OWN and [one.name for one in file.parent.glob(".*")] == []
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_signals_end_the_editor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT)]
    editor = tmp_path / "editor"
    editor.write_text(
        "#!/bin/sh\nkill -INT $PPID; kill -QUIT $PPID; kill -QUIT $$; echo x > $1\n"
    )
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    toml_file.run_editor(tmp_path / "text")
    assert not (tmp_path / "text").exists(), "the editor has its own signals"
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT)
    ] == before


def test_what_a_killed_process_left_is_removed(file: Path) -> None:
    old, new = (file.with_name(f".{file.name}-{name}") for name in ("old", "new"))
    for left in (old, new):
        left.write_text("")
    os.utime(old, (1, 1))
    toml_file.write_atomically(file, "")
    assert not old.exists() and new.exists(), "another process writes the new one"


def test_a_folder_that_is_not_there_is_refused_where_it_is_typed(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        toml_file.parse_value(SETTINGS["models.folder"], str(tmp_path / "nowhere"))
    assert toml_file.parse_value(SETTINGS["models.folder"], str(tmp_path)) == str(
        tmp_path
    )


def test_the_template_is_all_comments(file: Path) -> None:
    file.write_text(toml_file.render_template())
    assert config.resolve().warnings == () and changed_values(config.load()) == {}
    text = re.sub(r"(?m)^# (\w+ = )", r"\1", toml_file.render_template()).replace(
        "= …", "= 1"
    )
    file.write_text(text)
    assert not config.resolve().warnings  # every line is a known setting


def test_a_file_from_notepad_keeps_its_line_ends(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[screen]\r\nascii = true\r\n")
    assert config.load().get("screen.ascii")
    toml_file.set_value("screen.theme", "monochrome")
    assert b'ascii = true\r\ntheme = "monochrome"\r\n' in file.read_bytes()


@pytest.mark.parametrize("variable", ["VISUAL", "EDITOR"])
def test_an_editor_unquoted(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv(variable, "vim 'my file")
    with pytest.raises(NotFoundError, match=f"{variable} is no command"):
        toml_file.open_in_editor()
    assert not file.exists()

"""A person's own configuration."""

from pathlib import Path

import pytest

from localspec import config
from localspec.errors import UsageError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(path))
    return path


def test_without_a_file_everything_is_as_it_comes(file: Path) -> None:
    assert config.read() == config.Config()


def test_theme_ascii_and_keys(file: Path) -> None:
    file.write_text('[screen]\ntheme = "high-contrast"\nascii = true\n[keys]\n"chat.send" = "f9"\n')
    assert config.read() == config.Config("high-contrast", True, {"chat.send": "f9"})


def test_what_to_do_with_a_full_context(file: Path) -> None:
    file.write_text('[chats]\noverflow = "summarise"\n')
    assert config.read() == config.Config(overflow="summarise")


def test_what_is_not_known_is_left_alone(file: Path) -> None:
    file.write_text('[tomorrow]\nx = 1\n[screen]\nblink = "never"\n')
    assert config.read() == config.Config()


@pytest.mark.parametrize(
    "text",
    [
        "[screen",
        'screen = "dark"',
        "keys = 3",
        "chats = 3",
        "[chats]\noverflow = 'forget'",
        "[screen]\ntheme = 3",
        "[keys]\na = 3",
        "chats = 1",
        "[chats]\nkeep = 1",
        "a = 1\na = 2",
    ],
)
def test_a_damaged_file_is_named_with_its_fault(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=r"config\.toml"):
        config.read()


def test_bytes_that_are_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        config.read()

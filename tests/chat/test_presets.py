"""Presets: a system prompt and settings under a name, in config.toml."""

from contextlib import closing
from pathlib import Path

import pytest

from localspec import config
from localspec.chat.history import ChatHistory
from localspec.errors import NotFoundError, UsageError
from tests.chat.test_session import Talk

BODY = """\
# my own
[screen]
ascii = true

[presets.poet]
system = "Answer in verse."
temperature = 1.2
top-k = 0
think = false
draft_max = 3
ctx = "4k"

[presets.wrong]
temperature = "hot"

[presets.head]
system = "Draft."
spec = "eagle3"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(BODY, encoding="utf-8")
    return path


@pytest.fixture
def talk(file: Path) -> Talk:
    with closing(ChatHistory.open(file.with_name("chats.sqlite"))) as history:
        return Talk(history)


def test_a_preset_of_the_file_sets_what_it_names_and_nothing_else(talk: Talk) -> None:
    assert config.load().warnings == ()
    talk.type("/set max_tokens 99")
    said = talk.type("/preset poet")
    assert (
        said.startswith("poet: temperature 1.2 · top-k 0 · think off")
        and "in verse" in said
    )
    settings = talk.session.settings
    assert talk.session.conversation.system == "Answer in verse."
    assert (settings.sampling.temperature, settings.sampling.top_k) == (1.2, 0)
    assert (settings.think, settings.draft_length, settings.ctx) == (False, 3, 4096)
    assert settings.max_tokens == 99


def test_a_saved_preset_gives_its_settings_and_keeps_the_file(
    talk: Talk, file: Path
) -> None:
    talk.plays(thinking=("<think>", "</think>"))
    new = talk.session.settings, talk.session.conversation.system
    for line in (
        "/set temperature 0",
        "/spec off",
        "/think on",
        "/system Be kind.",
        "/ctx 2048",
    ):
        talk.type(line)
    talk.session.change_settings(exact=True)
    saved = talk.session.settings
    talk.type("/preset save kind")
    talk.type("/new")
    assert (talk.session.settings, talk.session.conversation.system) == new
    talk.type("/preset kind")
    assert (talk.session.settings, talk.session.conversation.system) == (
        saved,
        "Be kind.",
    )
    text = file.read_text(encoding="utf-8")
    assert text.startswith(BODY.rstrip()) and "[presets.kind]" in text
    talk.type("/preset delete kind")
    assert file.read_text(encoding="utf-8").rstrip() == BODY.rstrip()
    with pytest.raises(NotFoundError, match="no preset 'kind'"):
        talk.type("/preset kind")


def test_what_is_wrong_is_named_and_changes_nothing(talk: Talk, file: Path) -> None:
    before = talk.session.settings, talk.session.conversation.system
    with pytest.raises(
        UsageError, match=r"presets\.wrong\.temperature: temperature cannot be"
    ):
        talk.type("/preset wrong")
    with pytest.raises(UsageError, match="does not support 'eagle3'"):  # this pair
        talk.type("/preset head")
    with pytest.raises(UsageError, match="cannot be called"):
        talk.type("/preset save a.b")
    assert (talk.session.settings, talk.session.conversation.system) == before
    assert file.read_text(encoding="utf-8") == BODY

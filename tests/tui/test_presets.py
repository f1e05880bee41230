"""Presets in the app: from the chat, and from Home."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.tui.dialogs.choices import PickerScreen
from tests.support.scripted_engine import wait_until
from tests.tui.screens.test_chat import Chat
from tests.tui.test_saved_chats import app

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('[presets.poet]\nsystem = "Answer in verse."\ntemperature = 1.2\n')
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(path))
    return path


async def test_a_preset_is_chosen_from_the_list_and_one_is_made_of_the_chat(file: Path) -> None:
    async with Chat() as chat:
        await chat.send("/preset")
        assert isinstance(chat.app.screen, PickerScreen)
        await wait_until(chat.pilot, lambda: "poet temperature 1.2" in chat.shown)
        await chat.press("enter")
        await wait_until(chat.pilot, lambda: chat.on_top)
        session = chat.screen.session
        assert session.conversation.system == "Answer in verse."
        assert session.settings.sampling.temperature == 1.2
        await chat.send("/set top_k 3")
        await chat.send("/preset save mine")
        assert "[presets.mine]" in file.read_text()
        await chat.send("/new")
        assert session.conversation.system == ""
        await chat.send("/preset mine")
        assert session.conversation.system == "Answer in verse."
        assert session.settings.sampling.top_k == 3


async def test_home_opens_a_new_chat_with_a_preset() -> None:
    async with app() as home:
        assert "New chat with a preset poet temperature 1.2" in home.shown
        await home.press("end", "enter")
        await home.until("ready")
        session = home.chat.session
        assert session.conversation.system == "Answer in verse."
        assert session.settings.sampling.temperature == 1.2

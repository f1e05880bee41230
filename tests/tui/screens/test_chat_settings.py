"""The settings sheet of a chat: taken over, or refused whole."""

from textual.widgets import Input

from localspec.tui.screens.chat_settings import ChatSettingsScreen
from tests.support.app_driver import Chat


async def test_an_invalid_setting_changes_nothing() -> None:
    async with Chat() as chat:
        before = chat.screen.session.settings
        await chat.press("f4", *"2", "full_stop", *"5x", "enter")
        await chat.sees("temperature cannot be '2.5x'")
        field = chat.top(ChatSettingsScreen).focused
        assert isinstance(field, Input) and (field.name, field.value) == (
            "temperature",
            "0.8",
        )
        await chat.press(*"2x", "escape")  # half typed when the sheet closes
        assert chat.on_top and "Not changed: temperature cannot be '2x'" in chat.shown
        assert chat.screen.session.settings == before
        await chat.press("f4", *"2", "escape")
        assert chat.screen.session.settings.sampling.temperature == 2


async def test_thinking_is_refused_where_the_model_has_none() -> None:
    async with Chat() as chat:
        chat.screen.action_settings("think")
        await chat.reaches(ChatSettingsScreen)
        await chat.press(*"on")
        await chat.sees("This model's chat template has no thinking")
        await chat.press("escape")
        assert chat.screen.session.settings.think is None

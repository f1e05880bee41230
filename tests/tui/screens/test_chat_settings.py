"""The settings sheet of a chat: taken over, or refused whole."""

from textual.widgets import Input

from localspec.chat.settings import CHAT_SETTING_FIELDS, group_setting_fields
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


def test_every_setting_is_in_one_group_and_the_rare_ones_are_last() -> None:
    groups = group_setting_fields()
    names = [field.name for fields in groups.values() for field in fields]
    assert sorted(names) == sorted(CHAT_SETTING_FIELDS)
    rare = [name for name in names if name.startswith(("dry_", "xtc_"))]
    assert names[-len(rare) :] == rare


async def test_the_sheet_begins_with_the_system_prompt() -> None:
    async with Chat() as chat:
        await chat.pilot.resize_terminal(80, 24)
        await chat.press("f4")
        await chat.sees("System prompt", "instructions that the model reads first")
        assert chat.shown.index("System prompt") < chat.shown.index("temperature")
        await chat.press("up", *"Be")
        assert chat.screen.session.conversation.system == "Be"

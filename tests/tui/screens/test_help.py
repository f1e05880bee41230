"""The help screen: what one needs first stands first."""

from textual.widgets import Static

from localspec.tui.screens.help import HelpScreen
from tests.support.app_driver import Chat


def text_of(help_screen: HelpScreen, section: str) -> str:
    return str(help_screen.query_one(f"#{section}", Static).render())


async def test_the_help_of_a_chat_begins_with_sending_and_stopping() -> None:
    async with Chat() as chat:
        await chat.press("f1")
        lines = text_of(chat.top(HelpScreen), "keys").splitlines()
        assert lines[0] == "Message box"
        assert lines[1].split() == ["enter", "Send"]
        chat_keys = lines[lines.index("Chat") + 1 :]
        assert [line.split()[0] for line in chat_keys[:4]] == ["esc", "f5", "f6", "f4"]


async def test_nine_keys_that_do_the_same_are_one_row() -> None:
    async with Chat() as chat:
        await chat.press("f1")
        keys = text_of(chat.top(HelpScreen), "keys")
        assert keys.count("alt+1") == 1
        assert "alt+1 … alt+9" in keys and "Copy code block 1 to 9" in keys


async def test_nine_keys_of_which_the_user_has_changed_one_are_nine_rows() -> None:
    async with Chat(keymap={"chat.copy_code2": "alt+b"}) as chat:
        await chat.press("f1")
        keys = text_of(chat.top(HelpScreen), "keys")
        assert keys.count("Copy code block") == 9
        assert "alt+b" in keys


async def test_a_key_goes_to_the_glossary() -> None:
    async with Chat() as chat:
        await chat.press("f1")
        assert "Glossary" not in chat.shown
        await chat.sees("g glossary")
        await chat.press("g")
        await chat.sees("Glossary", "Acceptance rate")
        await chat.press("k")
        await chat.sees("Message box")

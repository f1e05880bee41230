"""The app: pictures of its screens, any size of a terminal, keys typed too early.

The pictures were looked at before they were accepted: see CONTRIBUTING.md.
"""

from collections.abc import Callable, Iterator

import pytest
from _pytest.mark import ParameterSet
from textual import events

from tests.support.app_driver import Chat
from tests.support.long_cases import often
from tests.support.scenes import settled
from tests.support.scripted_engine import painted
from tests.tui.screen_states import STATES

Compare = Callable[..., bool]
Size = tuple[int, int]
WALL = (200, 50)
STAMP = (20, 5)


PICTURES: dict[Size, tuple[str, ...]] = {
    WALL: ("wizard-third",),
    (120, 40): ("chat-guess",),
    (110, 30): (
        "chat-help", "chat-replay", "chat-settings", "chat-thinking", "chat-tokens-ascii",
        "chat-tokens-monochrome",
    ),
    (100, 30): ("wizard-card", "wizard-third-ascii"),
    (80, 24): (
        "home-empty", "home-full", "home-chats", "home-chats-search", "home-names", "home-downloads", "home-offline", "home-opening",
        "home-preferences", "home-damaged-preferences", "wizard-first", "wizard-second",
        "wizard-third-two-cards", "chat-empty", "chat-guess", "chat-streaming", "chat-tokens", "chat-dead",
        "chat-unicode", "chat-names", "chat-right-to-left", "chat-toast", "chat-room",
        "chat-pictures", "chat-turns", "chat-tool-asking", "chat-tool-choosing", "chat-tool-refusing", "chat-tool-running",
        "chat-tool-results", "log-found", "welcome", "welcome-no-gpu", "doctor", "doctor-running",
        "serve",
    ),
    (40, 10): ("home-full", "chat-streaming"),
}  # fmt: skip


def pictures() -> Iterator[ParameterSet]:
    for size, names in PICTURES.items():
        for name in names:
            yield pytest.param(name, size, id=f"{name}-{size[0]}x{size[1]}")


@pytest.mark.pictures
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("name", "size"), pictures())
def test_picture(snap_compare: Compare, name: str, size: Size) -> None:
    app, steps = STATES[name]
    assert snap_compare(app(), terminal_size=size, run_before=steps)


WAITING_FOR_WORDS = {"home-offline", "chat-toast", "home-opening"}
"""Their steps wait for words that a stamp has no room for."""
OFTEN = (
    "home-full", "home-keys", "wizard-third-two-cards", "chat-tokens", "chat-settings",
    "chat-turns", "doctor",
)  # fmt: skip


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", often(sorted(STATES), OFTEN))
async def test_a_screen_survives_any_size_and_is_drawn_again(name: str) -> None:
    """As if somebody drags the corner of a window."""
    made, steps = STATES[name]
    start = (80, 24) if name in WAITING_FOR_WORDS else STAMP
    async with made().run_test(size=start, notifications=True) as pilot:
        await steps(pilot)
        assert painted(pilot.app.screen)
        for size in (WALL, (40, 10), (6, 2), STAMP, (90, 12), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await settled(pilot)
        assert painted(pilot.app.screen)


@pytest.mark.usefixtures("elsewhere")
async def test_in_ascii_mode_also_borders_bars_and_scrollbars_are_ascii() -> None:
    made, steps = STATES["chat-tokens-ascii"]
    async with made().run_test(size=(100, 24)) as pilot:
        await steps(pilot)
        for keys in ((), ("f1",), ("escape", "f4")):
            await pilot.press(*keys)
            await settled(pilot)
            strips = pilot.app.screen._compositor.render_strips()
            assert all(strip.text.isascii() for strip in strips), keys


async def test_keys_of_a_widget_do_nothing_where_none_has_the_focus() -> None:
    async with Chat() as chat:
        chat.screen.set_focus(None)
        await chat.press("ctrl+g", "ctrl+y", "alt+z")
        assert chat.on_top
        assert chat.screen.phase == "ready"


def type_ahead(chat: Chat, *keys: str) -> None:
    """Without waiting for what each key does."""
    for key in keys:
        character = key if len(key) == 1 else None
        chat.app.post_message(events.Key(key, character))


@pytest.mark.parametrize("opening", ["f1", "f4", "ctrl+l", "f8", "ctrl+p"])
async def test_letters_right_after_a_sheet_closes_go_to_the_message(
    opening: str,
) -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await chat.press(opening)
        await settled(chat.pilot)
        assert not chat.on_top
        type_ahead(chat, "escape", "a", "b", "c")
        await chat.wait(lambda: chat.typed == "abc")
        assert chat.on_top


@pytest.mark.parametrize(("message", "opening"), [("", "f4"), ("/show", "enter")])
async def test_letters_right_after_a_sheet_opens_go_to_its_field(
    message: str, opening: str
) -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text(message)
        type_ahead(chat, opening, "0", ".", "3", "escape", "x")
        await chat.wait(lambda: chat.typed == "x")
        assert chat.screen.session.settings.sampling.temperature == 0.3

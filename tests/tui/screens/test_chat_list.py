"""The list of all chats: by date, searched while one types, and opened from anywhere."""

import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Literal

import pytest
from msgspec.structs import replace

from localspec import paths
from localspec.chat.history import ChatHistory
from localspec.tui.home_rows import HomeRow
from localspec.tui.saved_chats import format_period
from localspec.tui.screens import chat_list
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.chat_list import ChatListScreen
from localspec.tui.screens.home import HomeScreen
from tests.chat.saved_chats import PAIR, about, chat
from tests.support.app_driver import HomeDriver, home_app
from tests.support.scenes import settled

NOW = datetime(2026, 11, 19, 12, 0).astimezone()


@pytest.mark.parametrize(
    ("days", "heading"),
    [
        (-1, "Today"),
        (0, "Today"),
        (1, "Yesterday"),
        (2, "This week"),
        (6, "This week"),
        (7, "This month"),
        (18, "This month"),
        (19, "October 2026"),
        (400, "October 2025"),
    ],
)
def test_the_heading_of_a_chat_is_its_period(days: int, heading: str) -> None:
    then = NOW - timedelta(days=days)
    assert format_period(then.timestamp(), NOW) == heading


def test_a_damaged_date_has_a_heading() -> None:
    assert format_period(float("1e300"), NOW) == "Without a date"


def save_chats(*questions: str) -> list[int]:
    """Chats with the demo pair; the last is the most recent."""
    ids = []
    with closing(ChatHistory.open()) as history:
        for question in questions:
            conversation = chat((question, f"About {question}."))
            metadata = replace(
                about(conversation), pair=replace(PAIR, model="demo", draft="auto")
            )
            location = history.save_chat(None, metadata, conversation.all_turns)
            ids.append(location.chat_id)
    return ids


def set_age(chat_id: int, days: int) -> None:
    then = (datetime.now().astimezone() - timedelta(days=days)).timestamp()
    with closing(sqlite3.connect(paths.chats_file())) as database, database:
        database.execute("UPDATE chats SET updated = ? WHERE id = ?", (then, chat_id))


async def open_list(driver: HomeDriver, key: str = "c") -> ChatListScreen:
    await driver.press(key)
    await driver.reaches(ChatListScreen)
    screen = driver.top(ChatListScreen)
    await driver.wait(lambda: screen._is_loaded)
    await settled(driver.pilot)
    return screen


def titles(screen: ChatListScreen) -> list[str]:
    return [row.name for row in screen._list.rows]


def listed(screen: ChatListScreen) -> Iterator[HomeRow]:
    for section in screen._sections:
        yield from section.rows


async def test_all_chats_are_listed_by_date() -> None:
    old, *_, week, today = save_chats("figs", "nuts", "bread", "milk", "tea", "wine")
    set_age(old, days=900)
    set_age(week, days=3)
    async with home_app() as one:
        screen = await open_list(one)
        assert titles(screen) == ["wine", "milk", "bread", "nuts", "tea", "figs"]
        headings = [section.heading for section in screen._sections]
        assert (headings[0], headings[1]) == ("Today", "This week")
        assert len(headings) == 3
        assert today in {row.chat_id for row in listed(screen)}
        await one.sees("6 chats", "This week")


async def test_the_search_finds_titles_and_words_while_one_types() -> None:
    save_chats("figs and nuts", "bread", "milk")
    async with home_app() as one:
        screen = await open_list(one)
        await one.press("slash", *"nut")
        await one.sees("In the title", "1 match")
        assert titles(screen) == ["figs and nuts"]
        await one.press(*["backspace"] * 3, *"about milk")
        await one.sees("In the chat", "About milk.")
        assert titles(screen) == ["milk"]
        await one.press(*" xyz")
        await one.sees("No chat has all of these words")
        await one.press("escape")
        await one.sees("3 chats")
        assert titles(screen) == ["milk", "bread", "figs and nuts"]
        await one.press("escape")
        await one.reaches(HomeScreen)


async def test_several_matches_are_counted_in_english() -> None:
    save_chats("figs", "figs again", "milk")
    async with home_app() as one:
        await open_list(one)
        await one.press("slash", *"figs")
        await one.sees("2 matches")


@pytest.mark.parametrize("saved_form", ["NFC", "NFD"])
async def test_a_title_is_found_in_either_form_of_unicode(
    saved_form: Literal["NFC", "NFD"],
) -> None:
    """macOS writes `ü` as `u` and a combining mark, a keyboard as one character."""
    title = unicodedata.normalize(saved_form, "Grüße")
    save_chats(title, "milk")
    async with home_app() as one:
        screen = await open_list(one)
        await one.press("slash", *"grü")
        await one.sees("In the title", "1 match")
        assert titles(screen) == [title]


async def test_letters_are_text_in_the_search_field() -> None:
    ids = save_chats("desserts")
    async with home_app() as one:
        await open_list(one)
        await one.press("slash", *"des")
        await one.sees("1 match")
        assert one.is_on(ChatListScreen)
        assert [entry.id for entry in one.history.list_chats()] == ids


async def test_a_chat_is_opened_and_esc_leads_to_home() -> None:
    save_chats("figs", "nuts")
    async with home_app() as one:
        await open_list(one)
        await one.press("down", "enter")
        await one.until("ready")
        assert one.questions == ["figs"]
        await one.press("escape")
        await one.reaches(HomeScreen)


async def test_a_match_in_a_chat_is_opened_from_the_search_field() -> None:
    save_chats("figs", "nuts")
    async with home_app() as one:
        await open_list(one)
        await one.press("slash", *"about figs")
        await one.sees("In the chat")
        await one.press("enter")
        await one.until("ready")
        assert one.questions == ["figs"]


async def test_a_chat_is_pinned_renamed_and_deleted() -> None:
    save_chats("figs", "nuts", "tea")
    async with home_app() as one:
        screen = await open_list(one)
        await one.press("end", "s")
        await one.sees("Pinned")
        assert titles(screen) == ["figs", "tea", "nuts"]
        await one.press("f2", "ctrl+u", *"plums", "enter")
        await one.sees("plums")
        await one.press("d")
        await one.sees("Delete “plums”?")
        await one.press("y")
        await one.wait(lambda: titles(screen) == ["tea", "nuts"])
        assert [entry.title for entry in one.history.list_chats()] == ["tea", "nuts"]


async def test_another_chat_takes_the_place_of_the_open_one() -> None:
    save_chats("figs", "nuts")
    async with home_app() as one:
        await one.open("down")
        assert one.questions == ["nuts"]
        one.screen.composer.replace_text("not sent")
        await open_list(one, "alt+c")
        await one.press("down", "enter")
        await one.until("ready")
        assert one.questions == ["figs"]
        kinds = [type(screen) for screen in one.app.screen_stack]
        assert kinds.count(ChatScreen) == 1
        await open_list(one, "alt+c")
        await one.press("enter")
        await one.until("ready")
        assert (one.questions, one.typed) == (["nuts"], "not sent")


async def test_the_list_of_an_open_chat_leads_back_to_it() -> None:
    save_chats("figs")
    async with home_app() as one:
        await one.open("down")
        screen = one.screen
        for keys in (["escape"], ["enter"]):
            await open_list(one, "alt+c")
            await one.press(*keys)
            await one.reaches(ChatScreen)
            assert one.screen is screen


async def test_every_one_of_many_chats_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_list, "_PAGE_ROWS", 30)
    save_chats(*(f"number {n}" for n in range(100)))
    async with home_app() as one:
        screen = await open_list(one)
        await one.sees("100 chats")
        assert len(titles(screen)) == 30
        for n in range(99):
            assert screen._list.highlighted_index == n
            await one.pilot.press("down")
        assert titles(screen)[-1] == "number 0"
        row = screen._list.highlighted_row
        assert row is not None and row.name == "number 0"


async def test_an_empty_list_says_what_will_be_here() -> None:
    async with home_app() as one:
        await open_list(one)
        await one.sees("No chats yet")


async def test_a_private_app_has_no_list() -> None:
    async with home_app(private=True) as one:
        await open_list(one)
        await one.sees("Chats are not saved")

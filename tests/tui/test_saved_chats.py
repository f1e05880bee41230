"""Chats on the screen that outlive it: saved, listed, found, resumed, deleted."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import Static

from localspec import paths
from localspec.chat.history import ChatHistory, ChatPair
from localspec.chat.history.records import pack_events, unpack_events
from localspec.protocol.events import GenerationFinished
from localspec.protocol.wire import MeasuredCosts
from localspec.report.speculation import view_speculation
from localspec.tui.app import load_options
from localspec.tui.app_options import AppOptions
from localspec.tui.navigation import PreferencesChanged
from localspec.tui.saved_chats import SavedChats, format_day
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from tests.chat import saved_chats
from tests.support.app_driver import (
    Chat,
    HomeDriver,
    demo_chat,
    home_app,
    long,
    said,
)
from tests.support.default_drafts import write_target_with_head
from tests.support.scenes import home
from tests.support.scripted_engine import Opening, ScriptedEngine

HELLO = "Well, hello."


async def test_a_chat_is_there_again_after_the_app() -> None:
    async with demo_chat() as first:
        await first.send("Why does my loop allocate?")
        await first.send("and now?")

    async with home_app() as second:
        await second.sees("Recent chats", "2 turns")
        await second.open("down")

        turns = second.screen.session.conversation.turns
        asked = [turn.question for turn in turns]
        assert asked == ["Why does my loop allocate?", "and now?"]
        assert [turn.answer for turn in turns] == [HELLO] * 2
        assert turns[0].rounds
        await second.press("f3")  # The panel leaves the last line room for figures.
        await second.sees("ctx 28 / 8.2k", HELLO)


async def test_what_an_answer_was_compared_with_is_there_again() -> None:
    """In another program, which has measured nothing of the pair."""
    async with demo_chat(long) as first:
        await first.send("Count.")
        saved_line = _speed_line(first)
    assert "instead of" in saved_line

    async with _opened_again(measured=None) as second:
        assert second.screen.session.stats.measured is None
        assert _speed_line(second) == saved_line
        view = view_speculation(second.screen.session.stats)
        assert view.answer_line == saved_line
        await second.press("f7", "end")
        panel = second.app.screen.query_one(SpeculationPanel)
        assert view_speculation(panel._stats).answer_line == saved_line


async def test_an_answer_of_an_earlier_version_has_no_comparison_of_its_own() -> None:
    async with demo_chat(long) as first:
        await first.send("Count.")
    with closing(sqlite3.connect(paths.chats_file())) as database, database:
        query = "SELECT key, body FROM events ORDER BY n DESC LIMIT 1"
        key, packed = database.execute(query).fetchone()
        *events, end = unpack_events(packed)
        assert isinstance(end, GenerationFinished)
        end = replace(end, totals={"timings": {"first_token_ms": 41.0}})
        values = (pack_events([*events, end]), key)
        database.execute("UPDATE events SET body = ? WHERE key = ?", values)

    async with _opened_again(measured=None) as second:
        assert "instead of" not in _speed_line(second)
        assert "200 tokens in" in _speed_line(second)


@asynccontextmanager
async def _opened_again(measured: MeasuredCosts | None) -> AsyncIterator[HomeDriver]:
    engine = ScriptedEngine(said, measured=measured)
    running = home(AppOptions(seed=1, chats=SavedChats()), opening=Opening([engine]))
    async with running.run_test(size=(100, 30), notifications=True) as pilot:
        driver = HomeDriver(pilot)
        await driver.sees("Ready to run", "Recent chats")
        await driver.open("down")
        yield driver


def _speed_line(driver: HomeDriver) -> str:
    """What is under the last answer."""
    return driver.screen.transcript.turns[-1].text._speed_block._text.strip()


async def test_a_chat_that_was_opened_again_goes_on_in_its_own_row() -> None:
    async with demo_chat() as first:
        await first.send("one")

    async with home_app() as second:
        await second.open("down")
        await second.send("two")

        (saved,) = second.history.list_chats()
        assert saved.turn_count == 2


async def test_an_imported_chat_is_listed_and_goes_on_with_the_default_model(
    tmp_path: Path,
) -> None:
    messages = {
        "a": {"role": "user", "content": "Will it rain?", "parentId": None},
        "b": {"role": "assistant", "content": "Perhaps.", "parentId": "a"},
    }
    document = [{"chat": {"title": "Rain", "history": {"messages": messages}}}]
    file = tmp_path / "export.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    async with demo_chat() as one:
        await one.send(f"/import {file}")
        await one.sees("1 chat imported.")

    async with home_app() as two:
        await two.sees("Recent chats", "Rain")
        await two.open("down")
        await two.sees("Will it rain?", "Perhaps.")
        await two.send("And tomorrow?")

        (saved,) = two.history.list_chats()
        assert (saved.title, saved.turn_count) == ("Rain", 2)


async def test_a_chat_is_saved_with_the_name_of_its_pair_and_not_its_files() -> None:
    async with demo_chat() as one:
        await one.send("one")

        (saved,) = one.history.list_chats()
        assert (saved.pair.model, saved.pair.draft) == ("demo", "auto")


@pytest.mark.parametrize("how", ["many turns", "lost events"])
async def test_answers_are_there_without_their_events(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with demo_chat() as first:
        await first.send("Why?")
    if how == "many turns":
        monkeypatch.setattr("localspec.tui.saved_chats._MAX_TURNS_WITH_TOKENS", 0)
    else:
        with closing(sqlite3.connect(paths.chats_file())) as database, database:
            assert database.execute("DELETE FROM events").rowcount
    async with home_app() as second:
        await second.open("down")
        await second.sees(HELLO)
        await second.press("f2")
        await second.sees(HELLO)


async def test_a_chat_is_deleted_for_good() -> None:
    async with demo_chat() as one:
        await one.send("a secret")
        await one.press("escape", "down", "d")
        await one.sees("Delete “a secret”?")

        await one.press("y")

        await one.wait(lambda: "Recent chats" not in one.shown)
        assert not one.history.list_chats()


async def test_enter_deletes_no_chat() -> None:
    async with demo_chat() as one:
        await one.send("a secret")
        await one.press("escape", "down", "d")
        await one.sees("Delete “a secret”?")

        await one.press("enter")

        assert len(one.history.list_chats()) == 1


async def test_a_private_chat_is_not_saved_and_says_so() -> None:
    async with demo_chat() as one:
        await one.send("/private")

        await one.send("a secret")

        assert "not saved" in one.shown
        assert not one.history.list_chats()


async def test_the_chat_after_a_private_one_is_saved() -> None:
    async with demo_chat() as one:
        await one.send("/private")
        await one.send("a secret")

        await one.send("/new")
        await one.send("no secret")

        assert [chat.title for chat in one.history.list_chats()] == ["no secret"]
        title = one.screen.query_one("#topic", Static)
        assert "not saved" not in str(title.content)


async def test_while_saving_is_off_no_chat_is_saved() -> None:
    async with demo_chat(private=True) as one:
        await one.send("a secret")
        await one.sees("not saved")

    with closing(ChatHistory.open()) as history:
        assert not history.list_chats()


async def test_the_chat_after_saving_is_turned_on_is_saved() -> None:
    async with demo_chat(private=True) as one:
        await one.send("a secret")
        chats = one.app.options.chats
        assert chats is not None
        chats.private = False
        one.screen.post_message(PreferencesChanged())
        await one.pilot.pause()

        await one.send("/new")
        await one.send("no secret")

        assert [chat.title for chat in one.history.list_chats()] == ["no secret"]


async def test_a_chat_that_is_open_elsewhere_is_read_only() -> None:
    async with demo_chat() as one:
        await one.send("mine")
        await one.press("escape")
        async with home_app() as another:
            await another.press("down", "enter")
            await another.sees("open in another window", "y read it")
            await another.press("y")
            await another.reaches(ChatScreen)
            await another.until("ready")
            await another.send("yours")
            assert (another.typed, another.questions) == ("yours", ["mine"])
        assert one.history.list_chats()[0].turn_count == 1


async def test_no_model_is_loaded_for_a_chat_that_is_open_elsewhere() -> None:
    """Until a person wants to read it: a load may take minutes."""
    async with demo_chat() as one:
        await one.send("mine")
        await one.press("escape")
        async with home_app() as another:
            await another.press("down", "enter")
            await another.sees("open in another window")
            await another.press("escape")
            assert another.is_on(HomeScreen)
            assert another.home._runner.engine is None


async def test_a_chat_that_the_other_window_has_closed_is_no_longer_read_only() -> None:
    async with demo_chat() as one:
        await one.send("mine")
        await one.press("escape")
        async with home_app() as another:
            await another.press("down", "enter")
            await another.sees("open in another window")
            await another.press("escape")
            one.home.sessions.close_all()
            await another.press("enter")
            await another.reaches(ChatScreen)
            await another.until("ready")
            await another.send("yours")
            assert another.questions == ["mine", "yours"]


async def test_a_chat_that_is_only_opened_keeps_its_place() -> None:
    async with demo_chat() as one:
        await one.send("first")
        await one.press("escape")
        before = one.history.list_chats()[0].updated
    async with home_app() as later:
        await later.open("down")
        await later.press("escape")
        assert later.history.list_chats()[0].updated == before


async def test_a_chat_of_files_is_resumed() -> None:
    """As older versions saved those of the bundled pair, too."""
    demo = paths.package_data_dir() / "demo"
    files = str(demo / "demo-target.gguf"), str(demo / "demo-draft.gguf")
    with closing(ChatHistory.open()) as history:
        old = saved_chats.chat(("before", "said"))
        pair = ChatPair(*files, "demo-target")
        history.save_chat(
            None, replace(saved_chats.about(old), pair=pair), old.all_turns
        )
    async with home_app() as one:
        await one.open("down")
        choice = one.screen.session.pair
        assert (str(choice.target), str(choice.draft)) == files
        await one.send("more")
        saved = one.history.list_chats()[0]
        named = (saved.turn_count, saved.pair.model, saved.pair.draft)
        assert named == (2, "demo-target", "demo-draft")


def save_chat_without_draft(target: Path, *turns: tuple[str, str]) -> int:
    """A chat as `localspec run TARGET --draft none` saves it; returns its id."""
    with closing(ChatHistory.open()) as history:
        chat = saved_chats.chat(*turns)
        pair = ChatPair(str(target), "none", target.stem)
        metadata = replace(saved_chats.about(chat), pair=pair)
        return history.save_chat(None, metadata, chat.all_turns).chat_id


@pytest.mark.parametrize("where", ["in its folder", "in its file"])
@pytest.mark.parametrize("door", ["recent chats", "search", "second time"])
async def test_a_chat_without_a_draft_opens_where_its_model_has_a_head(
    door: str, where: str, tmp_path: Path
) -> None:
    """It opens with its turns and without the head, and is continued."""
    target = write_target_with_head(tmp_path, where)
    chat_id = save_chat_without_draft(target, ("what is marmalade?", "A jam."))
    async with home_app() as one:
        if door == "search":
            await one.press("slash", *"marmalade")
            await one.sees("In your chats")
            await one.open()
        else:
            await one.open("down")
        if door == "second time":
            await one.press("escape", "escape")
            await one.sees("Recent chats")
            await one.open()
        session = one.screen.session
        assert session.recorder.chat_id == chat_id
        assert session.pair.draft is None
        assert one.questions == ["what is marmalade?"]
        await one.send("and of figs?")
        (saved,) = one.history.list_chats()
        assert (saved.id, saved.turn_count) == (chat_id, 2)


def test_days() -> None:
    now = datetime(2026, 3, 3, 12, 0).astimezone()
    days = [
        format_day((now - timedelta(days=n)).timestamp(), now) for n in (0, 1, 2, 7)
    ]
    assert days == ["today 12:00", "yesterday", "Sunday", "2026-02-24"]
    assert format_day(float("1e300"), now) == ""


def chats_of_three_questions() -> None:
    """Saves three chats; the last is the most recent."""
    with closing(ChatHistory.open()) as history:
        for question in ("first", "second", "third"):
            saved_chats.put(history, (question, HELLO))


async def test_home_lists_the_chat_that_was_used_last_first() -> None:
    chats_of_three_questions()

    async with home_app() as one:
        await one.sees("Recent chats")

        titles = [chat.title for chat in one.history.list_chats()]
        assert titles == ["third", "second", "first"]
        shown = one.shown
        assert shown.index("third") < shown.index("second") < shown.index("first")


async def test_a_pinned_chat_is_first_until_it_is_pinned_no_more() -> None:
    chats_of_three_questions()
    async with home_app() as one:
        await one.press("down", "down", "down", "s")  # The oldest.
        await one.wait(lambda: one.shown.index("first") < one.shown.index("third"))

        await one.press("home", "down", "s")

        await one.wait(lambda: one.shown.index("third") < one.shown.index("first"))


async def test_a_pin_that_cannot_be_saved_is_told() -> None:
    chats_of_three_questions()
    (paths.data_dir() / "pinned.json").mkdir()
    async with home_app() as one:
        await one.press("down", "s")

        messages = [notice.message for notice in one.app._notifications]
        assert any("pinned.json cannot be written" in message for message in messages)


async def test_a_chat_is_renamed_on_home() -> None:
    chats_of_three_questions()
    async with home_app() as one:
        await one.press("down", "f2", "ctrl+u", *"uno", "enter")

        await one.sees("uno")
        assert one.history.list_chats()[0].title == "uno"


async def test_a_chat_is_exported_on_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chats_of_three_questions()
    async with home_app() as one:
        await one.press("down", "e", "enter")

        await one.sees("Saved:")
    assert "third" in (tmp_path / "third.md").read_text()


async def test_an_export_on_home_is_never_over_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "third.md").write_text("precious")
    chats_of_three_questions()
    async with home_app() as one:
        await one.press("down", "e", "enter")

        messages = [notice.message for notice in one.app._notifications]
        assert any("third.md already exists" in message for message in messages)
    assert (tmp_path / "third.md").read_text() == "precious"


async def test_a_search_hit_opens_at_the_match() -> None:
    """Also on a branch that was not shown."""
    async with demo_chat() as one:
        await one.send("the marmalade question")
        await one.press("f6")
        await one.send("another way")
        for n in range(12):
            await one.send(f"filler {n}")
        assert "marmalade" not in one.shown.split("filler")[1]
        await one.press("escape", "slash", *"marmalade")
        await one.sees("In your chats")
        await one.open()
        await one.sees("the marmalade question")


async def test_a_place_that_cannot_be_is_said_once() -> None:
    paths.chats_file().parent.parent.mkdir()
    paths.chats_file().parent.write_text("a file")
    chats = load_options().chats
    assert chats is not None and chats.history is None
    assert [
        "Chats are not saved" in notice.message for notice in chats.take_notices()
    ] == [True]
    assert not chats.take_notices()
    async with Chat(chats=chats) as chat:
        await chat.send("one")
        await chat.sees("not saved")

"""What is typed: never lost, delivered where the screen says, sent only on request."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from rich.style import Style
from textual import events
from textual.events import MouseScrollUp
from textual.widgets import Input, Static

from localspec.protocol.events import EngineExit, Round
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import find_key_hint
from localspec.tui.screens import chat as chat_screen
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.text.blocks import KeyHints
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import KeyLine, StatusBar
from localspec.tui.widgets.token_details import LEGEND
from localspec.tui.widgets.transcript import Transcript
from tests.support import scenes
from tests.support.fake_hub import FakeHub
from tests.support.scenes import CODE, QUESTION, asking, settled, streaming, surveyed, walking
from tests.support.scripted_engine import (
    Gate,
    Script,
    ScriptedEngine,
    answer,
    painted,
    ready,
    wait_until,
)
from tests.support.zoo import Zoo
from tests.tui import test_saved_chats as kept
from tests.tui.screens.test_chat import Chat, long, said
from tests.tui.test_downloads import Home, client

pytestmark = pytest.mark.asyncio


# --- keys that are typed faster than the screen changes ---------------------------------------


@pytest.mark.parametrize("opening", ["f1", "f4", "ctrl+l", "f8", "ctrl+p"])
async def test_letters_right_after_a_sheet_closes_go_to_the_message(opening: str) -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await chat.press(opening)
        await settled(chat.pilot)
        assert not chat.on_top
        for key, character in (("escape", None), ("a", "a"), ("b", "b"), ("c", "c")):
            chat.app.post_message(events.Key(key, character))
        await wait_until(chat.pilot, lambda: chat.typed == "abc")
        assert chat.on_top


async def test_letters_right_after_a_sheet_opens_go_to_its_field() -> None:
    async with Chat() as chat:
        for key in ("a", "f4", "0", ".", "3", "escape", "b"):
            chat.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await wait_until(chat.pilot, lambda: chat.typed == "ab")
        assert chat.screen.session.settings.sampling.temperature == 0.3


async def test_a_command_typed_ahead_of_a_sheet_is_whole() -> None:
    """Enter sends the command, which opens a sheet; the next letters belong to the sheet."""
    async with Chat() as chat:
        chat.screen.composer.replace_text("/show")
        for key in ("enter", "0", ".", "4", "escape", "x"):
            chat.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await wait_until(chat.pilot, lambda: chat.typed == "x")
        assert chat.screen.session.settings.sampling.temperature == 0.4


# --- drafts -----------------------------------------------------------------------------------


async def test_escape_clears_the_message_and_up_brings_it_back() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("a long thought\nof two lines")
        await chat.press("escape")
        assert chat.typed == ""
        assert "↑ brings the text back" in chat.shown
        await chat.press("up")
        assert chat.typed == "a long thought\nof two lines"


async def test_editing_an_earlier_question_keeps_what_was_being_typed() -> None:
    async with Chat() as chat:
        await chat.send("one")
        chat.screen.composer.replace_text("half a thought")
        await chat.press("f6")
        assert chat.typed == "one"
        await chat.press("up")
        assert chat.typed == "half a thought"


async def test_a_late_escape_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was meant to stop the answer, which ended just before."""
    monkeypatch.setattr(chat_screen, "LATE_ESCAPE_SECONDS", 60.0)
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("hi")
        await one.press("escape")
        assert one.chat.phase == "ready", "the chat was left"
        one.chat.composer.replace_text("next")
        await one.press("escape")
        assert one.chat.composer.text == "next"
        monkeypatch.setattr(chat_screen, "LATE_ESCAPE_SECONDS", 0.0)
        await one.press("escape", "escape")
        assert isinstance(one.pilot.app.screen, HomeScreen)


async def test_escape_leaves_an_empty_chat_only_twice_while_one_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_screen, "TYPING_SECONDS", 60.0)
    monkeypatch.setattr(chat_screen, "SECOND_ESCAPE_SECONDS", 60.0)
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.press("escape")
        assert isinstance(one.pilot.app.screen, HomeScreen), "nothing was typed"
        await one.press("enter")
        await one.until("ready")
        await one.send("hi")
        await one.press("escape")
        assert "Press esc again" in one.shown and one.chat.phase == "ready"
        await one.press("escape")
        assert isinstance(one.pilot.app.screen, HomeScreen)


async def test_keys_of_a_widget_do_nothing_where_none_has_the_focus() -> None:
    async with Chat() as chat:
        chat.screen.set_focus(None)
        await chat.press("ctrl+g", "ctrl+y", "alt+z")
        assert chat.on_top and chat.screen.phase == "ready"


@pytest.mark.parametrize("by", ["keys", "paste"])
async def test_what_is_typed_is_what_is_stored_and_sent(by: str) -> None:
    text = "می\u200cروم 👩\u200d💻 \u200fשלום\u200e \u061c日本\u3000語 a\u00a0b \u202ea"
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        if by == "paste":
            chat.app.post_message(events.Paste(text))
        else:
            for character in text:
                chat.app.post_message(events.Key("any", character))
        await wait_until(chat.pilot, lambda: chat.typed == text)
        await chat.press("enter")
        await chat.until("ready")
        assert chat.questions == [text] and engine.asked[0].messages[-1].content == text
        assert "\u202e" not in chat.shown


async def test_a_draft_is_there_when_the_chat_is_opened_again() -> None:
    """After Esc while the model loads, after another chat of the pair, and recalled by up."""
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("the first chat")
        await one.send("/new")
        await one.send("the second chat")
        one.chat.composer.replace_text("not sent yet")
        one.chat.phase = "loading"  # Esc leaves at once
        await one.press("escape")
        for name in ("the first chat", "the second chat"):
            await one.press("slash", *name.replace(" ", ""))
            one.home.query_one(Input).value = name
            await wait_until(one.pilot, lambda name=name: f"▸ {name}" in one.shown)  # type: ignore[misc]
            await one.press("enter")
            await one.until("ready")
            draft = one.chat.composer.text
            await one.press("escape", "escape")
            await one.press("escape")
        assert draft == "not sent yet"


async def test_a_message_that_waited_for_the_model_is_not_lost_with_the_screen() -> None:
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        one.chat.phase = "loading"
        one.chat.composer.replace_text("queued")
        await one.press("enter")
        one.chat.composer.replace_text("and typed")
        await one.press("escape")
        await one.press("enter")
        await one.until("ready")
        assert one.chat.composer.text == "queued\nand typed"


async def test_what_is_typed_survives_the_engine() -> None:
    gate = Gate()
    dying = ScriptedEngine(lambda: [*list(said())[:-1], gate, EngineExit("signal 9", (), "")])
    async with Chat(dying, ScriptedEngine(said)) as chat:
        chat.screen.composer.replace_text("one")
        await chat.press("enter")
        await chat.until("answering")
        chat.screen.composer.replace_text("two")
        gate.set()
        await chat.until("failed")
        assert chat.typed == "two"
        await chat.press("f5")
        await chat.until("ready")
        assert chat.typed == "two"


# --- the search on Home -----------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
async def test_enter_opens_the_chat_that_is_marked() -> None:
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("a haiku about rain")
        await one.press("escape", "slash", *"haiku")
        await wait_until(one.pilot, lambda: "▸ a haiku about rain" in one.shown)
        assert "enter continue" in one.shown and "↑↓ select" in one.shown
        await one.press("enter")
        await one.until("ready")
        assert one.chat.session.title == "a haiku about rain"


@pytest.mark.usefixtures("no_network")
async def test_the_arrows_mark_rows_while_one_types() -> None:
    async with kept.app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("demo of rain")
        await one.press("escape", "slash", *"demo")
        await wait_until(one.pilot, lambda: "In your chats" in one.shown)
        assert "▸ demo-target" in one.shown or "▸ demo " in one.shown
        await one.press("down")
        assert "▸ demo of rain" in one.shown and "enter continue" in one.shown
        await one.press("up")
        assert "enter open" in one.shown


async def test_only_a_marked_search_sends_words_to_the_hub() -> None:
    with FakeHub() as hub:
        async with Home(client(hub)) as home:
            await home.press("slash", *"xyzzy", "enter")
            await home.sees("No match on this computer", "Search the hub", "sends this text")
            assert "▸" not in home.shown and not hub.seen
            await home.press("down")
            await home.sees("▸ Search the hub", "enter search the hub")
            assert not hub.seen
            await home.press("enter")
            await home.sees("No models with that name on the hub.")
            assert hub.seen


# --- the settings sheet -----------------------------------------------------------------------


async def test_an_invalid_setting_changes_nothing() -> None:
    async with Chat() as chat:
        before = chat.screen.session.settings
        await chat.press("f4", *"2", "full_stop", *"5x", "enter")
        assert "temperature cannot be '2.5x'" in chat.shown
        assert isinstance(chat.app.screen, ChatSettingsScreen)
        field = chat.app.screen.focused
        assert isinstance(field, Input) and (field.name, field.value) == ("temperature", "0.8")
        assert chat.screen.session.settings == before
        await chat.press(*"1x", "tab", *"2", "enter", *"7", "escape")
        settings = chat.screen.session.settings
        assert (settings.sampling.temperature, settings.sampling.top_k) == (2.0, 7)


async def test_a_setting_half_typed_when_the_sheet_closes_changes_nothing() -> None:
    async with Chat() as chat:
        before = chat.screen.session.settings
        await chat.press("f4", *"2x", "escape")
        assert chat.on_top and "Not changed: temperature cannot be '2x'" in chat.shown
        assert chat.screen.session.settings == before
        await chat.press("f4", *"2", "escape")
        assert chat.screen.session.settings.sampling.temperature == 2


# --- files ------------------------------------------------------------------------------------


async def test_a_folder_or_a_binary_file_is_not_attached(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    async with Chat() as chat:
        await chat.send(f"/read {tmp_path}")
        await wait_until(chat.pilot, lambda: "is not a file" in chat.shown)
        assert "Errno" not in chat.shown
        await chat.send(f"/read {tmp_path / 'picture.png'}")
        await wait_until(chat.pilot, lambda: "is not a text file" in chat.shown)
        assert not chat.screen.session.pending_attachments


async def test_enter_takes_the_completed_path(tmp_path: Path, zoo: Zoo) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(zoo["parrot"], tmp_path / "models" / "parrot.gguf")
    async with kept.app() as one:
        await one.press("o")
        field = one.pilot.app.screen.query_one("#target", Input)
        field.value = str(tmp_path / "mod")
        await one.press("enter")
        assert field.value == f"{tmp_path}/models/" and field.has_focus
        await one.press("p", "enter")
        assert field.value == f"{tmp_path}/models/parrot.gguf"
        assert "a GGUF model" in one.shown and not field.has_focus


@pytest.mark.parametrize("path", ["~nobody-of-this-name/m", "/" + "a" * 300])
async def test_a_path_that_cannot_be_looked_at_is_refused(path: str) -> None:
    async with kept.app() as one:
        await one.press("o")
        one.pilot.app.screen.query_one("#target", Input).value = path
        await one.press("enter")
        verdict = str(one.pilot.app.screen.query_one("#target-verdict", Static).content)
        assert "There is no file" in verdict or "Check its permissions." in verdict


# --- chats ------------------------------------------------------------------------------------


async def test_a_new_chat_begins_with_the_settings_of_the_start() -> None:
    async with Chat() as chat:
        await chat.send("/system be brief")
        await chat.send("/set top_k 7")
        await chat.send("one")
        await chat.press("ctrl+n")
        session = chat.screen.session
        assert (session.conversation.system, session.settings.sampling.top_k) == ("", 40)
        await chat.send("/set top_k 8")
        await chat.send("/new")
        assert session.settings.sampling.top_k == 40


async def test_the_answer_before_is_copied_while_the_next_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    monkeypatch.delenv("TMUX", raising=False)
    async with Chat(ScriptedEngine(said, lambda: [Gate(), *said()])) as chat:
        await chat.send("one")
        chat.screen.composer.replace_text("two")
        await chat.press("enter")
        await chat.until("answering")
        await chat.press("ctrl+o")
        assert "12 characters" in chat.shown and "No answer" not in chat.shown
        await chat.press("escape")
        await chat.until("ready")


async def test_a_message_that_alone_is_too_long_is_given_back() -> None:
    """Leaving out turns would not help, so it is not offered; the refusal goes with the next."""
    sizes = {1: 100}  # by number of messages
    engine = ScriptedEngine(said, sizes=lambda messages: sizes[messages])
    async with Chat(engine) as chat:
        await chat.send("one")
        sizes.update({1: 8_500, 3: 9_000})
        await chat.send("a very long message")
        assert chat.on_top and "This message alone exceeds the context" in chat.shown
        assert (chat.typed, chat.questions) == ("a very long message", ["one"])
        sizes.update({1: 100, 3: 200})
        await chat.press("enter")
        await wait_until(chat.pilot, lambda: len(chat.questions) == 2)
        await chat.until("ready")
        assert "exceeds the context" not in chat.shown
        assert [m.content for m in engine.asked[-1].messages] == [
            "one",
            "Well, hello.",
            "a very long message",
        ]


def unscored() -> Script:
    """As an engine answers without being asked for probabilities."""
    for event in said():
        if isinstance(event, Round):
            plain = (replace(t, p_target=None, rank=None, alternatives=()) for t in event.tokens)
            event = replace(event, tokens=tuple(plain))  # noqa: PLW2901
        yield event


async def test_replay_has_the_probabilities_that_the_token_view_computed() -> None:
    async with Chat(ScriptedEngine(unscored)) as chat:
        await chat.send("hi")
        await chat.press("f7", "end")
        assert "Probabilities not recorded" in chat.shown
        await chat.press("escape", "f2")
        await wait_until(chat.pilot, lambda: "target probability 50 %" in chat.shown)
        await chat.press("f2", "f7", "end")
        assert "target probability 50 %" in chat.shown


async def test_replay_keeps_question_and_answer_of_a_chat_apart() -> None:
    async with Chat() as chat:
        await chat.send("Count to 20.")
        await chat.press("f7", "end")
        assert "Count to 20. Well, hello." in chat.shown
    async with Chat(ScriptedEngine(said, ready=ready(chats=False))) as chat:
        await chat.send("Count to 20.")
        await chat.press("f7", "end")
        assert "Count to 20.Well, hello." in chat.shown


# --- the mouse ---------------------------------------------------------------------------------


async def test_a_click_on_a_key_hint_is_the_key() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("hello")
        line = chat.screen.query_one(StatusBar)
        await chat.pilot.click(StatusBar, offset=(line.render_line(0).text.index("send"), 0))
        await wait_until(chat.pilot, lambda: chat.questions == ["hello"])
        await chat.until("ready")
        await settled(chat.pilot)
        await chat.pilot.click(StatusBar, offset=(line.render_line(0).text.index("tokens"), 0))
        await wait_until(chat.pilot, lambda: chat.screen.transcript.token_view)
        await chat.press("f2", "f4")
        assert isinstance(chat.app.screen, ChatSettingsScreen)
        await settled(chat.pilot)
        hint = chat.app.screen.query(".hint").last()
        await chat.pilot.click(hint, offset=(hint.render_line(0).text.index("esc"), 0))
        await wait_until(chat.pilot, lambda: chat.on_top)


async def test_home_by_mouse_alone() -> None:
    async with kept.app() as one:
        keys = one.home.query_one(KeyLine)
        await one.pilot.click(KeyLine, offset=(keys.render_line(0).text.index("f1"), 0))
        await wait_until(one.pilot, lambda: isinstance(one.pilot.app.screen, HelpScreen))
        await one.press("escape")
        rows = one.home.query_one(PointerList)
        await one.pilot.click(PointerList, offset=(8, rows.get_option_index("0") + 1))
        await one.until("ready")
        assert isinstance(one.pilot.app.screen, ChatScreen)


async def test_the_wheel_scrolls_the_transcript() -> None:
    async with Chat(ScriptedEngine(long)) as chat:
        await chat.send("hi")
        assert chat.screen.transcript.following
        await chat.pilot._post_mouse_events([MouseScrollUp], Transcript, button=0)
        await wait_until(chat.pilot, lambda: not chat.screen.transcript.following)


async def test_a_click_on_an_address_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on its second line; other words do nothing."""
    address = "https://example.org/" + "a-long-path/" * 12
    opened: list[str] = []
    words = ["See ", address, " and ", "<https://example.org/b>", ".\n"]
    async with Chat(ScriptedEngine(lambda: answer(words))) as chat:
        monkeypatch.setattr(chat.app, "open_url", opened.append)
        await chat.send("hi")
        lines = chat.screen.transcript.plain_text.splitlines()
        rows = [n for n, line in enumerate(lines) if "long-path" in line]
        assert len(rows) > 1
        for row in rows[:2]:
            column = lines[row].index("long-path")
            await chat.pilot.click(Transcript, offset=(column, row))
        assert opened == [address.rstrip("/") + "/"] * 2
        row = next(n for n, line in enumerate(lines) if line.strip() == "hi")
        await chat.pilot.click(Transcript, offset=(lines[row].index("hi"), row))
        assert len(opened) == 2


@pytest.mark.parametrize(
    ("x", "key"),
    [(0, "enter"), (8, "enter"), (12, "left"), (13, "right"), (16, "right"), (24, "escape")],
)
async def test_which_key_a_hint_shows(x: int, key: str) -> None:
    assert find_key_hint("enter send  ←→ change  esc back", x) == key
    assert find_key_hint("ctx 28 / 8.2k   / find", 18) == "slash"
    assert find_key_hint("ctx 28 / 8.2k", 2) == ""


# --- hints and manners -------------------------------------------------------------------------


THINKING = ("<think>", "</think>")


def on(app: LocalspecApp) -> ChatScreen:
    screen = app.screen
    assert isinstance(screen, ChatScreen)
    return screen


async def test_tab_leads_to_the_tokens_and_back() -> None:
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(CODE)(pilot)
        await pilot.press("tab")
        assert (
            on(app).composer.has_focus and not on(app).transcript.is_cursor_active
        )  # nothing is shown
        await pilot.press("f2", "escape")
        assert on(app).composer.has_focus
        assert "tab select token" in painted(app.screen)
        await pilot.press("tab")
        assert on(app).transcript.is_cursor_active
        assert "round" in painted(app.screen) and "→ token" in painted(app.screen)
        await pilot.press("tab")
        assert on(app).composer.has_focus


async def test_esc_stops_only_what_runs() -> None:
    app = scenes.chat(scenes.held)
    async with app.run_test(size=(120, 30)) as pilot:
        await streaming(pilot)
        assert "esc stop" in painted(app.screen)
        assert "first token" not in painted(app.screen)
        await pilot.press("escape")
        await wait_until(pilot, lambda: on(app).phase == "ready")
        await wait_until(pilot, lambda: "esc back" in painted(app.screen))
        assert "esc stop" not in painted(app.screen)


async def test_an_answer_is_finished_only_where_there_is_one() -> None:
    app = scenes.refused()
    async with app.run_test(size=(80, 24)) as pilot:
        await scenes.failed(pilot)
        assert "enter reload ctrl+l engine log esc back" in painted(app.screen)
        assert "finish the answer" not in painted(app.screen)
    app = scenes.chat(scenes.dying)
    async with app.run_test(size=(80, 24)) as pilot:
        await asking()(pilot)
        assert "f5 reload and finish the answer" in painted(app.screen)


@pytest.mark.parametrize("width", [10, 24, 40, 80])
async def test_a_hint_is_not_cut_in_two(width: int) -> None:
    keys = ("f6 edit the message", "f4 settings", "ctrl+l engine log")
    part = KeyHints(keys, "| ")
    lines = [part.line(y, LOOKS)[1].text for y in range(part.height(width))]
    assert "   ".join(lines).split("   ") == list(keys)
    assert all(len(line) <= max(width - 2, *map(len, keys)) for line in lines)


LOOKS = {"error": Style(), "muted": Style()}


async def test_one_empty_line_between_thinking_and_answer() -> None:
    app = scenes.chat(scenes.thought, thinking=THINKING)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(QUESTION)(pilot)
        for _ in range(2):
            lines = [line.strip() for line in on(app).transcript.plain_text.splitlines()]
            last = lines.index("Use append.")
            assert lines[last - 1] == "" and lines[last - 2] != ""
            await pilot.press("ctrl+t")


async def test_a_long_topic_shows_that_it_was_cut() -> None:
    app = scenes.chat(scenes.spoken)
    async with app.run_test(size=(80, 24)) as pilot:
        await asking("What would you say to somebody who asks you the longest question of all?")(
            pilot
        )
        title = app.screen._compositor.render_strips()[0].text
        assert title.rstrip().endswith("…")


async def test_the_strip_of_a_short_terminal_keeps_its_legend() -> None:
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False)
    async with app.run_test(size=(60, 20)) as pilot:
        await walking(*["up"] * 8, "left")(pilot)
        await pilot.resize_terminal(60, 15)
        await pilot.press("left", "right")
        await pilot.pause()
        shown = painted(app.screen)
        assert all(label in shown for label, _ in LEGEND.values())
        assert "rank 1" in shown and "round" in shown and "Alternatives" not in shown


async def test_details_of_a_token_are_not_cut_in_a_narrow_terminal() -> None:
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False)
    async with app.run_test(size=(60, 24)) as pilot:
        await walking(*["up"] * 8, "left")(pilot)
        shown = painted(app.screen)
        assert "Alternatives" in shown and "id 5" in shown
        assert all(label in shown for label, _ in LEGEND.values())


@pytest.mark.parametrize("where", ["home", "opening", "chat", "help", "settings", "failure"])
async def test_ascii_means_ascii(where: str) -> None:
    """Also borders, bars and scrollbars."""
    options = AppOptions(seed=1, ascii_only=True, colour=False)
    app = scenes.chat(
        scenes.dying if where == "failure" else lambda: scenes.spoken(scenes.COMPLETED),
        chats=False,
        ascii_only=True,
        colour=False,
    )
    if where in ("home", "opening"):
        app = scenes.home(options, scenes.Still())
    async with app.run_test(size=(100, 24)) as pilot:
        if where in ("home", "opening"):
            await surveyed(pilot)
            await pilot.press(*{"opening": ["o"]}.get(where, []))
        else:
            await asking(CODE)(pilot)
            await pilot.press({"help": "f1", "settings": "f4"}.get(where, "f2"))
        await pilot.pause()
        text = "".join(strip.text for strip in app.screen._compositor.render_strips())
        odd = {letter for letter in text if not letter.isascii()} - set("大規模言語モデル七十億")
        assert not odd

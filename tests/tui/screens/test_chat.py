"""The chat screen: keys, commands, reading, and what must not be lost."""

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace
from textual import events
from textual.events import MouseScrollUp
from textual.selection import Selection
from textual.widgets import Input

from localspec import paths
from localspec.chat.examples import EXAMPLES
from localspec.config import toml_file
from localspec.errors import DoesNotFitError, Hint
from localspec.launch import ResolvedPair
from localspec.models.local_files import inventory
from localspec.protocol.events import (
    EngineExit,
    Event,
    GenerationFinished,
    Round,
    SpeculationPlan,
)
from localspec.protocol.wire import LoadProgress
from localspec.serve.request_metrics import ServerActivity
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.screens import chat as chat_screen
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.text.live_frames import NO_GUESS
from localspec.tui.widgets.chat_notes import LoadingLine
from localspec.tui.widgets.screen_frame import StatusBar
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.transcript import Transcript
from tests.support.app_driver import Chat, HomeDriver, demo_chat, long, said
from tests.support.scenes import REFUSED, settled, thought, words
from tests.support.scripted_engine import Gate, Script, ScriptedEngine, answer, ready

HELLO = "Well, hello."
THOUGHT = "They ask about lists"


def thinking() -> Chat:
    return Chat(ScriptedEngine(thought, ready=ready(thinking=("<think>", "</think>"))))


# --- composing
# --------------------------------------------------------------------------------


async def test_a_copy_answers_under_the_name_of_its_model() -> None:
    """A turn keeps the name of the file that wrote it."""
    copy = inventory.converted_folder() / "starter-Q4_K_M.gguf"
    copy.parent.mkdir(parents=True)
    copy.touch()
    loaded = replace(ready(), model=copy.name)
    async with Chat(ScriptedEngine(said, ready=loaded)) as chat:
        await chat.send("one")
        await chat.until("ready")

        await chat.sees("qwen3-8b (guesses: ")
        assert "starter" not in chat.shown
        assert chat.screen.session.conversation.turns[0].model == "starter-Q4_K_M"


async def test_a_question_of_a_megabyte_is_sent_whole_and_shown_cut() -> None:
    """It cannot be typed (a long paste becomes a file), but an editor may give it."""
    question = ("some words of a line, " * 4 + "red\n") * 11_500
    async with Chat() as chat:
        chat.screen.send(question)
        await chat.until("ready")

        assert chat.questions == [question]
        await chat.sees("more characters", HELLO)


TYPED = "می\u200cروم 👩\u200d💻 \u200fשלום\u200e \u061c日本\u3000語 a\u00a0b \u202ea"
"""Joiners, direction marks and blanks of several languages, and a direction override."""


async def test_what_is_typed_is_sent_as_it_is_and_shown_without_direction_overrides() -> (
    None
):
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        for character in TYPED:
            chat.app.post_message(events.Key("any", character))
        await chat.wait(lambda: chat.typed == TYPED)
        assert not chat.questions

        await chat.press("enter")
        await chat.until("ready")

        assert chat.questions == [TYPED]
        assert engine.asked[0].messages[-1].content == TYPED
        assert "\u202e" not in chat.shown


async def test_what_is_pasted_loses_its_control_characters_and_is_not_sent_by_its_line_ends() -> (
    None
):
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        pasted = f"def f():\r\n    pass\r\x1b[31m{TYPED}\n"
        clean = f"def f():\n    pass\n{TYPED}\n"

        chat.app.post_message(events.Paste(pasted))
        await chat.wait(lambda: chat.typed == clean)
        assert not chat.questions
        await chat.press("enter")
        await chat.until("ready")

        assert chat.questions == [clean]
        assert engine.asked[0].messages[-1].content == clean


async def test_a_lone_surrogate_is_sent() -> None:
    """It cannot be pasted, but a script may insert it."""
    async with Chat() as chat:
        await chat.send("a\ud83db")

        await chat.sees(HELLO)
        assert len(chat.questions) == 1


async def test_a_message_without_text_is_not_sent() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        for typed in ("", "  ", "\n\n"):
            chat.app.clear_notifications()

            await chat.send(typed)

            await chat.sees("Nothing to send yet.")
            assert chat.questions == ["hi"]


async def test_enter_in_an_empty_chat_writes_one_example_after_the_other() -> None:
    async with Chat() as chat:
        for example in (*EXAMPLES, EXAMPLES[0]):
            chat.screen.composer.replace_text("")

            await chat.press("enter")

            assert chat.typed == example.message
            assert not chat.questions


async def test_a_second_enter_sends_the_example() -> None:
    async with Chat() as chat:
        await chat.press("enter")

        await chat.press("enter")
        await chat.until("ready")

        assert chat.questions == [EXAMPLES[0].message]


async def test_up_brings_back_what_escape_took_from_the_message_box() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("a long thought\nof two lines")
        await chat.press("escape")
        assert chat.typed == ""
        assert "↑ brings the text back" in chat.shown

        await chat.press("up")

        assert chat.typed == "a long thought\nof two lines"


async def test_up_brings_back_what_editing_took_from_the_message_box() -> None:
    async with Chat() as chat:
        await chat.send("one")
        chat.screen.composer.replace_text("half a thought")
        await chat.press("f6")
        assert chat.typed == "one"

        await chat.press("up")

        assert chat.typed == "half a thought"


async def test_another_answer_is_asked_with_the_same_messages_and_another_seed() -> (
    None
):
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        await chat.send("one")

        await chat.press("f5")
        await chat.until("ready")

    first, again = engine.asked
    assert first.messages == again.messages
    assert first.sampling.seed != again.sampling.seed


# --- leaving
# ----------------------------------------------------------------------------------


async def test_escape_leaves_a_chat_in_which_nothing_was_typed() -> None:
    async with demo_chat() as one:
        await one.press("escape")

        assert one.is_on(HomeScreen)


async def test_an_escape_right_after_an_answer_was_to_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_screen, "LATE_ESCAPE_SECONDS", 60.0)
    async with demo_chat() as one:
        await one.send("hi")
        await one.press("escape")
        assert one.is_on(ChatScreen)

        one.screen.composer.replace_text("next")
        await one.press("escape")

        assert one.typed == "next"


async def test_while_one_types_only_a_second_escape_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_screen, "TYPING_SECONDS", 60.0)
    monkeypatch.setattr(chat_screen, "SECOND_ESCAPE_SECONDS", 60.0)
    monkeypatch.setattr(chat_screen, "LATE_ESCAPE_SECONDS", 0.0)
    async with demo_chat() as one:
        await one.send("hi")

        await one.press("escape")
        assert one.is_on(ChatScreen)
        assert "Press esc again" in one.shown
        await one.press("escape")

        assert one.is_on(HomeScreen)


async def reopen(one: HomeDriver, title: str) -> str:
    """Opens a chat from Home by its title; returns what is typed there, and leaves."""
    await one.press("slash")
    one.home.query_one(Input).value = title
    await one.sees(f"▸ {title}")
    await one.open()
    typed = one.typed
    await one.press("escape", "escape")
    await one.press("escape")
    return typed


async def test_a_draft_is_there_when_the_chat_is_opened_again() -> None:
    """With what was queued while the model loaded; also after another chat of the pair."""
    async with demo_chat() as one:
        await one.send("the first chat")
        await one.send("/new")
        await one.send("the second chat")
        one.screen.phase = "loading"  # Esc leaves at once.
        one.screen.composer.replace_text("queued")
        await one.press("enter")
        one.screen.composer.replace_text("not sent yet")
        await one.press("escape")

        assert await reopen(one, "the first chat") == ""
        assert await reopen(one, "the second chat") == "queued\nnot sent yet"


async def test_what_is_typed_survives_the_engine() -> None:
    gate = Gate()

    def killed() -> Script:
        return [*list(said())[:-1], gate, EngineExit("signal 9", (), "")]

    dying = ScriptedEngine(killed)
    again = ScriptedEngine(said)
    async with Chat(dying, again) as chat:
        await chat.begin("one")
        chat.screen.composer.replace_text("two")
        gate.set()
        await chat.until("failed")
        assert chat.typed == "two"
        assert "f5 reload and finish the answer" in chat.shown

        await chat.press("f5")
        await chat.until("ready")
        await chat.wait(lambda: len(again.asked) == 1)

        assert chat.typed == "two"
        assert chat.questions == ["one"]


# --- asking
# -----------------------------------------------------------------------------------


async def test_what_is_sent_while_it_loads_goes_out_afterwards() -> None:
    gate = Gate()
    async with Chat(gate=gate) as chat:
        await chat.press("h", "i", "enter")
        assert chat.screen.phase == "loading"

        gate.set()
        await chat.wait(lambda: chat.questions)
        await chat.until("ready")

        assert chat.questions == ["hi"]
        assert HELLO in chat.shown


async def test_enter_without_a_message_says_nothing_while_it_loads() -> None:
    gate = Gate()
    async with Chat(gate=gate) as chat:
        await chat.press("enter")
        assert not chat.app._notifications

        await chat.press("h", "i", "enter", "enter")
        assert {note.message for note in chat.app._notifications} == {
            "Sends when the model has loaded."
        }
        gate.set()
        await chat.until("ready")


async def test_a_load_shows_what_it_does_where_the_answer_will_be() -> None:
    gate = Gate()
    chat = Chat(gate=gate)
    chat.opening.says = [LoadProgress("reading", "small.gguf", 0.5)]
    async with chat:
        await chat.sees("Loading the model: reading small", "50 %")
        assert chat.shown.index("Loading the model") < chat.shown.index(
            "You can already"
        )

        gate.set()
        await chat.until("ready")

        assert "Loading" not in chat.shown


async def test_a_load_in_a_chat_is_shown_below_its_last_turn() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        chat.opening.gate = Gate()

        chat.screen.composer.replace_text("/ctx 2048")
        await chat.press("enter")

        await chat.sees("Loading the model")
        assert chat.shown.index(HELLO) < chat.shown.index("Loading the model")
        chat.opening.gate.set()


async def test_the_time_of_a_load_goes_on_without_news() -> None:
    gate = Gate()
    async with Chat(gate=gate) as chat:
        for line in chat.screen.query(LoadingLine):
            line._began -= 61  # As if a minute had passed.

        await chat.sees("1 min")

        gate.set()


async def test_a_refused_pair_says_why_and_how_to_go_on() -> None:
    async with Chat(REFUSED) as chat:
        await chat.sees("token 151668", "enter reload ctrl+l engine log")

        assert chat.screen.phase == "failed"
        assert "finish the answer" not in chat.shown


async def test_a_refused_pair_is_tried_again() -> None:
    async with Chat(REFUSED, ScriptedEngine(said)) as chat:
        await chat.press("f5")
        await chat.until("ready")

        assert "token 151668" not in chat.shown
        await chat.send("hi")
        await chat.sees(HELLO)


TOO_LARGE = DoesNotFitError(
    "big.gguf would take 9.4 GB; this computer has 8.1 GB free.",
    Hint("This fits: {ctx=4096}. More: localspec fit{; all the same: run |anyway}"),
)


async def test_what_seems_not_to_fit_is_refused_in_the_words_of_the_app() -> None:
    async with Chat(TOO_LARGE) as chat:
        assert "This fits: a context of 4096" in chat.shown
        assert "--anyway" not in chat.shown


async def test_what_seems_not_to_fit_can_be_loaded_all_the_same() -> None:
    async with Chat(TOO_LARGE, ScriptedEngine(said)) as chat:
        await chat.send("/anyway")
        await chat.until("ready")

        assert [wish.skip_memory_check for wish in chat.opening.wishes] == [False, True]


@asynccontextmanager
async def answering() -> AsyncIterator[Chat]:
    """A chat with one answer, and another that is being written."""
    async with Chat(ScriptedEngine(said, lambda: [*said(), Gate(), *said()])) as chat:
        await chat.send("zero")
        await chat.begin("one")
        yield chat


async def test_only_one_answer_at_a_time() -> None:
    async with answering() as chat:
        chat.screen.composer.replace_text("two")

        await chat.press("enter", "f5", "f6", "ctrl+n")

        assert chat.typed == "two"
        assert chat.questions == ["zero", "one"]


async def test_while_an_answer_is_written_the_one_before_is_copied() -> None:
    async with answering() as chat:
        await chat.press("ctrl+o")

        await chat.sees("12 characters")


async def test_escape_stops_an_answer_and_says_how_long_that_took() -> None:
    async with answering() as chat:
        await chat.press("escape")
        await chat.until("ready")

        await chat.sees("stopped in")


# --- reading
# ----------------------------------------------------------------------------------


async def test_thinking_is_folded_until_a_key_shows_it() -> None:
    async with thinking() as chat:
        await chat.send("hi")
        assert THOUGHT not in chat.shown
        assert "thought, 2" in chat.shown

        await chat.press("ctrl+t")

        assert THOUGHT in chat.shown
        assert "think>" not in chat.shown


async def test_key_and_commands_show_thinking_by_the_same_setting_of_the_chat() -> None:
    async with thinking() as chat:
        await chat.send("hi")

        await chat.press("ctrl+t")
        assert chat.screen.session.settings.show_thinking
        await chat.send("/set show_thinking off")
        assert THOUGHT not in chat.shown
        await chat.send("/think show")
        await chat.send("again")

        assert chat.shown.count(THOUGHT) == 2


async def test_thinking_that_is_shown_is_not_copied(copied: list[str]) -> None:
    async with thinking() as chat:
        await chat.send("hi")
        await chat.press("ctrl+t")

        await chat.press("ctrl+o")

    assert copied == ["Use `append`."]


async def test_an_answer_that_ended_in_its_thinking_says_so() -> None:
    def endless() -> Script:
        totals = {"timings": {}, "thinking": {"tokens": 3, "open": True}}
        return [
            *answer(["<think>", "on ", "and "])[:-1],
            GenerationFinished("length", "", totals),
        ]

    markers = ready(thinking=("<think>", "</think>"))
    async with Chat(ScriptedEngine(endless, ready=markers)) as chat:
        await chat.send("hi")

        await chat.sees("before the thinking ended: /set think_budget N")


async def test_an_answer_that_repeats_itself_is_told_once() -> None:
    def circle() -> Script:
        return answer(words("round and round we go. " * 40))

    async with Chat(ScriptedEngine(circle)) as chat:
        await chat.send("sing")

        assert chat.shown.count("It repeats itself") == 1


async def test_scrolling_away_stops_following_until_one_comes_back() -> None:
    gate = Gate()
    async with Chat(
        ScriptedEngine(lambda: [*list(long())[:-1], gate, *long()])
    ) as chat:
        await chat.begin("hi")
        await chat.sees("line 199")

        await chat.press("ctrl+home")
        await chat.sees("line 0")
        gate.set()
        await chat.until("ready")
        await chat.sees("line 0", "ctrl+end")

        await chat.press("ctrl+end")
        assert "line 199" in chat.shown
        assert "ctrl+end" not in chat.shown


async def test_the_mouse_wheel_stops_following() -> None:
    async with Chat(ScriptedEngine(long)) as chat:
        await chat.send("hi")
        assert chat.screen.transcript.following

        await chat.pilot._post_mouse_events([MouseScrollUp], Transcript, button=0)

        await chat.wait(lambda: not chat.screen.transcript.following)


async def test_what_was_guessed_is_in_the_status_bar_where_there_is_no_panel() -> None:
    async with Chat(ScriptedEngine(said)) as chat:
        await chat.send("hi")
        for is_shown in (True, False, False, True):
            assert ("2 of 4 right" in chat.shown) is is_shown
            await chat.press("f3")


def text_completion() -> Chat:
    return Chat(ScriptedEngine(said, ready=ready(chats=False)))


async def test_tab_stays_in_the_message_box_while_there_is_no_answer() -> None:
    async with text_completion() as chat:
        await chat.press("tab")

        assert chat.screen.composer.has_focus
        assert not chat.screen.transcript.is_cursor_active


@pytest.mark.parametrize("chats", [True, False])
async def test_tab_leads_to_the_tokens_and_back(chats: bool) -> None:
    async with Chat(ScriptedEngine(said, ready=ready(chats=chats))) as chat:
        await chat.send("hi")
        await chat.press("tab")
        assert chat.screen.transcript.is_cursor_active
        await chat.sees("round", "→ token")

        await chat.press("tab")
        assert chat.screen.composer.has_focus
        assert "→ token" not in chat.shown


@pytest.mark.parametrize("before", ["", "draft of "])
@pytest.mark.parametrize(
    "keys", [(), ("f2",), ("f3",), ("tab",), ("tab", "left"), ("f2", "tab", "up")]
)
async def test_what_is_typed_goes_to_the_message_whatever_is_shown(
    before: str, keys: tuple[str, ...]
) -> None:
    message = "great question? ja, lies mehr: g r q x"
    async with Chat() as chat:
        await chat.send("hi")
        chat.screen.composer.replace_text(before)
        await chat.press(*keys)
        for letter in message:
            chat.app.post_message(events.Key(letter, letter))
        await chat.wait(lambda: chat.typed == before + message)
        assert chat.screen.composer.has_focus
        assert not chat.screen.transcript.is_cursor_active


async def test_a_paste_goes_to_the_message_while_one_walks_over_tokens() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await chat.press("tab")
        chat.app.post_message(events.Paste("two\nlines"))
        await chat.wait(lambda: chat.typed == "two\nlines")


async def test_f2_turns_the_colours_off_and_on_and_is_remembered() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await chat.press("f2")
        assert not chat.screen.transcript.colours
        assert chat.screen.composer.has_focus
        assert (
            toml_file.read(paths.config_file()).document["screen"]["guesses"] is False
        )
        await chat.press("f2")
        assert chat.screen.transcript.colours
        assert toml_file.read(paths.config_file()).document["screen"]["guesses"] is True


async def test_f2_keeps_the_details_of_the_selected_token() -> None:
    async with Chat() as chat:
        await chat.send("hi")
        await chat.press("tab")
        assert "target probability" in chat.shown
        await chat.press("f2")
        assert chat.screen.transcript.is_cursor_active
        assert "target probability" in chat.shown


# --- guesses, and slow motion
# ---------------------------------------------------------------------------------


async def test_the_end_of_an_answer_leaves_no_guess_on_the_screen() -> None:
    async with Chat(ScriptedEngine(long)) as chat:
        await chat.send("hi")
        assert chat.screen._drawn_guess == NO_GUESS
        assert "line 199" in chat.screen.transcript.plain_text
        assert "?" not in chat.screen.transcript.plain_text  # Rejected tokens have it.


@pytest.mark.parametrize("keys", [("escape",), ("f7",), ("ctrl+end",)])
async def test_slow_motion_runs_behind_the_engine_until_a_key_catches_up(
    keys: tuple[str, ...],
) -> None:
    async with Chat(ScriptedEngine(long), slow_motion=True) as chat:
        await chat.begin("hi")
        await chat.wait(lambda: chat.screen._ended is not None)  # The engine's end.
        session = chat.screen.session
        assert "line 199" in session.conversation.turns[-1].answer
        assert "line 199" not in chat.screen.transcript.plain_text
        await chat.press(*keys)
        await chat.until("ready")
        assert "line 199" in chat.screen.transcript.plain_text


async def test_slow_motion_shows_the_figures_of_what_it_has_shown() -> None:
    async with Chat(ScriptedEngine(long), slow_motion=True) as chat:
        await chat.begin("hi")
        await chat.wait(lambda: chat.screen._ended is not None)  # The engine's end.
        played = chat.screen.transcript.turns[-1].text.rounds
        for n_rounds in range(2, 5):
            await chat.wait(partial(_has_shown, played, n_rounds))
            chat.screen.draw()
            panel = chat.screen.query_one(SpeculationPanel)

            right = sum(each.accepted for each in played)
            drafted = sum(each.drafted for each in played)
            cells = chat.screen.query_one(StatusBar)._parts.cells
            assert all(f"{right} of {drafted}" in cell for cell in cells)
            assert panel._stats.answer.rounds == played
            assert panel._stats.totals.drafted == drafted
        await chat.press("ctrl+end")
        await chat.until("ready")
        assert panel._stats is chat.screen.session.stats


def _has_shown(rounds: Sequence[Round], number: int) -> bool:
    return len(rounds) >= number


async def test_a_message_sent_in_slow_motion_shows_the_rest_and_is_answered() -> None:
    async with Chat(ScriptedEngine(long, said), slow_motion=True) as chat:
        await chat.begin("one")
        await chat.wait(lambda: chat.screen._ended is not None)
        chat.screen.composer.replace_text("two")
        await chat.press("enter")
        await chat.wait(lambda: chat.questions == ["one", "two"])
        assert "line 199" in chat.screen.transcript.plain_text


async def test_slow_motion_comes_to_the_end_by_itself() -> None:
    async with Chat(ScriptedEngine(said), slow_motion=True) as chat:
        await chat.begin("hi")
        await chat.until("ready")
        assert "Well, hello." in chat.screen.transcript.plain_text
        assert chat.screen._drawn_guess == NO_GUESS


async def test_the_demo_is_shown_in_slow_motion_until_f7() -> None:
    demo = ResolvedPair(paths.find_bundled("demo-target.gguf"), None)
    engine = ScriptedEngine(long, said)
    async with Chat(engine, pair=demo, demo_slow_motion=True) as chat:
        assert not chat.options.slow_motion  # Other models are shown at full speed.
        await chat.begin("hi")
        await chat.sees("f7 slow motion off")

        await chat.press("f7")
        await chat.until("ready")

        assert not chat.options.demo_slow_motion


async def test_f7_turns_slow_motion_on_while_an_answer_streams() -> None:
    gate = Gate()

    def script() -> Script:
        events = answer([f"word{n} " for n in range(200)])
        yield from events[:4]
        yield gate
        yield from events[4:]

    async with Chat(ScriptedEngine(script, said)) as chat:
        await chat.begin("hi")
        await chat.sees("f7 slow motion")
        await chat.press("f7")
        await chat.sees("f7 slow motion off")
        gate.set()
        await chat.wait(lambda: chat.screen._ended is not None)
        assert chat.screen.phase == "answering"
        await chat.press("escape")
        await chat.until("ready")
        assert chat.options.slow_motion  # For the next answer, too.


async def test_an_error_is_shown_at_once_also_in_slow_motion() -> None:
    def script() -> Script:
        yield from answer([f"word{n} " for n in range(200)])[:-1]
        yield REFUSED

    async with Chat(ScriptedEngine(script), slow_motion=True) as chat:
        await chat.send("hi")
        await chat.sees(REFUSED.message)
        assert "word199" in chat.screen.transcript.plain_text


async def test_the_guess_is_neither_saved_nor_copied_nor_marked() -> None:
    """While it is drawn, the confirmed text is all that there is of the answer."""
    gate = Gate()

    def script() -> Script:
        events = answer(["Well", ", ", "hello", "."])
        yield from events[:-1]
        yield gate
        yield events[-1]

    async with Chat(ScriptedEngine(script)) as chat:
        await chat.begin("hi")
        await chat.wait(lambda: chat.screen._drawn_guess.rejected)
        transcript = chat.screen.transcript
        assert ".?" in transcript.plain_text.replace(" ", "")
        marked = transcript.get_selection(Selection(None, None))
        assert marked is not None
        assert "?" not in marked[0]
        gate.set()
        await chat.until("ready")
        assert chat.screen.session.conversation.turns[-1].answer == "Well, hello."


# --- commands
# ---------------------------------------------------------------------------------

AFTER = {
    "rename Wheels": "This chat is not saved yet.",
    "tokens on": "guessed right",
    "save": "Type: /save FILE",
    "keys": "Message box",
    "logs": "llama.cpp's messages",
    "stats": "Tokens per step",
    "anyway": "The model is already loaded",
    "draft none": "There is no file",
    "ctx": "Context: ",
    "preset": "Use a preset",
    "regne": "Did you mean /regen?",
}


async def test_each_command_shows_what_it_did() -> None:
    """For commands of docs/quality/habits.md: see tests/tui/test_chat_front_end.py."""
    async with Chat() as chat:
        for command, shown in AFTER.items():
            if not chat.questions:
                await chat.send("hi")
            chat.app.clear_notifications()
            await chat.send(f"/{command}")
            await chat.sees(shown)
            assert chat.typed == "", command
            assert all(not question.startswith("/") for question in chat.questions)
            if not chat.on_top or chat.screen.transcript.is_cursor_active:
                await chat.press("escape")


# --- a full context
# ----------------------------------------------------------------------------


def growing(*scripts: object) -> ScriptedEngine:
    """Two turns fit, three do not."""

    def size(n_messages: int) -> int:
        return 8192 if n_messages > 4 else 100 * n_messages

    played = scripts or (said,)
    return ScriptedEngine(*played, sizes=size)  # type: ignore[arg-type]


async def full(chat: Chat) -> None:
    await chat.send("one")
    await chat.send("two")
    chat.screen.composer.replace_text("three")
    await chat.press("enter")
    await chat.reaches(ContextFullScreen)
    await chat.pilot.pause()


async def test_a_summary_stands_for_them() -> None:
    engine = growing(said, said, lambda: answer(["They ", "greeted."]), said)
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("down", "enter")
        await chat.until("ready")
        first = engine.asked[-1].messages[0]
        assert first.role == "system" and "They greeted." in first.content


async def test_a_question_that_does_not_fit_comes_back_if_nothing_may_be_left_out() -> (
    None
):
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.sees("2 older turns", "8,192 of 8,192")

        await chat.press("escape")
        await chat.until("ready")

        assert len(engine.asked) == 2
        assert "exceeds the context" in chat.shown
        assert chat.typed == "three"
        assert chat.questions == ["one", "two"]


async def test_the_oldest_turn_is_left_out_of_the_prompt_and_stays_in_the_chat() -> (
    None
):
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)

        await chat.press("enter")
        await chat.until("ready")

        sent = [message.content for message in engine.asked[-1].messages]
        assert sent[::2] == ["two", "three"]
        await chat.sees("left out", "no longer sent to the model")
        assert chat.questions == ["one", "two", "three"]


async def test_one_is_asked_at_each_overflow_until_one_says_always() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("enter")  # This time.
        await chat.until("ready")
        chat.screen.composer.replace_text("four")
        await chat.press("enter")
        await chat.reaches(ContextFullScreen)

        await chat.press("a")  # Always.
        await chat.until("ready")
        await chat.send("five")

        sent = [message.content for message in engine.asked[-1].messages]
        assert sent[::2] == ["four", "five"]
        assert chat.on_top


async def test_quitting_does_not_wait_for_the_choice() -> None:
    async with Chat(growing()) as chat:
        await full(chat)
        question = chat.runner._overflow_request
    assert question is not None and question.decision == "stop"


# --- copying and the mouse
# ---------------------------------------------------------------------

CODE = """\
First:

```python
for x in items:
    print(x)
```

- in a list:

  ```sh
  ls -l
  ```

~~~
plain
~~~
"""
BLOCKS = ["for x in items:\n    print(x)\n", "ls -l\n", "plain\n"]


def code() -> Script:
    return answer(words(CODE))


async def test_code_blocks_are_copied_by_keys_with_their_numbers(
    copied: list[str],
) -> None:
    async with Chat(ScriptedEngine(code)) as chat:
        await chat.send("loop?")
        await chat.sees("1 python for x", "2 sh ls -l")

        await chat.press("alt+1", "alt+3", "alt+2")
        await chat.press("alt+4")

        assert copied == [BLOCKS[0], BLOCKS[2], BLOCKS[1]]
        await chat.sees("There is no code block 4: the answer has 3 code blocks.")


async def test_a_click_on_the_number_of_a_code_block_copies_it(
    copied: list[str],
) -> None:
    async with Chat(ScriptedEngine(code)) as chat:
        await chat.send("loop?")
        await settled(chat.pilot)
        transcript = chat.screen.transcript
        lines = transcript.plain_text.split("\n")
        top = transcript.region.y - round(transcript.scroll_y)
        (row,) = [n for n, line in enumerate(lines) if line.strip() == "2 sh"]

        await chat.pilot.click(offset=(lines[row].index("sh"), top + row))

        await chat.wait(lambda: copied == [BLOCKS[1]])


async def test_the_last_code_block_may_be_in_an_earlier_answer(
    copied: list[str],
) -> None:
    async with Chat(ScriptedEngine(code, said)) as chat:
        await chat.send("loop?")
        await chat.send("thanks")

        await chat.send("/copy code")

    assert copied == [BLOCKS[2]]


async def test_there_is_nothing_to_copy_before_the_first_answer(
    copied: list[str],
) -> None:
    async with Chat() as chat:
        await chat.send("/copy")

        await chat.sees("No answer to copy yet.")
    assert not copied


async def test_any_answer_is_copied_by_command_and_in_the_list_of_turns(
    copied: list[str],
) -> None:
    async with Chat(ScriptedEngine(said, code)) as chat:
        await chat.send("hi")
        await chat.send("loop?")

        await chat.send("/copy 1")
        await chat.press("f8", "up", "c", "escape")
        await chat.press("ctrl+o")

    assert copied[:2] == [HELLO] * 2
    assert copied[2].startswith("First:")


async def test_the_whole_chat_is_copied_as_markdown(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(said, code)) as chat:
        await chat.send("hi")
        await chat.send("loop?")

        await chat.send("/copy all")

    (text,) = copied
    assert "## You\n\nhi" in text
    assert "```python" in text


async def test_what_cannot_be_copied_copies_nothing(copied: list[str]) -> None:
    async with Chat() as chat:
        await chat.send("hi")

        for wrong in ("/copy 3", "/copy code x", "/copy everything"):
            await chat.send(wrong)

    assert not copied


async def test_without_a_clipboard_tool_the_terminal_copies_and_does_not_confirm_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example over SSH."""
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TMUX", raising=False)
    written: list[str] = []
    async with Chat() as chat:
        await chat.send("hi")
        assert chat.app._driver is not None
        monkeypatch.setattr(chat.app._driver, "write", written.append)

        await chat.press("ctrl+o")
        await chat.sees("to the terminal; it does not say whether")

    prefix = "\x1b]52;c;"
    (copied,) = [text for text in written if text.startswith(prefix)]
    data = copied.removeprefix(prefix).removesuffix("\x07")
    assert base64.b64decode(data).decode() == HELLO


async def mark_and_copy(chat: Chat, first: str, last: str) -> None:
    """Marks the lines from one with a word to one with another, to the edge."""
    lines = chat.screen.transcript.plain_text.split("\n")
    top = next(n for n, line in enumerate(lines) if first in line)
    bottom = next(n for n, line in enumerate(lines) if last in line)
    scroll = round(chat.screen.transcript.scroll_y)
    start = (0, top - scroll)
    end = (90, bottom - scroll)
    await chat.pilot.mouse_down(Transcript, offset=start)
    await chat.pilot.hover(Transcript, offset=end)
    await chat.pilot.mouse_up(Transcript, offset=end)
    await chat.press("ctrl+c")


async def test_marked_code_is_copied_as_it_was_written(copied: list[str]) -> None:
    """Without the margin, and without the line ends of wrapping."""
    wrapped = "curl " + " ".join(f"--header 'X-{n}: {n}'" for n in range(12))
    source = f"{wrapped} > /tmp/out.txt\nfor i in 1 2; do\n\techo $i\ndone"
    spoken = [f"Run this:\n\n```sh\n{source}", "\n```\n\nThe end.\n"]
    async with Chat(ScriptedEngine(lambda: answer(spoken))) as chat:
        await chat.send("hi")

        await mark_and_copy(chat, "curl", "done")
        await mark_and_copy(chat, "Run this", "The end")

    assert copied == [source, f"Run this:\n\n```sh\n{source}\n```\n\nThe end."]


async def test_code_that_is_marked_from_within_a_line_has_no_margin(
    copied: list[str],
) -> None:
    spoken = answer(["```python\n", "def f(x):\n", "    return x\n", "```\n"])
    async with Chat(ScriptedEngine(lambda: spoken)) as chat:
        await chat.send("hi")
        lines = chat.screen.transcript.plain_text.splitlines()
        top = next(n for n, line in enumerate(lines) if "def f(x)" in line)
        start = (lines[top].index("def"), top)
        end = (len(lines[top + 1].rstrip()), top + 1)

        await chat.pilot.mouse_down(Transcript, offset=start)
        await chat.pilot.hover(Transcript, offset=end)
        await chat.pilot.mouse_up(Transcript, offset=end)
        await chat.press("ctrl+c")

    (text,) = copied
    marked = [line.rstrip() for line in text.splitlines()]
    assert marked == ["def f(x):", "    return x"]


async def test_a_click_opens_the_address_that_is_clicked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not another one that contains it, or begins with it."""
    addresses = [
        "https://example.org/a-page/more",
        "https://example.org/a-page",
        "https://evil.example/?https://example.org/a-page/more",
    ]
    spoken = [f"- {address}\n" for address in addresses]
    opened: list[str] = []
    async with Chat(ScriptedEngine(lambda: answer(spoken))) as chat:
        monkeypatch.setattr(chat.app, "open_url", opened.append)
        await chat.send("hi")
        lines = chat.screen.transcript.plain_text.split("\n")
        for address in addresses:
            row = next(
                n
                for n, line in enumerate(lines)
                if f" {address}" in f"{line}" and line.rstrip().endswith(address)
            )
            column = lines[row].index(address) + len(address) - 3
            await chat.pilot.click(Transcript, offset=(column, row))
    assert opened == addresses


async def test_a_click_on_a_key_hint_of_the_status_bar_is_the_key() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("hello")
        line = chat.screen.query_one(StatusBar)
        column = line.render_line(0).text.index("send")

        await chat.pilot.click(StatusBar, offset=(column, 0))

        await chat.wait(lambda: chat.questions == ["hello"])


async def test_a_click_on_a_key_hint_of_a_sheet_is_the_key() -> None:
    async with Chat() as chat:
        await chat.press("f4")
        await settled(chat.pilot)
        hint = chat.top(ChatSettingsScreen).query(".hint").last()
        column = hint.render_line(0).text.index("esc")

        await chat.pilot.click(hint, offset=(column, 0))

        await chat.wait(lambda: chat.on_top)


LONG_ADDRESS = "https://example.org/" + "a-long-path/" * 12


@asynccontextmanager
async def with_address(opened: list[str]) -> AsyncIterator[Chat]:
    """A chat whose answer has an address of several lines."""
    spoken = ["See ", LONG_ADDRESS, " and ", "<https://example.org/b>", ".\n"]
    async with Chat(ScriptedEngine(lambda: answer(spoken))) as chat:
        chat.app.open_url = opened.append  # type: ignore[assignment,method-assign]
        await chat.send("hi")
        yield chat


async def click_word(chat: Chat, word: str, number: int = 0) -> None:
    """Clicks the word in one of the lines of the transcript that have it."""
    lines = chat.screen.transcript.plain_text.splitlines()
    rows = [n for n, line in enumerate(lines) if word in line]
    row = rows[number]
    await chat.pilot.click(Transcript, offset=(lines[row].index(word), row))


@pytest.mark.parametrize("line", [0, 1])
async def test_a_click_on_any_line_of_an_address_opens_it(line: int) -> None:
    opened: list[str] = []
    async with with_address(opened) as chat:
        await click_word(chat, "long-path", line)

    assert opened == [LONG_ADDRESS]


async def test_a_click_on_another_word_opens_nothing() -> None:
    opened: list[str] = []
    async with with_address(opened) as chat:
        await click_word(chat, "hi")

    assert opened == []


class SharedEngine:
    """A server beside the chat, with its activity only."""

    port = 8080

    def __init__(self) -> None:
        self.thread = self
        self.activity = ServerActivity()

    def can_serve(self, request: object) -> bool:
        return True

    def stop(self) -> None:
        pass


async def test_who_waits_for_the_answer_is_shown_and_esc_is_offered() -> None:
    gate = Gate()

    def held() -> Script:
        return [*list(said())[:-1], gate, GenerationFinished("eog")]

    async with Chat(ScriptedEngine(held)) as chat:
        server = SharedEngine()
        chat.runner.server = cast(Any, server)
        await chat.begin("go on")
        await chat.sees("serving :8080")
        request = server.activity.begin("/v1/chat/completions")
        await chat.sees(
            "serving :8080, 1 waiting",
            "1 request of the server waits for this answer: esc stops it.",
        )
        server.activity.end(request, "cancelled", 499)
        await chat.wait(lambda: "waiting" not in chat.shown)
        gate.set()
        await chat.until("ready")


async def test_a_request_that_waits_for_another_request_is_no_reason_to_stop() -> None:
    gate = Gate()

    def held() -> Script:
        return [*list(said())[:-1], gate, GenerationFinished("eog")]

    async with Chat(ScriptedEngine(held)) as chat:
        server = SharedEngine()
        server.activity.begin("/v1/chat/completions").state = "answering"
        server.activity.begin("/v1/chat/completions")
        chat.runner.server = cast(Any, server)
        await chat.begin("go on")
        await chat.sees("1 waiting")
        assert "esc stops it" not in chat.shown
        gate.set()
        await chat.until("ready")


def nothing_guessed() -> Script:
    script: list[Event] = [SpeculationPlan("probing", "measuring draft acceptance")]
    for event in answer(["Well", ", ", "hello"], width=1)[1:]:
        if isinstance(event, Round):
            script.append(replace(event, drafted=0, accepted=0, source=None))
        else:
            script.append(event)
    return script


async def test_a_first_answer_without_guesses_says_so_and_where_they_gain() -> None:
    """B7: it said that speculation is paused, though nothing was tried."""
    async with Chat(ScriptedEngine(nothing_guessed)) as chat:
        await chat.send("hi")
        await chat.sees("Nothing in this answer was worth guessing.", "guessing gains")
        assert "paused" not in chat.shown


async def test_a_first_answer_with_guesses_says_nothing_of_a_pause() -> None:
    def gained() -> Script:
        plan = SpeculationPlan("probing", "measuring draft acceptance")
        return [plan, *answer(list("abcdefgh"))[1:]]

    async with Chat(ScriptedEngine(gained)) as chat:
        await chat.send("hi")
        assert "guessing gains" not in chat.shown

"""Calls of tools in the app: asked about, run, shown, and taken back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList

from localspec import paths
from localspec.protocol.wire import CountCommand, CountResult
from localspec.tui.dialogs.call_details import CallDetailsScreen
from localspec.tui.dialogs.tools import ToolsScreen
from localspec.tui.dialogs.turns import TurnsScreen
from localspec.tui.widgets import call_question
from localspec.tui.widgets.call_question import CallQuestion
from tests.support.app_driver import Chat, demo_chat
from tests.support.clock_tools import (
    ClockTools,
    asking_time,
    call_text,
    saying,
)
from tests.support.fake_tools import write_call
from tests.support.scenes import settled
from tests.support.scripted_engine import ScriptedEngine

QUESTION = "May it?"


class ToolChat(Chat):
    """A chat with the clock's tools, and a model that says and calls what is given."""

    def __init__(self, *scripts: Callable[[], Any], **options: Any) -> None:
        self.engine = ScriptedEngine(*scripts)
        self.clock = ClockTools()
        super().__init__(self.engine, **options)

    async def __aenter__(self) -> "ToolChat":
        await super().__aenter__()
        toolbox = self.screen.session.toolbox
        assert toolbox is not None
        toolbox.add(self.clock)
        self.screen.draw()
        return self

    async def ask(self, question: str = "What time is it?") -> None:
        """Asks, and waits for the question about a call."""
        await self.begin(question)
        await self.is_asked()

    async def is_asked(self) -> None:
        await self.wait(lambda: self.panel.request is not None)
        await self.pilot.pause()

    async def choose(self, n_down: int) -> None:
        """Takes a choice; this question is then over."""
        request = self.panel.request
        await self.press("tab", *["down"] * n_down, "enter")
        if n_down < 3:
            await self.wait(lambda: self.panel.request is not request)

    @property
    def panel(self) -> CallQuestion:
        return self.screen.query_one(CallQuestion)

    @property
    def told(self) -> list[str]:
        """The results that the model was told last."""
        messages = self.engine.asked[-1].messages
        return [each.content for each in messages if each.role == "tool"]


# --- asking
# --------------------------------------------------------------------------------


async def test_the_question_says_what_will_run() -> None:
    async with ToolChat(asking_time("Rome", "Let me see.")) as chat:
        await chat.ask()

        await chat.sees(
            "Let me see.",
            "The model asks to run “now”, a tool of the server clock "
            "(uvx mcp-server-clock --zones all). May it?",
            "The server says: “The time in a city.” Its claims, unchecked: read-only.",
            "city Rome",
            "Once run this call",
            "In this chat",
            "Always",
            "No do not run it",
        )
        assert chat.clock.ran == []


async def test_all_choices_are_seen_in_a_small_terminal() -> None:
    async with ToolChat(saying(call_text("write", path="a", text="x\n" * 30))) as chat:
        await chat.ask()
        for size in ((80, 24), (60, 15)):
            await chat.pilot.resize_terminal(*size)
            await settled(chat.pilot)
            await chat.sees("Once", "In this chat", "Always", "No", "write")


async def test_what_is_typed_ahead_allows_nothing_and_is_kept() -> None:
    async with ToolChat(asking_time("Rome"), saying("Noon.")) as chat:
        await chat.begin("What time is it?")
        await chat.press(*"yes", "enter")
        await chat.is_asked()

        await chat.press(*" 1ya", "enter", "enter", "space")

        assert chat.clock.ran == []
        assert QUESTION in chat.shown
        assert "yes 1ya" in chat.typed


async def test_tab_that_completes_a_command_does_not_go_to_the_choices() -> None:
    async with ToolChat(asking_time("Rome")) as chat:
        await chat.ask()

        await chat.press(*"/thx", "tab", "enter")

        assert chat.clock.ran == []
        assert QUESTION in chat.shown


async def test_allowed_once_it_runs_and_the_model_goes_on() -> None:
    async with ToolChat(asking_time("Rome"), saying("It is noon.")) as chat:
        await chat.ask()

        await chat.choose(0)

        await chat.until("ready")
        await chat.sees(
            "✓ clock.now city: Rome",
            "done · 20 characters: It is 12:00 in Rome.",
            "It is noon.",
        )
        assert chat.clock.ran == [("now", {"city": "Rome"})]
        assert chat.told == ["It is 12:00 in Rome."]
        assert not chat.panel.display


async def test_a_second_enter_does_not_allow_the_next_call() -> None:
    async with ToolChat(asking_time("Rome"), asking_time("Oslo")) as chat:
        await chat.ask()

        await chat.press("tab", "enter", "enter", "enter")

        await chat.sees("city Oslo")
        await settled(chat.pilot)
        assert chat.clock.ran == [("now", {"city": "Rome"})]


async def test_a_double_click_does_not_allow_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_question, "MIN_ASKED_SECONDS", 60.0)
    async with ToolChat(asking_time("Rome")) as chat:
        await chat.ask()
        await chat.pilot.click("#call-choices", offset=(4, 0), times=2)
        await settled(chat.pilot)
        assert chat.clock.ran == []
        assert QUESTION in chat.shown


async def test_a_click_chooses() -> None:
    async with ToolChat(asking_time("Rome"), saying("Noon.")) as chat:
        await chat.ask()
        await chat.pilot.click("#call-choices", offset=(4, 0))
        await chat.until("ready")
        assert chat.clock.ran == [("now", {"city": "Rome"})]


async def test_allowed_in_this_chat_it_is_not_asked_for_again() -> None:
    scripts = [asking_time("Rome"), asking_time("Oslo"), saying("Noon.")]
    async with ToolChat(*scripts) as chat:
        await chat.ask()

        await chat.choose(1)

        await chat.until("ready")
        await chat.sees("done, allowed in this chat · 20 characters")
        assert [arguments["city"] for _, arguments in chat.clock.ran] == [
            "Rome",
            "Oslo",
        ]


async def test_always_holds_in_another_chat_until_the_tool_is_another() -> None:
    async with ToolChat(asking_time("Rome"), saying("Noon.")) as chat:
        await chat.ask()
        await chat.choose(2)
        await chat.until("ready")
    async with ToolChat(
        asking_time("Oslo"), saying("Noon."), asking_time("Lima")
    ) as chat:
        await chat.send("And in Oslo?")
        await chat.sees("always allowed")
        assert chat.clock.ran == [("now", {"city": "Oslo"})]

        chat.clock.describe_otherwise()
        await chat.ask("And in Lima?")
        assert len(chat.clock.ran) == 1


async def test_a_refusal_with_a_reason_is_told_to_the_model() -> None:
    async with ToolChat(asking_time("Rome"), saying("As you wish.")) as chat:
        await chat.ask()

        await chat.choose(3)
        assert isinstance(chat.screen.focused, Input)
        await chat.press(*"not now", "enter")

        await chat.until("ready")
        await chat.sees("✗ clock.now", "refused: not now", "As you wish.")
        assert chat.told == ["The user refused this call. Reason: not now"]
        assert chat.clock.ran == []
        assert chat.typed == ""


async def test_escape_in_the_reason_goes_back_to_the_choices() -> None:
    async with ToolChat(asking_time("Rome")) as chat:
        await chat.ask()
        await chat.choose(3)

        await chat.press("n", "escape")

        assert isinstance(chat.screen.focused, OptionList)
        assert QUESTION in chat.shown
        assert chat.screen.phase == "answering"


async def test_escape_stops_an_answer_that_asks() -> None:
    async with ToolChat(asking_time("Rome"), saying("Noon.")) as chat:
        await chat.ask()

        await chat.press("escape")

        await chat.until("ready")
        await chat.sees("✗ clock.now", "stopped")
        assert chat.clock.ran == []
        assert not chat.panel.display


async def test_leaving_the_app_while_it_asks_ends_the_answer() -> None:
    async with ToolChat(asking_time("Rome")) as chat:
        await chat.ask()
    assert chat.clock.ran == []
    assert chat.clock.is_closed


async def test_a_call_of_no_tool_is_an_error_for_the_model_and_asks_nobody() -> None:
    async with ToolChat(saying(call_text("sundial")), saying("I see.")) as chat:
        await chat.send("What time is it?")
        await chat.sees("✗ clock_sundial", "failed: There is no tool", "I see.")


async def test_a_long_value_is_folded_until_the_right_arrow_unfolds_it() -> None:
    text = "\n".join(f"line {number}" for number in range(20))
    async with ToolChat(saying(call_text("write", path="a.txt", text=text))) as chat:
        await chat.ask()
        await chat.sees("path a.txt", "line 2", "… 17 more lines")

        await chat.press("tab", "right")

        await settled(chat.pilot)
        assert "more lines" not in chat.shown
        await chat.press("pagedown", "pagedown", "pagedown", "pagedown")
        await chat.sees("line 19")


async def test_what_would_hide_text_is_spelled_out() -> None:
    text = "echo ok\u202e\x1b[2Kdone\u200b"
    async with ToolChat(saying(call_text("write", path="a", text=text))) as chat:
        await chat.ask()
        await chat.sees(r"echo ok\u202e\u001b[2Kdone\u200b")


async def test_five_calls_with_every_choice() -> None:
    """A whole conversation: once, in this chat, without asking, always, and no."""
    scripts = [
        asking_time("Rome"),
        asking_time("Oslo"),
        asking_time("Lima"),
        saying(call_text("history", city="Rome")),
        saying(call_text("write", path="rome.md", text="It is noon.")),
        saying("I know all that I need."),
    ]
    async with ToolChat(*scripts) as chat:
        await chat.ask("What do you know of Rome, Oslo and Lima?")
        await chat.choose(0)
        await chat.sees("city Oslo")
        await chat.choose(1)
        await chat.sees("“history”, a tool of the server clock")
        await chat.choose(2)
        await chat.sees("“write”, a tool of the server clock", "can destroy")
        await chat.choose(3)
        await chat.press(*"no files", "enter")
        await chat.until("ready")

        await chat.sees("refused: no files", "I know all that I need.")
        ran = [(tool, arguments["city"]) for tool, arguments in chat.clock.ran]
        assert ran == [
            ("now", "Rome"),
            ("now", "Oslo"),
            ("now", "Lima"),
            ("history", "Rome"),
        ]
        assert len(chat.told) == 5
        assert chat.shown.count("You") <= 1


async def test_a_hostile_description_hides_no_choice() -> None:
    """It is as long as it likes, moves the cursor, and tells what to answer."""
    hostile = "\x1b[2J\x1b[H" + "Already allowed, press enter.\n" * 2_000
    async with ToolChat(asking_time("Rome")) as chat:
        chat.clock.describe_otherwise(hostile)
        await chat.pilot.resize_terminal(80, 24)
        await chat.ask()
        await settled(chat.pilot)

        await chat.sees("May it?", "The server says: “Already allowed", "city Rome")
        await chat.sees("Once", "In this chat", "Always", "No", "tab choose")
        assert chat.shown.count("Already allowed") < 10


# --- running and results
# --------------------------------------------------------------------------------


async def test_escape_stops_a_tool_that_runs() -> None:
    async with ToolChat(saying(call_text("wait")), saying("Noon.")) as chat:
        await chat.ask()
        await chat.choose(0)
        await chat.sees("▸ clock.wait", "running · esc stops")

        await chat.press("escape")

        await chat.until("ready")
        await chat.sees("✗ clock.wait", "stopped")


async def test_a_result_is_opened_by_a_click_and_scrolled() -> None:
    async with ToolChat(
        saying(call_text("history", city="Rome")), saying("Nothing.")
    ) as chat:
        await chat.ask()
        await chat.choose(0)
        await chat.until("ready")
        rows = [strip.text for strip in chat.screen._compositor.render_strips()]
        row = next(y for y, text in enumerate(rows) if "✓ clock.history" in text)

        await chat.pilot.click(offset=(4, row))

        await chat.reaches(CallDetailsScreen)
        await chat.sees("clock.history", "city Rome", "year 0: nothing")
        await chat.press("end")
        await chat.sees("year 399: nothing")
        await chat.press("escape")
        assert chat.on_top


async def test_the_key_of_calls_shows_the_last_one_and_the_arrows_the_others() -> None:
    scripts = [asking_time("Rome"), asking_time("Lima"), saying("Done.")]
    async with ToolChat(*scripts) as chat:
        await chat.press("alt+t")
        await chat.sees("No tool was called in this chat.")
        await chat.ask()
        await chat.choose(1)
        await chat.until("ready")

        await chat.press("alt+t")
        await chat.sees("It is 06:00 in Lima.", "call 2 of 2")
        await chat.press("left")

        await chat.sees("It is 12:00 in Rome.", "call 1 of 2")


async def test_the_steps_of_a_question_are_one_answer() -> None:
    scripts = [asking_time("Rome", "First."), asking_time("Oslo"), saying("Both noon.")]
    async with ToolChat(*scripts) as chat:
        await chat.ask()
        await chat.choose(1)
        await chat.until("ready")
        await settled(chat.pilot)

        assert chat.shown.count("You") == 1
        assert chat.shown.count(" tokens in ") == 1
        turns = chat.screen.session.conversation.turns
        n_tokens = sum(len(turn.tokens) for turn in turns)
        await chat.sees(f"{n_tokens} tokens in ")
        assert "<tool_call>" not in chat.shown


async def test_slow_motion_goes_on_after_a_call() -> None:
    scripts = [asking_time("Rome", "Let me see."), saying("It is noon there.")]
    async with ToolChat(*scripts, slow_motion=True) as chat:
        await chat.ask()
        await chat.sees("Let me see.")
        await chat.choose(0)
        await chat.press("f7")
        await chat.until("ready")
        await chat.sees("It is noon there.")


# --- the question with its steps
# --------------------------------------------------------------------------------


async def answered(chat: ToolChat) -> None:
    await chat.ask()
    await chat.choose(0)
    await chat.until("ready")


async def test_regenerating_runs_nothing_again() -> None:
    scripts = [asking_time("Rome"), saying("Noon."), saying("Midday.")]
    async with ToolChat(*scripts) as chat:
        await answered(chat)

        await chat.press("f5")
        await chat.until("ready")

        await chat.sees("✓ clock.now", "Midday.")
        assert "Noon." not in chat.shown
        assert len(chat.clock.ran) == 1


async def test_editing_takes_back_the_question_with_its_calls() -> None:
    async with ToolChat(asking_time("Rome"), saying("Noon.")) as chat:
        await answered(chat)

        await chat.press("f6")

        assert chat.typed == "What time is it?"
        assert chat.questions == []
        assert "clock.now" not in chat.shown


async def test_the_sheet_of_turns_lists_questions_and_answers_that_were_regenerated() -> (
    None
):
    scripts = [asking_time("Rome"), saying("Noon."), saying("Midday.")]
    async with ToolChat(*scripts) as chat:
        await answered(chat)
        await chat.press("f8")
        await chat.reaches(TurnsScreen)
        await settled(chat.pilot)
        assert chat.top(TurnsScreen).query_one(OptionList).option_count == 1
        await chat.press("escape", "f5")
        await chat.until("ready")

        await chat.press("f8")
        await settled(chat.pilot)
        await chat.sees("the answer after 1 result of tools", "2 of 2")
        await chat.press("left", "escape")

        await chat.sees("Noon.")


async def test_a_saved_chat_shows_its_calls_again() -> None:
    async with demo_chat(asking_time("Rome", "Let me see."), saying("Noon.")) as chat:
        clock = ClockTools()
        toolbox = chat.screen.session.toolbox
        assert toolbox is not None
        toolbox.add(clock)
        await chat.begin("What time is it?")
        await chat.sees(QUESTION)
        await chat.press("tab", "enter")
        await chat.until("ready")
        await chat.press("escape")
        await chat.sees("What time is it?")

        await chat.open("down")

        await chat.sees("✓ clock.now city: Rome", "It is 12:00 in Rome.", "Noon.")
        assert "<tool_call>" not in chat.shown
        assert len(clock.ran) == 1


# --- the tools of a chat
# --------------------------------------------------------------------------------


async def test_the_message_field_names_who_provides_tools() -> None:
    async with ToolChat() as chat:
        await chat.sees("tools: clock")


async def test_a_tool_that_is_turned_off_is_not_offered() -> None:
    async with ToolChat(saying("Hello.")) as chat:
        await chat.send("/tools")
        await chat.reaches(ToolsScreen)
        await chat.sees("clock", "now on", "The time in a city.")

        await chat.press("space")
        await chat.sees("now off")
        await chat.press("escape")
        await chat.send("Hello")

        assert '"clock_wait"' in chat.engine.asked[-1].tools
        assert '"clock_now"' not in chat.engine.asked[-1].tools


async def test_a_folder_is_offered_and_its_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk", encoding="utf-8")
    call = write_call("folder_read", path="notes.txt")
    async with Chat(ScriptedEngine(saying(call), saying("Milk."))) as chat:
        await chat.send(f"/folder {tmp_path}")
        await chat.sees("tools: folder")
        await chat.begin("What shall I buy?")
        await chat.sees(
            "“read”, a tool of localspec itself, in the folder", "path notes.txt"
        )

        await chat.press("tab", "enter")

        await chat.until("ready")
        await chat.sees("✓ folder.read", "buy milk", "Milk.")
        await chat.send("/tools 1")
        await chat.reaches(CallDetailsScreen)
        await chat.press("escape")
        await chat.send("/folder off")
        await chat.wait(lambda: "tools: folder" not in chat.shown)


async def test_what_is_left_is_without_the_tools(tmp_path: Path) -> None:
    def count_with_tools(count: CountCommand) -> CountResult:
        return CountResult(4_010 if count.tools else 10)

    engine = ScriptedEngine(saying("Hello."))
    engine.count = count_with_tools  # type: ignore[method-assign]
    async with Chat(engine) as chat:
        chat.screen.composer.replace_text("four")
        await chat.sees("about 1 token, 8.2k left")
        chat.screen.composer.replace_text("")

        await chat.send(f"/folder {tmp_path}")
        chat.screen.composer.replace_text("four")

        await chat.sees("about 1 token, 4.2k left")


async def test_a_new_chat_has_no_folder(tmp_path: Path) -> None:
    async with Chat(ScriptedEngine(saying("Hello."))) as chat:
        await chat.send(f"/folder {tmp_path}")
        await chat.sees("tools: folder")

        await chat.send("/new")

        await chat.wait(lambda: "tools: folder" not in chat.shown)


async def test_all_tools_of_a_server_are_turned_off_together() -> None:
    async with ToolChat(saying("Hello.")) as chat:
        chat.screen.show_tools()
        await chat.reaches(ToolsScreen)

        await chat.press("s", "escape")
        await chat.send("Hello")

        assert chat.engine.asked[-1].tools == ""
        assert "tools: clock" not in chat.shown


async def test_always_is_taken_back_in_the_list_of_tools() -> None:
    scripts = [asking_time("Rome"), saying("Noon."), asking_time("Oslo")]
    async with ToolChat(*scripts) as chat:
        await chat.ask()
        await chat.choose(2)
        await chat.until("ready")
        chat.screen.show_tools()
        await chat.sees("now on, always allowed")

        await chat.press("a", "escape")

        await chat.ask("And in Oslo?")
        assert len(chat.clock.ran) == 1


async def test_without_tools_the_list_says_how_to_get_some() -> None:
    async with Chat() as chat:
        chat.screen.show_tools()
        await chat.sees("This chat has no tools.", "/folder DIR", "localspec tools add")


async def test_a_server_that_does_not_start_is_one_notice_and_the_chat_goes_on() -> (
    None
):
    Path(paths.config_file()).write_text(
        '[tools.servers.broken]\ncommand = "no-such-program-anywhere"\n',
        encoding="utf-8",
    )
    async with Chat() as chat:
        connections = chat.screen.tools.connections
        await chat.wait(
            lambda: [state.phase for state in connections.states] == ["failed"]
        )
        await chat.send("Hello")
        await chat.sees("Well, hello.")
        chat.screen.show_tools()
        await chat.sees("broken failed")

"""The chat screen: keys, commands, reading, and what must not be lost."""

import base64

import pytest
from msgspec.structs import replace
from textual import events
from textual.events import MouseScrollUp
from textual.widgets import Input

from localspec.chat.examples import EXAMPLES
from localspec.errors import DoesNotFitError, Hint
from localspec.models.local_files import inventory
from localspec.protocol.events import EngineExit, GenerationFinished
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.screens import chat as chat_screen
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.widgets.screen_frame import StatusBar
from localspec.tui.widgets.transcript import Transcript
from tests.support.app_driver import Chat, demo_chat, long, said
from tests.support.scenes import REFUSED, settled, thought, words
from tests.support.scripted_engine import Gate, Script, ScriptedEngine, answer, ready

HELLO = "Well, hello."
THOUGHT = "They ask about lists"


def thinking() -> Chat:
    return Chat(ScriptedEngine(thought, ready=ready(thinking=("<think>", "</think>"))))


# --- composing
# --------------------------------------------------------------------------------


async def test_the_title_names_the_copy_that_answers() -> None:
    copy = inventory.converted_folder() / "starter-Q4_K_M.gguf"
    copy.parent.mkdir(parents=True)
    copy.touch()
    loaded = replace(ready(), model=copy.name)
    async with Chat(ScriptedEngine(said, ready=loaded)) as chat:
        await chat.sees("starter-Q4_K_M + ")


async def test_a_paste_of_a_megabyte_is_sent_whole_and_shown_cut() -> None:
    async with Chat() as chat:
        chat.app.post_message(
            events.Paste(("some words of a line, " * 4 + "red\n") * 11_500)
        )
        await chat.wait(lambda: len(chat.typed) > 1_000_000)
        await chat.press("x", "enter")
        await chat.until("ready")
        assert len(chat.questions[0]) > 1_000_000 and chat.questions[0].endswith("x")
        assert (
            "more characters" in chat.shown and HELLO in chat.shown and not chat.typed
        )


@pytest.mark.parametrize("by", ["keys", "paste"])
async def test_what_is_typed_is_stored_and_sent_and_what_is_pasted_is_clean(
    by: str,
) -> None:
    text = "می\u200cروم 👩\u200d💻 \u200fשלום\u200e \u061c日本\u3000語 a\u00a0b \u202ea"
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        if by == "paste":
            chat.app.post_message(
                events.Paste(f"def f():\r\n    pass\r\x1b[31m{text}\n")
            )
            text = f"def f():\n    pass\n{text}\n"
        else:
            for character in text:
                chat.app.post_message(events.Key("any", character))
        await chat.wait(lambda: chat.typed == text)
        assert not chat.questions
        await chat.press("enter")
        await chat.until("ready")
        assert chat.questions == [text] and engine.asked[0].messages[-1].content == text
        assert "\u202e" not in chat.shown


async def test_a_lone_surrogate_is_sent_and_nothing_written_is_not() -> None:
    """It cannot be pasted, but a script may insert it."""
    async with Chat() as chat:
        await chat.send("a\ud83db")
        await chat.sees(HELLO)
        for typed in ("", "  ", "\n\n"):
            await chat.send(typed)
            assert "Nothing to send yet." in chat.shown and len(chat.questions) == 1


async def test_enter_in_an_empty_chat_writes_one_example_after_the_other_and_sends_none() -> (
    None
):
    async with Chat() as chat:
        for example in (*EXAMPLES, EXAMPLES[0]):
            chat.screen.composer.replace_text("")
            await chat.press("enter")
            assert chat.typed == example and not chat.questions
        await chat.press("enter")
        await chat.until("ready")
        assert chat.questions == [EXAMPLES[0]]


async def test_up_brings_back_what_escape_and_editing_took_from_the_message_box() -> (
    None
):
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        chat.screen.composer.replace_text("a long thought\nof two lines")
        await chat.press("escape")
        assert chat.typed == "" and "↑ brings the text back" in chat.shown
        await chat.press("up")
        assert chat.typed == "a long thought\nof two lines"
        await chat.send("one")
        await chat.press("f5")
        await chat.until("ready")
        first, again = engine.asked
        assert (
            first.messages == again.messages
            and first.sampling.seed != again.sampling.seed
        )
        chat.screen.composer.replace_text("half a thought")
        await chat.press("f6")
        assert chat.typed == "one"
        await chat.press("up")
        assert chat.typed == "half a thought"


# --- leaving
# ----------------------------------------------------------------------------------


async def test_escape_leaves_at_once_only_where_it_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not right after an answer, which it was to stop, nor once while one types."""
    monkeypatch.setattr(chat_screen, "TYPING_SECONDS", 60.0)
    monkeypatch.setattr(chat_screen, "SECOND_ESCAPE_SECONDS", 60.0)
    async with demo_chat() as one:
        await one.press("escape")
        assert one.is_on(HomeScreen), "nothing was typed"
        await one.open()
        monkeypatch.setattr(chat_screen, "LATE_ESCAPE_SECONDS", 60.0)
        await one.send("hi")
        await one.press("escape")
        assert one.is_on(ChatScreen), "the chat was left"
        one.screen.composer.replace_text("next")
        await one.press("escape")
        assert one.typed == "next"
        one.screen.composer.replace_text("")
        monkeypatch.setattr(chat_screen, "LATE_ESCAPE_SECONDS", 0.0)
        await one.press("escape")
        assert "Press esc again" in one.shown and one.is_on(ChatScreen)
        await one.press("escape")
        assert one.is_on(HomeScreen)


async def test_a_draft_is_there_when_the_chat_is_opened_again() -> None:
    """With what was queued while the model loaded; also after another chat of the pair."""
    async with demo_chat() as one:
        await one.send("the first chat")
        await one.send("/new")
        await one.send("the second chat")
        one.screen.phase = "loading"  # Esc leaves at once
        one.screen.composer.replace_text("queued")
        await one.press("enter")
        one.screen.composer.replace_text("not sent yet")
        await one.press("escape")
        for name in ("the first chat", "the second chat"):
            await one.press("slash", *name.replace(" ", ""))
            one.home.query_one(Input).value = name
            await one.sees(f"▸ {name}")
            await one.open()
            draft = one.typed
            await one.press("escape", "escape")
            await one.press("escape")
        assert draft == "queued\nnot sent yet"


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
        assert chat.typed == "two" and "f5 reload and finish the answer" in chat.shown
        await chat.press("f5")
        await chat.until("ready")
        await chat.wait(lambda: len(again.asked) == 1)
        assert chat.typed == "two" and chat.questions == ["one"]


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
        assert chat.questions == ["hi"] and HELLO in chat.shown


async def test_a_refused_pair_is_tried_again() -> None:
    async with Chat(REFUSED, ScriptedEngine(said)) as chat:
        assert chat.screen.phase == "failed"
        await chat.sees("token 151668", "enter reload ctrl+l engine log")
        assert "finish the answer" not in chat.shown
        await chat.press("f5")
        await chat.until("ready")
        assert "token 151668" not in chat.shown
        await chat.send("hi")
        await chat.sees(HELLO)


TOO_LARGE = DoesNotFitError(
    "big.gguf would take 9.40 GiB; this computer has 8.10 GiB free.",
    Hint("This fits: {ctx=4096}. More: localspec fit{; all the same: run |anyway}"),
)


async def test_what_seems_not_to_fit_can_be_loaded_all_the_same() -> None:
    async with Chat(TOO_LARGE, ScriptedEngine(said)) as chat:
        assert (
            "This fits: a context of 4096" in chat.shown
            and "--anyway" not in chat.shown
        )
        await chat.send("/anyway")
        await chat.until("ready")
        assert [wish.skip_memory_check for wish in chat.opening.wishes] == [False, True]


async def test_only_one_answer_at_a_time() -> None:
    async with Chat(ScriptedEngine(said, lambda: [*said(), Gate(), *said()])) as chat:
        await chat.send("zero")
        await chat.begin("one")
        chat.screen.composer.replace_text("two")
        await chat.press("enter", "f5", "f6", "ctrl+n")
        assert (chat.typed, chat.questions) == ("two", ["zero", "one"])
        await chat.press("ctrl+o")  # the answer before
        await chat.sees("12 characters")
        await chat.press("escape")
        await chat.until("ready")
        await chat.sees("stopped in")


# --- reading
# ----------------------------------------------------------------------------------


async def test_thinking_is_folded_until_it_is_asked_for_and_never_copied(
    copied: list[str],
) -> None:
    """Command, settings sheet and key change the same setting of the chat."""
    async with thinking() as chat:
        await chat.send("hi")
        assert THOUGHT not in chat.shown and "thought, 2" in chat.shown
        await chat.press("ctrl+t")
        assert THOUGHT in chat.shown and "think>" not in chat.shown
        assert chat.screen.session.settings.show_thinking
        await chat.send("/set show_thinking off")
        assert THOUGHT not in chat.shown
        await chat.send("/think show")
        await chat.send("again")
        assert chat.shown.count(THOUGHT) == 2
        await chat.press("ctrl+o")
    assert copied == ["Use `append`."]


async def test_what_is_odd_about_an_answer_is_said_once() -> None:
    def endless() -> Script:
        totals = {"timings": {}, "thinking": {"tokens": 3, "open": True}}
        return [
            *answer(["<think>", "on ", "and "])[:-1],
            GenerationFinished("length", "", totals),
        ]

    def circle() -> Script:
        return answer(words("round and round we go. " * 40))

    markers = ready(thinking=("<think>", "</think>"))
    async with Chat(ScriptedEngine(endless, circle, ready=markers)) as chat:
        await chat.send("hi")
        await chat.sees("before the thinking ended: /set think_budget N")
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
        assert "line 199" in chat.shown and "ctrl+end" not in chat.shown
        await chat.pilot._post_mouse_events([MouseScrollUp], Transcript, button=0)
        await chat.wait(lambda: not chat.screen.transcript.following)


async def test_the_speed_of_an_answer_is_in_the_status_bar_where_there_is_no_panel() -> (
    None
):
    def timed() -> Script:
        timings = {"tokens_per_second": 41.5, "first_token_ms": 12.0}
        return [*[*said()][:-1], GenerationFinished("eog", "", {"timings": timings})]

    async with Chat(ScriptedEngine(timed)) as chat:
        await chat.send("hi")
        for is_shown in (True, False, True):
            assert ("41.5 tok/s ctx" in chat.shown) is is_shown
            await chat.press("f3")


async def test_tab_leads_to_the_tokens_and_back() -> None:
    async with Chat(ScriptedEngine(said, ready=ready(chats=False))) as chat:
        screen = chat.screen
        await chat.send("hi")
        await chat.press("tab")
        # none is shown
        assert screen.composer.has_focus and not screen.transcript.is_cursor_active
        await chat.press("f2", "escape")
        assert screen.composer.has_focus and "tab select token" in chat.shown
        await chat.press("tab")
        assert screen.transcript.is_cursor_active
        await chat.sees("round", "→ token")
        await chat.press("tab")
        assert screen.composer.has_focus


# --- commands
# ---------------------------------------------------------------------------------

AFTER = {
    "rename Wheels": "This chat is not saved yet.",
    "tokens on": "bonus",
    "save": "Type: /save FILE",
    "keys": "Message box",
    "logs": "llama.cpp's messages",
    "stats": "acceptance rate",
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


async def test_the_oldest_turns_are_left_out_once_or_always_but_not_against_ones_will() -> (
    None
):
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.sees("2 older turns", "8,192 of 8,192")
        await chat.press("escape")
        await chat.until("ready")
        assert len(engine.asked) == 2 and "exceeds the context" in chat.shown
        assert (chat.typed, chat.questions) == ("three", ["one", "two"])
        for key, question in (("enter", "three"), ("a", "four")):
            chat.screen.composer.replace_text(question)
            await chat.press("enter")
            await chat.reaches(ContextFullScreen)
            await chat.press(key)
            await chat.until("ready")
            kept = engine.asked[-1].messages
            assert [m.content for m in kept][::2] == [chat.questions[-2], question]
            await chat.sees("left out", "no longer sent to the model")
        assert chat.questions == ["one", "two", "three", "four"]
        await chat.send("five")
        assert len(engine.asked) == 5 and chat.on_top


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


async def test_code_blocks_have_a_key_and_a_number_to_click(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(code, said)) as chat:
        await chat.send("loop?")
        await chat.sees("1 python for x", "2 sh ls -l")
        await chat.press("alt+1", "alt+3", "alt+2")
        assert copied == [BLOCKS[0], BLOCKS[2], BLOCKS[1]]
        await chat.press("alt+4")
        await chat.sees("There is no code block 4: the answer has 3 code blocks.")
        await settled(chat.pilot)
        lines = chat.screen.transcript.plain_text.split("\n")
        top = chat.screen.transcript.region.y - round(chat.screen.transcript.scroll_y)
        (row,) = [n for n, line in enumerate(lines) if line.strip() == "2 sh"]
        await chat.pilot.click(offset=(lines[row].index("sh"), top + row))
        await chat.send("thanks")  # its answer has no code
        await chat.send("/copy code")
        assert copied[3:] == [BLOCKS[1], BLOCKS[2]]


async def test_any_answer_and_the_whole_chat_are_copied(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(said, code)) as chat:
        await chat.send("/copy")
        await chat.sees("No answer to copy yet.")
        await chat.send("hi")
        await chat.send("loop?")
        await chat.send("/copy 1")
        await chat.press("f8", "up", "c", "escape")
        assert copied == [HELLO] * 2
        await chat.send("/copy all")
        assert "## You\n\nhi" in copied[2] and "```python" in copied[2]
        for wrong in ("/copy 3", "/copy code x", "/copy everything"):
            await chat.send(wrong)
        assert len(copied) == 3
        await chat.press("ctrl+o")
        assert copied[3].startswith("First:")


async def test_the_terminal_copies_and_marked_lines_have_no_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a clipboard tool, for example over SSH: the terminal does not confirm it."""
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TMUX", raising=False)
    written: list[str] = []
    spoken = answer(["```python\n", "def f(x):\n", "    return x\n", "```\n"])
    async with Chat(ScriptedEngine(lambda: spoken)) as chat:
        await chat.send("hi")
        assert chat.app._driver is not None
        monkeypatch.setattr(chat.app._driver, "write", written.append)
        await chat.press("ctrl+o")
        await chat.sees("to the terminal; it does not say whether")
        lines = chat.screen.transcript.plain_text.splitlines()
        top = next(n for n, line in enumerate(lines) if "def f(x)" in line)
        start = (lines[top].index("def"), top)
        end = (len(lines[top + 1].rstrip()), top + 1)
        await chat.pilot.mouse_down(Transcript, offset=start)
        await chat.pilot.hover(Transcript, offset=end)
        await chat.pilot.mouse_up(Transcript, offset=end)
        await chat.press("ctrl+c")
    prefix = "\x1b]52;c;"
    whole, marked = (
        base64.b64decode(text.removeprefix(prefix).removesuffix("\x07")).decode()
        for text in written
        if text.startswith(prefix)
    )
    assert whole.startswith("```python\ndef f(x):\n    return x\n")
    assert [line.rstrip() for line in marked.splitlines()] == [
        "def f(x):",
        "    return x",
    ]


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
    wrapped = "curl " + " ".join(f"--header 'X-{n}: {n}'" for n in range(12))
    source = f"{wrapped} > /tmp/out.txt\nfor i in 1 2; do\n\techo $i\ndone"
    spoken = [f"Run this:\n\n```sh\n{source}", "\n```\n\nThe end.\n"]
    async with Chat(ScriptedEngine(lambda: answer(spoken))) as chat:
        await chat.send("hi")
        await mark_and_copy(chat, "curl", "done")
        await mark_and_copy(chat, "Run this", "The end")
    assert copied == [source, f"Run this:\n\n```sh\n{source}\n```\n\nThe end."]


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


async def test_a_click_on_a_key_hint_is_the_key() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("hello")
        line = chat.screen.query_one(StatusBar)
        await chat.pilot.click(
            StatusBar, offset=(line.render_line(0).text.index("send"), 0)
        )
        await chat.wait(lambda: chat.questions == ["hello"])
        await chat.until("ready")
        await chat.press("f4")
        await settled(chat.pilot)
        hint = chat.top(ChatSettingsScreen).query(".hint").last()
        await chat.pilot.click(hint, offset=(hint.render_line(0).text.index("esc"), 0))
        await chat.wait(lambda: chat.on_top)


async def test_a_click_on_an_address_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a click on its second line does; other words do nothing."""
    address = "https://example.org/" + "a-long-path/" * 12
    opened: list[str] = []
    spoken = ["See ", address, " and ", "<https://example.org/b>", ".\n"]
    async with Chat(ScriptedEngine(lambda: answer(spoken))) as chat:
        monkeypatch.setattr(chat.app, "open_url", opened.append)
        await chat.send("hi")
        lines = chat.screen.transcript.plain_text.splitlines()
        rows = [n for n, line in enumerate(lines) if "long-path" in line]
        assert len(rows) > 1
        for row in rows[:2]:
            await chat.pilot.click(
                Transcript, offset=(lines[row].index("long-path"), row)
            )
        row = next(n for n, line in enumerate(lines) if line.strip() == "hi")
        await chat.pilot.click(Transcript, offset=(lines[row].index("hi"), row))
        assert opened == [address] * 2

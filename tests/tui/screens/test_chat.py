"""The chat screen: keys, commands, settings, and what must not be lost."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from localspec.chat.session import ChatSession
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import COMMANDS
from localspec.errors import DoesNotFitError, Hint, LocalspecError
from localspec.launch import ResolvedPair
from localspec.protocol.events import GenerationFinished
from localspec.tui import app
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.widgets.transcript import Transcript
from tests.support.scenes import PAIR, REFUSED, settled, thought, words
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    painted,
    ready,
    wait_until,
)

pytestmark = pytest.mark.asyncio


def said() -> Script:
    return answer(["Well", ", ", "hello", "."])


def long() -> Script:
    return answer([f"line {n}\n\n" for n in range(200)])


class Chat:
    """The app with one chat; use with `async with`."""

    def __init__(self, *engines: ScriptedEngine | LocalspecError, **how: Any) -> None:
        self.gate: Gate | None = how.pop("gate", None)
        pair: ResolvedPair = how.pop("pair", PAIR)
        self.opening = Opening(engines or [ScriptedEngine(said)], gate=self.gate)
        self.options = AppOptions(seed=1, **how)
        self.runner = EngineRunner(self.opening)
        self.screen = ChatScreen(ChatSession(pair, 1), self.runner, self.options)
        self.app = LocalspecApp(self.options, self.runner, lambda: self.screen)
        self._run = self.app.run_test(size=(100, 30), notifications=True)

    async def __aenter__(self) -> Chat:
        self.pilot: Pilot[Any] = await self._run.__aenter__()
        if self.gate is None:
            await self.until("ready", "failed")
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._run.__aexit__(*error)

    async def until(self, *phases: str) -> None:
        await wait_until(self.pilot, lambda: self.screen.phase in phases)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def send(self, text: str) -> None:
        """Sends a message and waits for the end of the answer."""
        self.screen.composer.replace_text(text)
        await self.press("enter")
        await self.until("ready", "failed")

    @property
    def typed(self) -> str:
        return self.screen.composer.text

    @property
    def questions(self) -> list[str]:
        return [turn.question for turn in self.screen.session.conversation.turns]

    @property
    def on_top(self) -> bool:
        return self.app.screen is self.screen

    @property
    def shown(self) -> str:
        """The text of the top screen, with notifications."""
        return painted(self.app.screen)


# --- the empty chat ---------------------------------------------------------------------------


async def test_a_chat_model_is_greeted_with_questions_and_another_with_a_beginning() -> None:
    async with Chat() as chat:
        assert "What is a bicycle?" in chat.shown
    async with Chat(ScriptedEngine(said, ready=ready(chats=False))) as chat:
        assert "What is a bicycle?" not in chat.shown
        assert "Once upon a time" in chat.shown
    code = ResolvedPair(Path("qwen2.5-coder-7b.gguf"), None)
    async with Chat(ScriptedEngine(said, ready=ready(chats=False)), pair=code) as chat:
        assert "def fibonacci(n):" in chat.shown and "Once upon" not in chat.shown


# --- composing --------------------------------------------------------------------------------


async def test_history() -> None:
    async with Chat() as chat:
        await chat.send("one")
        await chat.send("two")
        await chat.press("up")
        assert chat.typed == "two"
        await chat.press("up", "up")
        assert chat.typed == "one"
        await chat.press("down", "down")
        assert chat.typed == ""
        await chat.press("a", "up")
        assert chat.typed == "a"  # what is being written is not lost


async def test_new_lines_do_not_send() -> None:
    async with Chat() as chat:
        await chat.press("a", "ctrl+j", "b")
        assert chat.typed == "a\nb"
        assert not chat.questions


async def test_what_is_pasted_is_clean_and_never_sends() -> None:
    async with Chat() as chat:
        chat.app.post_message(events.Paste("def f():\r\n    pass\r\x1b[31mred\u202e\n"))
        await wait_until(chat.pilot, lambda: "red" in chat.typed)
        assert not chat.questions
        assert "\x1b" not in chat.typed
        assert "\u202e" in chat.typed and "\u202e" not in chat.shown  # sent, but not shown
        assert chat.typed.startswith("def f():\n    pass\n")


async def test_a_paste_of_a_megabyte() -> None:
    """It is pasted, sent and shown without blocking the app for seconds."""
    async with Chat() as chat:
        words = ("some words of a line, " * 4 + "\x1b[31mred\n") * 11_500
        began = time.process_time()
        chat.app.post_message(events.Paste(words))
        await wait_until(chat.pilot, lambda: len(chat.typed) > 1_000_000)
        assert time.process_time() - began < 2, "0.9 s where nothing else runs"
        assert "\x1b" not in chat.typed
        await chat.press("x")
        assert chat.typed.endswith("x")
        began = time.process_time()
        await chat.press("enter")
        await chat.until("ready")
        assert time.process_time() - began < 3
        assert len(chat.questions[0]) > 1_000_000 and "Well, hello." in chat.shown
        assert not chat.typed
        assert "more characters" in chat.shown


async def test_words_that_are_no_text_are_sent() -> None:
    """A lone surrogate cannot be pasted, but a script may insert it."""
    async with Chat() as chat:
        await chat.send("a\ud83db")
        assert chat.screen.phase == "ready"
        assert "Well, hello." in chat.shown


async def test_nothing_is_sent_where_nothing_is_written() -> None:
    async with Chat() as chat:
        for typed in ("", "  ", "\n\n"):
            chat.screen.composer.replace_text(typed)
            await chat.press("enter")
            assert "Nothing to send yet." in chat.shown
        assert not chat.questions


async def test_a_terminal_of_40_by_10_shows_question_answer_and_composer() -> None:
    async with Chat() as chat:
        await chat.pilot.resize_terminal(40, 10)
        await chat.send("hi there")
        assert "Well, hello." in chat.shown
        composer = chat.screen.composer.region
        assert composer.height >= 1 and composer.bottom <= 10 and composer.right <= 40


# --- asking -----------------------------------------------------------------------------------


async def test_what_is_sent_while_it_loads_goes_out_afterwards() -> None:
    async with Chat(gate=Gate()) as chat:
        await chat.press("h", "i", "enter")
        assert chat.screen.phase == "loading"
        assert chat.gate is not None
        chat.gate.set()
        await wait_until(chat.pilot, lambda: chat.screen.session.conversation.turns)
        await chat.until("ready")
        assert chat.questions == ["hi"]
        assert "Well, hello." in chat.shown


async def test_a_refused_pair_is_tried_again() -> None:
    engine = ScriptedEngine(said)
    async with Chat(REFUSED, engine) as chat:
        assert chat.screen.phase == "failed"
        assert "token 151668" in chat.shown
        assert "f5" in chat.shown
        await chat.press("f5")
        await chat.until("ready")
        assert "token 151668" not in chat.shown
        await chat.send("hi")
        assert "Well, hello." in chat.shown


TOO_LARGE = DoesNotFitError(
    "big.gguf would take 9.40 GiB; this computer has 8.10 GiB free.",
    Hint("This fits: {ctx=4096}. More: localspec fit{; all the same: run |anyway}"),
)


async def test_what_seems_not_to_fit_can_be_loaded_all_the_same() -> None:
    async with Chat(TOO_LARGE, ScriptedEngine(said)) as chat:
        assert "This fits: a context of 4096. More: localspec fit" in chat.shown
        assert "--anyway" not in chat.shown
        await chat.send("/anyway")
        await chat.until("ready")
        assert [wish.skip_memory_check for wish in chat.opening.wishes] == [False, True]


async def test_exact_mode_loads_again() -> None:
    async with Chat(*(ScriptedEngine(said) for _ in range(3))) as chat:
        for _ in range(2):
            await chat.send("/set exact on")
            await chat.until("ready")
        await chat.send("hi")
        assert "Well, hello." in chat.shown
        assert [wish.exact for wish in chat.opening.wishes] == [False, True]
        field = list(CHAT_SETTING_FIELDS).index("exact")
        await chat.press("f4", *["down"] * field, *"off", "escape")
        await chat.until("ready")
        assert [wish.exact for wish in chat.opening.wishes] == [False, True, False]


async def test_regenerate_edit_and_begin_anew() -> None:
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        await chat.send("one")
        await chat.press("f5")
        await chat.until("ready")
        first, second = engine.asked
        assert first.messages == second.messages
        assert first.sampling.seed != second.sampling.seed
        await chat.press("f6")
        assert (chat.typed, chat.questions) == ("one", [])
        await chat.press("!", "enter")
        await chat.until("ready")
        assert chat.questions == ["one!"]
        await chat.press("ctrl+n")
        assert not chat.questions
        assert "Well, hello." not in chat.shown


async def test_only_one_answer_at_a_time() -> None:
    gate = Gate()
    async with Chat(ScriptedEngine(lambda: [*said(), gate, *said()])) as chat:
        chat.screen.composer.replace_text("one")
        await chat.press("enter")
        await chat.until("answering")
        chat.screen.composer.replace_text("two")
        await chat.press("enter", "f5", "f6", "ctrl+n")
        assert chat.typed == "two"
        assert chat.questions == ["one"]
        await chat.press("escape")
        await chat.until("ready")
        assert "stopped in" in chat.shown


# --- reading ----------------------------------------------------------------------------------


async def test_thinking_is_folded_until_it_is_asked_for() -> None:
    engine = ScriptedEngine(thought, ready=ready(thinking=("<think>", "</think>")))
    async with Chat(engine) as chat:
        await chat.send("hi")
        assert "They ask about lists" not in chat.shown
        assert "thought, 2" in chat.shown
        await chat.press("ctrl+t")
        assert "They ask about lists" in chat.shown
        await chat.press("ctrl+t")
        assert "They ask about lists" not in chat.shown
        assert "think>" not in chat.shown


async def test_thinking_stays_unfolded_where_that_is_set() -> None:
    """Command, settings sheet and key change the same setting of the chat."""
    engine = ScriptedEngine(thought, ready=ready(thinking=("<think>", "</think>")))
    async with Chat(engine) as chat:
        await chat.send("/set show_thinking on")
        await chat.send("hi")
        assert "They ask about lists" in chat.shown
        await chat.press("ctrl+t")
        assert "They ask about lists" not in chat.shown
        assert not chat.screen.session.settings.show_thinking
        await chat.send("/think show")
        await chat.send("again")
        assert chat.shown.count("They ask about lists") == 2


async def test_an_answer_that_ended_in_its_thinking_says_so() -> None:
    def endless() -> Script:
        totals = {"timings": {}, "thinking": {"tokens": 3, "open": True}}
        return [*answer(["<think>", "on ", "and "])[:-1], GenerationFinished("length", "", totals)]

    engine = ScriptedEngine(endless, ready=ready(thinking=("<think>", "</think>")))
    async with Chat(engine) as chat:
        await chat.send("hi")
        assert "before the thinking ended: /set think_budget N" in chat.shown


async def test_what_is_copied_is_the_answer_without_its_thinking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TMUX", raising=False)
    written: list[str] = []
    engine = ScriptedEngine(thought, ready=ready(thinking=("<think>", "</think>")))
    async with Chat(engine) as chat:
        await chat.send("hi")
        driver = chat.app._driver
        assert driver is not None
        monkeypatch.setattr(driver, "write", written.append)
        await chat.press("ctrl+o")
    (text,) = [_copied(one) for one in written if one.startswith("\x1b]52;")]
    assert text and "They ask" not in text and "think>" not in text


async def test_lines_marked_with_the_mouse_are_copied_without_the_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TMUX", raising=False)
    written: list[str] = []
    code = answer(["```python\n", "def f(x):\n", "    return x\n", "```\n"])
    async with Chat(ScriptedEngine(lambda: code)) as chat:
        await chat.send("hi")
        driver = chat.app._driver
        assert driver is not None
        monkeypatch.setattr(driver, "write", written.append)
        lines = chat.screen.transcript.plain_text.splitlines()
        top = next(n for n, line in enumerate(lines) if "def f(x)" in line)
        left, below = lines[top].index("def"), lines[top + 1]
        await chat.pilot.mouse_down(Transcript, offset=(left, top))
        await chat.pilot.hover(Transcript, offset=(len(below.rstrip()), top + 1))
        await chat.pilot.mouse_up(Transcript, offset=(len(below.rstrip()), top + 1))
        await chat.press("ctrl+c")
    (text,) = [_copied(one) for one in written if one.startswith("\x1b]52;")]
    assert [line.rstrip() for line in text.splitlines()] == ["def f(x):", "    return x"]


def _copied(sequence: str) -> str:
    return base64.b64decode(sequence.removeprefix("\x1b]52;c;").removesuffix("\x07")).decode()


async def test_scrolling_away_stops_following_until_one_comes_back() -> None:
    gate = Gate()
    async with Chat(ScriptedEngine(lambda: [*list(long())[:-1], gate, *long()])) as chat:
        chat.screen.composer.replace_text("hi")
        await chat.press("enter")
        await wait_until(chat.pilot, lambda: "line 199" in chat.shown)
        await chat.press("ctrl+home")
        assert "line 0" in chat.shown
        gate.set()
        await chat.until("ready")
        assert "line 0" in chat.shown
        assert "ctrl+end" in chat.shown
        await chat.press("ctrl+end")
        assert "line 199" in chat.shown
        assert "ctrl+end" not in chat.shown


async def test_copy_by_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a clipboard tool, for example over SSH: the terminal does not confirm it."""
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TMUX", raising=False)
    written: list[str] = []
    async with Chat() as chat:
        await chat.send("hi")
        driver = chat.app._driver
        assert driver is not None
        monkeypatch.setattr(driver, "write", written.append)
        await chat.press("ctrl+o")
        assert "Sent 12 characters to the terminal; it does not say whether" in chat.shown
    assert f"\x1b]52;c;{base64.b64encode(b'Well, hello.').decode()}\x07" in written


# --- commands ---------------------------------------------------------------------------------

AFTER = {
    "help": "Slash commands",
    "clear": "Type a message",
    "new": "Type a message",
    "private": "Type a message",
    "undo": "Type a message",
    "set temperature 0.1": "temperature: 0.1",
    "rename Wheels": "This chat is not saved yet.",
    "show": "top-k",
    "spec off": "spec: off",
    "think on": "think: on",
    "tokens on": "bonus",
    "system Be brief.": "System prompt: Be brief.",
    "save {tmp}/chat.md": "Saved:",
    "save": "Type: /save FILE",
    "keys": "Everywhere",
    "logs": "llama.cpp's messages",
    "anyway": "The model is already loaded",
    "model": "Answer with another model",
    "draft none": "There is no file",
    "ctx": "Context: ",
    "preset": "Use a preset",
    "nonsense": "Unknown command: /nonsense",
    "regne": "Did you mean /regen?",
}


async def test_each_command_shows_what_it_did(tmp_path: Path) -> None:
    async with Chat() as chat:
        for command, words in AFTER.items():
            if not chat.questions:
                await chat.send("hi")
            chat.app.clear_notifications()
            await chat.send("/" + command.replace("{tmp}", str(tmp_path)))
            await wait_until(chat.pilot, lambda words=words: words in chat.shown)  # type: ignore[misc]
            assert chat.typed == "", command
            assert all(not question.startswith("/") for question in chat.questions)
            if not chat.on_top or chat.screen.transcript.is_cursor_active:
                await chat.press("escape")


async def test_commands_that_ask_again(tmp_path: Path) -> None:
    engine = ScriptedEngine(said)
    (tmp_path / "notes.txt").write_text("some notes\n\n")
    async with Chat(engine) as chat:
        await chat.send("hi")
        await chat.send("/regen")
        await chat.send("/edit hello")
        assert [a.messages[-1].content for a in engine.asked] == ["hi", "hi", "hello"]
        await chat.send(f"/read {tmp_path / 'notes.txt'}")
        assert "+ notes.txt, 10 characters" in chat.shown and chat.typed == ""
        await chat.send("//help")
        assert chat.questions[-1] == "/help"
        assert "notes.txt:" in engine.asked[-1].messages[-1].content
        await chat.send("/copy")
        await chat.send("/tokens off")
        assert not chat.screen.transcript.token_view
        panel = chat.screen.query_one("SpeculationPanel")
        before = panel.display
        await chat.send("/stats")
        assert panel.display is not before


async def test_exit() -> None:
    async with Chat() as chat:
        chat.screen.composer.replace_text("/exit")
        await chat.press("enter")
        assert not chat.app.is_running or chat.app._exit


async def test_every_command_is_tried() -> None:
    tried = {words.split()[0] for words in AFTER}
    tried |= {"regen", "edit", "read", "copy", "stats", "exit", "turns", "bench"}
    # turns: test_turns.py; bench: test_bench.py
    assert {command.name for command in COMMANDS} <= tried


# --- sheets, settings and user keys ----------------------------------------------------------


async def test_sheets_come_and_go() -> None:
    async with Chat() as chat:
        for key, kind in (("f1", HelpScreen), ("f4", ChatSettingsScreen), ("ctrl+l", LogScreen)):
            await chat.press(key)
            assert isinstance(chat.app.screen, kind)
            await chat.press("escape")
            assert chat.on_top


async def test_settings_are_taken_over_or_refused() -> None:
    engine = ScriptedEngine(said)
    async with Chat(engine) as chat:
        await chat.press("f4", "0", ".", "3", "down", "x")
        assert "cannot be" in chat.shown
        await chat.press("backspace", "7", "up", "up")  # round to the system prompt
        await chat.press(*"Hi", "escape")
        await chat.send("hello")
        request = engine.asked[-1]
        assert request.sampling.temperature == 0.3
        assert request.sampling.top_k == 7
        assert (request.messages[0].role, request.messages[0].content) == ("system", "Hi")


async def test_keys_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[screen]\ntheme = "light"\n[keys]\n"chat.send" = "ctrl+s"\n"chat.tokens" = "f8"\n'
    )
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(config))
    wanted = app.load_options()  # it starts with the defaults, and reports the error and its place
    assert wanted.theme == "localspec-dark"
    assert any("config.toml:2: screen.theme must be" in said for said in wanted.settings_errors)
    assert config.read_text().count("light") == 1, "nothing is written"
    config.write_text(config.read_text().replace("light", "localspec-light"))
    wanted = app.load_options()
    assert wanted.theme == "localspec-light"
    async with Chat(keymap=wanted.keymap) as chat:
        assert "ctrl+s send" in chat.shown
        await chat.press("a", "enter", "b")
        assert (chat.typed, chat.questions) == ("a\nb", [])
        await chat.press("ctrl+s")
        await chat.until("ready")
        assert chat.questions == ["a\nb"]
        await chat.press("f2")
        assert not chat.screen.transcript.token_view
        await chat.press("f8")
        assert chat.screen.transcript.token_view


# --- a full context ----------------------------------------------------------------------------


N_CTX = 8192


def short(messages: int) -> int:
    """Two turns fit, three do not."""
    return N_CTX if messages > 4 else 100 * messages


def growing() -> ScriptedEngine:
    return ScriptedEngine(said, said, said, said, sizes=short)


async def full(chat: Chat) -> None:
    await chat.send("one")
    await chat.send("two")
    chat.screen.composer.replace_text("three")
    await chat.press("enter")
    await wait_until(chat.pilot, lambda: isinstance(chat.app.screen, ContextFullScreen))
    await chat.pilot.pause()


async def test_the_oldest_turns_are_left_out() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        assert "2 older turns" in chat.shown and "8,192 of 8,192" in chat.shown
        await chat.press("enter")
        await chat.until("ready")
        assert [m.content for m in engine.asked[-1].messages] == ["two", "Well, hello.", "three"]
        assert "1 old turn left out" in chat.shown and "no longer sent to the model" in chat.shown
        assert chat.questions == ["one", "two", "three"]


async def test_a_summary_stands_for_them() -> None:
    engine = ScriptedEngine(said, said, lambda: answer(["They ", "greeted."]), said, sizes=short)
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("down", "enter")
        await chat.until("ready")
        first = engine.asked[-1].messages[0]
        assert first.role == "system" and "They greeted." in first.content
        assert [t.answer for t in chat.screen.session.conversation.turns] == ["Well, hello."] * 3


async def test_nothing_is_left_out_against_ones_will() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("escape")
        await chat.until("ready")
        assert len(engine.asked) == 2
        assert (chat.typed, chat.questions) == ("three", ["one", "two"])
        assert "exceeds the context" in chat.shown


async def test_once_for_all() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("a")
        await chat.until("ready")
        await chat.send("four")
        assert len(engine.asked) == 4 and chat.on_top


async def test_quitting_does_not_wait_for_the_choice() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        question = chat.runner._overflow_request
    assert question is not None and question.decision == "stop"


# --- copying code ------------------------------------------------------------------------------


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


async def test_code_blocks_are_numbered_and_have_a_key_each(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(code, said)) as chat:
        await chat.send("loop?")
        assert "1 python for x" in chat.shown and "2 sh ls -l" in chat.shown
        assert "3 plain" in chat.shown
        await chat.press("alt+1", "alt+3", "alt+2")
        assert copied == [BLOCKS[0], BLOCKS[2], BLOCKS[1]]
        await chat.press("alt+4")
        assert "There is no code block 4: the answer has 3 code blocks." in chat.shown
        await chat.send("thanks")  # its answer has no code
        await chat.send("/copy code")
        assert copied[3:] == [BLOCKS[2]]


async def test_a_click_on_its_number_copies_the_code(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(code, said)) as chat:
        await chat.send("loop?")
        await settled(chat.pilot)
        lines = chat.screen.transcript.plain_text.split("\n")
        top = chat.screen.transcript.region.y - round(chat.screen.transcript.scroll_y)
        (row,) = [n for n, line in enumerate(lines) if line.strip() == "2 sh"]
        await chat.pilot.click(offset=(lines[row].index("sh"), top + row))
        assert copied == [BLOCKS[1]]


async def test_any_answer_and_the_whole_chat(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(said, code)) as chat:
        await chat.send("/copy")
        assert "No answer to copy yet." in chat.shown
        await chat.send("hi")
        await chat.send("loop?")
        await chat.send("/copy 1")
        await chat.press("f8", "up", "c", "escape")
        assert copied == ["Well, hello."] * 2
        await chat.send("/copy all")
        assert "## You\n\nhi" in copied[2] and "```python" in copied[2]
        for wrong in ("/copy 3", "/copy code x", "/copy everything"):
            await chat.send(wrong)
        assert len(copied) == 3
        await chat.press("ctrl+o")
        assert copied[3].startswith("First:")


async def test_the_speed_of_an_answer_is_in_the_status_bar_where_there_is_no_panel() -> None:
    def timed() -> Script:
        timings = {"tokens_per_second": 41.5, "first_token_ms": 12.0}
        return [*[*said()][:-1], GenerationFinished("eog", "", {"timings": timings})]

    async with Chat(ScriptedEngine(timed)) as chat:
        await chat.send("hi")
        assert "41.5 tok/s ctx" in chat.shown
        await chat.press("f3")
        assert "41.5 tok/s ctx" not in chat.shown
        await chat.press("f3")
        assert "41.5 tok/s ctx" in chat.shown

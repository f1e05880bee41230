"""A person chats at a terminal.

Commands, signals and pastes; an engine that ends, and a model that is hostile.
"""

import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.session import ChatSession
from localspec.chat.slash_commands import COMMANDS
from localspec.cli.answer_printer import OutputStyle
from localspec.cli.chat_front_end import LinearFrontEnd
from localspec.cli.chat_loop import ChatLaunchOptions, ChatLoop
from localspec.fit.advisor import SettingsRequest
from localspec.launch import ResolvedPair, recent_pairs
from localspec.protocol.wire import LoadCommand
from tests.models import packagefile
from tests.support.run_command import (
    command,
    harmful,
    localspec,
    without_load_progress,
)
from tests.support.scripted_engine import Opening, ScriptedEngine
from tests.support.zoo import HELLO_TEXT, Zoo

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

import termios

from tests.engine_process.ends import ended
from tests.support.dialogue import Dialogue
from tests.support.pty_terminal import Terminal, text

GREEDY = ("--temperature", "0")
ENDLESS = (*GREEDY, "--max-tokens", "60000", "--spec", "off")
CTRL_C = "\x03"
CTRL_D = "\x04"
CTRL_Z = "\x1a"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialogue]:
    """One chat with the demo pair, for tests that leave it at its prompt."""
    folder = tmp_path_factory.mktemp("data")
    data = {
        "LOCALSPEC_DATA_DIR": str(folder),
        "LOCALSPEC_CONFIG": str(folder / "config.toml"),
    }
    with Dialogue("run", "demo", *GREEDY, "--max-tokens", "24", env=data) as chat:
        chat.until("Text-completion model")
        chat.until("\n> ")
        yield chat


def test_every_command(demo: Dialogue, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("import sys\nimport os\n", encoding="utf-8")
    kept = tmp_path / "chat.md"
    demo.line("/clear")
    typed = {
        "/help": "/regen [NAME [DRAFT]], /retry", "/?": "/exit, /quit, /bye", "/keys": "Ctrl+C",
        "/show": "text completion", "/set temperature 0.0": "temperature: 0,",
        "/set temperature x": "Possible: 0 (greedy)", "/set xyz 1": "Settings: temperature",
        "/set": "needs an argument", "/spec 2": "draft_max: 2", "/spec off": "Speculation is off,",
        "/spec eagle3": "Use one of: auto, off, model, lookup.",
        "/set spec mtp": "Use one of: auto, off, model, lookup.", "/spec model": "on in every step, with the draft model",
        "/think on": "no thinking, so it cannot be turned on", "/think off": "think: off", "/think show": "Thinking is shown",
        "/system # a module": "System prompt: # a module", "/system": "System prompt: # a module",
        "/system -": "No system prompt", f"/read {tmp_path}/no.txt": "There is no file",
        f"/read {notes}": "notes.txt, 2 lines.", "/image": "needs an argument",
        "/tools": "can call no tools", "/tools 1": "There is no call 1.",
        "/folder": "can read no folder", f"/folder {tmp_path}": "it calls no tools",
        f"/image {notes}": "does not see pictures", "/image -": "No pictures", "/audio": "needs an argument",
        f"/audio {notes}": "does not hear", "/audio -": "No audio", "def main():": "guesses right",
        "/stats": "accepted tokens per round", "/edit class A:": "tok/s",
        "/import": "needs an argument", "/import no.json": "There is no file",
        "/copy": "to the terminal", "/rename A class": "The chat is called A class",
        f"/save {kept}": "Saved:", "/tokens on": "guessed right", "//help": "tok/s",
        "/tokens off": "not marked", "/hlep": "Did you mean /help?", "/turns": "  2  /help",
        "/turns 9": "There is no", "/undo": "Undone: /help", "/bench": "localspec bench demo",
        "/anyway": "The model is already loaded.", "/logs": "engine", "/new": "New chat.",
        "/private": "not saved", "/clear": "Cleared", "/model": "This chat: Demo",
        "/ctx": " of 1,024 tokens.", "/ctx 512": "context 512", "/ctx x": "For example",
        "/ctx 99999": "Use /ctx 1024 or less.", "/draft none": "From now on Demo answers.",
        "/model demo": "(guesses: Demo draft)",
        "/preset save short": "Preset short is saved: temperature 0 · max_tokens 24 · ctx 512.",
        "/preset": f"  {'short':<36} temperature 0", "/preset none": "There is no preset 'none'",
        "/preset delete short": "deleted", "/regen": "The chat is empty",
        "def fibonacci(n):": "context ", "": "guesses right",
        "/undo ": "Undone: the continuation", "/retry": "tok/s",
    }  # fmt: skip
    names = {command.name for command in COMMANDS} - {"exit"}
    assert names <= {
        line.lstrip("/").split()[0].replace("?", "help") for line in typed if line
    }
    for line, words in typed.items():
        assert words in demo.line(line), line
    text = kept.read_text(encoding="utf-8")
    # it stays with the edited question
    file = "notes.txt:\n```\nimport sys\nimport os\n```"
    asked = f"# A chat with Demo\n\n## You\n\n{file}\n\nclass A:\n\n## Demo\n\n"
    assert text.startswith(asked)


def test_the_texts_of_all_commands_begin_in_one_column(demo: Dialogue) -> None:
    """Also those of a name that is wider than its column, on 80 cells."""
    demo.resize(80, 24)
    told = demo.line("/help")
    rows = told.partition("/new ")[2].partition("To send")[0].splitlines()[1:]
    column = rows[0].index("and a new seed")

    beside = [row for row in rows if row.startswith("  /") and len(row) > column]
    below = [row for row in rows if not row.startswith("  /") and row.strip()]

    assert len(beside) > 20 and len(below) > 20
    for row in beside:
        is_own_line = "/presets" in row or "/picture" in row
        assert is_own_line or row[column - 1] == " " != row[column], row
    for row in below:
        assert row[:column].isspace() and not row[column].isspace(), row


def test_tab_paste_and_edit(demo: Dialogue) -> None:
    """Tab completes a command, and a paste is one message.

    An edit without text offers the last message.
    """
    demo.type("/sho\t")
    demo.until("/show")
    assert "Demo" in demo.line("")
    demo.paste("def f(a):\n    b = a\n")
    demo.until("b = a")
    assert "guesses right" not in demo.said[demo.said.rindex("def f(a):") :]
    demo.line("    return b")
    assert "Undone: def f(a):     b = a     return b" in demo.line("/undo")
    demo.line("import re")
    demo.type("/edit\r")
    demo.until("/edit import re")
    demo.line(", os")
    assert "Undone: import re, os" in demo.line("/undo")


def test_ctrl_c_stops_the_answer_and_a_second_quits(zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatter"], *ENDLESS) as chat:
        chat.until("> ")
        chat.type("a\r")
        chat.until("eight nine one")
        chat.type(CTRL_C)
        told = chat.until("\n> ")
        assert "stopped in " in told and " ms · " in told
        chat.press(CTRL_C)
        assert chat.end() == 130 and "Traceback" not in chat.said


def test_ctrl_c_at_the_prompt_hints_then_quits(zoo: Zoo) -> None:
    with Dialogue("run", zoo["parrot"], *GREEDY, "--spec", "off") as chat:
        chat.until("> ")
        told = chat.line("a")
        assert HELLO_TEXT in told and "context 11 / " in told, (
            "2 of the prompt, 9 of the answer"
        )
        chat.press(f"begun{CTRL_C}")
        chat.until("Press Ctrl+C again or Ctrl+D to quit.\n> ")
        chat.line("b")
        chat.press(CTRL_C)
        chat.until("to quit.\n> ")
        chat.press(CTRL_C)
        assert chat.end() == 130


@pytest.mark.parametrize("how", ["SIGTERM", "closed", "closed while answering"])
def test_the_end_leaves_the_terminal_whole_and_no_engine(how: str, zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatter"], *ENDLESS) as chat:
        chat.until("> ")
        engine = chat.engine()
        assert not chat.settings()[3] & termios.ECHO
        if how == "closed while answering":
            chat.type("a\r")
            chat.until("one two three")
        if how == "SIGTERM":
            chat.signal(signal.SIGTERM)
            assert chat.end() == 143 and chat.settings()[3] & termios.ECHO
        else:
            chat.close()
            assert chat.end() == 129
        assert ended(engine.pid)


def test_what_is_typed_while_an_answer_streams_is_hidden_and_kept(zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatter"], *ENDLESS) as chat:
        chat.until("> ")
        chat.type("a\r")
        chat.until("one two three")
        assert not chat.settings()[3] & termios.ECHO
        chat.type("/sh\x7fhow")
        chat.until("one two three")
        chat.type(CTRL_C)
        told = chat.until("\n> ")
        assert "/sh" not in told
        assert "how" in chat.until("how")  # The keys as typed, the deleted one too.
        assert "template" in chat.line("")


def test_a_line_that_is_typed_while_an_answer_streams_is_sent_after_it(
    zoo: Zoo,
) -> None:
    with Dialogue("run", zoo["parrot"], *GREEDY, "--spec", "off") as chat:
        chat.until("> ")
        chat.type("a\r/keys\r")
        told = chat.until("Ctrl+D")
        assert HELLO_TEXT in told
        assert told.count("/keys") == 1, "it is shown at the prompt only"


@pytest.mark.parametrize("how", ["SIGTERM", "twice SIGINT", "crash"])
def test_whatever_ends_an_answer_the_terminal_echoes_again(
    how: str, zoo: Zoo, tmp_path: Path
) -> None:
    options: tuple[str | Path, ...] = ENDLESS
    if how == "crash":  # What writes the events finds no more space.
        options = (*ENDLESS, "--events", "/dev/full")
    with Dialogue("run", zoo["chatter"], *options) as chat:
        if how != "crash":
            chat.until("> ")
            chat.type("a\r")
            chat.until("one two three")
            assert not chat.settings()[3] & termios.ECHO
        if how == "SIGTERM":
            chat.signal(signal.SIGTERM)
        elif how == "twice SIGINT":
            # A second one at once ends the chat, or is one with the first.
            chat.process.send_signal(signal.SIGINT)
            chat.until("\n> ")
            chat.process.send_signal(signal.SIGINT)
        chat.end()
        assert chat.settings()[:4] == chat.cooked[:4]
        assert chat.seen.rfind(b"\x1b[?2004l") > chat.seen.rfind(b"\x1b[?2004h")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_ctrl_z_gives_the_shell_its_terminal_and_fg_hides_again(zoo: Zoo) -> None:
    shell = ["bash", "--norc", "--noprofile", "-i"]
    line = shlex.join(command("run", zoo["chatter"], *ENDLESS))
    with Terminal(shell, env={"PS1": "$$ "}) as terminal:
        terminal.type(f"{line}\r")
        terminal.wait_for("quits")
        terminal.type("a\r")
        at = terminal.wait_for("one two three")
        assert not terminal.settings()[3] & termios.ECHO
        terminal.type(CTRL_Z)
        at = terminal.wait_for("Stopped", at)
        terminal.type("stty -a\r")
        end = terminal.wait_for("-extproc", at)
        assert " echo " in text(terminal.seen[at:end])
        terminal.type("fg\r")
        at = terminal.wait_for("one two three", len(terminal.seen))
        terminal.wait_for(lambda: not terminal.settings()[3] & termios.ECHO)
        terminal.type(CTRL_C)
        terminal.wait_for("stopped in", at)


def test_answers_and_figures_are_broken_between_words(zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatter"], *ENDLESS, "--stats") as chat:
        chat.until("> ")
        chat.resize(40, 24)
        chat.type("a\r")
        for _ in range(12):
            chat.until("one two three")
        chat.type(CTRL_C)
        told = chat.until("\n> ")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", chat.said)
    answer = shown[shown.index("> a\n") + len("> a\n") :]
    assert "sampling:" in told
    assert max(map(len, answer.split("\n"))) <= 40
    words = set(answer[: answer.index("stopped")].split())
    assert words <= set(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    )


def test_an_engine_killed(zoo: Zoo, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with Dialogue("run", zoo["chatter"], *ENDLESS, "--events", events) as chat:
        chat.until("> ")
        first = chat.engine()
        chat.type("a\r")
        chat.until("seven eight nine one")
        first.kill()
        told = chat.until("\n> ")
        assert (
            "The engine stopped" in told
            and "Press Enter or type /retry to reload" in told
        )
        chat.line(f"/save {tmp_path}/kept.txt")
        assert "seven eight nine one" in (tmp_path / "kept.txt").read_text()
        chat.type("/retry\r")
        chat.until("Reloading the model")
        chat.until("seven eight nine one")
        second = chat.engine()
        assert second.pid != first.pid
        chat.type(CTRL_C)
        assert "stopped in" in chat.until("\n> ")
        second.kill()  # while nobody asks
        assert ended(second.pid)
        chat.type("b\r")
        chat.until("The engine stopped")
        chat.until("\n> ")
        chat.type("\r")
        chat.until("seven eight nine one")
        chat.type(CTRL_C)
        chat.until("\n> ")
        chat.type(CTRL_D)
        assert chat.end() == 0
    replayed = localspec("replay", events)
    assert replayed.code == 0 and "Answer 3" in replayed.text
    assert "The recording ends here" in replayed.text


def test_a_full_context_keeps_the_chat(zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatter"], *ENDLESS, "--ctx", "256") as chat:
        chat.until("> ")
        told = chat.line("a")
        assert "the context is full" in told and "/undo removes the last turn" in told
        chat.line("/set overflow stop")
        told = chat.line("b")
        assert "The prompt has" in told
        assert "Your message was not sent. Press Up to edit it." in told
        chat.line("/set overflow ask")
        chat.type("b\n")
        asked = chat.until("/set overflow NAME):")
        assert "258 of 256 tokens" in asked and "s: Do not send" in asked
        assert "summarise" not in asked, "a text-completion model cannot summarise"
        assert "Your message was not sent" in chat.line("s")
        chat.type("b\n")
        chat.until("/set overflow NAME):")
        assert "the oldest turn is no longer sent to the model" in chat.line("d")
        assert "oldest turns    1 not sent to the model" in chat.line("/show")


def test_a_full_context_in_the_middle_of_an_answer(zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatty"], *GREEDY, "--ctx", "256") as chat:
        chat.until("> ")
        for _ in range(2):
            assert "Anything else?" in chat.line("Hi?", then=" · context ")
            chat.until("\n> ")
        chat.type("Hi again?\n")
        asked = chat.until("/set overflow NAME):")
        assert "m: Summarise the oldest turns" in asked
        chat.press(CTRL_C)
        chat.until("the context is full")


THOUGHT = "They greet me; I greet back."
HELLO = "Hello there.\n"


@pytest.mark.parametrize(
    ("option", "prompt", "folded", "shown"),
    [
        ("--no-color", "> ", f"thinking … (6 words)\n{HELLO}", f"{THOUGHT}\n{HELLO}"),
        (
            "--plain",
            "You: ",
            f"Thinking, 6 words.\nthinker: {HELLO}",
            f"Thinking: {THOUGHT}\nthinker: {HELLO}",
        ),
    ],
)
def test_thinking_folded_shown(
    zoo: Zoo, option: str, prompt: str, folded: str, shown: str
) -> None:
    with Dialogue("run", zoo["thinker"], *GREEDY, option) as chat:
        chat.until(prompt)
        assert folded in chat.line("hi", f"\n{prompt}")
        chat.line("/think show", f"\n{prompt}")
        assert shown in chat.line("hi", f"\n{prompt}")
        chat.line("/set max_tokens 4", f"\n{prompt}")
        told = chat.line("hi", f"\n{prompt}")
        assert "/set think_budget N limits thinking to N tokens; /think off" in told


@pytest.mark.parametrize("how", ["--plain", "TERM"])
def test_plain(how: str, zoo: Zoo) -> None:
    """Sentences only: no symbols, no colours, no redrawn lines."""
    options, env = (("--plain",), {}) if how == "--plain" else ((), {"TERM": "dumb"})
    model = zoo["parrot"]
    asked = (
        "run",
        model,
        "--draft",
        model,
        *GREEDY,
        "--spec",
        "model",
        "--tokens",
        *options,
    )
    with Dialogue(*asked, env=env) as chat:
        chat.until("Type /help for commands, /exit to quit.\n")
        chat.until("You: ")
        told = chat.line("a", "\nYou: ")
        assert f"parrot: {HELLO_TEXT}\n" in told and "Step 1" in told
        assert "guesses right" in told and "tokens per second. Context: " in told
        for line in ("/stats", "/show", "/keys", "/help", "/tokens off"):
            chat.line(line, "\nYou: ")
        chat.type(CTRL_D)
        assert (
            chat.end() == 0 and chat.said.isascii() and not harmful(chat.said.encode())
        )


@pytest.mark.parametrize(
    "env", [{}, {"NO_COLOR": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_nothing_hostile_reaches_the_terminal(env: dict[str, str], zoo: Zoo) -> None:
    with Dialogue("run", zoo["hostile"], *GREEDY, "--spec", "lookup", env=env) as chat:
        chat.until("> ")
        for line in (
            "a",
            "/tokens on",
            "b",
            "/stats",
            "/undo",
            "/regen",
            "/show",
            "/logs",
        ):
            chat.line(line)
        chat.type(CTRL_D)
        assert chat.end() == 0 and " one" in chat.said and " two" in chat.said
        seen = without_load_progress(chat.said.encode())
        assert not harmful(seen, colour=True)
        assert (b"\x1b[" in seen) is ("NO_COLOR" not in env)
        assert "Traceback" not in chat.said


def _chat_without_a_word(model: Path) -> None:
    session = ChatSession(ResolvedPair(model, None), 1)
    options = ChatLaunchOptions(lambda _: SettingsRequest(LoadCommand("x.gguf", None)))
    front_end = LinearFrontEnd(session, OutputStyle())

    def end_input(_: str) -> str:
        raise EOFError

    opening = Opening([ScriptedEngine()])
    assert ChatLoop(options, front_end, opening, end_input).run() == 0


def test_the_model_that_came_along_says_once_that_it_is_a_toy(
    tmp_path: Path,
    zoo: Zoo,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    toy = packagefile.install(tmp_path / "packages", zoo["chatty"], monkeypatch)

    _chat_without_a_word(toy)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("This model is a toy, and often wrong.") == 1
    assert "`localspec pair suggest` finds a real one." in said

    recent_pairs.save_last(str(zoo["target"]), "none")
    _chat_without_a_word(toy)
    assert "toy" not in capsys.readouterr().err

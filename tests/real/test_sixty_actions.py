"""Sixty actions with the starter, in a terminal of two sizes: no screen contradicts itself.

Every screen is kept as text in the test's folder (`--basetemp`), to be looked at. Only with
LOCALSPEC_TEST_SESSION=1: its answers are sampled without a seed, and once in twelve runs it failed
for a reason that was not found.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("there is no tmux", allow_module_level=True)

from localspec.tui.screens import chat
from tests.cli.command import ROOT
from tests.real.screens import find_contradictions
from tests.support.tmux import ENTER, ESCAPE, PROMPT, Tmux

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        "LOCALSPEC_TEST_SESSION" not in os.environ,
        reason="unseeded answers, a person looks at them: LOCALSPEC_TEST_SESSION=1 runs it",
    ),
]

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}
STARTER = "SmolLM2"
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
_STILL = 8
"""Equal looks in a row after which a screen counts as still."""

Wanted = str | Callable[[str], object]


class Recording:
    """Does one action after the other; keeps and checks the screen after each."""

    def __init__(self, tmux: Tmux, folder: Path) -> None:
        self.tmux, self.folder = tmux, folder
        self.n, self.problems = 0, list[str]()
        self.answered_at = float("-inf")
        folder.mkdir()

    def do(self, name: str, *keys: str, typed: str = "", wait: Wanted = "") -> str:
        """Types, presses, waits, and keeps the still screen."""
        if typed:
            self.tmux.type(typed)
        if ESCAPE in keys:  # one that comes earlier was meant to stop the answer
            patience = self.answered_at + chat.LATE_ESCAPE_SECONDS
            self.tmux.wait_for(lambda _: time.monotonic() > patience)
        if keys:
            self.tmux.press(*keys)
        self.tmux.wait_for(wait)
        return self.keep(name, self.still())

    def keep(self, name: str, seen: str) -> str:
        self.n += 1
        (self.folder / f"{self.n:02} {name}.txt").write_text(seen, encoding="utf-8")
        self.problems += [f"{self.n:02} {name}: {what}" for what in find_contradictions(seen)]
        return seen

    def still(self) -> str:
        last, equal = "", 0

        def is_still(seen: str) -> bool:
            nonlocal last, equal
            last, equal = seen, equal + 1 if seen == last else 0
            return equal >= _STILL

        return self.tmux.wait_for(is_still)

    def ask(self, name: str, question: str) -> str:
        """Until its answer has ended."""
        self.tmux.type(question)
        self.tmux.wait_for(question[-20:])
        return self.answered(name, ENTER)

    def answered(self, name: str, key: str) -> str:
        """Presses the key that begins an answer, and waits until it has ended."""
        before = status(self.tmux.screen)
        self.tmux.press(key)
        self.tmux.wait_for(
            lambda seen: is_answering(seen) or "first token" in status(seen) != before
        )
        seen = self.do(name, wait=lambda seen: not is_answering(seen))
        self.answered_at = time.monotonic()
        return seen

    def command(self, name: str, typed: str, wait: Wanted) -> str:
        return self.do(name, ENTER, typed=typed, wait=wait)


def status(seen: str) -> str:
    return seen.splitlines()[-1]


def is_answering(seen: str) -> bool:
    return "esc stop" in status(seen)


@pytest.fixture(params=SIZES.values(), ids=list(SIZES))
def app(request: pytest.FixtureRequest, smollm: Path, tmp_path: Path) -> Tmux:
    """Its first start, with the starter's package installed."""
    tmux = Tmux(request.param, tmp_path / "data", first=True)
    packages = f"{ROOT}{os.pathsep}{smollm.parents[1]}"
    tmux.type(f"cd {tmp_path}; export PYTHONPATH={packages} LOCALSPEC_STARTER=1")
    tmux.press(ENTER)
    tmux.run()
    return tmux


@pytest.mark.timeout(600)
def test_no_screen_contradicts_itself(app: Tmux, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The landlord lives in Utrecht.\n" * 3)
    with app as tmux:
        session = Recording(tmux, tmp_path / "screens")
        look_around(session)
        talk(session)
        look_at_tokens(session)
        change_settings(session)
        write(session)
        change_the_model(session)
        keep(session)
    assert session.n >= 60
    assert not session.problems, "\n".join(session.problems)


# --- its parts --------------------------------------------------------------------------------


def look_around(session: Recording) -> None:
    session.do("first screen", wait=lambda seen: "billion" in seen or "Little memory" in seen)
    session.do("home", ESCAPE, wait="Ready to run")
    session.do("help", "F1", wait="Everywhere")
    session.do("help, a page on", "PageDown")
    session.do("home again", ESCAPE, wait="Ready to run")
    session.do("search", typed="/bicycle", wait="Search the hub")
    session.do("search left", ESCAPE, wait="Ready to run")
    session.do("wizard, uses", "w", wait="1 of 3")
    session.do("wizard, pairs", "1", wait="lookup")
    session.do("wizard, a pair", ENTER, wait="3 of 3")
    session.do("wizard, what if", "Right")
    session.do("wizard left", ESCAPE, wait="2 of 3")
    session.tmux.leave_chat()
    session.do("preferences", "F10", wait="‹ localspec-dark ›")
    session.do("preferences left", ESCAPE, wait="Ready to run")
    session.do("diagnostics", "F9", wait="network:")
    session.do("diagnostics left", ESCAPE, wait="Ready to run")
    session.do("at the starter", "Home", wait=f"▸ {STARTER}")


def talk(session: Recording) -> None:
    session.do("chat", ENTER, wait="What is a bicycle?")
    session.command("a limit", "/set max_tokens 60", "max_tokens: 60")
    session.do("typed", typed="What is a bicycle?", wait="about 5 tokens")
    session.answered("answered", ENTER)
    session.do("panel toggled", "F3")
    session.ask("second answer", "Count from 1 to 30.")
    session.command("a long limit", "/set max_tokens 900", "max_tokens: 900")
    session.tmux.type("Write a long story about a dog.")
    session.tmux.press(ENTER)
    session.tmux.wait_for(lambda seen: is_answering(seen) and "reading" not in seen)
    session.keep("while it answers", session.tmux.screen)
    session.tmux.press(ESCAPE)
    session.do("stopped", wait=lambda seen: not is_answering(seen) and "stopped" in seen)
    session.command("a limit again", "/set max_tokens 60", "max_tokens: 60")
    session.answered("regenerated", "F5")


def look_at_tokens(session: Recording) -> None:
    session.do("tokens", "F2", wait="target probability")
    session.do("earlier tokens", "Left", "Left", "Left")
    session.do("an earlier round", "Up")
    session.do("tokens left", ESCAPE, wait="enter send")
    session.do("tokens off", "F2")
    session.do("replay", "F7", wait="Replay")
    session.do("replay, on", "Right", "Right", "Right")
    session.do("replay left", ESCAPE, wait="enter send")


def change_settings(session: Recording) -> None:
    session.do("settings", "F4", wait="Settings for the next answer")
    session.do("a wrong value", ENTER, typed="2x", wait="cannot be '2x'")
    session.do("a right value", typed="0", wait=lambda seen: re.search(r"temperature +0\b", seen))
    session.do("settings left", ESCAPE, wait=lambda seen: "Settings for" not in seen)
    switched = session.do("speculation switched", "C-s", wait="spec: ")
    if "spec: off" not in switched:  # where it pauses, the key first turns it on for show
        session.do("speculation off", "C-s", wait="spec: off")
    session.ask("answered without", "Name three trees.")
    session.do("speculation on", "C-s", wait="spec: auto")
    session.ask("answered with", "Name three more trees.")
    session.command("shown", "/show", "Settings for the next answer")
    session.do("shown, left", ESCAPE, wait=lambda seen: "Settings for" not in seen)
    session.command("a seed", "/set seed 7", "seed: 7")
    session.command("a schema", f"/set json_schema {SCHEMA}", "json_schema: ")
    assert '{"n"' in session.ask("answered as JSON", "How many legs has a dog?").replace(
        '{ "', '{"'
    )
    session.command("no schema", "/set json_schema off", "json_schema: off")
    session.command("a wrong setting", "/set top_p 7", "top-p cannot be '7'")


def write(session: Recording) -> None:
    session.do("half a thought", typed="half a thought", wait="half a thought")
    session.do("cleared", ESCAPE, wait="brings the text back")
    session.do("brought back", "Up", wait=lambda seen: "half a thought" in seen.partition("╭")[2])
    session.do("cleared again", ESCAPE)
    session.do("commands", typed="/re", wait="/read")
    session.do("commands left", ESCAPE)
    session.do("emptied", ESCAPE)
    session.command("attached", "/read note.txt", "Attached to your next message")
    session.ask("asked about it", "Where does the landlord live?")
    session.do("copied", "C-o", wait=lambda seen: re.search("Copied|Sent to|Written", seen))
    session.do("edited", "F6")
    session.do("edit left", ESCAPE)
    session.do("turns", "F8", wait="Turns")
    session.do("turns left", ESCAPE, wait="enter send")
    session.command("unknown", "/modle", "Unknown command")
    session.do("palette", "C-p", wait="Search for commands")
    session.do("palette, searched", typed="export", wait="Save the chat to a file")
    session.do("palette left", ESCAPE, wait="enter send")


def change_the_model(session: Recording) -> None:
    session.do("picker", "F12", wait="Answer with another model")
    session.do("picker left", ESCAPE, wait="enter send")
    session.command("no draft", "/draft none", "From now on")
    session.tmux.wait_for(" ctx ")
    session.ask("answered without a draft", "What is a lake?")
    session.command("a small context", "/ctx 1024", " / 1.0k")
    session.ask("answered in it", "What is a river?")


def keep(session: Recording) -> None:
    session.command("renamed", "/rename Sixty actions", "The chat is called Sixty actions")
    session.command("saved", "/save chat.md", "Saved:")
    session.tmux.leave_chat()
    session.do("home with a chat", wait="Sixty actions")
    session.do("at the chat", typed="/sixty", wait="▸ Sixty actions")
    session.do("opened again", ENTER, wait=lambda seen: " ctx " in seen and "ctx 0 " not in seen)
    session.do("left for good", "C-q", wait=PROMPT.strip())

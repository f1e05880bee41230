"""Journeys from start to quit, keyboard only, in a real terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("there is no tmux", allow_module_level=True)

from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.tui.widgets.token_details import LEGEND
from tests.support.long_cases import often
from tests.support.tmux import BACKTAB, ENTER, ESCAPE, PROMPT, Tmux, context
from tests.support.zoo import Zoo

BEFORE = "what was here before"
GREETING = "f2: token view"
"""Shown in an empty chat once the pair is loaded."""


@pytest.fixture(params=often({"80x24": (80, 24), "120x40": (120, 40)}, ("80x24",)))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tmux]:
    """The app on Home, started from a shell with earlier output."""
    with Tmux(request.param, tmp_path) as tmux:
        tmux.type(f"echo {BEFORE}; stty -g > {tmp_path}/before")
        tmux.press(ENTER)
        tmux.wait_for(f"\n{BEFORE}")
        tmux.run()
        tmux.wait_for("Ready to run")
        yield tmux


# --- steps ------------------------------------------------------------------------------------


def ask(tmux: Tmux, text: str) -> str:
    """Sends a line; returns the screen when the answer is complete."""
    before = context(tmux.screen)
    tmux.type(text)
    tmux.press(ENTER)
    return tmux.wait_for(lambda seen: context(seen) > before and "first token" in seen)


def begin_anew(tmux: Tmux) -> None:
    tmux.press("C-n")
    tmux.wait_for(GREETING)


def always_draft(tmux: Tmux) -> None:
    """Without it no token may be drafted: on a busy machine drafting may not be worth it.

    Returns when the message that says so has gone, since it covers a part of the answer.
    """
    tmux.type("/spec model")
    tmux.press(ENTER)
    tmux.wait_for("spec: model,")
    tmux.wait_for(lambda seen: "spec: model," not in seen)


def change(tmux: Tmux, label: str, value: str) -> None:
    """Changes a setting in the sheet."""
    tmux.press("F4")
    tmux.wait_for("Settings for the next answer")
    tmux.press(*["Down"] * SETTINGS.index(label))
    tmux.type(value)
    tmux.wait_for(lambda seen: re.search(rf"{label} +{re.escape(value)}\b", seen))
    close_sheet(tmux)


def close_sheet(tmux: Tmux) -> None:
    tmux.press(ESCAPE)
    tmux.wait_for(lambda seen: "enter, tab next" not in seen and "esc back" in seen)


SETTINGS = [about.label for about in CHAT_SETTING_FIELDS.values()]


def leave(tmux: Tmux, folder: Path) -> None:
    """Quits, and checks that the shell is unchanged."""
    tmux.press("C-q")
    seen = tmux.wait_for(PROMPT.strip())
    assert f"\n{BEFORE}" in seen
    tmux.type(f"echo left with $?; stty -g > {folder}/after")
    tmux.press(ENTER)
    tmux.wait_for("\nleft with 0")
    flags = "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{mouse_sgr_flag}"
    assert tmux.asks(flags) == "0 1 0 0"
    assert (folder / "after").read_text() == (folder / "before").read_text()


# --- the demo pair ----------------------------------------------------------------------------


def test_the_demo_pair(home: Tmux, tmp_path: Path) -> None:
    home.press(ENTER)
    home.wait_for(GREETING)
    always_draft(home)
    change(home, "temperature", "0")  # a sampled answer may end in its second round
    change(home, "max tokens", "60")
    ask(home, "import os")
    look_at_tokens(home)
    replay(home)
    temperature(home)
    stop_and_regenerate(home)
    leave(home, tmp_path)


def look_at_tokens(tmux: Tmux) -> None:
    """The token view: classes, cursor, and probabilities of the selected token."""
    tmux.press("F2")
    tmux.wait_for("target probability")
    tmux.wait_for(
        lambda seen: all(label in seen for label, _ in LEGEND.values())
    )  # toasts are gone
    met: set[str] = set()
    while met != KINDS:
        number = round_number(tmux.screen)
        assert number > 3, f"not met: {KINDS - met}; {tmux.screen}"
        for keys in (("Up", "Left"), ("Left",)):  # the last token of a round, and the one before
            seen = tmux.coloured
            tmux.press(*keys)
            tmux.wait_for(lambda _, before=seen: tmux.coloured != before)  # type: ignore[misc]
            met |= {words for words in KINDS if words in tmux.screen}
    number = round_number(tmux.screen)
    tmux.press("Up", "Up")
    tmux.wait_for(lambda seen: round_number(seen) < number)
    tmux.press("Down", "Down", "Right")
    tmux.wait_for(lambda seen: round_number(seen) >= number)


KINDS = {"accepted draft token", "corrected: "}


def round_number(screen: str) -> int:
    """The round of the selected token; 0 without one."""
    found = re.search(r"round (\d+) ·", screen)
    return int(found[1]) if found else 0


def replay(tmux: Tmux) -> None:
    tmux.press("r")
    tmux.wait_for("Replay")
    for key, number in (("Right", 2), ("Right", 3), ("Left", 2), ("Home", 1)):
        tmux.press(key)
        tmux.wait_for(lambda seen, number=number: round_number(seen) == number)  # type: ignore[misc]
    tmux.press(ESCAPE)
    tmux.wait_for("ctx")
    tmux.press(ESCAPE)
    tmux.wait_for("enter send")


def temperature(tmux: Tmux) -> None:
    """At temperature 0 the answer is always the same."""
    answers = []
    for _ in range(2):
        begin_anew(tmux)
        change(tmux, "temperature", "0")
        change(tmux, "max tokens", "60")
        ask(tmux, "import os")
        answers.append(transcript(tmux.wait_for("stopped at the max-token limit")))
    assert len(answers[0]) > 60
    assert answers[0] == answers[1]


def transcript(screen: str) -> str:
    """The part of the screen between title and composer, left of the panel."""
    lines = screen.partition("╭")[0].splitlines()[1:]
    return "\n".join(line.partition("▏")[0].rstrip() for line in lines)


def stop_and_regenerate(tmux: Tmux) -> None:
    begin_anew(tmux)
    change(tmux, "temperature", "0")  # a sampled answer may end before it can be stopped
    change(tmux, "max tokens", "900")
    tmux.type("import os")
    tmux.press(ENTER)
    for key in ("F5", None):
        tmux.wait_for(lambda seen: context(seen) > 20 and "stopped" not in seen)
        tmux.press(ESCAPE)
        tmux.wait_for(lambda seen: re.search(r"stopped in \d+ ms", seen))
        if key:
            tmux.press(key)


# --- a chat model -----------------------------------------------------------------------------


DIALOG = "Open model files"


def open_pair(tmux: Tmux, target: Path, draft: Path) -> None:
    """Opens two files in the dialog."""
    tmux.press("o")
    tmux.wait_for(DIALOG)
    tmux.type(str(target))
    tmux.press(ENTER)
    tmux.wait_for("a GGUF model")
    tmux.type(str(draft))
    tmux.press(ENTER)


def test_a_chat_model(home: Tmux, tmp_path: Path, zoo: Zoo) -> None:
    open_pair(home, zoo["chatty"], zoo["chatty"])
    home.wait_for(GREETING)
    alone = chat(home)
    begin_anew(home)
    home.press("F4")
    home.wait_for("Settings for the next answer")
    home.press(BACKTAB)
    home.type("Answer in verse, and be brief.")
    home.wait_for("Answer in verse")
    close_sheet(home)
    always_draft(home)
    assert chat(home) > alone
    home.press("F2")
    home.wait_for("accepted   bonus")  # toasts are gone
    while "accepted draft token" not in home.screen:
        seen = home.coloured
        home.press("Left")
        home.wait_for(lambda _, seen=seen: home.coloured != seen)  # type: ignore[misc]
    leave(home, tmp_path)


def chat(tmux: Tmux) -> int:
    """Four turns with Markdown; returns the context size after the first."""
    contexts = []
    for question in ("Hello", "And then?", "Why is that?", "Thank you!"):
        seen = ask(tmux, question)
        contexts.append(context(seen))
        shown = tmux.wait_for("Anything else?")
        assert "return 2 * x" in shown
        assert "漢字" in shown
        assert "**" not in shown
        assert "```" not in shown
    assert contexts == sorted(contexts)
    return contexts[0]


# --- what cannot be opened --------------------------------------------------------------------


def test_what_cannot_be_opened_says_why(home: Tmux, tmp_path: Path, zoo: Zoo) -> None:
    no_model = tmp_path / "no.gguf"
    no_model.write_text("A letter to the landlord.")
    home.press("o")
    home.wait_for(DIALOG)
    for path, reason in (
        (tmp_path / "gone.gguf", "There is no file"),
        (no_model, "is a text file"),
    ):
        home.type(str(path))
        home.press(ENTER)
        home.wait_for(reason)
        home.press("C-u")
        home.wait_for("/path/to/big.gguf")  # the empty field
    give_up(home)
    open_pair(home, zoo["f32"], zoo["renamed"])
    home.wait_for(lambda seen: "✗" in seen and "257" in seen)
    give_up(home)
    leave(home, tmp_path)


def give_up(tmux: Tmux) -> None:
    tmux.press(ESCAPE)
    tmux.wait_for(lambda seen: DIALOG not in seen)


def test_copied_in_tmux(home: Tmux) -> None:
    """tmux has the text, and says so; it passes it to the terminal itself."""
    home.press(ENTER)
    home.wait_for(GREETING)
    ask(home, "def f(a):")
    home.press("C-o")
    home.wait_for("Copied")
    copied = home.buffer
    lines = [line.strip() for line in copied.splitlines() if line.strip()]
    assert any(line in home.screen for line in lines)  # a long answer is not all in sight

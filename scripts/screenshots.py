#!/usr/bin/env python3
"""Make the pictures of README.md and docs/tour.md.

.venv/bin/python scripts/screenshots.py [--only live|run|chat|tokens|tour] [--folder docs]

Writes docs/{live,run,chat,tokens}.svg and docs/tour/*.svg. `live` is a recording of the
starter model in slow motion, the others show the demo pair. The text is the same on every
machine (fixed seed); speeds and draft lengths are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import tour
from animated_svg import Frame, animate
from rich.console import Console
from rich.text import Text
from textual.pilot import Pilot
from tour import svg, until

from localspec import launch
from localspec.chat.examples import EXAMPLES
from localspec.protocol.events import Round, Token
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.screens.chat import ChatScreen

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("live", "run", "chat", "tokens", "tour")
SIZE = (110, 32)
SEED = 5
TEMPERATURE = "0.7"
LENGTH = "71"
CODE = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):"
PROMPT = "import os\nimport sys\n\ndef main():\n    parser = argparse"
TEXT = EXAMPLES[0].message
LIVE_SIZE = (118, 22)
FRAME_SECONDS = 0.12
END_SECONDS = 6.0
"""How long the end of the recording is shown, before it begins again."""
ARGUMENTS = ["run", "demo", "--max-tokens", "72", "--seed", "3", "--temperature", "0.7"]
SHOWN = ["--tokens", "--stats"]


def run() -> str:
    """The output of the command, colours included."""
    done = subprocess.run(
        [sys.executable, "-m", "localspec", *ARGUMENTS, *SHOWN, "-p", PROMPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        cwd=ROOT,
        check=True,
    )
    return done.stdout.decode("utf-8")


def picture_of_run() -> str:
    """The command line, colours included."""
    console = Console(
        record=True,
        width=100,
        file=open(os.devnull, "w"),  # noqa: SIM115
        force_terminal=True,
    )
    shown = " ".join(ARGUMENTS + SHOWN)
    console.print(Text(f"$ scripts/run {shown} < prompt.py", style="dim"))
    console.print(Text().append(PROMPT, style="dim").append_text(Text.from_ansi(run())))
    return console.export_svg(title="localspec", unique_id="localspec-run")


# --- the app
# ----------------------------------------------------------------------------------


async def open_first(pilot: Pilot[None]) -> ChatScreen:
    """Goes from Home to a chat with the first model, and waits for its load."""
    await pilot.press("enter")
    await until(pilot, lambda: phase(pilot) == "ready")
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    return screen


async def answered(pilot: Pilot[None]) -> ChatScreen:
    """Goes from Home to the chat and lets the demo pair answer the prompt."""
    screen = await open_first(pilot)
    screen.session.settings = screen.session.settings.with_value(
        "temperature", TEMPERATURE
    )
    screen.session.settings = screen.session.settings.with_value("max_tokens", LENGTH)
    for spec in ("off", "on"):  # plain first, so that the panel can compare
        await ask(pilot, screen, f"/spec {spec}")
        await ask(pilot, screen, "/clear")
        await ask(pilot, screen, CODE)
        await until(pilot, lambda: has_answered(screen))
    screen.app.clear_notifications()
    return screen


async def recording() -> str:
    """The starter model answers its first example in slow motion, as an animated SVG."""
    app = LocalspecApp(AppOptions(seed=SEED))
    async with app.run_test(size=LIVE_SIZE) as pilot:
        try:
            screen = await open_first(pilot)
            # The copy that is made while nothing is asked verifies faster.
            target = screen.session.pair.target
            await until(pilot, lambda: launch.has_faster_copy(target))
            await pilot.press("escape")
            await until(pilot, lambda: phase(pilot) == "")
            await pilot.press("home")
            screen = await open_first(pilot)
            screen.session.settings = screen.session.settings.with_value(
                "temperature", "0"
            )
            # Plain first, so that the panel can compare.
            await ask(pilot, screen, "/spec off")
            await ask(pilot, screen, TEXT)
            await until(pilot, lambda: has_answered(screen))
            await ask(pilot, screen, "/clear")
            await ask(pilot, screen, "/spec lookup")
            screen.app.clear_notifications()
            await ask(pilot, screen, "/set panel on")
            screen.options.slow_motion = True
            await ask(pilot, screen, TEXT)
            frames = await record(pilot, screen)
        finally:
            app.runner.close()
    return animate(frames, "localspec-live")


async def record(pilot: Pilot[None], screen: ChatScreen) -> list[Frame]:
    """Pictures until the answer has been shown; each for as long as it was there."""
    frames: list[Frame] = []
    shown = svg(screen.app, "live")
    began = time.monotonic()
    while not has_answered(screen):
        await pilot.pause(FRAME_SECONDS)
        picture = svg(screen.app, "live")
        if picture != shown:
            now = time.monotonic()
            frames.append(Frame(shown, now - began))
            shown = picture
            began = now
    frames.append(Frame(svg(screen.app, "live"), END_SECONDS))
    return frames


async def ask(pilot: Pilot[None], screen: ChatScreen, text: str) -> None:
    screen.composer.replace_text(text)
    await pilot.press("enter")


def has_answered(screen: ChatScreen) -> bool:
    turns = screen.session.conversation.turns
    return bool(turns and turns[-1].finish_reason) and screen.phase == "ready"


def phase(pilot: Pilot[None]) -> str:
    screen = pilot.app.screen
    return screen.phase if isinstance(screen, ChatScreen) else ""


async def to_a_correction(pilot: Pilot[None], screen: ChatScreen) -> None:
    """Goes to the tokens and selects a correction near their middle."""
    await pilot.press("tab")
    await until(pilot, lambda: screen.phase == "ready")  # The probabilities are there.
    rounds = screen.session.conversation.turns[-1].rounds
    tokens: list[Token] = []
    places: list[int] = []  # Of the corrections to choose from.
    for round_ in rounds:
        tokens += round_.tokens
        if is_telling(round_):
            places.append(len(tokens) - 1)
    middle = len(tokens) // 2
    goal = min(places, key=lambda n: abs(n - middle), default=middle)
    for _ in range(len(tokens) - 1 - goal):
        await pilot.press("left")


def is_telling(round_: Round) -> bool:
    """Whether it ends in a correction, and that and the rejected token are words."""
    if not round_.rejected or round_.tokens[-1].kind != "correction":
        return False
    words = (round_.tokens[-1].text.strip(), round_.rejected[0].strip())
    return all(map(str.isidentifier, words))


async def pictures_of_app(names: Collection[str]) -> dict[str, str]:
    app = LocalspecApp(AppOptions(seed=SEED))
    made: dict[str, str] = {}
    async with app.run_test(size=SIZE) as pilot:
        try:
            screen = await answered(pilot)
            await pilot.pause(0.2)
            made["chat"] = svg(app, "chat")
            if "tokens" in names:
                await to_a_correction(pilot, screen)
                await pilot.pause(0.2)
                made["tokens"] = svg(app, "tokens")
        finally:
            app.runner.close()
    return {name: picture for name, picture in made.items() if name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=NAMES, help="this picture; repeatable"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    names = args.only or NAMES
    # keeps personal data out of the pictures
    with tempfile.TemporaryDirectory() as data:
        os.environ |= {"LOCALSPEC_DATA_DIR": f"{data}/data", "GGML_NO_BACKTRACE": "1"}
        made = (
            asyncio.run(pictures_of_app(names))
            if {"chat", "tokens"} & set(names)
            else {}
        )
        if "live" in names:
            made["live"] = asyncio.run(recording())
        if "run" in names:
            made["run"] = picture_of_run()
        if "tour" in names:
            toured = asyncio.run(tour.pictures(Path(data)))
            made |= {f"tour/{name}": picture for name, picture in toured.items()}
    for name, picture in made.items():
        path = args.folder / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

"""Starts the app in its own process, on a screen that a test chooses.

python -m tests.support.drive_app WHAT [FILE ...], where WHAT is
chat TARGET [DRAFT]   a chat with these files
says FILE             a chat with an engine that says the file's words
completes FILE        the same, of a text-completion model
crash                 Home, where f12 raises inside a handler
"""

import json
import sys
from pathlib import Path
from typing import Any

from textual import events
from textual.screen import Screen

from localspec.chat.session import ChatSession
from localspec.errors import UsageError
from localspec.launch import ResolvedPair
from localspec.protocol.events import EngineExit, Notice, SpeculationPlan
from localspec.tui import app
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from tests.support.scripted_engine import Opening, ScriptedEngine, answer, ready

SECRET = "what they said to each other"


class DrivenApp(app.LocalspecApp):
    """What it notifies goes away after a second: tests wait for what is below."""

    CSS_PATH = str(Path(app.__file__).with_name("localspec.tcss"))

    def notify(self, message: str, **how: Any) -> None:
        super().notify(message, **how | {"timeout": 1.0})

    def on_key(self, event: events.Key) -> None:
        if event.key == "f12":
            said = SECRET
            raise ZeroDivisionError(f"of {len(said)}")


def said(path: Path, chats: bool) -> tuple[ChatSession, EngineRunner]:
    """Uses the same words for names, notices, answers, errors and exits."""
    words = json.loads(path.read_text(encoding="utf-8"))
    whole = "".join(words)
    notice = Notice("warning", whole, whole, whole)
    plan = SpeculationPlan("paused", whole)
    engine = ScriptedEngine(
        lambda: [plan, notice, *answer(words, tail=f"{words[0]}LAST")],
        lambda: [UsageError(whole, whole)],
        lambda: [*answer(words)[:-1], EngineExit(whole, tuple(words), whole)],
        ready=ready(chats=chats, notices=(notice,)),
    )
    opening = Opening(
        [engine, UsageError(f"{whole}NOT AGAIN", whole)], says=[plan, notice]
    )
    name = whole.replace("/", "")
    return ChatSession(
        ResolvedPair(Path(f"{name}.gguf"), Path(f"{name}.gguf"))
    ), EngineRunner(opening)


def main(what: str, *files: str) -> int:
    options = app.load_options()
    runner = EngineRunner()
    if what in ("says", "completes"):
        dialogue, runner = said(Path(files[0]), what == "says")
    elif what == "chat":
        draft = Path(files[1]) if len(files) > 1 else None
        history = options.chats.history if options.chats else None
        dialogue = ChatSession(ResolvedPair(Path(files[0]), draft), history=history)

    def first() -> Screen[None]:
        return ChatScreen(dialogue, runner, options)

    shown = DrivenApp(options, runner, first if files else None)
    try:
        shown.run()
    finally:
        runner.close()
    return shown.return_code or 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

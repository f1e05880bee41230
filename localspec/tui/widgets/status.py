"""The last line: the keys of the moment, and what the context holds."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from localspec.tui.dialogue import Dialogue
from localspec.tui.figures import Figures
from localspec.tui.keys import footer, name
from localspec.tui.options import Options
from localspec.tui.widgets.transcript import Transcript
from localspec.units import milliseconds


class Status(Horizontal):
    """Keys to the left, numbers to the right."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._shown = ("", "")

    def compose(self) -> ComposeResult:
        yield Static("", id="hints", markup=False)
        yield Static("", id="numbers", markup=False)

    def draw(self, dialogue: Dialogue, phase: str, transcript: Transcript) -> None:
        """The keys of what is going on; where there is little room, the numbers alone."""
        own = self._options.keymap
        keys = (
            footer(own, "tokens") if transcript.walking else footer(own, "composer", "chat", "app")
        )
        numbers = _numbers(dialogue, phase)
        if not transcript.following:
            end = name(own.get("chat.end", "ctrl+end"))
            numbers = f"more below: {end}   {numbers}"
        room = self.size.width - len(numbers) - 3
        shown = (_fitting(keys, room), numbers)
        if shown != self._shown:
            self._shown = shown
            self.query_one("#hints", Static).update(Content(shown[0]), layout=False)
            self.query_one("#numbers", Static).update(Content(shown[1]))


def _fitting(keys: str, room: int) -> str:
    """As many whole hints as there is room for."""
    while len(keys) > room and "  " in keys:
        keys = keys.rpartition("  ")[0]
    return keys if len(keys) <= room else ""


def _numbers(dialogue: Dialogue, phase: str) -> str:
    figures = dialogue.figures
    if phase == "loading":
        return "loading"
    parts: list[str] = []
    if figures.reading is not None and figures.reading.done < figures.reading.total:
        parts.append(f"reading {figures.reading.done:,} / {figures.reading.total:,}")
    if dialogue.loaded is not None:
        parts.append(f"ctx {_short(figures.context)} / {_short(dialogue.loaded.n_ctx)}")
    parts += _of_the_answer(figures)
    return "   ".join(parts)


def _of_the_answer(figures: Figures) -> list[str]:
    parts = []
    if figures.reused:
        parts.append(f"reused {_short(figures.reused)}")
    if figures.first_token_ms is not None:
        parts.append(f"first token {milliseconds(figures.first_token_ms)}")
    return parts


def _short(n: int) -> str:
    return f"{n / 1000:.1f}k" if n >= 1000 else str(n)

"""The last line: the keys of the moment, and what the context holds."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from localspec.tui.dialogue import Dialogue
from localspec.tui.keys import fitting, footer, name
from localspec.tui.options import Options
from localspec.tui.widgets.transcript import Transcript
from localspec.units import milliseconds

_NARROW = 80
"""Cells of a terminal that has no room for all: as the breakpoint of the app."""


class Status(Static):
    """Keys to the left, numbers to the right; one text, so that no number moves the layout."""

    def __init__(self, options: Options) -> None:
        super().__init__(markup=False)
        self._options = options
        self._words = ("", "")

    def draw(self, dialogue: Dialogue, phase: str, transcript: Transcript) -> None:
        """The keys of what is going on; where there is little room, the numbers alone."""
        own = self._options.keymap
        if transcript.walking:
            keys = footer(own, "tokens")
        else:
            now = {"chat.stop": "stop" if phase == "answering" else "back"}
            keys = footer(own, "composer", "chat", "app", now=now)
            if transcript.tokens:
                send, _, rest = keys.partition("  ")
                keys = f"{send}  {name(own.get('chat.walk', 'tab'))} walk  {rest}"
        numbers = _numbers(dialogue, phase)
        if transcript.walking and self.app.size.width < _NARROW:
            numbers = ""  # one reads of a token, and needs to know the way back
        if not transcript.following:
            end = name(own.get("chat.end", "ctrl+end"))
            numbers = f"more below: {end}   {numbers}"
        if self._words != (keys, numbers):
            self._words = (keys, numbers)
            self._spread()

    def on_resize(self) -> None:
        self._spread()

    def _spread(self) -> None:
        """The numbers at the right edge, and as many keys as there is room for."""
        keys, numbers = self._words
        width = self.content_size.width
        keys = fitting(keys, width - cell_len(numbers) - 3)
        space = " " * (width - cell_len(keys) - cell_len(numbers))
        self.update(Content(f"{keys}{space}{numbers}"), layout=False)


def _numbers(dialogue: Dialogue, phase: str) -> str:
    figures = dialogue.figures
    if phase == "loading":
        return "loading"
    parts: list[str] = []
    if figures.reading is not None and figures.reading.done < figures.reading.total:
        parts.append(f"reading {figures.reading.done:,} / {figures.reading.total:,}")
    if dialogue.loaded is not None:
        parts.append(f"ctx {_short(figures.context)} / {_short(dialogue.loaded.n_ctx)}")
    if dialogue.left_out:
        parts.append(f"oldest {dialogue.left_out} out")
    if figures.reused:
        parts.append(f"reused {_short(figures.reused)}")
    if figures.first_token_ms is not None and phase != "answering":
        parts.append(f"first token {milliseconds(figures.first_token_ms)}")
    return "   ".join(parts)


def _short(n: int) -> str:
    return f"{n / 1000:.1f}k" if n >= 1000 else str(n)

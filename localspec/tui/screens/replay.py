"""A finished answer again, round by round: what was guessed, kept, corrected."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from localspec.protocol.events import Round
from localspec.tui.figures import Figures
from localspec.tui.keys import bindings, footer
from localspec.tui.options import Options
from localspec.tui.text.flow import Flow
from localspec.tui.text.part import Gap
from localspec.tui.widgets.lines import Lines
from localspec.tui.widgets.panel import Panel
from localspec.tui.widgets.story import Story

_PACE = 0.4
"""Seconds a round while playing."""


class ReplayScreen(Screen[None]):
    """Nothing runs: the rounds are those that were written down."""

    BINDINGS = bindings("replay")

    def __init__(self, question: str, rounds: Sequence[Round], options: Options) -> None:
        super().__init__()
        self._rounds = rounds
        self._options = options
        self._shown = 0
        self._flow = Flow(question, options.glyphs)
        self._flow.mark(marked=True, marks=options.marks)
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Replay", id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with Vertical(id="main"):
                yield Lines(id="past")
                yield Story(self._options.glyphs)
            yield Panel(self._options.glyphs)
        yield Static(Content(footer(self._options.keymap, "replay")), id="hints", markup=False)

    def on_mount(self) -> None:
        self._timer = self.set_interval(_PACE, self._tick, pause=True)
        self.query_one(Lines).parts[:] = [Gap(), self._flow]
        self._go(1)

    def _go(self, shown: int) -> None:
        """Show the first so many rounds."""
        shown = max(1, min(shown, len(self._rounds)))
        flow = self._flow
        if shown < self._shown:
            flow.clear()
            self._shown = 0
        flow.extend([t for r in self._rounds[self._shown : shown] for t in r.tokens])
        self._shown = shown
        last = self._rounds[shown - 1]
        flow.cursor = len(flow.tokens) - 1
        self.query_one(Lines).changed()
        figures = Figures()
        figures.take(self._rounds[:shown])
        self.query_one(Panel).draw(figures, f"ROUND {shown} of {len(self._rounds)}")
        place = Content(f"round {shown} of {len(self._rounds)}")
        self.query_one("#topic", Static).update(place, layout=False)
        token = last.tokens[-1] if last.tokens else None
        self.query_one(Story).tell(token, last, self._options.marks)

    def _tick(self) -> None:
        self._go(self._shown + 1)
        if self._shown == len(self._rounds) and self._timer is not None:
            self._timer.pause()
            self._playing = False

    _playing = False

    def action_step(self, by: int) -> None:
        self._go(self._shown + by)

    def action_play(self) -> None:
        assert self._timer is not None
        if self._shown == len(self._rounds) and not self._playing:
            self._go(1)
        self._playing = not self._playing
        (self._timer.resume if self._playing else self._timer.pause)()

    def action_first(self) -> None:
        self._go(1)

    def action_last(self) -> None:
        self._go(len(self._rounds))

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 1:
            self.dismiss()
        else:
            self.app.exit()

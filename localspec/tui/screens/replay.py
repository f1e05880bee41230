"""A finished answer again, round by round: what was guessed, kept, corrected."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from localspec.protocol.events import Round
from localspec.tui.figures import Figures
from localspec.tui.keys import bindings, footer
from localspec.tui.options import Options
from localspec.tui.widgets.flow import Flow
from localspec.tui.widgets.panel import Panel
from localspec.tui.widgets.story import Story

_PACE = 0.4
"""Seconds a round while playing."""


class ReplayScreen(Screen[None]):
    """Nothing runs: the rounds are those that were written down."""

    BINDINGS = bindings("replay")

    def __init__(self, question: str, rounds: Sequence[Round], options: Options) -> None:
        super().__init__()
        self._question = question
        self._rounds = rounds
        self._options = options
        self._shown = 0
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Replay", id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with Vertical(id="main"):
                with VerticalScroll(id="past", can_focus=False):
                    yield self._flow()
                yield Story(self._options.glyphs)
            yield Panel(self._options.glyphs)
        yield Static(Content(footer(self._options.keymap, "replay")), id="hints", markup=False)

    def _flow(self) -> Flow:
        return Flow(
            self._question,
            marked=True,
            glyphs=self._options.glyphs,
            marks=self._options.marks,
        )

    def on_mount(self) -> None:
        self._timer = self.set_interval(_PACE, self._tick, pause=True)
        self._go(1)

    def _go(self, shown: int) -> None:
        """Show the first so many rounds."""
        shown = max(1, min(shown, len(self._rounds)))
        flow = self.query_one(Flow)
        if shown < self._shown or not flow.tokens:
            flow.tokens.clear()
            flow.extend([t for r in self._rounds[:shown] for t in r.tokens])
            flow.rewrap()
        else:
            flow.extend([t for r in self._rounds[self._shown : shown] for t in r.tokens])
        self._shown = shown
        last = self._rounds[shown - 1]
        flow.cursor = len(flow.tokens) - 1
        self.call_after_refresh(self.query_one("#past", VerticalScroll).scroll_end, animate=False)
        figures = Figures()
        figures.take(self._rounds[:shown])
        self.query_one(Panel).draw(figures, f"ROUND {shown} of {len(self._rounds)}")
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

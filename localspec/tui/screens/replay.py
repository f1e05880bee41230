"""The replay screen: steps through a finished answer round by round."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from localspec.chat.speculation_stats import SpeculationStats
from localspec.protocol.events import Round
from localspec.report.speculation import Phase
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.text.blocks import BlankLine, TokenText
from localspec.tui.widgets.screen_frame import KeyLine
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.text_view import TextView
from localspec.tui.widgets.token_details import TokenDetails

_SECONDS_PER_ROUND = 0.4


class ReplayScreen(Screen[None]):
    BINDINGS = bindings_for("replay")

    def __init__(
        self, prompt: str, rounds: Sequence[Round], options: AppOptions
    ) -> None:
        """`prompt` stands directly before the first token."""
        super().__init__()
        self._rounds = rounds
        self._options = options
        self._n_shown = 0
        self._is_playing = False
        self._token_text = TokenText(prompt)
        self._token_text.set_marking(
            show_classes=True, show_marks=options.show_token_marks
        )
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Replay", id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with Vertical(id="main"):
                yield TextView(id="past", show_marks=self._options.show_token_marks)
                yield TokenDetails()
            yield SpeculationPanel(self._options.ascii_only)
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one(KeyLine).show_keys(format_footer(self._options.keymap, "replay"))
        self._timer = self.set_interval(
            _SECONDS_PER_ROUND, self._play_next_round, pause=True
        )
        self.query_one(TextView).blocks[:] = [BlankLine(), self._token_text]
        self._show_rounds(1)

    def _show_rounds(self, n_rounds: int) -> None:
        n_rounds = max(1, min(n_rounds, len(self._rounds)))
        token_text = self._token_text
        if n_rounds < self._n_shown:
            token_text.clear()
            self._n_shown = 0
        for round_ in self._rounds[self._n_shown : n_rounds]:
            token_text.extend(round_.tokens)
        self._n_shown = n_rounds
        last = self._rounds[n_rounds - 1]
        token_text.cursor = len(token_text.tokens) - 1
        self.query_one(TextView).update_blocks()
        stats = SpeculationStats()
        for event in self._rounds[:n_rounds]:
            stats.add(event)
        position = f"round {n_rounds} of {len(self._rounds)}"
        is_whole = n_rounds == len(self._rounds)
        phase: Phase = "idle" if is_whole else "answering"
        self.query_one(SpeculationPanel).draw(stats, phase)
        self.query_one("#topic", Static).update(Content(position), layout=False)
        token = last.tokens[-1] if last.tokens else None
        self.query_one(TokenDetails).show_token(
            token, last, self._options.show_token_marks
        )

    def _play_next_round(self) -> None:
        self._show_rounds(self._n_shown + 1)
        if self._n_shown == len(self._rounds) and self._timer is not None:
            self._timer.pause()
            self._is_playing = False

    def action_step(self, by: int) -> None:
        self._show_rounds(self._n_shown + by)

    def action_play(self) -> None:
        assert self._timer is not None
        if self._n_shown == len(self._rounds) and not self._is_playing:
            self._show_rounds(1)
        self._is_playing = not self._is_playing
        if self._is_playing:
            self._timer.resume()
        else:
            self._timer.pause()

    def action_first(self) -> None:
        self._show_rounds(1)

    def action_last(self) -> None:
        self._show_rounds(len(self._rounds))

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 1:
            self.dismiss()
        else:
            self.app.exit()

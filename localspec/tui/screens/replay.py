"""The replay screen: plays a finished answer round by round, as it was guessed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.chat.answer import AnswerDelta
from localspec.chat.speculation_stats import SpeculationStats
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import Round
from localspec.report.speculation import Phase
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.scheduling import set_reliable_timer
from localspec.tui.text.blocks import TokenText
from localspec.tui.text.live_frames import NO_GUESS, LiveFrames, LiveGuess
from localspec.tui.widgets.screen_frame import CenteredLayout, KeyLine
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.text_view import TextView
from localspec.tui.widgets.token_details import TokenDetails

_SLOWEST = 0.25
_FASTEST = 16.0


class ReplayScreen(CenteredLayout, Screen[None]):
    BINDINGS = bindings_for("replay")
    # The panel is beside the text in narrower windows than in a chat.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-normal"), (100, "-wide")]  # noqa: RUF012

    def __init__(
        self,
        prompt: str,
        rounds: Sequence[Round],
        options: AppOptions,
        plain_speed: float | None,
    ) -> None:
        """`prompt` stands directly before the first token.

        `plain_speed`: what the answer was compared with, if that was measured.
        """
        super().__init__()
        self._rounds = rounds
        self._options = options
        self._speed = 1.0
        self._n_shown = 0  # Rounds.
        self._plain_speed = plain_speed
        self._stats = self._new_stats()  # Of these rounds.
        self._frames = LiveFrames(is_slow=True)  # Of the rounds after them.
        self._timer: asyncio.TimerHandle | None = None  # None: it does not play.
        self._token_text = TokenText(prompt)
        self._token_text.set_marking(
            show_classes=True, show_marks=options.show_token_marks
        )

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
        self.query_one(TextView).blocks[:] = [self._token_text]
        self._show_rounds(0)
        self._play()

    @property
    def _is_playing(self) -> bool:
        return self._timer is not None

    def _show_rounds(self, n_rounds: int) -> None:
        """Shows so many rounds, and plays on from there."""
        n_rounds = max(0, min(n_rounds, len(self._rounds)))
        if n_rounds < self._n_shown:
            self._token_text.clear()
            self._stats = self._new_stats()
            self._n_shown = 0
        self._add_rounds(n_rounds - self._n_shown)
        self._frames = LiveFrames(is_slow=True)
        self._frames.speed = self._speed
        self._frames.add([_to_delta(event) for event in self._rounds[n_rounds:]])
        self._frames.end()
        self._draw(NO_GUESS)

    def _new_stats(self) -> SpeculationStats:
        return SpeculationStats.of_rounds([], self._plain_speed)

    def _add_rounds(self, number: int) -> None:
        end = self._n_shown + number
        for round_ in self._rounds[self._n_shown : end]:
            self._token_text.extend(round_.tokens)
            self._stats.add(round_)
        self._n_shown = end

    # --- playing
    # ----------------------------------------------------------------------------

    def _play(self) -> None:
        """Shows a frame, and the next one when it is due."""
        now = time.monotonic()
        frame = self._frames.next_frame(now)
        self._add_rounds(len(frame.deltas))
        self._timer = None
        if frame.due is not None:
            wait = max(0.0, frame.due - now)
            self._timer = set_reliable_timer(self, wait, self._play)
        self._draw(frame.guess)

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _draw(self, guess: LiveGuess) -> None:
        """While it plays, the legend is below the text; else the last token's details."""
        text = self._token_text
        text.show_guess(guess)
        token = None
        text.cursor = None
        if text.tokens and not self._is_playing:
            text.cursor = len(text.tokens) - 1
            token = text.tokens[-1]
        self.query_one(TextView).update_blocks()
        position = f"round {self._n_shown} of {len(self._rounds)}"
        is_whole = self._n_shown == len(self._rounds)
        phase: Phase = "idle" if is_whole else "answering"
        self.query_one(SpeculationPanel).draw(self._stats, phase)
        if self._speed != 1.0:
            position += f" · speed ×{self._speed:g}"
        self.query_one("#topic", Static).update(Content(position), layout=False)
        last = self._rounds[self._n_shown - 1] if self._n_shown else None
        self.query_one(TokenDetails).show_token(
            token, last, self._options.show_token_marks
        )
        play = "pause" if self._is_playing else "play"
        labels = {"replay.play": play}
        keys = format_footer(self._options.keymap, "replay", label_overrides=labels)
        self.query_one(KeyLine).show_keys(keys)

    # --- keys
    # ----------------------------------------------------------------------------

    def action_play(self) -> None:
        """Plays or pauses; at the end it plays from the beginning."""
        if self._is_playing:
            self._pause()
            self._show_rounds(self._n_shown)
            return
        if self._n_shown == len(self._rounds):
            self._show_rounds(0)
        self._play()

    def action_step(self, by: int) -> None:
        self._pause()
        self._show_rounds(max(1, self._n_shown + by))

    def action_speed(self, factor: float) -> None:
        self._speed = min(_FASTEST, max(_SLOWEST, self._speed * factor))
        self._frames.speed = self._speed
        if self._is_playing:
            self._pause()
            self._play()
        else:
            self._show_rounds(self._n_shown)

    def action_first(self) -> None:
        self._pause()
        self._show_rounds(1)

    def action_last(self) -> None:
        self._pause()
        self._show_rounds(len(self._rounds))

    def action_back(self) -> None:
        self._pause()
        if len(self.app.screen_stack) > 1:
            self.dismiss()
        else:
            self.app.exit()


def _to_delta(round_: Round) -> AnswerDelta:
    """All of the text is shown, thinking too."""
    text = "".join(token.text for token in round_.tokens)
    return AnswerDelta(round_, (AnswerPart(is_thinking=False, text=text),))

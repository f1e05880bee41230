"""The frame of a screen: its title, its centred columns, and its last line.

The last line has the keys, and in a chat also numbers (`StatusBar`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.layout import DockArrangeResult, WidgetPlacement
from textual.widgets import Static

from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import fit_footer, format_footer, key_label
from localspec.units import milliseconds, token_rate

if TYPE_CHECKING:
    from textual.widget import Widget as _Container

    from localspec.chat.session import ChatSession
    from localspec.tui.widgets.transcript import Transcript
else:
    _Container = object


PAGE_WIDTH = 120
"""The most columns of a page; localspec.tcss calls it `$page-width`."""
_LAST_LINE_HEIGHT = 1


class TitleLine(Horizontal):
    def __init__(self, title: str) -> None:
        super().__init__(id="title")
        self._title = title

    def compose(self) -> ComposeResult:
        yield Static(self._title, id="brand", markup=False)
        yield Static("", id="machine", markup=False)

    def show_status(self, text: str) -> None:
        self.query_one("#machine", Static).update(Content(text), layout=False)


class KeyLine(Static):
    def __init__(self) -> None:
        super().__init__(id="hints", markup=False)
        self._keys = ""

    def show_keys(self, keys: str) -> None:
        """`keys`: as `format_footer` gives them."""
        self._keys = keys
        self.refresh()

    def render(self) -> Content:
        """In the columns of a centred screen, which begin with its title."""
        margin = 0
        if isinstance(self.screen, CenteredLayout):
            margin = max(0, self.outer_size.width - PAGE_WIDTH) // 2
        keys = fit_footer(self._keys, self.content_size.width - 2 * margin)
        return Content(f"{' ' * margin}{keys}")


class CenteredLayout(_Container):
    """Mix-in of a container: centres each child that has a `max-width`.

    Textual's own `align` moves all children together.  This is a plain class, not a widget,
    because a style sheet finds a widget by the first widget class among its bases.
    """

    _available_width = 0

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """`size` is the room for the children; `self.size` may still be the previous one."""
        self._available_width = size.width
        return super().arrange(size, optimal)

    def process_layout(
        self, placements: list[WidgetPlacement]
    ) -> list[WidgetPlacement]:
        """Called by `arrange`. Docked children are not among the placements."""
        centered = []
        for place in placements:
            margin = 0
            if place.widget.styles.max_width is not None:
                width = place.region.width + place.margin.width
                margin = max(0, self._available_width - width) // 2
            region = place.region.translate((margin, 0))
            centered.append(place._replace(region=region))
        return centered


class NotificationFloor(Vertical):
    """What is above the last line and stays readable: notifications appear above it.

    The message that is typed is such a widget, whatever its height.
    """

    def on_resize(self, event: events.Resize) -> None:
        height = event.size.height + _LAST_LINE_HEIGHT
        self.screen.query("ToastRack").set_styles(f"margin: 0 1 {height} 0;")


class StatusBar(Static):
    """A single text, so that the layout does not move."""

    def __init__(self, options: AppOptions) -> None:
        super().__init__(markup=False)
        self._options = options
        self._keys_and_numbers = ("", "")

    def draw(
        self,
        session: ChatSession,
        phase: str,
        transcript: Transcript,
        *,
        with_speed: bool,
    ) -> None:
        keymap = self._options.keymap
        if transcript.is_cursor_active:
            keys = format_footer(keymap, "tokens")
        else:
            labels = {"chat.stop": "back"}
            if phase == "answering":
                labels = {"chat.newline": "", "chat.replay": "slow motion"}
                if self._options.slow_motion:
                    labels["chat.replay"] = "full speed"
            keys = format_footer(
                keymap, "composer", "chat", "app", label_overrides=labels
            )
        numbers = _status_numbers(session, phase)
        speed = session.answer.tokens_per_second
        if with_speed and speed is not None and phase != "answering":
            numbers = f"{token_rate(speed)}   {numbers}"
        if transcript.is_cursor_active and self.screen.has_class("-narrow"):
            numbers = ""  # the keys are needed to leave the token view
        if not transcript.following:
            numbers = f"more below: {key_label('chat.end', keymap)}   {numbers}"
        if self._keys_and_numbers != (keys, numbers):
            self._keys_and_numbers = (keys, numbers)
            self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        keys, numbers = self._keys_and_numbers
        width = self.content_size.width
        while cell_len(numbers) > width and "   " in numbers:
            numbers = numbers.rpartition("   ")[0]
        keys = fit_footer(keys, width - cell_len(numbers) - 3)
        space = " " * (width - cell_len(keys) - cell_len(numbers))
        self.update(Content(f"{keys}{space}{numbers}"), layout=False)


def _status_numbers(session: ChatSession, phase: str) -> str:
    stats = session.stats
    if phase == "loading":
        return "loading"
    parts: list[str] = []
    if stats.prefill is not None and stats.prefill.done < stats.prefill.total:
        parts.append(f"reading prompt {stats.prefill.done:,} / {stats.prefill.total:,}")
    if session.loaded is not None:
        used = _short_count(stats.context_tokens)
        n_ctx = _short_count(session.loaded.n_ctx)
        parts.append(f"ctx {used} / {n_ctx}")
    if session.n_omitted_turns:
        turns = "turn" if session.n_omitted_turns == 1 else "turns"
        parts.append(f"{session.n_omitted_turns} old {turns} left out")
    if stats.reused_tokens:
        parts.append(f"reused {_short_count(stats.reused_tokens)}")
    if stats.answer.first_token_ms is not None and phase != "answering":
        parts.append(f"first token {milliseconds(stats.answer.first_token_ms)}")
    return "   ".join(parts)


def _short_count(n: int) -> str:
    return f"{n / 1000:.1f}k" if n >= 1000 else str(n)

"""The frame of a screen: its title, its centred columns, and its last line.

The last line has the keys, and in a chat also numbers (`StatusBar`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len
from textual._compositor import Compositor
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Region, Size, Spacing
from textual.layout import DockArrangeResult, WidgetPlacement
from textual.strip import Strip
from textual.widgets import Static
from textual.widgets._toast import ToastRack

from localspec.report.speculation import Phase, view_speculation
from localspec.tui.chat_phase import ChatPhase
from localspec.tui.key_bindings import fit_footer, format_footer, key_label
from localspec.units import count, milliseconds

if TYPE_CHECKING:
    from textual.widget import Widget as _Container

    from localspec.chat.session import ChatSession
    from localspec.chat.speculation_stats import SpeculationStats
    from localspec.tui.app_options import AppOptions
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
        # A line with a maximum width is centred itself.
        has_page_width = self.styles.max_width is None
        if has_page_width and isinstance(self.screen, CenteredLayout):
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


class RowCompositor(Compositor):
    """Makes the rows that are drawn, and no others, of the widgets that are in them.

    Textual asks each widget that shares a container with what has changed for all of its
    rows. Where the last row of an answer grows by a word, that is all rows of the
    transcript, of the panel beside it and of the containers around both.
    """

    def _get_renders(
        self, crop: Region | None = None
    ) -> Iterator[tuple[Region, Region, list[Strip]]]:
        """Each widget's region, the part of it that is drawn, and its strips of that."""
        width, height = self.size
        rows = Region(0, 0, width, height)
        if crop is not None:
            rows = Region(0, crop.y, width, crop.height)
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            if crop is not None and not crop.overlaps(shown):
                continue
            drawn = shown.intersection(rows)
            if drawn:
                part = drawn.translate(-region.offset)
                yield region, clip.intersection(rows), widget.render_lines(part)


class NotificationFloor(_Container):
    """Mix-in of what is above the last line: notifications appear above it.

    The message that is typed is such a widget, and the help below a list, whatever their
    height. A screen has one of them.
    """

    def on_resize(self) -> None:
        self._move_notifications(self.outer_size.height)

    def on_show(self) -> None:
        self._move_notifications(self.outer_size.height)

    def on_hide(self) -> None:
        self._move_notifications(0)

    def _move_notifications(self, height: int) -> None:
        bottom = height + _LAST_LINE_HEIGHT
        for rack in self.screen.query(ToastRack):
            margin = Spacing(0, 1, bottom, 0)
            if rack.children:
                rack.styles.margin = margin
            else:
                # Only notifications need it, and those lay out the screen when they come.
                rack.styles.set_rule("margin", margin)


class RaisedColumn(NotificationFloor, Vertical):
    """Widgets one below the other that no notification covers."""


class HintLine(NotificationFloor, Static):
    """Help below a list, which no notification covers."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  as Textual names it
        super().__init__("", id=id, markup=False)


class StatusParts(Struct, frozen=True):
    """What a status line may show, of which as much is shown as there is room."""

    keys: tuple[str, ...]
    """Hints such as `f1 keys`, in their order on the screen."""
    vital_keys: tuple[str, ...]
    """Those that stay as long as anything, the most needed first."""
    late_keys: tuple[str, ...] = ()
    """Those that need not be shown where the context is."""
    notes: tuple[str, ...] = ()
    """What the chat does at the moment, such as reading a prompt."""
    cells: tuple[str, ...] = ()
    """What speculation gives, the longest form first: one of them is shown."""
    figures: tuple[str, ...] = ()


class _StatusItem(Struct, frozen=True):
    text: str
    is_key: bool
    is_skipped: bool
    """If it does not fit: whether it is skipped, or it and all that follows is left out."""


def _order_items(parts: StatusParts) -> Iterator[_StatusItem]:
    """In the order in which they get a place."""
    vital = parts.vital_keys
    others = [key for key in parts.keys if key not in {*vital, *parts.late_keys}]
    for key in vital[:2]:
        yield _StatusItem(key, is_key=True, is_skipped=True)
    for note in parts.notes:
        yield _StatusItem(note, is_key=False, is_skipped=True)
    for key in vital[2:]:
        yield _StatusItem(key, is_key=True, is_skipped=True)
    for cell in parts.cells:
        yield _StatusItem(cell, is_key=False, is_skipped=True)
    for key in others:
        yield _StatusItem(key, is_key=True, is_skipped=False)
    for figure in parts.figures[:1]:
        yield _StatusItem(figure, is_key=False, is_skipped=False)
    for key in parts.late_keys:
        yield _StatusItem(key, is_key=True, is_skipped=False)
    for figure in parts.figures[1:]:
        yield _StatusItem(figure, is_key=False, is_skipped=False)


def arrange_status(parts: StatusParts, width: int) -> tuple[str, str]:
    """The keys, and what is right of them.

    The first two of the vital keys have a place before anything else, then notes, the
    other vital keys, and the cell. Figures get what the other keys leave. At 80 columns
    this is `enter send  esc back  f2 colours  f3 panel  f1 keys` and `1.7× faster  25 of
    32`.
    """
    shown: set[str] = set()
    right: list[str] = []
    room = width
    for item in _order_items(parts):
        if item.text in parts.cells and not shown.isdisjoint(parts.cells):
            continue  # A longer form of it is shown.
        needed = cell_len(item.text)
        if not item.is_key:
            needed += len("   ")
        elif shown:
            needed += len("  ")
        if needed <= room:
            shown.add(item.text)
            room -= needed
            if not item.is_key:
                right.append(item.text)
        elif not item.is_skipped:
            break
    keys = "  ".join(key for key in parts.keys if key in shown)
    return keys, "   ".join(right)


class StatusBar(Static):
    """A single text, so that the layout does not move."""

    _VITAL = ("chat.stop", "app.help", "chat.send", "chat.tokens", "chat.panel")
    _VITAL_WHILE_ANSWERING = (
        "chat.stop",
        "app.help",
        "chat.replay",
        "chat.tokens",
        "chat.panel",
    )
    _LATE = ("chat.newline", "app.quit")

    def __init__(self, options: AppOptions) -> None:
        super().__init__(markup=False)
        self._options = options
        self._parts = StatusParts((), ())

    def draw(
        self,
        session: ChatSession,
        stats: SpeculationStats,
        phase: ChatPhase,
        transcript: Transcript,
        *,
        with_speculation: bool,
    ) -> None:
        """`stats`: of what is on the screen.

        `with_speculation`: there is no panel, which says what it gives.
        """
        keymap = self._options.keymap
        notes: list[str] = []
        if not transcript.following:
            notes.append(f"more below: {key_label('chat.end', keymap)}")
        if phase == "loading":
            notes.append("loading")
        prefill = stats.prefill
        if prefill is not None and prefill.done < prefill.total:
            notes.append(f"reading prompt {prefill.done:,} / {prefill.total:,}")
        if session.n_omitted_turns:
            notes.append(f"{count(session.n_omitted_turns, 'old turn')} left out")
        cells: tuple[str, ...] = ()
        if with_speculation and phase != "loading":
            shown_phase: Phase = "answering" if phase == "answering" else "idle"
            cells = view_speculation(stats, shown_phase).cells
        figures: tuple[str, ...] = ()
        if phase != "loading":
            figures = tuple(_figures(session, stats, phase))
        if transcript.is_cursor_active:
            keys = _split(format_footer(keymap, "tokens"))
            parts = StatusParts(
                keys=keys,
                vital_keys=keys[::-1],
                notes=tuple(notes),
                cells=cells,
                figures=figures,
            )
        else:
            labels = {"chat.stop": "back"}
            vital = self._VITAL
            if phase == "answering":
                vital = self._VITAL_WHILE_ANSWERING
                labels = {"chat.newline": "", "chat.replay": "slow motion"}
                if self._options.is_slow(session):
                    labels["chat.replay"] = "slow motion off"
            make_footer = partial(
                format_footer, keymap, "composer", "chat", "app", label_overrides=labels
            )
            late_keys = [make_footer(only=key) for key in self._LATE]
            parts = StatusParts(
                keys=_split(make_footer()),
                vital_keys=tuple(make_footer(only=key) for key in vital),
                late_keys=tuple(key for key in late_keys if key),
                notes=tuple(notes),
                cells=cells,
                figures=figures,
            )
        if self._parts != parts:
            self._parts = parts
            self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.content_size.width
        keys, right = arrange_status(self._parts, width)
        space = " " * (width - cell_len(keys) - cell_len(right))
        self.update(Content(f"{keys}{space}{right}"), layout=False)


def _split(footer: str) -> tuple[str, ...]:
    return tuple(footer.split("  "))


def _figures(
    session: ChatSession, stats: SpeculationStats, phase: ChatPhase
) -> Iterator[str]:
    """The context first."""
    if session.loaded is not None:
        used = _short_count(stats.context_tokens)
        n_ctx = _short_count(session.loaded.n_ctx)
        yield f"ctx {used} / {n_ctx}"
    if stats.reused_tokens:
        yield f"reused {_short_count(stats.reused_tokens)}"
    if stats.answer.first_token_ms is not None and phase != "answering":
        yield f"first token {milliseconds(stats.answer.first_token_ms)}"


def _short_count(n: int) -> str:
    return f"{n / 1000:.1f}k" if n >= 1000 else str(n)

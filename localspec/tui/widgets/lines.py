"""Parts of text, scrolled: only lines that are seen are drawn, and none of them is a widget."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from textwrap import dedent

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from localspec.tui.later import later
from localspec.tui.text.flow import LINES
from localspec.tui.text.part import Part, Stack

MEASURE = 100
"""Cells of the longest line: wider ones are hard to read."""

_SETTLE = 0.08
"""Seconds after the last of many resizes: to wrap a long text takes a while."""

_NAMES = ("text", "muted", "role", "speaker", "thinking", "prefix", "error", *LINES)


class Lines(ScrollView, can_focus=False):
    """Follows the end until a person scrolls away from it."""

    _ROOM = 2
    """Cells left and right at least: the text stands below the title."""
    COMPONENT_CLASSES = {f"lines--{name}" for name in _NAMES}  # noqa: RUF012

    class Followed(Message):
        """A person scrolled away from the end, or came back to it."""

        def __init__(self, following: bool) -> None:
            super().__init__()
            self.following = following

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._stack = Stack()
        self._width = 0
        """Of the text, as it is wrapped now."""
        self._plain = Style.null()
        self._styles: dict[str, Style] = {}
        self.following = True

    @property
    def parts(self) -> list[Part]:
        return self._stack.parts

    # --- what there is --------------------------------------------------------------------

    def changed(self) -> None:
        """The parts, or what they hold, are other ones."""
        if not self._width:
            return
        self._grow(Size(self.size.width, self._stack.height(self._width)))
        if self.following:
            self.follow()
        self.refresh()

    def _grow(self, size: Size) -> None:
        """A layout of the whole screen, and a frame of its own, only where the scrollbar comes."""
        if (size.height > self.container_size.height) != self.show_vertical_scrollbar:
            self.virtual_size = size
        elif size != self.virtual_size:
            self.set_reactive(Lines.virtual_size, size)
            self._scroll_update(size)

    def follow(self) -> None:
        """To the end, and along with it; by force: there may be no scrollbar yet."""
        if not self.following:
            self.following = True
            self.post_message(self.Followed(True))
        self.scroll_end(animate=False, immediate=True, x_axis=False, force=True)

    def reveal(self, line: int) -> None:
        """Scroll so far that a line is seen."""
        top, height = round(self.scroll_y), self.size.height
        if line < top:
            self.scroll_to(y=line, animate=False, immediate=True, force=True)
        elif line >= top + height:
            self.scroll_to(y=line - height + 1, animate=False, immediate=True, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        following = new_value >= self.max_scroll_y
        if following != self.following:
            self.following = following
            self.post_message(self.Followed(following))

    def on_resize(self, event: events.Resize) -> None:
        if not self._width:
            self._rewrap()
        elif self._wanted() != self._width:
            later(self, _SETTLE, self._rewrap)
        elif self.following:
            self.follow()

    def _wanted(self) -> int:
        return max(1, min(MEASURE, self.size.width - 2 * self._ROOM))

    def _rewrap(self) -> None:
        if self._wanted() != self._width:
            self._width = self._wanted()
            self.changed()

    # --- how it is drawn ------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        self._plain = self.rich_style  # once a frame, not once a line
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width, plain = self.size.width, self._plain
        line = y + round(self.scroll_y)
        if not self._width or line >= self.virtual_size.height:
            return Strip.blank(width, plain)
        room = max(self._ROOM, (width - self._width) // 2)
        segments = [Segment(" " * room, plain)]
        for style, run in groupby(self._stack.line(line, self.looks), attrgetter("style")):
            text = "".join(segment.text for segment in run)  # a segment costs, a letter does not
            segments.append(Segment(text, plain + style if style else plain))
        strip = Strip(segments).adjust_cell_length(width, plain)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            strip = self._selected(strip, *span)
        return strip.apply_offsets(0, line)

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        """Selection counts characters; here every character but wide ones is a cell."""
        style = self.screen.get_component_rich_style("screen--selection")
        end = strip.cell_length if end == -1 else end
        before, middle, after = strip.divide([start, end, strip.cell_length])
        return Strip.join([before, middle.apply_style(style), after])

    @property
    def looks(self) -> dict[str, Style]:
        """The styles by name, of the theme as it is."""
        if not self._styles:
            for name in _NAMES:
                self._styles[name] = self.get_component_rich_style(f"lines--{name}", partial=True)
            for kind, line in LINES.items():
                self._styles[kind] += line
        return self._styles

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    @property
    def shown(self) -> str:
        """All lines, as they stand under one another."""
        lines = (
            self._margin + "".join(segment.text for segment in self._stack.line(y, self.looks))
            for y in range(self.virtual_size.height)
        )
        return "\n".join(lines)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """What is marked, without the margin and the indent that all its lines share."""
        shown = self.shown
        text = selection.extract(shown)
        at = selection.start or Offset(0, 0)
        before = shown.split("\n")[at.y][: at.x]
        if not before.strip():  # marked from where its line begins
            return dedent(before + text), "\n"
        first, *rest = text.split("\n")
        return "\n".join([first, *(line.removeprefix(self._margin) for line in rest)]), "\n"

    @property
    def _margin(self) -> str:
        return " " * max(self._ROOM, (self.size.width - self._width) // 2)

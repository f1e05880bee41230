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

from localspec.tui.text.blocks import TOKEN_CLASS_STYLES, BlockStack, TextBlock
from localspec.tui.timer import set_reliable_timer

MAX_TEXT_WIDTH = 100
"""Cells of the longest line: wider ones are hard to read."""

_RESIZE_DELAY = 0.08
"""Seconds after the last of many resizes: to wrap a long text takes a while."""

_STYLE_NAMES = (
    "text",
    "muted",
    "role",
    "speaker",
    "thinking",
    "prefix",
    "error",
    *TOKEN_CLASS_STYLES,
)


class TextView(ScrollView, can_focus=False):
    """Follows the end until a person scrolls away from it."""

    _MIN_MARGIN = 2
    """Cells left and right at least: the text stands below the title."""
    COMPONENT_CLASSES = {f"text-view--{name}" for name in _STYLE_NAMES}  # noqa: RUF012

    class FollowingChanged(Message):
        """A person scrolled away from the end, or came back to it."""

        def __init__(self, following: bool) -> None:
            super().__init__()
            self.following = following

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._blocks = BlockStack()
        self._width = 0
        """Of the text, as it is wrapped now."""
        self._base_style = Style.null()
        self._text_styles: dict[str, Style] = {}
        self.following = True

    @property
    def blocks(self) -> list[TextBlock]:
        return self._blocks.blocks

    # --- what there is --------------------------------------------------------------------

    def update_blocks(self) -> None:
        """The parts, or what they hold, are other ones."""
        if not self._width:
            return
        self._set_virtual_size(Size(self.size.width, self._blocks.height(self._width)))
        if self.following:
            self.follow_end()
        self.refresh()

    def _set_virtual_size(self, size: Size) -> None:
        """A layout of the whole screen, and a frame of its own, only where the scrollbar comes."""
        if (size.height > self.container_size.height) != self.show_vertical_scrollbar:
            self.virtual_size = size
        elif size != self.virtual_size:
            self.set_reactive(TextView.virtual_size, size)
            self._scroll_update(size)

    def follow_end(self) -> None:
        """To the end, and along with it; by force: there may be no scrollbar yet."""
        if not self.following:
            self.following = True
            self.post_message(self.FollowingChanged(True))
        self.scroll_end(animate=False, immediate=True, x_axis=False, force=True)

    def reveal_line(self, line: int) -> None:
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
            self.post_message(self.FollowingChanged(following))

    def on_resize(self, event: events.Resize) -> None:
        if not self._width:
            self._rewrap()
        elif self._target_width() != self._width:
            set_reliable_timer(self, _RESIZE_DELAY, self._rewrap)
        elif self.following:
            self.follow_end()

    def _target_width(self) -> int:
        return max(1, min(MAX_TEXT_WIDTH, self.size.width - 2 * self._MIN_MARGIN))

    def _rewrap(self) -> None:
        if self._target_width() != self._width:
            self._width = self._target_width()
            self.update_blocks()

    # --- how it is drawn ------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        self._base_style = self.rich_style  # once a frame, not once a line
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width, plain = self.size.width, self._base_style
        line = y + round(self.scroll_y)
        if not self._width or line >= self.virtual_size.height:
            return Strip.blank(width, plain)
        room = max(self._MIN_MARGIN, (width - self._width) // 2)
        segments = [Segment(" " * room, plain)]
        for style, run in groupby(self._blocks.line(line, self.text_styles), attrgetter("style")):
            text = "".join(segment.text for segment in run)  # a segment costs, a letter does not
            segments.append(Segment(text, plain + style if style else plain))
        strip = Strip(segments).adjust_cell_length(width, plain)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            strip = self._style_selection(strip, *span)
        return strip.apply_offsets(0, line)

    def _style_selection(self, strip: Strip, start: int, end: int) -> Strip:
        """Selection counts characters; here every character but wide ones is a cell."""
        style = self.screen.get_component_rich_style("screen--selection")
        end = strip.cell_length if end == -1 else end
        before, middle, after = strip.divide([start, end, strip.cell_length])
        return Strip.join([before, middle.apply_style(style), after])

    @property
    def text_styles(self) -> dict[str, Style]:
        """The styles by name, of the theme as it is."""
        if not self._text_styles:
            for name in _STYLE_NAMES:
                self._text_styles[name] = self.get_component_rich_style(
                    f"text-view--{name}", partial=True
                )
            for kind, line in TOKEN_CLASS_STYLES.items():
                self._text_styles[kind] += line
        return self._text_styles

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._text_styles.clear()

    @property
    def plain_text(self) -> str:
        """All lines, as they stand under one another."""
        lines = (
            self._left_margin
            + "".join(segment.text for segment in self._blocks.line(y, self.text_styles))
            for y in range(self.virtual_size.height)
        )
        return "\n".join(lines)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """What is marked, without the margin and the indent that all its lines share."""
        shown = self.plain_text
        text = selection.extract(shown)
        at = selection.start or Offset(0, 0)
        before = shown.split("\n")[at.y][: at.x]
        if not before.strip():  # marked from where its line begins
            return dedent(before + text), "\n"
        first, *rest = text.split("\n")
        return "\n".join([first, *(line.removeprefix(self._left_margin) for line in rest)]), "\n"

    @property
    def _left_margin(self) -> str:
        return " " * max(self._MIN_MARGIN, (self.size.width - self._width) // 2)

"""A scrolling view of text blocks that renders only the visible lines.

It has no child widgets: a chat of a thousand turns would have thousands of them.
"""

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

from localspec.tui.scheduling import set_reliable_timer
from localspec.tui.text.blocks import TOKEN_CLASS_STYLES, BlockStack, TextBlock
from localspec.tui.text.source_map import DrawnPlace

MAX_TEXT_WIDTH = 100  # Longer lines are hard to read.
# Seconds from a resize to wrapping again, which takes a while for long text.
_RESIZE_DELAY = 0.08
_STYLE_NAMES = (
    "text", "muted", "role", "speaker", "thinking", "prefix", "error", *TOKEN_CLASS_STYLES,
)  # fmt: skip
"""Each is a component class of `TextView`, which the style sheet gives its style."""


class FollowingView(ScrollView):
    """Follows the end until the user scrolls away from it."""

    following = True

    class FollowingChanged(Message):
        pass

    def follow_end(self) -> None:
        """Scrolls to the end; `force`, because there may be no scrollbar yet."""
        self._set_following(True)
        self.scroll_end(animate=False, immediate=True, x_axis=False, force=True)

    def _set_following(self, following: bool) -> None:
        if following != self.following:
            self.following = following
            self.post_message(self.FollowingChanged())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._set_following(new_value >= self.max_scroll_y)

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Textual moves only a scrollbar that is shown: a new one would be at the top."""
        if shown:
            self.vertical_scrollbar.position = self.scroll_y


class TextView(FollowingView, can_focus=False):
    _MIN_MARGIN = 2  # Cells at the left and right; aligns the text with the title.
    COMPONENT_CLASSES = {f"text-view--{name}" for name in _STYLE_NAMES}  # noqa: RUF012

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._blocks = BlockStack()
        self._width = 0  # The width the text is wrapped to; 0: not yet.
        self._base_style = Style.null()
        self._text_styles: dict[str, Style] = {}

    @property
    def blocks(self) -> list[TextBlock]:
        return self._blocks.blocks

    def update_blocks(self) -> None:
        """Must be called after blocks or their text have changed."""
        if not self._width:
            return
        size = Size(self.size.width, self._blocks.height(self._width))
        needs_scrollbar = size.height > self.container_size.height
        if needs_scrollbar != self.show_vertical_scrollbar:
            self.virtual_size = size
        # The reactive would lay out the whole screen, for each token of an answer.
        elif size != self.virtual_size:
            self.set_reactive(TextView.virtual_size, size)
            self._scroll_update(size)
        if self.following:
            self.follow_end()
        self.refresh()

    def reveal_line(self, line: int) -> None:
        """Scrolls as little as possible."""
        last_top = line - self.size.height + 1
        top = max(last_top, min(round(self.scroll_y), line))
        self.scroll_to(y=top, animate=False, immediate=True, force=True)

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

    def render_lines(self, crop: Region) -> list[Strip]:
        self._base_style = self.rich_style  # once per frame, not per line
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        plain = self._base_style
        line = y + round(self.scroll_y)
        if not self._width or line >= self.virtual_size.height:
            return Strip.blank(width, plain)
        segments = [Segment(self._left_margin, plain)]
        line_segments = self._blocks.line(line, self.text_styles)
        # Few long segments are drawn faster than many short ones.
        for style, run in groupby(line_segments, attrgetter("style")):
            text = "".join(segment.text for segment in run)
            whole_style = plain + style if style else plain
            segments.append(Segment(text, whole_style))
        strip = Strip(segments).adjust_cell_length(width, plain)
        selection = self.text_selection
        span = selection.get_span(line) if selection is not None else None
        if span is not None:
            strip = self._style_selection(strip, *span)
        return strip.apply_offsets(0, line)

    def _style_selection(self, strip: Strip, start: int, end: int) -> Strip:
        """The selection counts characters, which equal cells except for wide ones.

        `end` is -1 if the selection goes on below this line.
        """
        style = self.screen.get_component_rich_style("screen--selection")
        if end == -1:
            end = strip.cell_length
        before, middle, after = strip.divide([start, end, strip.cell_length])
        return Strip.join([before, middle.apply_style(style), after])

    @property
    def text_styles(self) -> dict[str, Style]:
        if not self._text_styles:
            for name in _STYLE_NAMES:
                style = self.get_component_rich_style(
                    f"text-view--{name}", partial=True
                )
                self._text_styles[name] = style
            for kind, style in TOKEN_CLASS_STYLES.items():
                self._text_styles[kind] += style
        return self._text_styles

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._text_styles.clear()

    @property
    def plain_text(self) -> str:
        lines: list[str] = []
        for y in range(self.virtual_size.height):
            segments = self._blocks.line(y, self.text_styles)
            text = "".join(segment.text for segment in segments)
            lines.append(self._left_margin + text)
        return "\n".join(lines)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The source of the marked text, without an indent that all its lines have.

        Lines are not broken where they are wrapped, and tabs are tabs.
        """
        height = self.virtual_size.height
        start = self._drawn_place(selection.start or Offset(0, 0))
        end = self._drawn_place(selection.end or Offset(0, height))
        parts: list[str] = []
        row = start.row
        while row < min(end.row + 1, height):
            source = self._blocks.source_map(row)
            next_row = source.first_row + source.n_rows
            parts.append(
                source.cut(
                    start if start.row >= source.first_row else None,
                    end if end.row < next_row else None,
                )
            )
            row = max(next_row, row + 1)
        text = "\n".join(parts)
        line = self._blocks.line(start.row, self.text_styles)
        before = "".join(segment.text for segment in line)[: start.column]
        # The selection may begin within a line.
        return (text if before.strip() else dedent(text)), "\n"

    def _drawn_place(self, offset: Offset) -> DrawnPlace:
        """The place in the blocks of a character of the view, without the margin."""
        return DrawnPlace(offset.y, max(0, offset.x - len(self._left_margin)))

    @property
    def _left_margin(self) -> str:
        return " " * max(self._MIN_MARGIN, (self.size.width - self._width) // 2)

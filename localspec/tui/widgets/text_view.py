"""A scrolling view of text blocks that renders only the visible lines.

It has no child widgets: a chat of a thousand turns would have thousands of them. What is
not seen is not even wrapped, so that opening, paging and resizing cost a window's lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from textwrap import dedent
from typing import Any

from msgspec import Struct, to_builtins
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from localspec.tui import themes
from localspec.tui.scheduling import set_reliable_timer
from localspec.tui.text.blocks import (
    TOKEN_CLASS_STYLES,
    DeferredBlock,
    ScrolledStack,
    TextBlock,
)
from localspec.tui.text.source_map import DrawnPlace

MAX_TEXT_WIDTH = 100  # Longer lines are hard to read.
_MAX_DRAWN_LINES = 500
# Seconds from a resize to wrapping again, which takes a while for long text.
_RESIZE_DELAY = 0.08
_STYLE_NAMES = (
    "text", "muted", "role", "speaker", "thinking", "prefix", "error",
)  # fmt: skip
"""Each is a component class of `TextView`, which the style sheet gives its style.

The styles of tokens are derived from the theme's colours (`themes.token_styles`).
"""


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

    def mark_selection(self, strip: Strip, y: int) -> Strip:
        """Line `y` with the part that the mouse has marked.

        It gets the offsets by which Textual finds what is marked. They count characters,
        which equal cells except for wide ones.
        """
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is not None:
            start, end = span
            if end == -1:  # The selection goes on below this line.
                end = strip.cell_length
            style = self.screen.get_component_rich_style("screen--selection")
            before, middle, after = strip.divide([start, end, strip.cell_length])
            strip = Strip.join([before, middle.apply_style(style), after])
        return strip.apply_offsets(0, y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._set_following(new_value >= self.max_scroll_y)

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Textual moves only a scrollbar that is shown: a new one would be at the top."""
        if shown:
            self.vertical_scrollbar.position = self.scroll_y


class ReadingPosition(Struct, frozen=True):
    """A line of a block, and the row of the window that it is shown at.

    The row may be outside of the window: negative after scrolling down.
    """

    block: int
    line: int
    row: int


class _DrawnLine(Struct, frozen=True):
    """A strip, and what it was made of."""

    segments: Sequence[Segment]
    margin: str
    base_style: Style
    strip: Strip

    def is_of(
        self, segments: Sequence[Segment], margin: str, width: int, base_style: Style
    ) -> bool:
        return (
            self.segments == segments
            and self.margin == margin
            and self.strip.cell_length == width
            and self.base_style == base_style
        )


class TextView(FollowingView, can_focus=False):
    _MIN_MARGIN = 2  # Cells at the left and right; aligns the text with the title.
    COMPONENT_CLASSES = {f"text-view--{name}" for name in _STYLE_NAMES}  # noqa: RUF012

    def __init__(self, id: str | None = None, *, show_marks: bool = False) -> None:  # noqa: A002
        """`show_marks`: token classes differ by more than colour, as there is none."""
        super().__init__(id=id)
        self.show_marks = show_marks
        self._blocks = ScrolledStack()
        self._width = 0  # The width the text is wrapped to; 0: not yet.
        self._is_moving = False  # While `_show` sets the scroll position.
        # Of the frame that is drawn:
        self._base_style = Style.null()
        self._has_selection = False
        self._text_styles: dict[str, Style] = {}
        # By line. While an answer streams, only its last lines change.
        self._drawn_lines: dict[int, _DrawnLine] = {}
        # What each row of the window was drawn of; nothing where it is not known.
        self._drawn_rows: dict[int, Sequence[Segment]] = {}

    @property
    def blocks(self) -> list[TextBlock | DeferredBlock]:
        return self._blocks.blocks

    def update_blocks(self) -> None:
        """Must be called after blocks or their text have changed."""
        if not self._width:
            return
        position = self._reading_position()
        self._blocks.lay_out(self._width)
        self._show(position)

    def _reading_position(self) -> ReadingPosition | None:
        """What is at the top of the window; None while the end is followed."""
        if self.following:
            return None
        block, line = self._blocks.locate(round(self.scroll_y))
        return ReadingPosition(block, line, row=0)

    def _show(self, position: ReadingPosition | None) -> None:
        """Moves a position, or the end, into view, and wraps what is seen around it."""
        old_tops = self._blocks.tops
        old_scroll = self.scroll_y
        top = self._wrap_window(position)
        self._move_selection(old_tops)
        size = Size(self.size.width, self._blocks.height)
        was_moving = self._is_moving
        self._is_moving = True
        needs_scrollbar = size.height > self.container_size.height
        if needs_scrollbar != self.show_vertical_scrollbar:
            self.virtual_size = size
        # The reactive would lay out the whole screen, for each token of an answer.
        elif size != self.virtual_size:
            self.set_reactive(TextView.virtual_size, size)
            self._scroll_update(size)
        if position is None:
            self.follow_end()
        else:
            self.scroll_target_y = top
            self.scroll_y = top
        self._is_moving = was_moving
        if self.scroll_y == old_scroll:
            self._refresh_changed_rows()
        else:
            self.refresh()

    def _refresh_changed_rows(self) -> None:
        """Draws the rows whose text is another: of an answer that streams, its last.

        Where the size or the style of the view changes, Textual draws all of it.
        """
        n_rows = self.size.height
        changed = [row for row in range(n_rows) if self._has_row_changed(row)]
        if changed:
            n_changed = changed[-1] - changed[0] + 1
            self.refresh(Region(0, changed[0], self.size.width, n_changed))

    def _has_row_changed(self, row: int) -> bool:
        drawn = self._drawn_rows.get(row)
        return drawn is None or drawn != self._row_segments(row)

    def _row_segments(self, row: int) -> Sequence[Segment]:
        """What a row of the window shows; empty below the last line."""
        line = row + round(self.scroll_y)
        if not self._width or line >= self.virtual_size.height:
            return ()
        return self._blocks.line(line, self.text_styles)

    def _wrap_window(self, position: ReadingPosition | None) -> int:
        """Wraps every block in the window; returns the window's first line.

        A block that is wrapped moves those below it, and so the window: hence the loop.
        It ends, because each pass wraps one block more. The blocks next to the position
        come first, so that none is wrapped in vain.
        """
        blocks = self._blocks
        n_rows = self.container_size.height
        while True:
            top = max(0, blocks.height - n_rows)
            if position is not None:
                top = min(top, max(0, self._first_line(position)))
            unwrapped = blocks.find_unwrapped(top, top + n_rows)
            if not unwrapped:
                return top
            nearest = unwrapped[0]
            if position is None or position.row > 0:  # It is below the window's top.
                nearest = unwrapped[-1]
            blocks.wrap(nearest)

    def _first_line(self, position: ReadingPosition) -> int:
        """The line at the top of a window that shows the position."""
        tops = self._blocks.tops
        block = min(position.block, len(tops) - 2)
        if block < 0:
            return 0
        height = tops[block + 1] - tops[block]
        return tops[block] + min(position.line, max(0, height - 1)) - position.row

    def _move_selection(self, old_tops: list[int]) -> None:
        """Keeps the selected text selected if the lines above it have changed."""
        tops = self._blocks.tops
        if tops is old_tops or len(tops) != len(old_tops):
            return

        def moved(offset: Offset | None) -> Offset | None:
            if offset is None:
                return None
            block = max(0, bisect_right(old_tops, offset.y) - 1)
            return Offset(offset.x, offset.y + tops[block] - old_tops[block])

        selecting = self.screen._select_state
        if selecting is not None and selecting.start.content_widget is self:
            offset = moved(selecting.start.content_offset)
            start = selecting.start._replace(content_offset=offset)
            self.screen._select_state = selecting._replace(start=start)
        selection = self.text_selection
        if selection is not None:
            shown = Selection(moved(selection.start), moved(selection.end))
            self.screen.selections = {**self.screen.selections, self: shown}

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if self._width and not self._is_moving:
            self._show(self._scrolled_position(round(old_value), round(new_value)))
        super().watch_scroll_y(old_value, self.scroll_y)

    def _scrolled_position(self, old: int, new: int) -> ReadingPosition | None:
        """Where scrolling leads, told by what was seen before if some of it still is.

        A page up from line 900 shows what is 30 lines above that text, wherever the
        wrapping of these lines will move it.
        """
        is_jump = abs(new - old) > self.container_size.height
        if new >= self.max_scroll_y and (self.following or is_jump):
            return None
        if is_jump:
            block, line = self._blocks.locate(new)
            return ReadingPosition(block, line, row=0)
        block, line = self._blocks.locate(old)
        return ReadingPosition(block, line, row=old - new)

    def scroll_to(self, *args: Any, **options: Any) -> None:
        """Never animated: the numbers of the lines may change on the way."""
        options["animate"] = False
        super().scroll_to(*args, **options)

    def show_line(self, block: int, line: int, row: int | None = None) -> None:
        """Scrolls as little as possible, or to a row of the window."""
        self._show(self._reading_position())
        if row is None:
            y = self._blocks.tops[block] + line
            last_row = max(0, self.container_size.height - 1)
            row = min(max(0, y - round(self.scroll_y)), last_row)
        self._show(ReadingPosition(block, line, row))

    def wrap_blocks(self, *blocks: int) -> None:
        """Wraps blocks that need not be in the window."""
        position = self._reading_position()
        self._blocks.wrap(*blocks)
        self._show(position)

    def on_resize(self, event: events.Resize) -> None:
        if not self._width:
            self._rewrap()
        elif self._target_width() != self._width:
            set_reliable_timer(self, _RESIZE_DELAY, self._rewrap)
        else:
            self._show(self._reading_position())

    def _target_width(self) -> int:
        return max(1, min(MAX_TEXT_WIDTH, self.size.width - 2 * self._MIN_MARGIN))

    def _rewrap(self) -> None:
        """Wraps to the new width; the text at the top of the window stays there."""
        if self._target_width() == self._width:
            return
        position = self._reading_position()
        is_first = not self._width
        self._width = self._target_width()
        if position is None or is_first:
            self.update_blocks()
            return
        block = min(position.block, len(self._blocks.blocks) - 1)
        old_height = self._blocks.tops[block + 1] - self._blocks.tops[block]
        self._blocks.lay_out(self._width)
        self._blocks.wrap(block)
        new_height = self._blocks.tops[block + 1] - self._blocks.tops[block]
        line = position.line * new_height // max(1, old_height)
        self._show(ReadingPosition(block, line, row=0))

    def render_lines(self, crop: Region) -> list[Strip]:
        """A line that scrolls is the same strip in another row.

        Its parts and its escape sequences are then those of the frame before. Textual's
        own way makes each row anew, to add borders and padding, of which a view of text
        has none; it is left to mark a link that the mouse is over.
        """
        self._base_style = self.rich_style
        self._has_selection = self.text_selection is not None
        if self.hover_style._link_id:
            return super().render_lines(crop)
        _, background = self.background_colors
        filters = self.get_line_filters()
        strips: list[Strip] = []
        for row in crop.line_range:
            strip = self.render_line(row)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip)
        left, right = crop.column_span
        if (left, right) != (0, self.size.width):
            strips = [strip.crop(left, right) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        plain = self._base_style
        line = y + round(self.scroll_y)
        line_segments = self._row_segments(y)
        self._drawn_rows[y] = line_segments
        if not self._width or line >= self.virtual_size.height:
            return Strip.blank(width, plain)
        margin = self._left_margin
        drawn = self._drawn_lines.get(line)
        if self._has_selection:
            drawn = None
        if drawn is not None and drawn.is_of(line_segments, margin, width, plain):
            return drawn.strip
        segments = [Segment(margin, plain)]
        # Few long segments are drawn faster than many short ones.
        for style, run in groupby(line_segments, attrgetter("style")):
            text = "".join(segment.text for segment in run)
            whole_style = plain + style if style else plain
            segments.append(Segment(text, whole_style))
        strip = Strip(segments).adjust_cell_length(width, plain)
        strip = self.mark_selection(strip, line)
        if not self._has_selection:
            if len(self._drawn_lines) > _MAX_DRAWN_LINES:
                self._drawn_lines.clear()
            self._drawn_lines[line] = _DrawnLine(line_segments, margin, plain, strip)
        return strip

    @property
    def text_styles(self) -> dict[str, Style]:
        if not self._text_styles:
            for name in _STYLE_NAMES:
                style = self.get_component_rich_style(
                    f"text-view--{name}", partial=True
                )
                self._text_styles[name] = style
            text = self._text_styles["text"]
            theme = self.app.current_theme
            tokens = themes.token_styles(theme, marks=self.show_marks)
            for name, definition in to_builtins(tokens).items():
                self._text_styles[name] = text + Style.parse(definition)
            for kind, style in TOKEN_CLASS_STYLES.items():
                if self.show_marks:
                    self._text_styles[kind] = text + style
                self._text_styles.setdefault(kind, text)
        return self._text_styles

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._text_styles.clear()
        self._drawn_rows.clear()

    @property
    def plain_text(self) -> str:
        """The whole text, which is wrapped for this."""
        self.wrap_blocks(*self._blocks.find_unwrapped(0, self._blocks.height))
        return self._wrapped_text()

    def _wrapped_text(self) -> str:
        """All lines; those of blocks that are not wrapped are blank."""
        lines: list[str] = []
        for y in range(self.virtual_size.height):
            segments = self._blocks.line(y, self.text_styles)
            text = "".join(segment.text for segment in segments)
            lines.append(self._left_margin + text)
        return "\n".join(lines)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The source of the marked text, as `select_source`."""
        return self.select_source(selection)(), "\n"

    def marks_unseen(self, selection: Selection) -> bool:
        """Whether turns are marked that were never seen: it takes time to copy them."""
        start = selection.start or Offset(0, 0)
        end = selection.end or Offset(0, self._blocks.height)
        return bool(self._blocks.find_unwrapped(start.y, end.y + 1))

    def select_source(self, selection: Selection) -> Callable[[], str]:
        """Returns a function, for any thread, that gives the source of the marked text.

        Lines are not broken where they are wrapped, tabs are tabs, and an indent that
        all lines have is left out.

        Of the marked turns, only the first, the last and those that were seen are
        wrapped here. In a chat of 2,000 turns most of the others were never seen, and
        the function lays them out for itself.
        """
        start = selection.start or Offset(0, 0)
        end = selection.end or Offset(0, self._blocks.height)
        first, line_of_start = self._blocks.locate(start.y)
        last, line_of_end = self._blocks.locate(end.y)
        wanted = []
        for index in self._blocks.find_unwrapped(start.y, end.y + 1):
            block = self.blocks[index]
            is_made = isinstance(block, DeferredBlock) and block.is_made
            if index in (first, last) or is_made:
                wanted.append(index)
        self.wrap_blocks(*wanted)
        tops = self._blocks.tops
        start_place = self._drawn_place(Offset(start.x, tops[first] + line_of_start))
        end_place = self._drawn_place(Offset(end.x, tops[last] + line_of_end))
        parts: list[Callable[[], str]] = []
        for index in range(first, min(last + 1, len(self.blocks))):
            block = self.blocks[index]
            if not self._blocks.is_wrapped(index) and isinstance(block, DeferredBlock):
                parts.append(partial(block.read_source, self._width))
            elif tops[index] < tops[index + 1]:
                text = self._cut_block(index, start_place, end_place)
                parts.append(partial(str, text))
        line = self._blocks.line(start_place.row, self.text_styles)
        before = "".join(segment.text for segment in line)[: start_place.column]
        is_within_line = bool(before.strip())

        def read() -> str:
            text = "\n".join(part() for part in parts)
            return text if is_within_line else dedent(text)

        return read

    def _cut_block(self, index: int, start: DrawnPlace, end: DrawnPlace) -> str:
        """The source of what a wrapped block shows from `start` up to `end`."""
        tops = self._blocks.tops
        parts: list[str] = []
        row = max(start.row, tops[index])
        while row < min(end.row + 1, tops[index + 1]):
            source = self._blocks.source_map(row)
            next_row = source.first_row + source.n_rows
            first = start if start.row >= source.first_row else None
            last = end if end.row < next_row else None
            parts.append(source.cut(first, last))
            row = max(next_row, row + 1)
        return "\n".join(parts)

    def _drawn_place(self, offset: Offset) -> DrawnPlace:
        """The place in the blocks of a character of the view, without the margin."""
        return DrawnPlace(offset.y, max(0, offset.x - len(self._left_margin)))

    @property
    def _left_margin(self) -> str:
        return " " * max(self._MIN_MARGIN, (self.size.width - self._width) // 2)

"""Lists, and rows with a field: ▸ marks the selected row, so it needs no colour.

Every list of the app is a `MarkedList`, every row with a field a `FieldRow`: no screen draws
the mark itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from rich.segment import Segment
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.widgets import OptionList
from textual.widgets.option_list import Option

RowT = TypeVar("RowT")

MARK = "▸ "
"""It hangs at the left of the text, in two cells that localspec.tcss leaves free."""
_MIN_WIDTH = 8


class MarkedList(OptionList):
    COMPONENT_CLASSES = {"marked-list--mark"}  # noqa: RUF012

    def __init__(self, *options: Option, id_: str | None = None) -> None:
        super().__init__(*options, id=id_, compact=True, markup=False)

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        line = self.scroll_offset.y + y
        # A line is the index of its option, and its number within that option.
        if line >= len(self._lines) or self._lines[line] != (self.highlighted, 0):
            return strip
        style = self.get_visual_style(
            "option-list--option",
            "option-list--option-highlighted",
            "marked-list--mark",
        )
        mark = Strip([Segment(MARK, style.rich_style)])
        return Strip.join([mark, strip.crop(mark.cell_length)])

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        # Textual divides by what the padding leaves of the width: nothing in a tiny
        # terminal.
        return super().get_content_height(container, viewport, max(width, _MIN_WIDTH))


class FieldRow(Horizontal):
    """A label and its field; marked while the field has the focus."""

    def render(self) -> Content:
        """What is seen where no child of the row is: in the cells left free for the mark."""
        if self.has_focus_within:
            return Content.styled(MARK, "$accent")
        return Content("")

    def on_descendant_focus(self) -> None:
        self.refresh()

    def on_descendant_blur(self) -> None:
        self.refresh()


class PointerList(MarkedList, Generic[RowT]):
    """Rows below headings. The pointer stays on its row when the rows change."""

    def __init__(
        self,
        id_: str,
        key: Callable[[RowT], Hashable],
        draw: Callable[[RowT], Content],
    ) -> None:
        """`key` identifies a row; `draw` makes its text, without the mark."""
        super().__init__(id_=id_)
        self._key = key
        self._draw = draw
        self.rows: list[RowT] = []

    def set_sections(
        self,
        sections: Sequence[tuple[Content | None, Sequence[RowT]]],
        *,
        spaced: bool = True,
    ) -> None:
        """Replaces all rows.

        A section is a heading, or None, and its rows. `spaced` puts a blank line between
        sections.
        """
        pointed_row = self.highlighted_row
        self.rows = []
        for _, rows in sections:
            self.rows += rows
        pointed_index = 0
        if pointed_row is not None:
            keys = [self._key(row) for row in self.rows]
            pointed_key = self._key(pointed_row)
            if pointed_key in keys:
                pointed_index = keys.index(pointed_key)
        options: list[Option] = []
        index = 0
        for heading, rows in sections:
            if options and spaced:
                options.append(Option("", disabled=True))
            if heading is not None:
                options.append(Option(heading, disabled=True))
            for row in rows:
                options.append(Option(self._draw(row), id=str(index)))
                index += 1
        self.clear_options()
        self.add_options(options)
        if self.rows:
            self.point_at(pointed_index)

    @property
    def highlighted_index(self) -> int | None:
        option = self.highlighted_option
        if option is None or not option.id:
            return None
        return int(option.id)

    @property
    def highlighted_row(self) -> RowT | None:
        index = self.highlighted_index
        return self.rows[index] if index is not None else None

    def update_row(self, index: int, row: RowT) -> None:
        self.rows[index] = row
        self.replace_option_prompt(str(index), self._draw(row))

    def point_at(self, index: int) -> None:
        self.highlighted = self.get_option_index(str(index))

    def remove_pointer(self) -> None:
        """No row is marked until the user moves to one."""
        self.highlighted = None

    def on_resize(self) -> None:
        """Keeps the pointer visible if other widgets have made the list shorter."""
        self.call_after_refresh(self.scroll_to_highlight)

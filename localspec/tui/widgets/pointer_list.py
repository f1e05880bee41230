"""A list of rows below headings, with a pointer that needs no colour."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from textual import on
from textual.content import Content
from textual.geometry import Size
from textual.widgets import OptionList
from textual.widgets.option_list import Option

RowT = TypeVar("RowT")

_MIN_WIDTH = 8
_NO_ROW = -1


class PointerList(OptionList, Generic[RowT]):
    """The pointer stays on its row when the rows change."""

    def __init__(
        self,
        id_: str,
        key: Callable[[RowT], Hashable],
        draw: Callable[[RowT, bool], Content],
    ) -> None:
        """`key` identifies a row; `draw` gets whether the pointer is on it."""
        super().__init__(id=id_, compact=True, markup=False)
        self._key = key
        self._draw = draw
        self.rows: list[RowT] = []
        self._pointed_index = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        # Textual divides by what the padding leaves of the width: nothing in a tiny
        # terminal.
        return super().get_content_height(container, viewport, max(width, _MIN_WIDTH))

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
        self._pointed_index = 0
        if pointed_row is not None:
            keys = [self._key(row) for row in self.rows]
            pointed_key = self._key(pointed_row)
            if pointed_key in keys:
                self._pointed_index = keys.index(pointed_key)
        options: list[Option] = []
        index = 0
        for heading, rows in sections:
            if options and spaced:
                options.append(Option("", disabled=True))
            if heading is not None:
                options.append(Option(heading, disabled=True))
            for _ in rows:
                options.append(Option(self._line(index), id=str(index)))
                index += 1
        self.clear_options()
        self.add_options(options)
        if self.rows:
            self.point_at(self._pointed_index)

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
        self._redraw(index)

    def point_at(self, index: int) -> None:
        self.highlighted = self.get_option_index(str(index))

    def remove_pointer(self) -> None:
        """No row is marked until the user moves to one."""
        self.highlighted = None
        previous = self._pointed_index
        self._pointed_index = _NO_ROW
        if 0 <= previous < len(self.rows):
            self._redraw(previous)

    def on_resize(self) -> None:
        """Keeps the pointer visible if other widgets have made the list shorter."""
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _move_pointer(self) -> None:
        previous = self._pointed_index
        current = self.highlighted_index
        self._pointed_index = _NO_ROW if current is None else current
        for index in {previous, self._pointed_index}:
            if 0 <= index < len(self.rows):
                self._redraw(index)

    def _redraw(self, index: int) -> None:
        self.replace_option_prompt(str(index), self._line(index))

    def _line(self, index: int) -> Content:
        return self._draw(self.rows[index], index == self._pointed_index)

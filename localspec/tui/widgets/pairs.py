"""The list of Home: sections of rows, with a pointer that does not need colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.tui.downloads import told
from localspec.tui.glyphs import Glyphs
from localspec.tui.rows import Row, Section
from localspec.tui.text.wrapping import fitted

_WIDEST = 120
"""Cells of a line, as the style sheet has it."""
_SMALL = 32
"""Cells of a terminal below which a name stands alone."""
_MODEL = 16
"""Cells for the model of a chat."""
_TEACH = (
    "Your own models would be listed here. w finds a pair that suits this computer, and downloads "
    "it. o opens a target and a draft by their paths: any two GGUF files that share a vocabulary. "
    "/ looks through the catalogue and the hub."
)
_NOTHING = "Nothing here has that name; the hub may. esc shows the list again."
Note = Callable[[Row], str]
"""What is said of a row at its end."""


class Pairs(OptionList):
    """Drawn anew when the rows change; the pointer stays with the name it stood on."""

    def __init__(self, glyphs: Glyphs, note: Note) -> None:
        super().__init__(id="pairs", compact=True, markup=False)
        self._glyphs = glyphs
        self._note = note
        self.rows: list[Row] = []

    def fill(self, sections: Sequence[Section]) -> None:
        """Show these, with their headings."""
        row = self.row
        before = row.name if row is not None else ""
        self.rows = [row for section in sections for row in section.rows]
        self.clear_options()
        self.add_options(self._options_of(sections))
        names = [row.name for row in self.rows]
        if names:
            place = names.index(before) if before in names else 0
            self.highlighted = self.get_option_index(f"row-{place}")

    def _options_of(self, sections: Sequence[Section]) -> list[Option]:
        options: list[Option] = []
        number = 0
        for section in sections:
            if options:
                options.append(Option("", disabled=True))
            options.append(Option(self._heading(section), disabled=True))
            for row in section.rows:
                options.append(Option(self._line(row, pointed=False), id=f"row-{number}"))
                number += 1
        return options

    def _heading(self, section: Section) -> Content:
        """With its key at the end of the line."""
        room = min(self.app.size.width, _WIDEST) - len(section.heading) - len(section.hint) - 6
        hint = f"{' ' * room}{section.hint}" if section.hint and room > 2 else ""
        return Content.assemble((f" {section.heading}", "$muted bold"), (hint, "$muted"))

    @property
    def row(self) -> Row | None:
        """The one under the pointer."""
        option = self.highlighted_option
        number = int(option.id.removeprefix("row-")) if option and option.id else -1
        return self.rows[number] if 0 <= number < len(self.rows) else None

    def lesson(self, wanted: str) -> str:
        """What to do where there is nothing of the wanted name, or little of one's own and room."""
        if wanted:
            return "" if self.rows else _NOTHING
        mine = sum(row.choice is not None for row in self.rows) > 1
        room = self.screen.size.height - self.option_count >= 10
        return _TEACH if room and not mine else ""

    def on_resize(self) -> None:
        """What stands below the list may have taken room from it: the pointer stays in sight."""
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        here = self.row
        for number, row in enumerate(self.rows):
            line = self._line(row, pointed=row is here)
            self.replace_option_prompt(f"row-{number}", line)

    def put(self, number: int, row: Row) -> None:
        """Another state of a row."""
        pointed = self.row is self.rows[number]
        self.rows[number] = row
        self.replace_option_prompt(f"row-{number}", self._line(row, pointed=pointed))

    def _line(self, row: Row, *, pointed: bool) -> Content:
        wide = min(self.app.size.width, _WIDEST)
        more = self._glyphs.more
        sign = self._glyphs.pointer if pointed else " "
        if row.state is not None:
            line = told(row.state, self._glyphs, wide - 6)
            return Content.assemble((f"{sign} ", "$accent"), line)
        name, about = _columns(wide)
        if row.chat is not None and about and not row.found:  # a title says more than a model
            name, about = name + about - _MODEL, _MODEL
        room = max(0, wide - name - about - 20)
        return Content.assemble(
            (f"{sign} ", "$accent"),
            f"{fitted(row.name, name, more)} ",
            (fitted(row.about, about, more), "$muted"),
            f"{row.size:>10}  " if wide >= _SMALL else "",
            (fitted(self._note(row), room, more) if room > 12 else "", "$muted"),
        )


def _columns(wide: int) -> tuple[int, int]:
    """Cells of a name, and of what is said about it; where there is little room, of a name."""
    if wide >= 80:
        return (34, 34) if wide >= 110 else (27, 32)
    return (max(6, min(26, wide - (18 if wide >= _SMALL else 7))), 0)

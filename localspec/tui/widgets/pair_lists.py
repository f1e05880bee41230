"""The list of Home: sections of rows, with a pointer that does not need colour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.tui.downloads import format_download
from localspec.tui.glyphs import Glyphs
from localspec.tui.home_rows import HomeRow, HomeSection
from localspec.tui.text.wrapping import fit_to_width
from localspec.tui.wizard.shortlist import Candidate

_MAX_WIDTH = 120
"""Cells of a line, as the style sheet has it."""
_NARROW_WIDTH = 32
"""Cells of a terminal below which a name stands alone."""
_MODEL_WIDTH = 16
"""Cells for the model of a chat."""
_GETTING_STARTED = (
    "Your own models would be listed here. w finds a pair that suits this computer, and downloads "
    "it. o opens a target and a draft by their paths: any two GGUF files that share a vocabulary. "
    "/ looks through the catalogue and the hub."
)
_NO_MATCH = "Nothing here has that name; the hub may. esc shows the list again."
RowNote = Callable[[HomeRow], str]
"""What is said of a row at its end."""


class HomeList(OptionList):
    """Drawn anew when the rows change; the pointer stays with the name it stood on."""

    def __init__(self, glyphs: Glyphs, note: RowNote) -> None:
        super().__init__(id="pairs", compact=True, markup=False)
        self._glyphs = glyphs
        self._note = note
        self.rows: list[HomeRow] = []

    def set_sections(self, sections: Sequence[HomeSection]) -> None:
        """Show these, with their headings."""
        row = self.highlighted_row
        before = row.name if row is not None else ""
        self.rows = [row for section in sections for row in section.rows]
        self.clear_options()
        self.add_options(self._build_options(sections))
        names = [row.name for row in self.rows]
        if names:
            place = names.index(before) if before in names else 0
            self.highlighted = self.get_option_index(f"row-{place}")

    def _build_options(self, sections: Sequence[HomeSection]) -> list[Option]:
        options: list[Option] = []
        number = 0
        for section in sections:
            if options:
                options.append(Option("", disabled=True))
            options.append(Option(self._heading_line(section), disabled=True))
            for row in section.rows:
                options.append(Option(self._row_line(row, highlighted=False), id=f"row-{number}"))
                number += 1
        return options

    def _heading_line(self, section: HomeSection) -> Content:
        """With its key at the end of the line."""
        room = (
            min(self.app.size.width, _MAX_WIDTH) - len(section.heading) - len(section.key_hint) - 6
        )
        hint = f"{' ' * room}{section.key_hint}" if section.key_hint and room > 2 else ""
        return Content.assemble((f" {section.heading}", "$muted bold"), (hint, "$muted"))

    @property
    def highlighted_row(self) -> HomeRow | None:
        """The one under the pointer."""
        option = self.highlighted_option
        number = int(option.id.removeprefix("row-")) if option and option.id else -1
        return self.rows[number] if 0 <= number < len(self.rows) else None

    def empty_hint(self, search_text: str) -> str:
        """What to do where there is nothing of the wanted name, or little of one's own and room."""
        if search_text:
            return "" if self.rows else _NO_MATCH
        mine = sum(row.choice is not None for row in self.rows) > 1
        room = self.screen.size.height - self.option_count >= 10
        return _GETTING_STARTED if room and not mine else ""

    def on_resize(self) -> None:
        """What stands below the list may have taken room from it: the pointer stays in sight."""
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _redraw_rows(self) -> None:
        here = self.highlighted_row
        for number, row in enumerate(self.rows):
            line = self._row_line(row, highlighted=row is here)
            self.replace_option_prompt(f"row-{number}", line)

    def update_row(self, number: int, row: HomeRow) -> None:
        """Another state of a row."""
        pointed = self.highlighted_row is self.rows[number]
        self.rows[number] = row
        self.replace_option_prompt(f"row-{number}", self._row_line(row, highlighted=pointed))

    def _row_line(self, row: HomeRow, *, highlighted: bool) -> Content:
        wide = min(self.app.size.width, _MAX_WIDTH)
        more = self._glyphs.ellipsis
        sign = self._glyphs.pointer if highlighted else " "
        if row.download is not None:
            line = format_download(row.download, self._glyphs, wide - 6)
            return Content.assemble((f"{sign} ", "$accent"), line)
        name, about = _column_widths(wide)
        if (
            row.chat_id is not None and about and not row.is_excerpt
        ):  # a title says more than a model
            name, about = name + about - _MODEL_WIDTH, _MODEL_WIDTH
        room = max(0, wide - name - about - 20)
        return Content.assemble(
            (f"{sign} ", "$accent"),
            f"{fit_to_width(row.name, name, more)} ",
            (fit_to_width(row.description, about, more), "$muted"),
            f"{row.size:>10}  " if wide >= _NARROW_WIDTH else "",
            (fit_to_width(self._note(row), room, more) if room > 12 else "", "$muted"),
        )


def _column_widths(width: int) -> tuple[int, int]:
    """Cells of a name, and of what is said about it; where there is little room, of a name."""
    if width >= 80:
        return (34, 34) if width >= 110 else (27, 32)
    return (max(6, min(26, width - (18 if width >= _NARROW_WIDTH else 7))), 0)


# --- The field above Home's list: narrows what is listed, and looks further where that is wanted.

if TYPE_CHECKING:
    from localspec.models.hub.client import HubSearchResult


class SearchInput(Input):
    """Not seen until it is wanted."""

    class HubSearchFinished(Message):
        """The hub did, or why not."""

        def __init__(
            self, results: tuple[HubSearchResult, ...], error: LocalspecError | None = None
        ) -> None:
            super().__init__()
            self.results, self.error = results, error

    def __init__(self, search: Callable[[str], tuple[HubSearchResult, ...]]) -> None:
        """`search` may take its time and raise LocalspecError."""
        super().__init__(placeholder="name, use or repository; enter searches the hub", id="filter")
        self._search = search
        self.display, self.cursor_blink = False, False

    @property
    def search_text(self) -> str:
        return self.value.strip()

    def open_field(self) -> None:
        self.display = True
        self.screen.set_focus(self)  # at once: letters may follow close behind

    def close_field(self) -> None:
        self.value, self.display = "", False

    def search_hub(self) -> None:
        """Ask the hub, on a thread."""
        text = self.search_text

        def work() -> None:
            try:
                found = self._search(text)
            except LocalspecError as error:
                self.post_message(self.HubSearchFinished((), error))
            else:
                self.post_message(self.HubSearchFinished(found))

        threading.Thread(target=work, daemon=True, name="search").start()


# --- The wizard's list: lines that are drawn again when a price is known, the pointer on a pair.

CandidateFormatter = Callable[[Candidate, bool], Content]
"""The line of a candidate, which stands under the pointer or not."""


class CandidateList(OptionList):
    """Candidates, the best first."""

    def __init__(self, format_candidate: CandidateFormatter) -> None:
        super().__init__(id="shortlist", compact=True, markup=False)
        self._format_candidate = format_candidate
        self._highlighted_id = ""
        self.candidates: list[Candidate] = []

    @property
    def highlighted_candidate(self) -> Candidate | None:
        """The one under the pointer."""
        at = self.highlighted
        return self.candidates[at] if at is not None and at < len(self.candidates) else None

    def set_candidates(self, candidates: Sequence[Candidate]) -> None:
        """Others, or in another order; the pointer stays with its pair."""
        before = self.highlighted_candidate.pair.id if self.highlighted_candidate else ""
        self.candidates = list(candidates)
        names = [one.pair.id for one in candidates]
        place = names.index(before) if before in names else 0
        self._highlighted_id = names[place] if names else ""
        self.clear_options()
        self.add_options([Option(self._candidate_line(one), id=one.pair.id) for one in candidates])
        self.highlighted = place if names else None

    def update_candidate(self, one: Candidate) -> None:
        """One that knows more now."""
        for n, other in enumerate(self.candidates):
            if other.pair.id == one.pair.id and other != one:
                self.candidates[n] = one
                self.replace_option_prompt(one.pair.id, self._candidate_line(one))

    def redraw_candidates(self) -> None:
        for one in self.candidates:
            self.replace_option_prompt(one.pair.id, self._candidate_line(one))

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _redraw_changed(self) -> None:
        """Only the two lines that changed."""
        one = self.highlighted_candidate
        before, self._highlighted_id = self._highlighted_id, one.pair.id if one else ""
        for other in self.candidates:
            if other.pair.id in (before, self._highlighted_id):
                self.replace_option_prompt(other.pair.id, self._candidate_line(other))

    def _candidate_line(self, one: Candidate) -> Content:
        return self._format_candidate(one, one.pair.id == self._highlighted_id)

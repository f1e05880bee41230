"""The lists of pairs on Home and in the wizard, and Home's search field."""

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

if TYPE_CHECKING:
    from localspec.models.hub.client import HubSearchResult

_MAX_WIDTH = 120
"""Cells of a line, as in localspec.tcss."""
_NARROW_WIDTH = 32
"""Terminals narrower than this show only names."""
_MODEL_WIDTH = 16
"""Cells for the model of a saved chat."""
_GETTING_STARTED = (
    "Your models will be listed here. w finds a pair for this computer and downloads it. "
    "o opens a target and a draft model by path: any two GGUF files with the same vocabulary. "
    "/ searches the catalogue, your chats and the hub."
)
_NO_MATCH = "No match on this computer. enter searches the hub; esc clears the search."
RowNote = Callable[[HomeRow], str]
"""The text at the end of a row."""


class HomeList(OptionList):
    """Sections of rows; the pointer needs no colour and stays on its row when the rows change."""

    def __init__(self, glyphs: Glyphs, note: RowNote) -> None:
        super().__init__(id="pairs", compact=True, markup=False)
        self._glyphs = glyphs
        self._note = note
        self.rows: list[HomeRow] = []

    def set_sections(self, sections: Sequence[HomeSection]) -> None:
        row = self.highlighted_row
        highlighted_name = row.name if row is not None else ""
        self.rows = [row for section in sections for row in section.rows]
        self.clear_options()
        self.add_options(self._build_options(sections))
        names = [row.name for row in self.rows]
        if names:
            index = names.index(highlighted_name) if highlighted_name in names else 0
            self.highlighted = self.get_option_index(f"row-{index}")

    def _build_options(self, sections: Sequence[HomeSection]) -> list[Option]:
        options: list[Option] = []
        index = 0
        for section in sections:
            if options:
                options.append(Option("", disabled=True))
            options.append(Option(self._heading_line(section), disabled=True))
            for row in section.rows:
                options.append(Option(self._row_line(row, highlighted=False), id=f"row-{index}"))
                index += 1
        return options

    def _heading_line(self, section: HomeSection) -> Content:
        """The heading, with its key hint at the right edge."""
        width = min(self.app.size.width, _MAX_WIDTH)
        gap = width - len(section.heading) - len(section.key_hint) - 6
        hint = f"{' ' * gap}{section.key_hint}" if section.key_hint and gap > 2 else ""
        return Content.assemble((f" {section.heading}", "$muted bold"), (hint, "$muted"))

    @property
    def highlighted_row(self) -> HomeRow | None:
        option = self.highlighted_option
        index = int(option.id.removeprefix("row-")) if option and option.id else -1
        return self.rows[index] if 0 <= index < len(self.rows) else None

    def empty_hint(self, search_text: str) -> str:
        """Help below the list: for a search without a match, or for a list with few own models."""
        if search_text:
            return "" if self.rows else _NO_MATCH
        has_own_pairs = sum(row.choice is not None for row in self.rows) > 1
        has_space = self.screen.size.height - self.option_count >= 10
        return _GETTING_STARTED if has_space and not has_own_pairs else ""

    def on_resize(self) -> None:
        """Keeps the pointer visible if other widgets have made the list shorter."""
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _redraw_rows(self) -> None:
        highlighted = self.highlighted_row
        for index, row in enumerate(self.rows):
            line = self._row_line(row, highlighted=row is highlighted)
            self.replace_option_prompt(f"row-{index}", line)

    def update_row(self, index: int, row: HomeRow) -> None:
        highlighted = self.highlighted_row is self.rows[index]
        self.rows[index] = row
        self.replace_option_prompt(f"row-{index}", self._row_line(row, highlighted=highlighted))

    def _row_line(self, row: HomeRow, *, highlighted: bool) -> Content:
        width = min(self.app.size.width, _MAX_WIDTH)
        ellipsis = self._glyphs.ellipsis
        pointer = self._glyphs.pointer if highlighted else " "
        if row.download is not None:
            line = format_download(row.download, self._glyphs, width - 6)
            return Content.assemble((f"{pointer} ", "$accent"), line)
        name, description = _column_widths(width)
        if row.chat_id is not None and description and not row.is_excerpt:
            # a chat's title matters more than its model
            name, description = name + description - _MODEL_WIDTH, _MODEL_WIDTH
        note = max(0, width - name - description - 20)
        return Content.assemble(
            (f"{pointer} ", "$accent"),
            f"{fit_to_width(row.name, name, ellipsis)} ",
            (fit_to_width(row.description, description, ellipsis), "$muted"),
            f"{row.size:>10}  " if width >= _NARROW_WIDTH else "",
            (fit_to_width(self._note(row), note, ellipsis) if note > 12 else "", "$muted"),
        )


def _column_widths(width: int) -> tuple[int, int]:
    """Cells of the name and of the description; narrow terminals have no description."""
    if width >= 80:
        return (34, 34) if width >= 110 else (27, 32)
    return (max(6, min(26, width - (18 if width >= _NARROW_WIDTH else 7))), 0)


class SearchInput(Input):
    """The field above Home's list: filters the list, and searches the hub; hidden until opened."""

    class HubSearchFinished(Message):
        def __init__(
            self, results: tuple[HubSearchResult, ...], error: LocalspecError | None = None
        ) -> None:
            super().__init__()
            self.results, self.error = results, error

    def __init__(self, search: Callable[[str], tuple[HubSearchResult, ...]]) -> None:
        """`search` may block, and raise LocalspecError."""
        super().__init__(placeholder="name, use or repository; enter searches the hub", id="filter")
        self._search = search
        self.display, self.cursor_blink = False, False

    @property
    def search_text(self) -> str:
        return self.value.strip()

    def open_field(self) -> None:
        self.display = True
        self.screen.set_focus(self)  # at once: the next letters may follow immediately

    def close_field(self) -> None:
        self.value, self.display = "", False

    def search_hub(self) -> None:
        """Searches on a thread; posts `HubSearchFinished`."""
        text = self.search_text

        def work() -> None:
            try:
                results = self._search(text)
            except LocalspecError as error:
                self.post_message(self.HubSearchFinished((), error))
            else:
                self.post_message(self.HubSearchFinished(results))

        threading.Thread(target=work, daemon=True, name="search").start()


CandidateFormatter = Callable[[Candidate, bool], Content]
"""Formats a candidate's line; the second argument: whether it is highlighted."""


class CandidateList(OptionList):
    """The wizard's list of pairs, the best first; lines change as estimates arrive."""

    def __init__(self, format_candidate: CandidateFormatter) -> None:
        super().__init__(id="shortlist", compact=True, markup=False)
        self._format_candidate = format_candidate
        self._highlighted_id = ""
        self.candidates: list[Candidate] = []

    @property
    def highlighted_candidate(self) -> Candidate | None:
        index = self.highlighted
        if index is None or index >= len(self.candidates):
            return None
        return self.candidates[index]

    def set_candidates(self, candidates: Sequence[Candidate]) -> None:
        """Replaces the list; the pointer stays on its pair."""
        previous_id = self.highlighted_candidate.pair.id if self.highlighted_candidate else ""
        self.candidates = list(candidates)
        ids = [candidate.pair.id for candidate in candidates]
        index = ids.index(previous_id) if previous_id in ids else 0
        self._highlighted_id = ids[index] if ids else ""
        self.clear_options()
        self.add_options([Option(self._candidate_line(c), id=c.pair.id) for c in candidates])
        self.highlighted = index if ids else None

    def update_candidate(self, candidate: Candidate) -> None:
        for index, old in enumerate(self.candidates):
            if old.pair.id == candidate.pair.id and old != candidate:
                self.candidates[index] = candidate
                self._redraw(candidate)

    def redraw_candidates(self) -> None:
        for candidate in self.candidates:
            self._redraw(candidate)

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _redraw_changed(self) -> None:
        """Redraws only the two lines that changed."""
        highlighted = self.highlighted_candidate
        previous_id = self._highlighted_id
        self._highlighted_id = highlighted.pair.id if highlighted else ""
        for candidate in self.candidates:
            if candidate.pair.id in (previous_id, self._highlighted_id):
                self._redraw(candidate)

    def _redraw(self, candidate: Candidate) -> None:
        self.replace_option_prompt(candidate.pair.id, self._candidate_line(candidate))

    def _candidate_line(self, candidate: Candidate) -> Content:
        return self._format_candidate(candidate, candidate.pair.id == self._highlighted_id)

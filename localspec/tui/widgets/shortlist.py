"""The wizard's list: lines that are drawn again when a price is known, the pointer on a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.tui.wizard.shortlist import Candidate

Draw = Callable[[Candidate, bool], Content]
"""The line of a candidate, which stands under the pointer or not."""


class Shortlist(OptionList):
    """Candidates, the best first."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(id="shortlist", compact=True, markup=False)
        self._draw = draw
        self._pointed = ""
        self.candidates: list[Candidate] = []

    @property
    def candidate(self) -> Candidate | None:
        """The one under the pointer."""
        at = self.highlighted
        return self.candidates[at] if at is not None and at < len(self.candidates) else None

    def fill(self, found: Sequence[Candidate]) -> None:
        """Others, or in another order; the pointer stays with its pair."""
        before = self.candidate.pair.id if self.candidate else ""
        self.candidates = list(found)
        names = [one.pair.id for one in found]
        place = names.index(before) if before in names else 0
        self._pointed = names[place] if names else ""
        self.clear_options()
        self.add_options([Option(self._line(one), id=one.pair.id) for one in found])
        self.highlighted = place if names else None

    def put(self, one: Candidate) -> None:
        """One that knows more now."""
        for n, other in enumerate(self.candidates):
            if other.pair.id == one.pair.id and other != one:
                self.candidates[n] = one
                self.replace_option_prompt(one.pair.id, self._line(one))

    def draw_all(self) -> None:
        for one in self.candidates:
            self.replace_option_prompt(one.pair.id, self._line(one))

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_to_highlight)

    @on(OptionList.OptionHighlighted)
    def _moved(self) -> None:
        """Only the two lines that changed."""
        one = self.candidate
        before, self._pointed = self._pointed, one.pair.id if one else ""
        for other in self.candidates:
            if other.pair.id in (before, self._pointed):
                self.replace_option_prompt(other.pair.id, self._line(other))

    def _line(self, one: Candidate) -> Content:
        return self._draw(one, one.pair.id == self._pointed)

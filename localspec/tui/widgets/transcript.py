"""The turns of a chat, scrolled; in the token view, a cursor that walks over tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Region
from textual.message import Message

from localspec.chat.conversation import Turn
from localspec.errors import LocalspecError
from localspec.protocol.events import Place, Round, Token
from localspec.tui.glyphs import Glyphs
from localspec.tui.keys import bindings
from localspec.tui.widgets.failure import Failure
from localspec.tui.widgets.turn import TurnView


class Transcript(VerticalScroll, can_focus=False):
    """Follows the end until a person scrolls away from it."""

    BINDINGS = bindings("tokens")

    class Pointed(Message):
        """The cursor stands on a token, or on none."""

        def __init__(self, token: Token | None, round_: Round | None) -> None:
            super().__init__()
            self.token, self.round = token, round_

    class Left(Message):
        """Back to typing."""

    class ReplayWanted(Message):
        """Of the answer under the cursor."""

        def __init__(self, turn: int) -> None:
            super().__init__()
            self.turn = turn

    def __init__(self, glyphs: Glyphs, *, marks: bool) -> None:
        super().__init__()
        self._glyphs = glyphs
        self.marks = marks
        """Glyphs beside the colours."""
        self.tokens = False
        """Every token in its class, not the text as it is meant to be read."""
        self._unfolded = False
        self._turn: int | None = None
        """Of the cursor."""

    def compose(self) -> ComposeResult:
        # As high as the view at least: Textual anchors shorter content to the bottom.
        yield Vertical(id="turns")

    @property
    def turns(self) -> list[TurnView]:
        return list(self.query(TurnView))

    @property
    def _pages(self) -> Vertical:
        return self.query_one("#turns", Vertical)

    # --- turns come and go ----------------------------------------------------------------

    async def add(
        self, turn: Turn, *, speaker: str, thinking: tuple[str, str] | None, raw: bool
    ) -> None:
        """One more turn, at the end; what comes is followed again."""
        view = TurnView(turn, speaker=speaker, thinking=thinking, raw=raw, glyphs=self._glyphs)
        await self._pages.mount(view)
        await view.show_tokens(self.tokens, self.marks)
        view.fold_thinking(self._unfolded)
        self.anchor()

    async def take_back(self) -> None:
        """The last turn goes."""
        if self._turn is not None and self._turn >= len(self.turns) - 1:
            self._turn = None
            self.post_message(self.Pointed(None, None))
        await self.turns[-1].remove()

    async def clear(self) -> None:
        self.leave()
        await self._pages.remove_children()

    def fail(self, error: LocalspecError, keys: str) -> None:
        """Something ended badly: said below everything else."""
        self._pages.mount(Failure(error, keys))
        self.anchor()

    @property
    def failed(self) -> bool:
        return bool(self.query(Failure))

    def forgive(self) -> None:
        """What failed is tried again."""
        self.query(Failure).remove()

    # --- how they are shown ---------------------------------------------------------------

    async def show_tokens(self, shown: bool) -> None:
        """The token view, with the keyboard where there is an answer; or not."""
        self.tokens = shown
        await self._show()
        if shown and self.turns:
            self.enter()
        else:
            self.leave()

    async def toggle_marks(self) -> None:
        self.marks = not self.marks
        await self._show()

    async def _show(self) -> None:
        for view in self.turns:
            await view.show_tokens(self.tokens, self.marks)

    def fold_thinking(self, unfolded: bool | None = None) -> None:
        """Show or hide what was thought; the other way unless said which."""
        self._unfolded = not self._unfolded if unfolded is None else unfolded
        for view in self.turns:
            view.fold_thinking(self._unfolded)

    # --- the cursor -----------------------------------------------------------------------

    @property
    def walking(self) -> bool:
        """Whether keys move the cursor."""
        return self.can_focus

    def enter(self) -> None:
        """Put the cursor on the last token, and the keyboard with it."""
        self.can_focus = True
        self.focus()
        if self._turn is None and self.turns:
            said = [number for number, t in enumerate(self.turns[-1].flow.tokens) if t.text]
            self._place(len(self.turns) - 1, said[-1] if said else -1)
        if self._turn is None:
            self.post_message(self.Pointed(None, None))

    def leave(self) -> None:
        """No cursor any more."""
        self.can_focus = False
        for turn in self.turns:
            turn.flow.cursor = None
        self._turn = None
        self.post_message(self.Pointed(None, None))

    def _place(self, number: int, token: int) -> None:
        """Stand on a token of a turn; -1 is its last."""
        turns = self.turns
        if not 0 <= number < len(turns) or not turns[number].flow.tokens:
            return
        for view in turns:
            view.flow.cursor = None
        flow = turns[number].flow
        place = token % len(flow.tokens)
        flow.cursor = place
        self._turn = number
        self.call_after_refresh(self._reveal)  # where it stands is known after the layout
        self.post_message(self.Pointed(flow.tokens[place], turns[number].round_of(place)))

    def _reveal(self) -> None:
        """Scroll to the cursor."""
        turns = self.turns
        if self._turn is None or self._turn >= len(turns):
            return
        view = turns[self._turn]
        top = view.virtual_region.y + view.flow.virtual_region.y
        line = top + view.flow.line_of(view.flow.cursor or 0)
        self.scroll_to_region(Region(0, line, 1, 2), animate=False, force=True)

    def learn(self, places: Sequence[Place]) -> None:
        """Chances of the last answer came; the cursor's token may have some now."""
        if not self.turns:
            return
        self.turns[-1].learn(places)
        if self._turn is not None:
            self._place(self._turn, self.turns[self._turn].flow.cursor or 0)

    def action_walk(self, by: int) -> None:
        """To a neighbouring token, over the edge into the neighbouring answer."""
        if self._turn is None:
            self._place(len(self.turns) - 1, -1)
            return
        flow = self.turns[self._turn].flow
        place = (flow.cursor or 0) + by
        if 0 <= place < len(flow.tokens):
            self._place(self._turn, place)
        else:
            self._place(self._turn + by, -1 if by < 0 else 0)

    def action_leap(self, by: int) -> None:
        """To the first token of a neighbouring round."""
        if self._turn is None:
            self._place(len(self.turns) - 1, -1)
            return
        view = self.turns[self._turn]
        cursor = view.flow.cursor or 0
        ends = accumulate((len(r.tokens) for r in view.rounds), initial=0)
        starts = [start for start in ends if start < len(view.flow.tokens)]
        at = bisect_left(starts, cursor) - 1 if by < 0 else bisect_right(starts, cursor)
        if 0 <= at < len(starts):
            self._place(self._turn, starts[at])
        else:
            self._place(self._turn + by, -1 if by < 0 else 0)

    def action_replay(self) -> None:
        if self._turn is not None:
            self.post_message(self.ReplayWanted(self._turn))

    async def action_glyphs(self) -> None:
        await self.toggle_marks()

    def action_leave(self) -> None:
        self.leave()
        self.post_message(self.Left())

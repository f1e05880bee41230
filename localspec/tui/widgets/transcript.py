"""The turns of a chat; in the token view, a cursor that walks over tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from textual.message import Message

from localspec import flags
from localspec.chat.turn import Turn
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.protocol.events import Event, Place, Round, Token
from localspec.tui import themes
from localspec.tui.glyphs import Glyphs
from localspec.tui.keys import bindings
from localspec.tui.text.look import Look
from localspec.tui.text.part import Gap, Hints, Part, Words
from localspec.tui.text.turn import Speaker, TurnText
from localspec.tui.widgets.lines import Lines


class Transcript(Lines, can_focus=False):
    """Everything that was said, and what failed."""

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
        self.turns: list[TurnText] = []
        self._failure: list[Part] = []
        self.marks = marks
        """Glyphs beside the colours."""
        self.tokens = False
        """Every token in its class, not the text as it is meant to be read."""
        self.unfolded = False
        """Whether what was thought is shown."""
        self._turn: int | None = None
        """Of the cursor."""

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, self._restyle)

    def _restyle(self, _: object) -> None:
        for turn in self.turns:
            turn.prose.restyle(self._look())
        self._drawn()

    def _look(self) -> Look:
        return themes.look(self.app.current_theme, ascii_only=self._glyphs.ascii_only)

    def _drawn(self) -> None:
        """Turns or what they hold changed."""
        self._stack.parts = [*self.turns, *self._failure]
        self.changed()

    # --- turns come and go ----------------------------------------------------------------

    def add(self, turn: Turn, speaker: Speaker, branch: str = "") -> None:
        """One more turn, at the end; what comes is followed again."""
        text = TurnText(turn, speaker, self._glyphs, self._look(), branch)
        text.show_tokens(self.tokens, self.marks)
        text.fold_thinking(self.unfolded)
        self.turns.append(text)
        self._drawn()
        self.follow()

    def heard(self, events: Sequence[Event]) -> None:
        """Of the last turn."""
        self.turns[-1].heard(events)
        self._drawn()

    def end(self, note: str) -> None:
        """The last answer is over."""
        self.turns[-1].end(note)
        self._drawn()

    def note(self, text: str) -> None:
        self.turns[-1].note(text)
        self._drawn()

    def take_back(self) -> None:
        """The last turn goes."""
        self.turns.pop()
        if self._turn is not None and self._turn >= len(self.turns):
            self._turn = None
            self.post_message(self.Pointed(None, None))
        self._drawn()

    def clear(self) -> None:
        self.leave()
        self.turns.clear()
        self.forgive()

    def fail(self, error: LocalspecError, keys: Sequence[str]) -> None:
        """Something ended badly: said below everything else."""
        bar = self._glyphs.bar_left
        said = (error.message, "error"), (flags.in_words(error.hint), "text")
        self._failure = [Gap()]
        self._failure += [Words(clean(t, multiline=False), style, bar) for t, style in said if t]
        self._failure.append(Hints(keys, bar))
        self._drawn()
        self.follow()

    @property
    def failed(self) -> bool:
        return bool(self._failure)

    def forgive(self) -> None:
        """What failed is tried again."""
        self._failure = []
        self._drawn()

    # --- how they are shown ---------------------------------------------------------------

    def show_tokens(self, shown: bool) -> None:
        """The token view, with the keyboard where there is an answer; or not."""
        self.tokens = shown
        self._show()
        if shown and self.turns:
            self.enter()
        else:
            self.leave()

    def toggle_marks(self) -> None:
        self.marks = not self.marks
        self._show()

    def _show(self) -> None:
        for turn in self.turns:
            turn.show_tokens(self.tokens, self.marks)
        self._drawn()

    def show_thinking(self, shown: bool) -> None:
        """Show or hide what was thought."""
        if shown == self.unfolded:
            return
        self.unfolded = shown
        for turn in self.turns:
            turn.fold_thinking(shown)
        self._drawn()

    # --- the cursor -----------------------------------------------------------------------

    @property
    def walking(self) -> bool:
        """Whether keys move the cursor."""
        return self.can_focus

    def enter(self) -> None:
        """Put the cursor on the last token that is seen, and the keyboard with it."""
        self.can_focus = True
        self.screen.set_focus(self)  # at once: arrows may follow close behind
        if self._turn is None and self.turns:
            said = [number for number, t in enumerate(self.turns[-1].flow.tokens) if t.text]
            self._place(len(self.turns) - 1, said[-1] if said else -1)
        if self._turn is None:
            self.post_message(self.Pointed(None, None))

    def leave(self) -> None:
        """No cursor any more."""
        self.can_focus = False
        if self._turn is not None:
            self.turns[self._turn].flow.cursor = None
        self._turn = None
        self.refresh()
        self.post_message(self.Pointed(None, None))

    def _place(self, number: int, token: int) -> None:
        """Stand on a token of a turn; -1 is its last."""
        if not 0 <= number < len(self.turns) or not self.turns[number].flow.tokens:
            return
        if self._turn is not None:
            self.turns[self._turn].flow.cursor = None
        turn = self.turns[number]
        place = token % len(turn.flow.tokens)
        self._turn, turn.flow.cursor = number, place
        self.reveal(self._stack.top(turn) + turn.line_of(place))
        self.refresh()
        self.post_message(self.Pointed(turn.flow.tokens[place], turn.round_of(place)))

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
        turn = self.turns[self._turn]
        cursor = turn.flow.cursor or 0
        ends = accumulate((len(r.tokens) for r in turn.rounds), initial=0)
        starts = [start for start in ends if start < len(turn.flow.tokens)]
        at = bisect_left(starts, cursor) - 1 if by < 0 else bisect_right(starts, cursor)
        if 0 <= at < len(starts):
            self._place(self._turn, starts[at])
        else:
            self._place(self._turn + by, -1 if by < 0 else 0)

    def action_replay(self) -> None:
        if self._turn is not None:
            self.post_message(self.ReplayWanted(self._turn))

    def action_glyphs(self) -> None:
        self.toggle_marks()

    def action_leave(self) -> None:
        self.leave()
        self.post_message(self.Left())

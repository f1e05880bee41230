"""The turns of a chat; in the token view, a cursor that walks over tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from localspec import hints
from localspec.chat.conversation import Turn
from localspec.chat.settings import LoadedModel
from localspec.errors import LocalspecError
from localspec.protocol.events import Event, Round, Token, TokenScore
from localspec.sanitize import sanitize
from localspec.tui import themes
from localspec.tui.glyphs import Glyphs
from localspec.tui.key_bindings import bindings_for
from localspec.tui.text.blocks import BlankLine, KeyHints, Paragraph, TextBlock
from localspec.tui.text.turn_text import Speaker, TurnText
from localspec.tui.themes import MarkdownStyle
from localspec.tui.widgets.text_view import TextView


class Transcript(TextView, can_focus=False):
    """Everything that was said, and what failed."""

    BINDINGS = bindings_for("tokens")

    class TokenSelected(Message):
        """The cursor stands on a token, or on none."""

        def __init__(self, token: Token | None, round_: Round | None) -> None:
            super().__init__()
            self.token, self.round = token, round_

    class TokenViewLeft(Message):
        """Back to typing."""

    class ReplayRequested(Message):
        """Of the answer under the cursor."""

        def __init__(self, turn: int) -> None:
            super().__init__()
            self.turn = turn

    def __init__(self, glyphs: Glyphs, *, show_marks: bool) -> None:
        super().__init__()
        self._glyphs = glyphs
        self.turns: list[TurnText] = []
        self._error_blocks: list[TextBlock] = []
        self.show_marks = show_marks
        """Glyphs beside the colours."""
        self.token_view = False
        """Every token in its class, not the text as it is meant to be read."""
        self.thinking_unfolded = False
        """Whether what was thought is shown."""
        self._cursor_turn: int | None = None
        """Of the cursor."""

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, self._restyle)

    def _restyle(self, _: object) -> None:
        for turn in self.turns:
            turn.markdown.restyle(self._markdown_style())
        self._rebuild_blocks()

    def _markdown_style(self) -> MarkdownStyle:
        return themes.markdown_style(self.app.current_theme, ascii_only=self._glyphs.ascii_only)

    def _rebuild_blocks(self) -> None:
        """Turns or what they hold changed."""
        self._blocks.blocks = [*self.turns, *self._error_blocks]
        self.update_blocks()

    # --- turns come and go ----------------------------------------------------------------

    def add_turn(self, turn: Turn, speaker: Speaker, branch: str = "") -> None:
        """One more turn, at the end; what comes is followed again."""
        text = TurnText(turn, speaker, self._glyphs, self._markdown_style(), branch)
        text.show_tokens(self.token_view, self.show_marks)
        text.set_thinking_unfolded(self.thinking_unfolded)
        self.turns.append(text)
        self._rebuild_blocks()
        self.follow_end()

    def add_events(self, events: Sequence[Event]) -> None:
        """Of the last turn."""
        self.turns[-1].add_events(events)
        self._rebuild_blocks()

    def finish_answer(self, note: str) -> None:
        """The last answer is over."""
        self.turns[-1].finish(note)
        self._rebuild_blocks()

    def set_note(self, text: str) -> None:
        self.turns[-1].set_note(text)
        self._rebuild_blocks()

    def remove_last_turn(self) -> None:
        """The last turn goes."""
        self.turns.pop()
        if self._cursor_turn is not None and self._cursor_turn >= len(self.turns):
            self._cursor_turn = None
            self.post_message(self.TokenSelected(None, None))
        self._rebuild_blocks()

    def clear_turns(self) -> None:
        self.deactivate_cursor()
        self.turns.clear()
        self.clear_error()

    def show_error(self, error: LocalspecError, keys: Sequence[str]) -> None:
        """Something ended badly: said below everything else."""
        bar = self._glyphs.error_bar
        said = (error.message, "error"), (hints.for_screen(error.hint), "text")
        self._error_blocks = [BlankLine()]
        self._error_blocks += [
            Paragraph(sanitize(t, multiline=False), style, bar) for t, style in said if t
        ]
        self._error_blocks.append(KeyHints(keys, bar))
        self._rebuild_blocks()
        self.follow_end()

    @property
    def has_error(self) -> bool:
        return bool(self._error_blocks)

    def clear_error(self) -> None:
        """What failed is tried again."""
        self._error_blocks = []
        self._rebuild_blocks()

    # --- how they are shown ---------------------------------------------------------------

    def show_tokens(self, shown: bool) -> None:
        """The token view, with the keyboard where there is an answer; or not."""
        self.token_view = shown
        self._restyle_turns()
        if shown and self.turns:
            self.activate_cursor()
        else:
            self.deactivate_cursor()

    def toggle_marks(self) -> None:
        self.show_marks = not self.show_marks
        self._restyle_turns()

    def _restyle_turns(self) -> None:
        for turn in self.turns:
            turn.show_tokens(self.token_view, self.show_marks)
        self._rebuild_blocks()

    def show_thinking(self, shown: bool) -> None:
        """Show or hide what was thought."""
        if shown == self.thinking_unfolded:
            return
        self.thinking_unfolded = shown
        for turn in self.turns:
            turn.set_thinking_unfolded(shown)
        self._rebuild_blocks()

    # --- the cursor -----------------------------------------------------------------------

    @property
    def is_cursor_active(self) -> bool:
        """Whether keys move the cursor."""
        return self.can_focus

    def activate_cursor(self) -> None:
        """Put the cursor on the last token that is seen, and the keyboard with it."""
        self.can_focus = True
        self.screen.set_focus(self)  # at once: arrows may follow close behind
        if self._cursor_turn is None and self.turns:
            said = [number for number, t in enumerate(self.turns[-1].token_text.tokens) if t.text]
            self._move_cursor(len(self.turns) - 1, said[-1] if said else -1)
        if self._cursor_turn is None:
            self.post_message(self.TokenSelected(None, None))

    def deactivate_cursor(self) -> None:
        """No cursor any more."""
        self.can_focus = False
        if self._cursor_turn is not None:
            self.turns[self._cursor_turn].token_text.cursor = None
        self._cursor_turn = None
        self.refresh()
        self.post_message(self.TokenSelected(None, None))

    def _move_cursor(self, number: int, token: int) -> None:
        """Stand on a token of a turn; -1 is its last."""
        if not 0 <= number < len(self.turns) or not self.turns[number].token_text.tokens:
            return
        if self._cursor_turn is not None:
            self.turns[self._cursor_turn].token_text.cursor = None
        turn = self.turns[number]
        place = token % len(turn.token_text.tokens)
        self._cursor_turn, turn.token_text.cursor = number, place
        self.reveal_line(self._blocks.top_of(turn) + turn.line_of(place))
        self.refresh()
        self.post_message(self.TokenSelected(turn.token_text.tokens[place], turn.round_of(place)))

    def set_logprobs(self, token_logprobs: Sequence[TokenScore]) -> None:
        """Chances of the last answer came; the cursor's token may have some now."""
        if not self.turns:
            return
        self.turns[-1].set_logprobs(token_logprobs)
        if self._cursor_turn is not None:
            self._move_cursor(
                self._cursor_turn, self.turns[self._cursor_turn].token_text.cursor or 0
            )

    def action_walk(self, by: int) -> None:
        """To a neighbouring token, over the edge into the neighbouring answer."""
        if self._cursor_turn is None:
            self._move_cursor(len(self.turns) - 1, -1)
            return
        flow = self.turns[self._cursor_turn].token_text
        place = (flow.cursor or 0) + by
        if 0 <= place < len(flow.tokens):
            self._move_cursor(self._cursor_turn, place)
        else:
            self._move_cursor(self._cursor_turn + by, -1 if by < 0 else 0)

    def action_leap(self, by: int) -> None:
        """To the first token of a neighbouring round."""
        if self._cursor_turn is None:
            self._move_cursor(len(self.turns) - 1, -1)
            return
        turn = self.turns[self._cursor_turn]
        cursor = turn.token_text.cursor or 0
        ends = accumulate((len(r.tokens) for r in turn.rounds), initial=0)
        starts = [start for start in ends if start < len(turn.token_text.tokens)]
        at = bisect_left(starts, cursor) - 1 if by < 0 else bisect_right(starts, cursor)
        if 0 <= at < len(starts):
            self._move_cursor(self._cursor_turn, starts[at])
        else:
            self._move_cursor(self._cursor_turn + by, -1 if by < 0 else 0)

    def action_replay(self) -> None:
        if self._cursor_turn is not None:
            self.post_message(self.ReplayRequested(self._cursor_turn))

    def action_glyphs(self) -> None:
        self.toggle_marks()

    def action_leave(self) -> None:
        self.deactivate_cursor()
        self.post_message(self.TokenViewLeft())


# --- An empty chat says what to do with it.

_LOADING_HINT = "Loading. You may type already."
_CHAT_HINT = (
    "Say something, and press enter.\n\n"
    "f2 shows how every token of the answer came, f4 has the settings and the system prompt."
)
_COMPLETION_HINT = (
    "This model goes on with a text: type how it begins, such as\n\n"
    "    def fibonacci(n):\n\n"
    "and press enter. An empty line goes on. f2 shows how every token came."
)


class EmptyChatHint(Static):
    """In the place of the transcript."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def draw(self, loaded: LoadedModel | None, settings_summary: str = "") -> None:
        """`chosen`: with what settings it was loaded, and why."""
        if self.display:
            words = (
                _LOADING_HINT
                if loaded is None
                else _CHAT_HINT
                if loaded.has_chat_template
                else _COMPLETION_HINT
            )
            self.update(Content("\n\n".join(filter(None, (words, settings_summary)))))

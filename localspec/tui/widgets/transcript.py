"""The transcript of a chat, with the token view and its cursor."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from msgspec.structs import replace
from rich.cells import set_cell_size
from textual import events
from textual.content import Content
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import Static

from localspec.chat import examples
from localspec.chat.answer import AnswerDelta
from localspec.chat.conversation import CallResult, Conversation, Turn
from localspec.chat.history import SearchHit
from localspec.chat.session import ChatSession
from localspec.chat.tool_loop import CallState
from localspec.errors import LocalspecError
from localspec.protocol.events import Round, Token, TokenScore
from localspec.tui import themes
from localspec.tui.key_bindings import bindings_for
from localspec.tui.notices import problem_text, screen_hint
from localspec.tui.scheduling import LatestOnlyWorker
from localspec.tui.text.blocks import BlankLine, KeyHints, Paragraph, TextBlock
from localspec.tui.text.live_frames import NO_GUESS, LiveGuess
from localspec.tui.text.markdown import (
    MarkdownText,
    RenderBudget,
    RenderedBlock,
    SegmentLine,
    UncolouredBlock,
    UnrenderedBlock,
)
from localspec.tui.text.turn_text import (
    Speaker,
    TranscriptTurn,
    TurnContext,
    TurnText,
    format_end_reason,
)
from localspec.tui.text.wrapping import one_line
from localspec.tui.themes import MarkdownStyle
from localspec.tui.widgets.text_view import ReadingPosition, TextView

_URL = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}]")


def find_url(text: str, position: int) -> str:
    """The address in a text that has the character at this position; else empty."""
    for match in _URL.finditer(text):
        if match.start() <= position < match.end():
            return match[0]
    return ""


class Transcript(TextView, can_focus=False):
    """All turns, and below them the last error."""

    BINDINGS = bindings_for("tokens")

    class TokenSelected(Message):
        """Another token has the cursor, or none has it any more."""

    class TokenViewLeft(Message):
        """The keyboard goes back to the composer."""

    @dataclass(eq=False)
    class CallClicked(Message):
        """A call is to be shown in full."""

        state: CallState

    def __init__(
        self, *, colours: bool, show_marks: bool, draws_pictures: bool = True
    ) -> None:
        """`colours`: of the classes of tokens.

        `draws_pictures`: the terminal has half blocks, of which thumbnails are made.
        """
        super().__init__(show_marks=show_marks)
        self.turns: list[TranscriptTurn] = []
        self._thinking_markers: tuple[str, str] | None = None  # Of stored answers.
        self._error_blocks: list[TextBlock] = []
        self._uncoloured: deque[tuple[MarkdownText, UncolouredBlock]] = deque()
        self._unrendered: deque[tuple[MarkdownText, UnrenderedBlock]] = deque()
        self._budget = RenderBudget()
        self._colour_worker = LatestOnlyWorker(self, "colours")
        self.colours = colours
        self._draws_pictures = draws_pictures
        self.thinking_unfolded = False
        self._cursor_turn: int | None = None  # The turn that has the cursor.

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, self._restyle)

    def _restyle(self, _: object) -> None:
        for text in self._made_texts():
            text.restyle(self._markdown_style)
        self._blocks.forget_all()
        self._rebuild_blocks()

    def _made_texts(self) -> list[TurnText]:
        """The texts of the turns that were seen; the others are made as is wanted then."""
        texts = [turn.made_text for turn in self.turns]
        return [text for text in texts if text is not None]

    @property
    def _markdown_style(self) -> MarkdownStyle:
        return themes.markdown_style(self.app.current_theme, marks=self.show_marks)

    def _rebuild_blocks(self) -> None:
        self._blocks.blocks = [*self.turns, *self._error_blocks]
        self.update_blocks()

    def _show(self, position: ReadingPosition | None) -> None:
        self._budget.refill()
        super()._show(position)
        markdowns: list[MarkdownText] = []
        for text in self._made_texts():
            markdowns += text.markdowns
        for markdown in markdowns:
            found = markdown.take_uncoloured()
            self._uncoloured += [(markdown, block) for block in found]
            unrendered = markdown.take_unrendered()
            if unrendered is not None:
                self._unrendered.append((markdown, unrendered))
        if self._uncoloured or self._unrendered:
            self._colour_worker.submit(
                self._render_blocks, failed=self._colouring_failed
            )

    def _render_blocks(self) -> None:
        """On a thread, the last block first: the view begins at the end."""
        while self._unrendered or self._uncoloured:
            with suppress(IndexError):
                text, unrendered = self._unrendered.pop()
                self.call_later(self._show_rendered, text, unrendered.render())
            with suppress(IndexError):
                text, block = self._uncoloured.pop()
                self.call_later(self._show_colours, text, block, block.render())

    def _show_rendered(self, text: MarkdownText, rendered: RenderedBlock) -> None:
        """Shows a block that was plain; what is read stays where it is."""
        moved = text.show_rendered(rendered)
        for index, turn in enumerate(self.turns):
            made = turn.made_text
            if moved is None or made is None or text not in made.markdowns:
                continue
            position = self._reading_position()
            top = made.line_of_markdown(text)
            self._blocks.wrap(index)
            if position is not None and position.block == index and top is not None:
                line = position.line
                if line >= top + moved.first:
                    line += moved.by
                position = ReadingPosition(index, line, position.row)
            self._show(position)

    def _colouring_failed(self, error: LocalspecError) -> None:
        """The code stays without colours."""
        self.notify(problem_text(error), severity="warning", markup=False)

    def _show_colours(
        self, markdown: MarkdownText, block: UncolouredBlock, lines: list[SegmentLine]
    ) -> None:
        markdown.colour(block, lines)
        self.refresh()

    # --- turns
    # ----------------------------------------------------------------------------

    def show_session(self, session: ChatSession) -> None:
        """Shows the selected path.

        Turns that are shown already stay: to undo one of thousands costs that one.
        """
        markers = session.thinking_markers
        shown: dict[int, TranscriptTurn] = {}
        if markers == self._thinking_markers:
            shown = {turn.turn_id: turn for turn in self.turns}
        self._thinking_markers = markers
        self.deactivate_cursor()
        self.turns.clear()
        names = session.name_answers()
        path = session.conversation.turns
        for index, turn in enumerate(path):
            speaker = Speaker(names[turn.model], session.completes_text)
            context = _find_context(path, index)
            old = shown.get(turn.id)
            if (
                old is not None
                and old.turn is turn
                and old.speaker == speaker
                and old.context == context
            ):
                self.turns.append(old)
                continue
            make = partial(
                self._make_text,
                turn,
                speaker,
                session.conversation,
                context,
                is_stored=True,
            )
            self.turns.append(TranscriptTurn(turn, speaker, make, context))
        self.clear_error()
        if self.turns:
            self.follow_end()

    def add_turn(self, session: ChatSession, turn: Turn) -> None:
        """Appends a turn of the session's path. After a question it follows the end."""
        names = session.name_answers()
        speaker = Speaker(names[turn.model], session.completes_text)
        path = session.conversation.turns
        ids = [each.id for each in path]
        make = partial(
            self._make_text,
            turn,
            speaker,
            session.conversation,
            _find_context(path, ids.index(turn.id)),
            is_stored=False,
        )
        self.turns.append(TranscriptTurn(turn, speaker, make))
        self._rebuild_blocks()
        if not turn.is_tool_step:
            self.follow_end()

    def begin_step(self, session: ChatSession, turn: Turn) -> None:
        """The answer goes on after the results of its calls."""
        self.turns[-1].text.finish(is_continued=True)
        self._blocks.forget(self.turns[-1])
        self.add_turn(session, turn)

    def keep_turns(self, path: Sequence[Turn]) -> None:
        """Removes the turns that are not on a path, from the first such turn on."""
        ids = [turn.id for turn in path]
        while [turn.turn_id for turn in self.turns] != ids[: len(self.turns)]:
            self.remove_last_turn()

    def _make_text(
        self,
        turn: Turn,
        speaker: Speaker,
        conversation: Conversation,
        context: TurnContext,
        budget: RenderBudget | None,
        *,
        is_stored: bool,
    ) -> TurnText:
        """`budget`: None for the view's. `is_stored`: the answer has ended before."""
        branch = conversation.format_branch(turn.id)
        if budget is None:
            budget = self._budget
        text = TurnText(
            turn,
            speaker,
            self._markdown_style,
            replace(context, branch=branch),
            budget,
            draws_pictures=self._draws_pictures,
        )
        self._style_tokens(text)
        text.set_thinking_unfolded(self.thinking_unfolded)
        if is_stored:
            text.show_stored(turn, self._thinking_markers)
            is_continued = bool(context.results)
            note = "" if is_continued else format_end_reason(turn, None)
            text.finish(note, is_continued=is_continued)
        return text

    def add_deltas(
        self, deltas: Sequence[AnswerDelta], guess: LiveGuess = NO_GUESS
    ) -> None:
        """`guess` is drawn with the text, of which it is no part."""
        text = self.turns[-1].text
        text.add_deltas(deltas)
        text.show_guess(guess)
        self._update_last_turn()

    def finish_answer(self, note: str) -> None:
        """`note`: as of `TurnText.finish`."""
        self.turns[-1].text.finish(note)
        self._update_last_turn()

    # --- calls of tools
    # ----------------------------------------------------------------------------

    def show_call(self, state: CallState) -> None:
        self.turns[-1].text.show_call(state)
        self._update_last_turn()

    def tick_calls(self) -> None:
        """Draws the seconds of a call that runs."""
        if self.turns and self.turns[-1].text.tick_calls():
            self._update_last_turn()

    @property
    def call_states(self) -> list[CallState]:
        """All calls of the path that is shown."""
        states: list[CallState] = []
        for turn in self.turns:
            states += turn.call_states
        return states

    def _call_at(self, row: int) -> CallState | None:
        index, line = self._blocks.locate(row)
        if index >= len(self.turns):
            return None
        made = self.turns[index].made_text
        return None if made is None else made.call_at(line)

    def _update_last_turn(self) -> None:
        self._blocks.forget(self.turns[-1])
        self.update_blocks()

    def show_match(self, found: SearchHit) -> None:
        """Scrolls to the first line of the turn that has one of the words."""
        for index, turn in enumerate(self.turns):
            if turn.turn_id == found.turn:
                self.wrap_blocks(index)
                line = self._find_line(turn, found.terms)
                row = 0  # Of the window, where the line is shown.
                if line:
                    row = 2
                self.show_line(index, line, row=row)
                return

    def _find_line(self, turn: TranscriptTurn, terms: Sequence[str]) -> int:
        """The first line of the turn with one of the terms; else 0."""
        for number in range(turn.height(self._width)):
            segments = turn.line(number, self.text_styles)
            line = "".join(segment.text for segment in segments).lower()
            if any(term in line for term in terms):
                return number
        return 0

    def set_note(self, text: str) -> None:
        self.turns[-1].text.set_note(text)
        self._update_last_turn()

    def remove_last_turn(self) -> None:
        self.turns.pop()
        if self._cursor_turn is not None and self._cursor_turn >= len(self.turns):
            self._cursor_turn = None
            self.post_message(self.TokenSelected())
        self._rebuild_blocks()

    def show_error(self, error: LocalspecError, keys: Sequence[str]) -> None:
        """Shows an error below the turns; `keys`: hints of what to do."""
        bar = "▌ "
        message = one_line(error.message)
        hint = one_line(screen_hint(error.hint))
        self._error_blocks = [BlankLine(), Paragraph(message, "error", bar)]
        if hint:
            self._error_blocks.append(Paragraph(hint, "text", bar))
        self._error_blocks.append(KeyHints(keys, bar))
        self._rebuild_blocks()
        self.follow_end()

    @property
    def has_error(self) -> bool:
        return bool(self._error_blocks)

    def clear_error(self) -> None:
        self._error_blocks = []
        self._rebuild_blocks()

    # --- views
    # ----------------------------------------------------------------------------

    @property
    def has_guesses(self) -> bool:
        """Whether the last answer, as far as it is shown, has something to colour."""
        text = self.turns[-1].made_text if self.turns else None
        return text is not None and text.has_guesses

    def set_colours(self, *, colours: bool, show_marks: bool) -> None:
        if (colours, show_marks) == (self.colours, self.show_marks):
            return
        self.colours = colours
        if show_marks != self.show_marks:
            self.show_marks = show_marks
            self.notify_style_update()
            self._restyle(None)
        self._restyle_turns()

    def _restyle_turns(self) -> None:
        for text in self._made_texts():
            self._style_tokens(text)
        self._blocks.forget_all()
        self._rebuild_blocks()

    def _style_tokens(self, text: TurnText) -> None:
        text.show_tokens(
            token_view=self.is_cursor_active,
            colours=self.colours,
            marks=self.show_marks,
        )

    def show_thinking(self, shown: bool) -> None:
        if shown != self.thinking_unfolded:
            self.thinking_unfolded = shown
            for text in self._made_texts():
                text.set_thinking_unfolded(shown)
            self._blocks.forget_all()
            self._rebuild_blocks()

    def on_click(self, event: events.Click) -> None:
        """Opens the address or the call that is clicked.

        An address may be broken over several lines.
        """
        row = event.y + round(self.scroll_y)
        call = self._call_at(row)
        if call is not None:
            self.post_message(self.CallClicked(call))
            return
        line = self.render_line(event.y).text
        # A wide character has two cells.
        column = len(set_cell_size(line, event.x + 1)) - 1
        place = self._drawn_place(Offset(column, row))
        source = self._blocks.source_map(row)
        url = find_url(source.source, source.position_at(place))
        if not url:
            url = _address_at(line, column)
        if url:
            self.app.open_url(url)
            self.notify(f"Opening {url}", markup=False)

    # --- the cursor
    # -----------------------------------------------------------------------

    @property
    def is_cursor_active(self) -> bool:
        return self.can_focus

    def activate_cursor(self) -> None:
        """Moves the cursor to the last visible token, and takes the keys that walk."""
        self.can_focus = True
        self.screen.set_focus(self)  # at once: arrow keys may follow immediately
        self._restyle_turns()
        if self._cursor_turn is None and self.turns:
            tokens = self.turns[-1].text.token_text.tokens
            with_text = [index for index, token in enumerate(tokens) if token.text]
            last = with_text[-1] if with_text else -1
            self._move_cursor(len(self.turns) - 1, last)
        if self._cursor_turn is None:
            self.post_message(self.TokenSelected())

    def deactivate_cursor(self) -> None:
        was_active = self.is_cursor_active
        self.can_focus = False
        if self._cursor_turn is not None:
            self.turns[self._cursor_turn].text.token_text.cursor = None
        self._cursor_turn = None
        if was_active:
            self._restyle_turns()
        self.post_message(self.TokenSelected())

    def _move_cursor(self, turn_index: int, token_index: int) -> None:
        """Moves to a token of a turn (-1: its last), if there is such a turn."""
        if not 0 <= turn_index < len(self.turns):
            return
        turn = self.turns[turn_index].text
        tokens = turn.token_text.tokens
        if not tokens:
            return
        if self._cursor_turn is not None:
            self.turns[self._cursor_turn].text.token_text.cursor = None
        position = token_index % len(tokens)
        self._cursor_turn = turn_index
        turn.token_text.cursor = position
        self.wrap_blocks(turn_index)
        self.show_line(turn_index, turn.line_of(position))
        self.post_message(self.TokenSelected())

    def set_logprobs(self, token_logprobs: Sequence[TokenScore]) -> None:
        """Adds probabilities to the last answer, and updates the selected token."""
        if not self.turns:
            return
        self.turns[-1].text.set_logprobs(token_logprobs)
        index = self._cursor_turn
        if index is not None:
            self._move_cursor(index, self.turns[index].text.token_text.cursor or 0)

    def action_walk(self, by: int) -> None:
        """To the next or previous token, also across answers."""
        if self._cursor_turn is None:
            self._move_cursor(len(self.turns) - 1, -1)
            return
        text = self.turns[self._cursor_turn].text.token_text
        position = text.cursor or 0
        position += by
        if 0 <= position < len(text.tokens):
            self._move_cursor(self._cursor_turn, position)
        else:
            self._move_to_other_turn(by)

    def action_leap(self, by: int) -> None:
        """To the first token of the next or previous round."""
        if self._cursor_turn is None:
            self._move_cursor(len(self.turns) - 1, -1)
            return
        turn = self.turns[self._cursor_turn].text
        cursor = turn.token_text.cursor or 0
        # Rounds of 3, 1 and 4 tokens start at 0, 3 and 4; a next one would at 8.
        lengths = [len(round_.tokens) for round_ in turn.rounds]
        n_tokens = len(turn.token_text.tokens)
        boundaries = accumulate(lengths, initial=0)
        starts = [start for start in boundaries if start < n_tokens]
        if by < 0:
            index = bisect_left(starts, cursor) - 1
        else:
            index = bisect_right(starts, cursor)
        if 0 <= index < len(starts):
            self._move_cursor(self._cursor_turn, starts[index])
        else:
            self._move_to_other_turn(by)

    def _move_to_other_turn(self, by: int) -> None:
        """To the first token of the next answer, or the last of the previous one."""
        assert self._cursor_turn is not None
        token_index = -1 if by < 0 else 0
        self._move_cursor(self._cursor_turn + by, token_index)

    @property
    def selected_token(self) -> tuple[Token, Round] | None:
        """The token that has the cursor, and the round that gave it."""
        if self._cursor_turn is None:
            return None
        turn = self.turns[self._cursor_turn].text
        position = turn.token_text.cursor
        if position is None:
            return None
        round_ = turn.round_of(position)
        if round_ is None:
            return None
        return turn.token_text.tokens[position], round_

    @property
    def selected_turn(self) -> int:
        """The index of the turn that has the cursor, else of the last one."""
        return -1 if self._cursor_turn is None else self._cursor_turn

    def on_blur(self) -> None:
        """Leaves the token view if another field is focused, as by f6 or a letter."""
        if self.is_cursor_active and self.screen.focused not in (None, self):
            self.action_leave()

    def action_leave(self) -> None:
        self.deactivate_cursor()
        self.post_message(self.TokenViewLeft())


def _find_context(path: Sequence[Turn], index: int) -> TurnContext:
    """Of a turn on a path; its branch is found when its text is made."""
    first = index
    while first > 0 and path[first].is_tool_step:
        first -= 1
    results: tuple[CallResult, ...] = ()
    if index + 1 < len(path):
        results = path[index + 1].results
    return TurnContext(earlier_steps=tuple(path[first:index]), results=results)


def _address_at(line: str, column: int) -> str:
    """A whole address in a drawn line, for text whose source is not found.

    In a row of a table it may be cut off at the end of its cell: it is not opened then.
    """
    for match in _URL.finditer(line):
        is_whole = line[match.end() :].startswith((" ", ")", ">", ".", ","))
        if match.start() <= column < match.end() and is_whole:
            return match[0]
    return ""


_LOADING_HINT = "You can already type."
_CHAT_HINT = (
    "Type a message and press enter.\n\n"
    "f2: colours. f4: settings and system prompt. f1: help."
)
_CHAT_EXAMPLES = "\n".join(
    [
        "Press enter for an example, and again to send it:",
        "",
        *[f"    {each.title}" for each in examples.EXAMPLES],
        "",
        "Answers that repeat a given text gain most from speculation.",
    ]
)
_COMPLETION_HINT = (
    "Text-completion model: type the beginning of a text and press enter.\n\n"
    "Press enter for an example, and again to send it. Later, empty enter continues.\n\n"
    "f2: colours. f1: help."
)


class EmptyChatHint(Static):
    """Shown instead of the transcript while a chat is empty."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def draw(self, session: ChatSession) -> None:
        if not self.display:
            return
        # The examples are last: a short terminal cuts off what is below.
        if session.loaded is None:
            parts = [_LOADING_HINT, session.settings_summary]
        elif session.loaded.has_chat_template:
            parts = [_CHAT_HINT, session.settings_summary, _CHAT_EXAMPLES]
        else:
            parts = [_COMPLETION_HINT, session.settings_summary]
        self.update(Content("\n\n".join(filter(None, parts))))

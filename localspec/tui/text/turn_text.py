"""One question and its answer, as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.segment import Segment

from localspec.chat.conversation import Attachment, Turn
from localspec.chat.thinking import ThinkingSplitter
from localspec.protocol.events import Event, GenerationFinished, Prefill, Round, TokenScore
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.blocks import (
    BlankLine,
    BlockStack,
    Paragraph,
    StyleMap,
    TextBlock,
    TokenText,
)
from localspec.tui.text.markdown import MarkdownText
from localspec.tui.themes import MarkdownStyle
from localspec.units import short_count

_LONG_QUESTION = 50_000
"""Characters of a question from which only a part is drawn: to wrap a megabyte takes seconds."""
_SHOWN_CHARACTERS = 5_000


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who answers, and how its answers read."""

    name: str
    thinking_markers: tuple[str, str] | None
    raw: bool
    """A completion model: its text stands as it came, after the question."""


def format_attachment(file: Attachment) -> str:
    """A file in a line."""
    return f"+ {sanitize(file.name, multiline=False)}, {short_count(len(file.text))} characters"


def truncate_end(question: str, ellipsis: str) -> str:
    """What is drawn of a question; of a very long one the first lines."""
    if len(question) <= _LONG_QUESTION:
        return question
    return (
        f"{question[:_SHOWN_CHARACTERS]}\n{ellipsis} and "
        f"{short_count(len(question) - _SHOWN_CHARACTERS)} characters more"
    )


def truncate_start(text: str, ellipsis: str) -> str:
    """What is drawn of a text that is gone on with; of a very long one the last lines."""
    if len(text) <= _LONG_QUESTION:
        return text
    return (
        f"{short_count(len(text) - _SHOWN_CHARACTERS)} "
        f"characters, then {ellipsis}\n{text[-_SHOWN_CHARACTERS:]}"
    )


class TurnText:
    """Markdown, or for completion models the text itself; or the same tokens as they came."""

    def __init__(
        self, turn: Turn, speaker: Speaker, glyphs: Glyphs, style: MarkdownStyle, branch: str = ""
    ) -> None:
        """`branch`: which of several that stand in this place it is."""
        self._speaker = speaker
        self._branch = f"  {glyphs.dot} {branch}" if branch else ""
        self._glyphs = glyphs
        self._splitter = ThinkingSplitter(speaker.thinking_markers)
        self._thinking_text = ""
        self._thinking_unfolded = False
        self._token_view = False
        self.token_text = TokenText(
            truncate_start(turn.question, glyphs.ellipsis) if speaker.raw else "", glyphs
        )
        self.markdown = MarkdownText(style)
        self.rounds: list[Round] = []
        self.ended = False
        self._question = truncate_end(sanitize(turn.question), glyphs.ellipsis)
        self._attachment_blocks = [
            Paragraph(format_attachment(file), "muted") for file in turn.attachments
        ]
        self._thinking_block = Paragraph(style="thinking")
        self._note_block = Paragraph(style="muted")
        self._stack = BlockStack()
        self._arrange_blocks()

    def _arrange_blocks(self) -> None:
        """Which parts there are, in the view that is wanted."""
        parts: list[TextBlock] = [BlankLine()]
        if self._speaker.raw:
            parts.append(self.token_text)
        else:
            if self._question or self._attachment_blocks:
                parts += [
                    Paragraph(f"You{self._branch}", "role"),
                    *self._attachment_blocks,
                    Paragraph(self._question),
                    BlankLine(),
                ]
            parts.append(Paragraph(sanitize(self._speaker.name, multiline=False), "speaker"))
            parts += (
                [self.token_text] if self._token_view else [self._thinking_block, self.markdown]
            )
        self._stack.blocks = [*parts, self._note_block]

    # --- what comes in --------------------------------------------------------------------

    def add_events(self, events: Sequence[Event]) -> None:
        """Take in what the engine said."""
        said: list[str] = []
        for event in events:
            if isinstance(event, Round):
                self.rounds.append(event)
                self.token_text.extend(event.tokens)
                said += [token.text for token in event.tokens]
            elif isinstance(event, Prefill) and event.thinking:
                self._splitter = ThinkingSplitter(
                    self._speaker.thinking_markers, starts_in_thinking=True
                )
            elif isinstance(event, GenerationFinished):
                said.append(event.tail)
                self.token_text.end(event.tail)
        if not self._speaker.raw:
            self._append_text("".join(said))

    def _append_text(self, text: str, *, last: bool = False) -> None:
        parts = self._splitter.feed(text)
        if last:
            parts += self._splitter.flush()
        for part in parts:
            if part.is_thinking:
                self._thinking_text += sanitize(part.text)
            else:
                self.markdown.write(sanitize(part.text))
        self._update_thinking()

    def finish(self, note: str = "") -> None:
        """No more will come."""
        self.ended = True
        if not self._speaker.raw:
            self._append_text("", last=True)
        self.set_note(note)

    def set_note(self, text: str) -> None:
        """A muted line below the answer; an empty one hides it."""
        self._note_block.set_text(f"\n{sanitize(text, multiline=False)}" if text else "")

    def set_logprobs(self, token_logprobs: Sequence[TokenScore]) -> None:
        """What the model gives to the tokens, asked afterwards."""
        for number, place in enumerate(token_logprobs[: len(self.token_text.tokens)]):
            self.token_text.tokens[number] = replace(
                self.token_text.tokens[number],
                p_target=place.p_target,
                rank=place.rank,
                instead=place.instead,
            )

    def round_of(self, token: int) -> Round | None:
        """The round that a token came in."""
        seen = 0
        for round_ in self.rounds:
            seen += len(round_.tokens)
            if token < seen:
                return round_
        return None

    # --- how it is shown ------------------------------------------------------------------

    def show_tokens(self, shown: bool, show_marks: bool) -> None:
        """Every token in its class, or the text as it is meant to be read."""
        self._token_view = shown
        self.token_text.set_marking(shown, show_marks)
        self._arrange_blocks()

    def set_thinking_unfolded(self, unfolded: bool) -> None:
        self._thinking_unfolded = unfolded
        self._update_thinking()

    def _update_thinking(self) -> None:
        thought = self._thinking_text.strip()
        if not thought:
            self._thinking_block.set_text("")
            return
        sign = self._glyphs.expanded if self._thinking_unfolded else self._glyphs.collapsed
        doing = "thinking" if self._splitter.in_thinking and not self.ended else "thought"
        head = f"{sign} {doing}, {len(thought.split())} words"
        self._thinking_block.set_text(
            f"{head}\n{thought}\n" if self._thinking_unfolded else f"{head}\n"
        )

    def height(self, width: int) -> int:
        return self._stack.height(width)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return self._stack.line(y, styles)

    def line_of(self, token: int) -> int:
        """The line where a token begins, as of the last `height`."""
        return self._stack.top_of(self.token_text) + self.token_text.line_of(token)

"""One question and its answer, as text blocks."""

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
"""A question longer than this is drawn in part: wrapping a megabyte takes seconds."""
_SHOWN_CHARACTERS = 5_000


@dataclass(frozen=True, slots=True)
class Speaker:
    """The model that answers, and how to show its answers."""

    name: str
    thinking_markers: tuple[str, str] | None
    raw: bool
    """A completion model: the text continues the question and is not Markdown."""


def format_attachment(file: Attachment) -> str:
    return f"+ {sanitize(file.name, multiline=False)}, {short_count(len(file.text))} characters"


def truncate_end(question: str, ellipsis: str) -> str:
    """Shortens a very long question to its beginning."""
    if len(question) <= _LONG_QUESTION:
        return question
    return (
        f"{question[:_SHOWN_CHARACTERS]}\n{ellipsis} and "
        f"{short_count(len(question) - _SHOWN_CHARACTERS)} more characters"
    )


def truncate_start(text: str, ellipsis: str) -> str:
    """Shortens a very long text that a completion model continues to its end."""
    if len(text) <= _LONG_QUESTION:
        return text
    return (
        f"{short_count(len(text) - _SHOWN_CHARACTERS)} "
        f"characters, then {ellipsis}\n{text[-_SHOWN_CHARACTERS:]}"
    )


class TurnText:
    """Shows an answer as Markdown (completion models: plain text) or in the token view."""

    def __init__(
        self, turn: Turn, speaker: Speaker, glyphs: Glyphs, style: MarkdownStyle, branch: str = ""
    ) -> None:
        """`branch`: the position among sibling branches, such as `2 of 3`."""
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
        blocks: list[TextBlock] = [BlankLine()]
        if self._speaker.raw:
            blocks.append(self.token_text)
        else:
            if self._question or self._attachment_blocks:
                blocks += [
                    Paragraph(f"You{self._branch}", "role"),
                    *self._attachment_blocks,
                    Paragraph(self._question),
                    BlankLine(),
                ]
            blocks.append(Paragraph(sanitize(self._speaker.name, multiline=False), "speaker"))
            blocks += (
                [self.token_text] if self._token_view else [self._thinking_block, self.markdown]
            )
        self._stack.blocks = [*blocks, self._note_block]

    # --- input ----------------------------------------------------------------------------

    def add_events(self, events: Sequence[Event]) -> None:
        new_text: list[str] = []
        for event in events:
            if isinstance(event, Round):
                self.rounds.append(event)
                self.token_text.extend(event.tokens)
                new_text += [token.text for token in event.tokens]
            elif isinstance(event, Prefill) and event.thinking:
                self._splitter = ThinkingSplitter(
                    self._speaker.thinking_markers, starts_in_thinking=True
                )
            elif isinstance(event, GenerationFinished):
                new_text.append(event.tail)
                self.token_text.end(event.tail)
        if not self._speaker.raw:
            self._append_text("".join(new_text))

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
        self.ended = True
        if not self._speaker.raw:
            self._append_text("", last=True)
        self.set_note(note)

    def set_note(self, text: str) -> None:
        """A muted line below the answer; an empty one hides it."""
        self._note_block.set_text(f"\n{sanitize(text, multiline=False)}" if text else "")

    def set_logprobs(self, token_logprobs: Sequence[TokenScore]) -> None:
        """Adds probabilities that were computed after the answer."""
        tokens = self.token_text.tokens
        for index, score in enumerate(token_logprobs[: len(tokens)]):
            tokens[index] = replace(
                tokens[index], p_target=score.p_target, rank=score.rank, instead=score.instead
            )

    def round_of(self, token: int) -> Round | None:
        end = 0
        for round_ in self.rounds:
            end += len(round_.tokens)
            if token < end:
                return round_
        return None

    # --- output ---------------------------------------------------------------------------

    def show_tokens(self, shown: bool, show_marks: bool) -> None:
        """Switches between the token view and the readable text."""
        self._token_view = shown
        self.token_text.set_marking(shown, show_marks)
        self._arrange_blocks()

    def set_thinking_unfolded(self, unfolded: bool) -> None:
        self._thinking_unfolded = unfolded
        self._update_thinking()

    def _update_thinking(self) -> None:
        thinking = self._thinking_text.strip()
        if not thinking:
            self._thinking_block.set_text("")
            return
        glyph = self._glyphs.expanded if self._thinking_unfolded else self._glyphs.collapsed
        label = "thinking" if self._splitter.in_thinking and not self.ended else "thought"
        n_words = len(thinking.split())
        head = f"{glyph} {label}, {n_words} word{'s' * (n_words != 1)}"
        self._thinking_block.set_text(
            f"{head}\n{thinking}\n" if self._thinking_unfolded else f"{head}\n"
        )

    def height(self, width: int) -> int:
        return self._stack.height(width)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return self._stack.line(y, styles)

    def line_of(self, token: int) -> int:
        """The first line of a token, at the width of the last `height`."""
        return self._stack.top_of(self.token_text) + self.token_text.line_of(token)

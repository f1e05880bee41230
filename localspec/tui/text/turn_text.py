"""One question and its answer, as text blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace
from rich.segment import Segment

from localspec.chat.answer import PLAIN_SPEED, AnswerDelta, read_timing
from localspec.chat.conversation import (
    Attachment,
    CallResult,
    PictureAttachment,
    Turn,
)
from localspec.chat.pictures import PictureCost, add_costs
from localspec.chat.speculation_stats import SpeculationStats
from localspec.chat.tool_loop import CallState
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import (
    FinishReason,
    GenerationFinished,
    Notice,
    PictureReading,
    Round,
    TokenScore,
)
from localspec.report.answer_stats import END_REASONS
from localspec.report.picture_text import describe_reading
from localspec.report.speculation import view_speculation
from localspec.sanitize import sanitize
from localspec.tui.text.blocks import (
    BlankLine,
    BlockStack,
    DeferredBlock,
    Paragraph,
    StyleMap,
    TextBlock,
    ThumbnailBlock,
    TokenText,
    join_sources,
)
from localspec.tui.text.call_text import CallBlock, GapLine, stored_states
from localspec.tui.text.live_frames import NO_GUESS, LiveGuess
from localspec.tui.text.markdown import MarkdownText, RenderBudget
from localspec.tui.text.source_map import SourceMap
from localspec.tui.text.token_classes import (
    ClassAligner,
    ClassRun,
    VisibleClasses,
    skip_runs,
)
from localspec.tui.text.wrapping import one_line, shorten
from localspec.tui.themes import MarkdownStyle
from localspec.units import count, count_tokens, duration, short_count

_LONG_QUESTION = 50_000
"""A question longer than this is drawn in part."""
_SHOWN_CHARACTERS = 5_000
_MAX_LISTED = 2
"""Files, and pictures, above the message: the lines there are three."""
_MAX_THUMBNAILS = 4
"""Under a question. With those of a scan of 20 pages the answer would be far away."""
_END_HINTS: dict[FinishReason, str] = {
    "length": ": f4 settings",
    "context": ": /ctx N loads more, ctrl+n starts a new chat",
    "error": "",
}
"""What to do about an end that is worth a note."""
_ENDED_WHILE_THINKING = "before the thinking ended: /set think_budget N, or /think off"


class Speaker(Struct, frozen=True):
    """Who wrote the answer.

    `raw`: it is a completion model, whose text continues the question and is not
    Markdown. Until a model is loaded, its turns are shown as those of a chat model.
    """

    name: str
    raw: bool


class TurnContext(Struct, frozen=True):
    """What the text of a turn needs of the turns beside it."""

    branch: str = ""
    """The position among sibling branches, such as `2 of 3`."""
    earlier_steps: tuple[Turn, ...] = ()
    """The turns before it that answer the same question with calls of tools."""
    results: tuple[CallResult, ...] = ()
    """The results of its calls, which the turn after it has."""


def format_attachment(file: Attachment) -> str:
    name = one_line(file.name)
    return f"+ {name}, {short_count(len(file.text))} characters"


def format_pending_attachments(files: Sequence[Attachment]) -> list[str]:
    """A part for each; of more than two only the first, and the size of all of them."""
    if len(files) <= _MAX_LISTED:
        return [format_attachment(file) for file in files]
    n_characters = sum(len(file.text) for file in files)
    others = f"{one_line(files[0].name)} and {len(files) - 1} more"
    return [f"+ {others}, {short_count(n_characters)} characters"]


def format_picture(picture: PictureAttachment, cost: PictureCost | None = None) -> str:
    """Also of audio. `cost`: of one that is not sent yet."""
    parts = [one_line(picture.name), describe_extent(picture)]
    if cost is not None:
        parts.append(cost.text)
    elif picture.n_rows is not None:
        parts.append(count_tokens(picture.n_rows))
    return f"+ {', '.join(parts)}"


def describe_extent(picture: PictureAttachment) -> str:
    """The size of a picture, or how long audio is."""
    if picture.seconds is not None:
        return duration(max(1, picture.seconds))
    return f"{picture.width}×{picture.height}"


def format_pending_pictures(
    pictures: Sequence[PictureAttachment], costs: Mapping[str, PictureCost]
) -> list[str]:
    """A part for each; of more than two only the first, and what all of them cost.

    `costs`: by hash, as far as they are known.
    """
    if len(pictures) <= _MAX_LISTED:
        return [format_picture(each, costs.get(each.sha256)) for each in pictures]
    parts = [f"{one_line(pictures[0].name)} and {len(pictures) - 1} more"]
    known = [costs[each.sha256] for each in pictures if each.sha256 in costs]
    if len(known) == len(pictures):
        parts.append(add_costs(known).text)
    return [f"+ {', '.join(parts)}"]


def truncate_question(text: str, *, keep_end: bool = False) -> str:
    """Shortens a very long question to its beginning.

    A text that is continued keeps its end.
    """
    if len(text) <= _LONG_QUESTION:
        return text
    n_hidden = short_count(len(text) - _SHOWN_CHARACTERS)
    if keep_end:
        return f"{n_hidden} characters, then …\n{text[-_SHOWN_CHARACTERS:]}"
    return f"{text[:_SHOWN_CHARACTERS]}\n… and {n_hidden} more characters"


def format_end_reason(turn: Turn, stopped_ms: float | None) -> str:
    """Why an answer ended; empty for an ordinary end."""
    why = ""
    hint = ""
    if turn.finish_reason in _END_HINTS:
        why = END_REASONS[turn.finish_reason]
        hint = _END_HINTS[turn.finish_reason]
    elif turn.finish_reason == "cancelled":
        why = "stopped"
        if stopped_ms is not None:
            why = f"stopped in {stopped_ms:.0f} ms"
    if turn.ends_in_thinking:
        return f"{why or 'stopped'}, {_ENDED_WHILE_THINKING}"
    return why + hint


class _TextPiece:
    """Text of an answer before, between or behind its calls."""

    def __init__(self, markdown: MarkdownText) -> None:
        self.markdown = markdown
        self.classes = VisibleClasses()
        """Of the text that `markdown` has."""
        self.hidden = Paragraph(style="muted")
        """Says that the beginning of a very long one is not shown."""
        self.has_words = False


class TurnText:
    """Shows an answer as Markdown (completion models: plain text) or in the token view.

    In the token view, a person walks from token to token.
    """

    def __init__(
        self,
        turn: Turn,
        speaker: Speaker,
        style: MarkdownStyle,
        context: TurnContext = TurnContext(),  # noqa: B008  frozen
        budget: RenderBudget | None = None,
        *,
        draws_pictures: bool = True,
    ) -> None:
        """`budget`: that of the view's frames."""
        self.turn_id = turn.id
        self._is_step = turn.is_tool_step
        self._context = context
        self._calls: dict[str, CallBlock] = {}  # By the id of the call.
        # Above it is the title, which has a blank line below it.
        self._is_first = turn.parent is None
        self._speaker = speaker
        self._branch = f"  · {context.branch}" if context.branch else ""
        self._thinking_text = ""
        self._n_thinking_words = 0
        self._in_thinking = False
        self._thinking_unfolded = False
        self._token_view = False
        self._aligner = ClassAligner()
        self._end_event: GenerationFinished | None = None
        continued_text = ""
        if speaker.raw:
            continued_text = truncate_question(turn.question, keep_end=True)
        self.token_text = TokenText(continued_text)
        self._markdown_style = style
        self._budget = budget
        self._pieces = {0: _TextPiece(MarkdownText(style, turn.id, budget))}
        """By the number of calls before them, in their order."""
        self._has_colours = False
        self.rounds: list[Round] = []
        self.has_guesses = False  # Whether something was drafted in one of them.
        self.question = sanitize(truncate_question(turn.question))
        self._attachment_blocks: list[TextBlock] = [
            Paragraph(format_attachment(file), "muted") for file in turn.attachments
        ]
        self._draws_pictures = draws_pictures
        self._pictures = turn.pictures
        self._is_reading_picture = False
        self._thinking_block = Paragraph(style="thinking")
        self._note_block = Paragraph(style="muted")
        self._speed_block = Paragraph(style="muted")
        self._stack = BlockStack()
        self._arrange_blocks()

    def _arrange_blocks(self) -> None:
        blocks: list[TextBlock] = []
        if self._is_step:
            blocks.append(GapLine(self._has_words))
        elif not self._is_first:
            blocks.append(BlankLine())
        has_question = self.question or self._attachment_blocks or self._pictures
        if has_question and not self._speaker.raw:
            blocks += [
                Paragraph(f"You{self._branch}", "role"),
                *self._attachment_blocks,
                *self._make_picture_blocks(),
                Paragraph(self.question),
                BlankLine(),
            ]
        if not self._speaker.raw and not self._is_step:
            name = one_line(self._speaker.name)
            blocks.append(Paragraph(name, "speaker"))
        elif self._branch and self._is_step:
            blocks.append(Paragraph(self._branch.strip(" ·"), "muted"))
        if self._speaker.raw or self._token_view:
            blocks.append(self.token_text)
        else:
            blocks.append(self._thinking_block)
        blocks += self._list_pieces_and_calls()
        blocks += [self._speed_block, self._note_block]
        self._stack.blocks = blocks

    def _list_pieces_and_calls(self) -> list[TextBlock]:
        """Each text at its place among the calls; in the token view, calls alone."""
        blocks: list[TextBlock] = []
        calls = list(self._calls.values())
        has_tokens = self._speaker.raw or self._token_view
        for i in range(max(len(calls), *self._pieces) + 1):
            piece = self._pieces.get(i)
            if piece is not None and not has_tokens:
                if i > 0:
                    blocks.append(BlankLine())
                blocks += [piece.hidden, piece.markdown]
            if i >= len(calls):
                continue
            if i == 0:
                blocks.append(GapLine(self._has_text_before_calls))
            elif piece is not None and not has_tokens:
                blocks.append(BlankLine())
            blocks.append(calls[i])
        return blocks

    def _has_words(self) -> bool:
        return self._has_text_before_calls() or self._n_thinking_words > 0

    def _has_text_before_calls(self) -> bool:
        return self._pieces[0].has_words or self._token_view

    @property
    def markdown(self) -> MarkdownText:
        """The text before the calls, of most answers all of it."""
        return self._pieces[0].markdown

    @property
    def markdowns(self) -> list[MarkdownText]:
        """All texts, in their order."""
        return [piece.markdown for piece in self._pieces.values()]

    def restyle(self, style: MarkdownStyle) -> None:
        self._markdown_style = style
        for markdown in self.markdowns:
            markdown.restyle(style)

    # --- calls of tools
    # ----------------------------------------------------------------------------

    def show_call(self, state: CallState) -> None:
        """Shows a call, or another state of it, where it stands in the answer."""
        block = self._calls.get(state.request.call_id)
        if block is not None:
            block.show(state)
            return
        self._calls[state.request.call_id] = CallBlock(state)
        self._arrange_blocks()

    @property
    def call_states(self) -> list[CallState]:
        return [block.state for block in self._calls.values()]

    def tick_calls(self) -> bool:
        """Whether a call runs, of which the seconds are drawn again."""
        running = [block for block in self._calls.values() if block.is_running]
        for block in running:
            block.tick()
        return bool(running)

    def call_at(self, y: int) -> CallState | None:
        """The call that is drawn in line `y`, at the width of the last `height`."""
        for block in self._calls.values():
            top = self._stack.top_of(block)
            if top <= y < top + CallBlock.N_ROWS:
                return block.state
        return None

    # --- the answer
    # ----------------------------------------------------------------------------

    def _make_picture_blocks(self) -> Iterator[TextBlock]:
        is_drawn = self._draws_pictures and len(self._pictures) <= _MAX_THUMBNAILS
        for picture in self._pictures:
            yield Paragraph(format_picture(picture), "muted")
            if picture.thumbnail is not None and is_drawn:
                yield ThumbnailBlock(picture.thumbnail)

    def _show_reading(self, reading: PictureReading) -> None:
        self._is_reading_picture = True
        self.set_note(f"{describe_reading(reading)} …")
        pictures = tuple(picture.with_reading(reading) for picture in self._pictures)
        if pictures != self._pictures:
            self._pictures = pictures
            self._arrange_blocks()

    def add_deltas(self, deltas: Sequence[AnswerDelta]) -> None:
        for delta in deltas:
            event = delta.event
            if isinstance(event, PictureReading):
                self._show_reading(event)
            elif self._is_reading_picture and not isinstance(event, Notice):
                self._is_reading_picture = False
                self.set_note("")
            if isinstance(event, Round):
                self.rounds.append(event)
                self.has_guesses = self.has_guesses or event.drafted > 0
                self.token_text.extend(event.tokens)
                self._aligner.add_tokens(event.tokens)
            elif isinstance(event, GenerationFinished):
                self._end(event)
                self._aligner.add_tail(event.tail)
            runs = self._aligner.align(delta.parts)
            for part, part_runs in zip(delta.parts, runs, strict=True):
                self._add_part(part, part_runs)
            self._in_thinking = delta.in_thinking
        self._update_thinking()

    def show_stored(self, turn: Turn, thinking_markers: tuple[str, str] | None) -> None:
        """Shows the stored text of an answer, in the colours of its events.

        If events are missing, the text has no colours.
        """
        self.rounds = list(turn.rounds)
        for round_ in self.rounds:
            self.token_text.extend(round_.tokens)
        ends = [event for event in turn.events if isinstance(event, GenerationFinished)]
        if ends:
            self._end(ends[-1])
        tail = "".join(event.tail for event in ends)
        self.token_text.end(tail)
        if self._is_text_of_tokens(turn, ends):
            self._aligner.add_tokens(self.token_text.tokens)
            self._aligner.add_tail(tail)
            self.has_guesses = any(round_.drafted for round_ in self.rounds)
        else:
            self.rounds = []
            self.token_text.clear()
            self.token_text.end(turn.answer)
        parts = turn.split_answer(thinking_markers)
        runs = self._aligner.align(parts)
        for part, part_runs in zip(parts, runs, strict=True):
            self._add_stored_part(part, part_runs)
        for state in stored_states(turn, self._context.results):
            self.show_call(state)

    def _add_stored_part(self, part: AnswerPart, runs: Sequence[ClassRun]) -> None:
        """Of a very long one only the end is shown."""
        shown, n_hidden = shorten(part.text, keep_end=True)
        if n_hidden and not part.is_thinking:
            hidden = part.text[:n_hidden]
            fence = self._hide_beginning(hidden, self._piece_of(part))
            runs = [ClassRun(len(fence), None), *skip_runs(runs, len(sanitize(hidden)))]
            shown = fence + shown
        self._add_part(replace(part, text=shown), runs)

    def _hide_beginning(self, hidden: str, piece: _TextPiece) -> str:
        """Says that the beginning of a very long answer is not shown.

        Returns the fence of the code block that the rest goes on, if it does. Blocks of
        code are counted without a parse: the text may have megabytes.
        """
        n_characters = short_count(len(hidden))
        piece.hidden.set_text(
            f"… {n_characters} characters above are not shown; /copy has them\n"
        )
        n_before = piece.markdown.count_code_blocks()
        n_fences = f"\n{hidden}".count("\n```")
        piece.markdown.skip_code_blocks(n_before + n_fences // 2)
        return "```\n" if n_fences % 2 else ""

    def _is_text_of_tokens(
        self, turn: Turn, ends: Sequence[GenerationFinished]
    ) -> bool:
        texts = [token.text for token in self.token_text.tokens]
        texts += [event.tail for event in ends]
        text = "".join(texts)
        if text == turn.answer:
            return True
        # A saved chat has no lone surrogates. It takes a while for a long text.
        is_long = max(len(text), len(turn.answer)) > _LONG_QUESTION
        return not is_long and sanitize(text) == sanitize(turn.answer)

    def _end(self, event: GenerationFinished) -> None:
        self.token_text.end(event.tail)
        self._end_event = event

    def _add_part(self, part: AnswerPart, runs: Sequence[ClassRun]) -> None:
        """`runs`: the classes of its characters."""
        if part.is_thinking:
            text = sanitize(part.text)
            n_words = len(text.split())
            goes_on = not text[:1].isspace() and not self._thinking_text[-1:].isspace()
            if n_words and goes_on and self._n_thinking_words:
                n_words -= 1  # The first one is the rest of the last word.
            self._n_thinking_words += n_words
            self._thinking_text += text
        elif not self._speaker.raw:
            text = sanitize(part.text)
            if sum(run.length for run in runs) != len(text):
                runs = [ClassRun(len(text), None)]
            if part.n_calls not in self._pieces:
                n_space = len(text) - len(text.lstrip())
                text = text[n_space:]
                runs = list(skip_runs(runs, n_space))
            if text:
                self._write(self._piece_of(part), text, runs)

    def _write(self, piece: _TextPiece, text: str, runs: Sequence[ClassRun]) -> None:
        piece.has_words = piece.has_words or bool(text.strip())
        for run in runs:
            piece.classes.append(run)
        piece.markdown.write(text)

    def _piece_of(self, part: AnswerPart) -> _TextPiece:
        """The text that a part belongs to; it begins if it is the first behind a call."""
        piece = self._pieces.get(part.n_calls)
        if piece is None:
            before = self.markdowns[-1]
            before.finish()
            markdown = MarkdownText(self._markdown_style, self.turn_id, self._budget)
            markdown.skip_code_blocks(before.count_code_blocks())
            piece = _TextPiece(markdown)
            self._pieces[part.n_calls] = piece
            self._show_classes()
            self._arrange_blocks()
        return piece

    @property
    def plain_speed(self) -> float | None:
        """What the answer was compared with when it ended, if that was measured."""
        if self._end_event is None:
            return None
        return read_timing(self._end_event, PLAIN_SPEED)

    def finish(self, note: str = "", *, is_continued: bool = False) -> None:
        """`is_continued`: the answer goes on with the results of its calls.

        The figures of all its steps are then below the last one.
        """
        if self._end_event is not None and self.rounds and not is_continued:
            rounds: list[Round] = []
            for step in self._context.earlier_steps:
                rounds += step.rounds
            rounds += self.rounds
            stats = SpeculationStats.of_rounds(rounds, self.plain_speed)
            line = view_speculation(stats).answer_line
            self._speed_block.set_text(f"\n{line}")
        self._in_thinking = False
        self.show_guess(NO_GUESS)
        for markdown in self.markdowns:
            markdown.finish()
        self._update_thinking()
        self.set_note(note)

    def set_note(self, text: str) -> None:
        """A muted line below the answer; an empty one hides it."""
        if text:
            text = f"\n{one_line(text)}"
        self._note_block.set_text(text)

    def set_logprobs(self, token_logprobs: Sequence[TokenScore]) -> None:
        """Adds probabilities that were computed after the answer."""
        tokens = self.token_text.tokens
        for index, score in enumerate(token_logprobs[: len(tokens)]):
            tokens[index] = replace(
                tokens[index],
                p_target=score.p_target,
                rank=score.rank,
                alternatives=score.alternatives,
            )

    @property
    def scored_rounds(self) -> list[Round]:
        """With the probabilities that were computed after the answer."""
        tokens = iter(self.token_text.tokens)
        scored: list[Round] = []
        for round_ in self.rounds:
            own_tokens = tuple(islice(tokens, len(round_.tokens)))
            scored.append(replace(round_, tokens=own_tokens))
        return scored

    def round_of(self, token: int) -> Round | None:
        """The round that gave the token with this index."""
        end = 0
        for round_ in self.rounds:
            end += len(round_.tokens)
            if token < end:
                return round_
        return None

    def show_tokens(self, *, token_view: bool, colours: bool, marks: bool) -> None:
        """`marks`: the token view has one beside each token, as there is no colour."""
        self._token_view = token_view
        self.token_text.set_marking(
            show_classes=token_view or colours, show_marks=token_view and marks
        )
        self._has_colours = colours
        self._show_classes()
        self._arrange_blocks()

    def _show_classes(self) -> None:
        for piece in self._pieces.values():
            classes = piece.classes if self._has_colours else None
            piece.markdown.show_classes(classes)

    def show_guess(self, guess: LiveGuess) -> None:
        """Draws a guess with the answer, of which it is no part."""
        *earlier, last = self.markdowns
        for markdown in earlier:
            markdown.show_guess(NO_GUESS)
        last.show_guess(guess)
        self.token_text.show_guess(guess)

    def set_thinking_unfolded(self, unfolded: bool) -> None:
        self._thinking_unfolded = unfolded
        self._update_thinking()

    def _update_thinking(self) -> None:
        if not self._n_thinking_words:
            self._thinking_block.set_text("")
            return
        label = "thinking" if self._in_thinking else "thought"
        title = f"{label}, {count(self._n_thinking_words, 'word')}"
        shown = f"▸ {title}\n"
        if self._thinking_unfolded:
            thinking, _ = shorten(self._thinking_text.strip(), keep_end=True)
            shown = f"▾ {title}\n{thinking}\n"
        self._thinking_block.set_text(shown)

    def height(self, width: int) -> int:
        return self._stack.height(width)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return self._stack.line(y, styles)

    def source_map(self, y: int) -> SourceMap:
        return self._stack.source_map(y)

    def line_of_markdown(self, markdown: MarkdownText) -> int | None:
        """The first line of one of `markdowns`, at the width of the last `height`.

        None in the token view.
        """
        if markdown not in self._stack.blocks:
            return None
        return self._stack.top_of(markdown)

    def read_source(self, width: int) -> str:
        """All its source as a copy has it."""
        return join_sources(self._stack, self._stack.height(width))

    def line_of(self, token: int) -> int:
        """The first line of a token, at the width of the last `height`."""
        return self._stack.top_of(self.token_text) + self.token_text.line_of(token)


class TranscriptTurn(DeferredBlock):
    """A turn whose text is made when it is looked at for the first time.

    Parsing a stored answer takes milliseconds, and a chat has thousands of them.
    """

    _N_FRAME_LINES = 6  # Blank lines, the two speakers and the like.
    _N_PICTURE_LINES = 17  # The name of a picture, and its thumbnail.

    def __init__(
        self,
        turn: Turn,
        speaker: Speaker,
        make_text: Callable[[RenderBudget | None], TurnText],
        context: TurnContext = TurnContext(),  # noqa: B008  frozen
    ) -> None:
        """`make_text` renders within a budget; None: the view's."""
        self.turn = turn
        self.speaker = speaker
        self.context = context
        question = truncate_question(turn.question)
        answer, _ = shorten(turn.answer)
        self._n_characters = len(question) + len(answer)
        self._n_line_feeds = question.count("\n") + answer.count("\n")
        self._make_text = make_text
        self.made_text: TurnText | None = None

    @property
    def turn_id(self) -> int:
        return self.turn.id

    @property
    def text(self) -> TurnText:
        if self.made_text is None:
            self.made_text = self._make_text(None)
        return self.made_text

    @property
    def call_states(self) -> list[CallState]:
        if self.made_text is not None:
            return self.made_text.call_states
        return stored_states(self.turn, self.context.results)

    def estimate_height(self, width: int) -> int:
        n_lines = self._n_line_feeds + self._n_characters // width
        n_lines += self._N_PICTURE_LINES * len(self.turn.pictures)
        n_lines += CallBlock.N_ROWS * len(self.turn.calls)
        return self._N_FRAME_LINES + n_lines

    def height(self, width: int) -> int:
        return self.text.height(width)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return self.text.line(y, styles)

    def source_map(self, y: int) -> SourceMap:
        return self.text.source_map(y)

    @property
    def is_made(self) -> bool:
        return self.made_text is not None

    def read_source(self, width: int) -> str:
        """Of a text that is not rendered: its rows are those of its source."""
        return self._make_text(RenderBudget(0)).read_source(width)

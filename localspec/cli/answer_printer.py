"""Prints the events of an answer: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import click
from msgspec import Struct
from msgspec.structs import replace

from localspec.api.answer import (
    Answer,
    AnswerCall,
    build_answer,
    join_steps,
    make_call,
    split_said,
)
from localspec.chat.answer import AnswerDelta, GeneratedAnswer
from localspec.chat.conversation import CallResult
from localspec.chat.settings import LoadedModel
from localspec.chat.speculation_stats import SpeculationStats
from localspec.cli import global_options, report_printer, terminal
from localspec.cli.word_wrap import StyledText, WordWriter
from localspec.launch import EXACT_NOTICE, HEAD_NOTICE
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    PictureReading,
    Prefill,
    Round,
)
from localspec.protocol.wire import GenerateCommand, MeasuredCosts, ToolCall
from localspec.report import answer_stats
from localspec.report.picture_text import describe_reading
from localspec.report.speculation import SpeculationView, view_speculation
from localspec.report.token_classes import format_legend, mark_token
from localspec.sanitize import sanitize
from localspec.units import count, gib, short_count

_UNANSWERED = (
    "The answer ended while the model was still thinking.",
    "Use a higher --max-tokens N, or limit thinking: --think-budget N, or --think off",
)
_SHOWN_NOTICES = (EXACT_NOTICE, HEAD_NOTICE)
_DIM = "\x1b[2m"
_LONG_PICTURE_SECONDS = 2.0
_LONG_PREFILL_TOKENS = 512  # Prefill progress is shown from this many tokens.


class OutputStyle(Struct, frozen=True):
    plain: bool = False  # Words only: no symbols, no colours, no redrawn lines.
    colour: bool = False
    quiet: bool = False


def _answer_text(event: Event, style: OutputStyle, *, mark_tokens: bool) -> str:
    """The sanitized text of an event, with our own colour codes."""
    if isinstance(event, GenerationFinished):
        return sanitize(event.tail)
    tokens = event.tokens if isinstance(event, Round) else ()
    if mark_tokens and not style.plain:
        lines = [mark_token(token, is_coloured=style.colour) for token in tokens]
        return "".join(
            report_printer.render_line(line, colour=style.colour) for line in lines
        )
    return "".join(sanitize(token.text) for token in tokens)


def _styled_answer(event: Event, style: OutputStyle) -> list[StyledText]:
    """The tokens of an event, each marked with its class."""
    parts: list[StyledText] = []
    if isinstance(event, Round):
        for token in event.tokens:
            line = mark_token(token, is_coloured=style.colour)
            parts += report_printer.styled_parts(line, colour=style.colour)
    elif isinstance(event, GenerationFinished):
        parts.append(StyledText(sanitize(event.tail)))
    return parts


class AnswerPrinter:
    """Prints one answer of `localspec run -p`, as text or as one JSON document."""

    def __init__(
        self,
        style: OutputStyle,
        ready: EngineReady,
        *,
        as_json: bool,
        is_markdown: bool,
        mark_tokens: bool,
        show_stats: bool,
    ) -> None:
        self._style = style
        self._ready = ready
        self._as_json = as_json
        self._mark_tokens = mark_tokens
        self._show_stats = show_stats
        self._is_at_line_start = True
        self._markdown_writer: _MarkdownWriter | None = None
        is_on_terminal = sys.stdout.isatty() and not style.plain
        if is_markdown and is_on_terminal and style.colour and not mark_tokens:
            self._markdown_writer = _MarkdownWriter()
        self.answer = GeneratedAnswer()
        """The last step of the answer."""
        self._has_tools = False
        self.clear_progress: Callable[[], None] = lambda: None
        """Removes a line that is redrawn on stderr, before text is printed."""
        self._calls: tuple[AnswerCall, ...] = ()
        for notice in ready.notices:
            self._print_notice(notice)

    @property
    def prints_calls(self) -> bool:
        """Whether the text is printed token by token, with the calls in it."""
        return self._mark_tokens and not self._as_json

    def begin_step(self, answer: GeneratedAnswer) -> None:
        """Begin an answer that is offered tools, or go on with it after calls.

        Only what the model says is printed then, without thinking and calls.
        """
        self.end_line()
        self._has_tools = True
        self.answer = answer

    def add_calls(self, calls: Sequence[tuple[ToolCall, CallResult]]) -> None:
        """The calls of the answer, for the JSON document."""
        self._calls = tuple(make_call(call, result) for call, result in calls)

    def on_event(self, event: Event) -> None:
        delta = self.answer.add(event)
        if isinstance(event, Notice):
            self._print_notice(event)
        if isinstance(event, PictureReading):
            self._print_picture(event)
        if self._as_json:
            return
        if self._has_tools and not self._mark_tokens:
            text = "".join(piece.text for piece in split_said(delta))
            text = sanitize(text)
        else:
            text = _answer_text(event, self._style, mark_tokens=self._mark_tokens)
        if text:
            self.clear_progress()
        if text and self._markdown_writer is not None:
            self._markdown_writer.write(StyledText(text))
            sys.stdout.flush()
        elif text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._is_at_line_start = text.endswith("\n")

    def _print_notice(self, notice: Notice) -> None:
        if self._style.quiet:
            return
        # A script gets no info notices, except about what changes its answers' speed.
        is_for_scripts = notice.level != "info" or notice.code in _SHOWN_NOTICES
        if is_for_scripts or sys.stderr.isatty():
            terminal.notify_of(notice)

    def _print_picture(self, event: PictureReading) -> None:
        """A line on a terminal, if it takes long enough to be read."""
        is_long = (event.seconds_expected or 0) >= _LONG_PICTURE_SECONDS
        if is_long and not self._style.quiet and sys.stderr.isatty():
            terminal.notify(f"{describe_reading(event)}.")

    def end_line(self) -> None:
        if self._markdown_writer is not None:
            self._markdown_writer.end_line()
        elif not self._is_at_line_start:
            terminal.echo()
            self._is_at_line_start = True

    def print_result(
        self,
        requests: Sequence[GenerateCommand],
        loaded: LoadedModel,
        sampling: str,
        measured: MeasuredCosts | None,
    ) -> None:
        """Print what follows the answer, or the JSON document.

        `requests` has one for each step. For --stats, `sampling` has its values and
        where they are from, and `measured` the costs of the pair.
        """
        self.end_line()
        answer = self.answer
        if self._as_json:
            result = self._join_answers(requests, loaded)
            terminal.echo_json(result.document())
            return
        if self._mark_tokens and not self._style.quiet:
            self._explain_marks()
        if answer.ended_in_thinking and not self._style.quiet:
            terminal.notify(*_UNANSWERED)
        if self._show_stats and answer.finished is not None:
            view = view_speculation(SpeculationStats(measured, answer=answer))
            seed = requests[-1].sampling.seed
            self._print_stats(view, answer.joined_totals, seed)
            terminal.echo(f"sampling: {sampling}", err=True)
            for text in _format_memory(self._ready):
                terminal.echo(text, err=True)

    def _join_answers(
        self, requests: Sequence[GenerateCommand], loaded: LoadedModel
    ) -> Answer:
        answers: list[Answer] = []
        steps = [*self.answer.earlier_steps, self.answer]
        for step, request in zip(steps, requests, strict=True):
            answers.append(build_answer(step, request, self._ready, loaded))
        answer = replace(join_steps(answers), calls=self._calls)
        if any(call.verdict == "stopped" for call in self._calls):
            return replace(answer, finish_reason="cancelled")
        return answer

    def _explain_marks(self) -> None:
        """The legend of the marks; without marks, each round in words."""
        if self._style.plain:
            for event in self.answer.rounds:
                terminal.echo(answer_stats.describe_round(event), err=True)
            return
        legend = format_legend(with_marks=not self._style.colour)
        report_printer.echo_line(legend, err=True, colour=self._style.colour)

    def _print_stats(
        self, view: SpeculationView, totals: dict[str, Any], seed: int
    ) -> None:
        plain = self._style.plain
        lines = answer_stats.format_stats(view, totals, seed, plain=plain)
        for line in lines:
            report_printer.echo_line(line, err=True, colour=self._style.colour)


def _format_memory(ready: EngineReady) -> Iterator[str]:
    """Memory used and estimated, if llama.cpp reports it."""
    used = ready.memory.get("used")
    estimated = ready.memory.get("predicted")
    if used and estimated:
        side = "less" if used < estimated else "more"
        difference = gib(abs(used - estimated))
        yield f"memory {gib(used)}, {difference} {side} than estimated"
    elif used:
        yield f"memory {gib(used)}"


class _TextWriter(Protocol):
    """Writes an answer to the terminal in the form that the terminal can show."""

    @property
    def is_at_line_start(self) -> bool: ...

    def write(self, part: StyledText) -> None: ...

    def end_line(self) -> None:
        """Write all that is left; the cursor is then at the beginning of a line."""


class _RawWriter:
    """For plain output, which a screen reader breaks into lines itself."""

    def __init__(self) -> None:
        self.is_at_line_start = True

    def write(self, part: StyledText) -> None:
        if part.text:
            sys.stdout.write(part.render())
            self.is_at_line_start = part.text.endswith("\n")

    def end_line(self) -> None:
        if not self.is_at_line_start:
            self.write(StyledText("\n"))


class _WrappingWriter:
    def __init__(self) -> None:
        self._words = WordWriter(
            terminal.terminal_width,
            lambda _: sys.stdout.write("\n"),
            write_part=sys.stdout.write,
        )

    @property
    def is_at_line_start(self) -> bool:
        return self._words.is_at_line_start

    def write(self, part: StyledText) -> None:
        self._words.write(part)

    def end_line(self) -> None:
        self._words.end()


class _MarkdownWriter:
    """Text without a style is Markdown; it is rendered with colours."""

    def __init__(self) -> None:
        from localspec.cli.markdown_view import MarkdownView  # noqa: PLC0415  late: 30 ms

        self._view = MarkdownView(sys.stdout.write)
        self._styled_text = _WrappingWriter()
        self._has_text = False

    @property
    def is_at_line_start(self) -> bool:
        return not self._has_text and self._styled_text.is_at_line_start

    def write(self, part: StyledText) -> None:
        if part.codes:
            self._end_text()
            self._styled_text.write(part)
        elif part.text:
            self._styled_text.end_line()
            self._has_text = True
            self._view.add(part.text)

    def end_line(self) -> None:
        self._end_text()
        self._styled_text.end_line()

    def _end_text(self) -> None:
        if self._has_text:
            self._has_text = False
            self._view.finish()


class ChatAnswerPrinter:
    """Prints one answer of the linear chat, as it is generated.

    Thinking is folded into one line, such as `thinking … (120 words)`, unless the user
    asked to see it.
    """

    def __init__(
        self,
        style: OutputStyle,
        name: str,
        *,
        is_markdown: bool = False,
        mark_tokens: bool = False,
        show_thinking: bool = False,
    ) -> None:
        self._style = style
        self._writer: _TextWriter
        if style.plain:
            self._writer = _RawWriter()
        elif is_markdown and style.colour and not mark_tokens:
            self._writer = _MarkdownWriter()
        else:
            self._writer = _WrappingWriter()
        self._name = name
        self._mark_tokens = mark_tokens
        self._show_thinking = show_thinking
        self._thinking: list[str] = []
        self._thinking_folded = False  # Whether the line `thinking …` is not ended yet.
        self._started = False  # Whether the name was printed.
        self._answer_started = False  # Whether something visible was.
        self._progress_width = 0  # Characters of the progress line on the screen.

    def print_delta(self, delta: AnswerDelta) -> None:
        event = delta.event
        if isinstance(event, Prefill):
            self._show_prefill(event)
        elif isinstance(event, PictureReading):
            self._show_progress(describe_reading(event))
        elif isinstance(event, Notice):
            self.start_new_line()
            self._write_stderr(
                f"localspec: {sanitize(event.message, multiline=False)}\n"
            )
        elif isinstance(event, Round | GenerationFinished):
            self._clear_progress()
        if self._mark_tokens and not self._style.plain:
            for part in _styled_answer(event, self._style):
                self._write_answer(part)
        else:
            for answer_part in delta.parts:
                self._write_part(answer_part)
        sys.stdout.flush()

    def start_new_line(self) -> None:
        self._clear_progress()
        self._close_thinking_fold()
        self._writer.end_line()
        sys.stdout.flush()

    def finish(self, rounds: Sequence[Round]) -> None:
        """End the line and print what is pending, also after an error."""
        self._clear_progress()
        self._close_thinking_fold()
        self._writer.end_line()
        sys.stdout.flush()
        if self._mark_tokens and self._style.plain:
            for event in rounds:
                self._write_stderr(answer_stats.describe_round(event) + "\n")

    def _write_part(self, part: AnswerPart) -> None:
        if part.is_thinking and not self._show_thinking:
            self._thinking.append(part.text)
            if not self._thinking_folded:
                self._thinking_folded = True
                if not self._style.plain:
                    self._write_name()
                    self._write_stderr(self._dim("thinking … "))
            return
        self._close_thinking_fold()
        text = sanitize(part.text)
        if part.is_thinking:
            if self._style.plain and not self._thinking:
                self._writer.write(StyledText(f"Thinking: {text}"))
            elif self._style.plain:
                self._writer.write(StyledText(text))
            else:
                self._write_name()
                codes = _DIM if self._style.colour else ""
                self._writer.write(StyledText(text, codes))
            self._thinking.append(text)
            return
        # The answer begins on a new line.
        if self._thinking and not self._answer_started:
            text = text.lstrip()
            if text:
                self._writer.end_line()
        self._answer_started = self._answer_started or bool(text.strip())
        self._write_answer(StyledText(text))

    def _close_thinking_fold(self) -> None:
        if self._thinking_folded:
            self._thinking_folded = False
            words = count(len("".join(self._thinking).split()), "word")
            summary = f"Thinking, {words}." if self._style.plain else f"({words})"
            self._write_stderr(self._dim(summary) + "\n")

    def _write_answer(self, part: StyledText) -> None:
        if part.text:
            self._write_name()
            self._writer.write(part)

    def _write_name(self) -> None:
        if self._style.plain and not self._started:
            sys.stdout.write(f"{self._name}: ")
        self._started = True

    def _show_prefill(self, event: Prefill) -> None:
        if event.total - event.reused >= _LONG_PREFILL_TOKENS:
            self._show_progress(
                f"reading prompt {short_count(event.done)} / {short_count(event.total)}"
            )
        else:  # A picture may have been read before it.
            self._clear_progress()

    def _show_progress(self, progress: str) -> None:
        if not self._style.plain and global_options.can_redraw():
            self._clear_progress()
            self._progress_width = len(progress)
            self._write_stderr(progress)

    def _clear_progress(self) -> None:
        if self._progress_width:
            self._write_stderr("\r" + " " * self._progress_width + "\r")
            self._progress_width = 0

    def _write_stderr(self, text: str) -> None:
        if not self._style.quiet:
            sys.stdout.flush()
            terminal.echo_styled(
                text, err=True, newline=False, colour=self._style.colour
            )

    def _dim(self, text: str) -> str:
        return click.style(text, dim=True) if self._style.colour else text

"""Prints the events of an answer: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from localspec.api.answer import build_answer
from localspec.chat.answer import AnswerDelta, GeneratedAnswer
from localspec.chat.settings import LoadedModel
from localspec.cli import global_options, speculation_text
from localspec.launch import EXACT_NOTICE, HEAD_NOTICE
from localspec.lazy_dataclass import dataclass
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    Token,
)
from localspec.protocol.wire import GenerateCommand
from localspec.sanitize import sanitize
from localspec.units import count, gib, short_count

_UNANSWERED_HINT = (
    "localspec: The answer ended while the model was still thinking.\n"
    "  Use a higher --max-tokens N, or limit thinking: --think-budget N, or --think off"
)
_SHOWN_NOTICES = (EXACT_NOTICE, HEAD_NOTICE)
_LONG_PREFILL_TOKENS = 512  # Prefill progress is shown from this many tokens.


@dataclass(frozen=True)
class PrintOptions:
    mark_tokens: bool
    show_stats: bool
    as_json: bool
    quiet: bool
    colour: bool
    plain: bool = False  # Words only: rounds are listed after the answer, no token is marked.


class AnswerPrinter:
    """Prints one answer of `localspec run -p`, as text or as one JSON document."""

    def __init__(self, options: PrintOptions, ready: EngineReady) -> None:
        self._options, self._ready = options, ready
        self._at_line_start = True
        self.answer = GeneratedAnswer()
        for notice in ready.notices:
            self._print_notice(notice)

    def on_event(self, event: Event) -> None:
        self.answer.add(event)
        if isinstance(event, Notice):
            self._print_notice(event)
        elif isinstance(event, Round):
            for token in event.tokens:
                self._write(self._format_token(token))
            sys.stdout.flush()
        elif isinstance(event, GenerationFinished):
            self._write(sanitize(event.tail))

    def _format_token(self, token: Token) -> str:
        """Sanitized text; our own colour codes are added after sanitizing."""
        if self._options.mark_tokens and not self._options.plain:
            return speculation_text.mark_token(token, self._options.colour)
        return sanitize(token.text)

    def _write(self, text: str) -> None:
        if text and not self._options.as_json:
            sys.stdout.write(text)
            self._at_line_start = text.endswith("\n")

    def _print_notice(self, notice: Notice) -> None:
        # A script gets no info notices, except about what changes its answers' speed.
        is_relevant = notice.level != "info" or notice.code in _SHOWN_NOTICES or sys.stderr.isatty()
        if not self._options.quiet and is_relevant:
            text = f"{notice.message} {notice.hint}".rstrip()
            click.echo(f"localspec: {sanitize(text, multiline=False)}", err=True)

    def end_line(self) -> None:
        if not self._options.as_json and not self._at_line_start:
            click.echo()
            self._at_line_start = True

    def print_result(self, request: GenerateCommand, loaded: LoadedModel) -> None:
        self.end_line()
        answer, options = self.answer, self._options
        if options.as_json:
            built = build_answer(answer, request, self._ready, loaded)
            click.echo(json.dumps(built.document()))
            return
        if options.mark_tokens and not options.quiet:
            if self._options.plain:
                for event in self.answer.rounds:
                    click.echo(speculation_text.format_round(event, plain=True), err=True)
            else:
                legend = speculation_text.format_legend(self._options.colour)
                click.echo(legend, err=True, color=self._options.colour)
        if answer.ended_in_thinking and not options.quiet:
            click.echo(_UNANSWERED_HINT, err=True)
        if options.show_stats and answer.finished is not None:
            totals, seed = answer.finished.totals, request.sampling.seed
            for line in speculation_text.format_stats(
                answer.plan, totals, seed, plain=options.plain
            ):
                click.echo(sanitize(line), err=True)
            if line := format_memory(self._ready):
                click.echo(line, err=True)


def format_memory(ready: EngineReady) -> str:
    """Memory used and estimated; empty if llama.cpp does not report it."""
    if not (used := ready.memory.get("used")):
        return ""
    estimated = ready.memory.get("predicted")
    if not estimated:
        return f"memory {gib(used)}"
    difference = f"{(used - estimated) / 2**20:+.1f} MiB"
    return f"memory {gib(used)}, estimated {gib(estimated)} ({difference})"


@dataclass(frozen=True, slots=True)
class ChatOutputStyle:
    plain: bool = False  # Words only: no symbols, no colours, no redrawn lines.
    colour: bool = False
    quiet: bool = False


class ChatAnswerPrinter:
    """Prints one answer of a chat while it streams."""

    def __init__(
        self,
        style: ChatOutputStyle,
        name: str,
        *,
        mark_tokens: bool = False,
        show_thinking: bool = False,
    ) -> None:
        self._style, self._name = style, name
        self._mark_tokens, self._show_thinking = mark_tokens, show_thinking
        self._thinking: list[str] = []
        self._thinking_folded = False  # Whether the line `thinking …` is not ended yet.
        self._started = self._answer_started = False
        self._at_line_start = True
        self._progress_width = 0  # Characters of the progress line on the screen.

    def print_delta(self, delta: AnswerDelta) -> None:
        event = delta.event
        if isinstance(event, Prefill):
            self._show_prefill(event)
        elif isinstance(event, Notice):
            self.start_new_line()
            self._write_stderr(f"localspec: {sanitize(event.message, multiline=False)}\n")
        elif isinstance(event, Round | GenerationFinished):
            self._clear_progress()
        if self._mark_tokens and not self._style.plain:
            if isinstance(event, Round):
                for token in event.tokens:
                    self._write_answer(speculation_text.mark_token(token, self._style.colour))
            elif isinstance(event, GenerationFinished):
                self._write_answer(sanitize(event.tail))
        else:
            for part in delta.parts:
                self._write_part(part)
        sys.stdout.flush()

    def start_new_line(self) -> None:
        self._clear_progress()
        self._close_thinking_fold()
        if not self._at_line_start:
            self._write_stderr("\n")

    def finish(self, rounds: Sequence[Round]) -> None:
        """End the line and print what is pending, also after an error."""
        self._clear_progress()
        self._close_thinking_fold()
        if not self._at_line_start:
            self._write_answer("\n")
        sys.stdout.flush()
        if self._mark_tokens and self._style.plain:
            for event in rounds:
                self._write_stderr(speculation_text.format_round(event, plain=True) + "\n")

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
            if self._style.plain:
                self._write(text if self._thinking else f"Thinking: {text}")
            else:
                self._write_name()
                self._write(text, dim=True)
            self._thinking.append(text)
            return
        if self._thinking and not self._answer_started:  # begin the answer on a new line
            text = text.lstrip()
            if text and not self._at_line_start:
                self._write("\n")
        self._answer_started = self._answer_started or bool(text.strip())
        self._write_answer(text)

    def _close_thinking_fold(self) -> None:
        if self._thinking_folded:
            self._thinking_folded = False
            words = count(len("".join(self._thinking).split()), "word")
            summary = f"Thinking, {words}." if self._style.plain else f"({words})"
            self._write_stderr(self._dim(summary) + "\n")

    def _write_answer(self, text: str) -> None:
        if text:
            self._write_name()
            self._write(text)

    def _write(self, text: str, *, dim: bool = False) -> None:
        if text:
            sys.stdout.write(self._dim(text) if dim else text)
            self._at_line_start = text.endswith("\n")

    def _write_name(self) -> None:
        """In plain mode, print the model's name before its answer."""
        if self._style.plain and not self._started:
            sys.stdout.write(f"{self._name}: ")
        self._started = True

    def _show_prefill(self, event: Prefill) -> None:
        if (
            self._style.plain
            or self._style.quiet
            or event.total - event.reused < _LONG_PREFILL_TOKENS
        ):
            return
        if global_options.can_redraw():
            self._clear_progress()
            progress = f"reading prompt {short_count(event.done)} / {short_count(event.total)}"
            self._progress_width = len(progress)
            self._write_stderr(progress)

    def _clear_progress(self) -> None:
        if self._progress_width:
            self._write_stderr("\r" + " " * self._progress_width + "\r")
            self._progress_width = 0

    def _write_stderr(self, text: str) -> None:
        if not self._style.quiet:
            sys.stdout.flush()
            click.echo(text, err=True, nl=False, color=self._style.colour)

    def _dim(self, text: str) -> str:
        return click.style(text, dim=True) if self._style.colour else text

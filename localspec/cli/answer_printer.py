"""Prints the events of an answer: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import click

from localspec.chat.thinking import AnswerPart, ThinkingSplitter
from localspec.cli import global_options, speculation_text
from localspec.launch import HEAD_NOTICE
from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    SpeculationPlan,
    Token,
    token_to_json,
)
from localspec.protocol.round_totals import RoundTotals
from localspec.sanitize import sanitize
from localspec.units import gib, short_count

_UNANSWERED_HINT = (
    "localspec: The answer ended while the model was still thinking.\n"
    "  Use a higher --max-tokens N, or limit thinking: --think-budget N, or --think off"
)
_LONG_PREFILL_TOKENS = 512
"""Prefill progress is shown from this many tokens."""


@dataclass(frozen=True)
class PrintOptions:
    mark_tokens: bool
    show_stats: bool
    as_json: bool
    quiet: bool
    colour: bool
    plain: bool = False
    """Words only: rounds are listed after the answer, no token is marked."""


class AnswerPrinter:
    """Prints one answer of `localspec run -p`, as text or as one JSON document."""

    def __init__(self, options: PrintOptions) -> None:
        self._options = options
        self._tokens: list[Token] = []
        self._rounds: list[Round] = []
        self._at_line_start = True
        self._ready: EngineReady | None = None
        self._plan: SpeculationPlan | None = None
        self.finished: GenerationFinished | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, EngineReady):
            self._ready = event
            for notice in event.notices:
                self._print_notice(notice)
        elif isinstance(event, Notice):
            self._print_notice(event)
        elif isinstance(event, SpeculationPlan):
            self._plan = event
        elif isinstance(event, Round):
            self._tokens += event.tokens
            if self._options.mark_tokens and self._options.plain:
                self._rounds.append(event)
            for token in event.tokens:
                self._write(self._format_token(token))
            sys.stdout.flush()
        elif isinstance(event, GenerationFinished):
            self.finished = event
            self._write(sanitize(event.tail))

    @property
    def text(self) -> str:
        return "".join(token.text for token in self._tokens)

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
        # A script gets no info notices, except that a head was found and drafts.
        is_relevant = notice.level != "info" or notice.code == HEAD_NOTICE or sys.stderr.isatty()
        if not self._options.quiet and is_relevant:
            click.echo(f"localspec: {sanitize(notice.message, multiline=False)}", err=True)

    def end_line(self) -> None:
        if not self._options.as_json and not self._at_line_start:
            click.echo()
            self._at_line_start = True

    def print_result(self, seed: int, verify: str) -> None:
        self.end_line()
        if self._options.as_json:
            click.echo(json.dumps(self._to_json(seed, verify)))
        elif self.finished is not None:
            if self._options.mark_tokens and not self._options.quiet:
                self._print_token_legend()
            if self.finished.totals.get("thinking", {}).get("open") and not self._options.quiet:
                click.echo(_UNANSWERED_HINT, err=True)
            if self._options.show_stats:
                totals, plain = self.finished.totals, self._options.plain
                for line in speculation_text.format_stats(self._plan, totals, seed, plain=plain):
                    click.echo(sanitize(line), err=True)
                if line := format_memory(self._ready):
                    click.echo(line, err=True)

    def _print_token_legend(self) -> None:
        """The legend of the marks; in plain mode the rounds instead."""
        if not self._options.plain:
            click.echo(
                speculation_text.format_legend(self._options.colour),
                err=True,
                color=self._options.colour,
            )
        for event in self._rounds:
            click.echo(speculation_text.format_round(event, plain=True), err=True)

    def _to_json(self, seed: int, verify: str) -> dict[str, Any]:
        assert self._ready is not None and self.finished is not None
        totals = self.finished.totals
        timings = {"load_ms": round(self._ready.load_ms, 3), **totals["timings"]}
        return {
            "schema": 1,
            "text": self.text + self.finished.tail,
            "tokens": [token_to_json(token) for token in self._tokens],
            "finish_reason": self.finished.reason,
            "model": self._ready.model,
            "draft": self._ready.draft,
            "seed": seed,
            "verify": verify,
            "prompt_tokens": totals["prompt_tokens"],
            "timings": timings,
            "speculation": totals["speculation"],
        }


def format_memory(ready: EngineReady | None) -> str:
    """Memory used and estimated; empty if llama.cpp does not report it."""
    if ready is None or not (used := ready.memory.get("used")):
        return ""
    estimated = ready.memory.get("predicted")
    if not estimated:
        return f"memory {gib(used)}"
    difference = f"{(used - estimated) / 2**20:+.1f} MiB"
    return f"memory {gib(used)}, estimated {gib(estimated)} ({difference})"


@dataclass(frozen=True, slots=True)
class ChatOutputStyle:
    plain: bool = False
    """Words only: no symbols, no colours, no redrawn lines."""
    colour: bool = False
    quiet: bool = False


class ChatAnswerPrinter:
    """Prints one answer of a chat while it streams."""

    def __init__(
        self,
        style: ChatOutputStyle,
        name: str,
        markers: tuple[str, str] | None,
        *,
        mark_tokens: bool = False,
        show_thinking: bool = False,
    ) -> None:
        self._style, self._name, self._markers = style, name, markers
        self._mark_tokens, self._show_thinking = mark_tokens, show_thinking
        self._splitter = ThinkingSplitter(markers)
        self._thinking: list[str] = []
        self._thinking_folded = False
        """Whether the line `thinking …` is not ended yet."""
        self._started = self._answer_started = False
        self._at_line_start = True
        self._progress_width = 0
        """Characters of the progress line on the screen."""
        self._rounds: list[Round] = []
        self.totals = RoundTotals()
        self.plan: SpeculationPlan | None = None
        self.finished: GenerationFinished | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, Round):
            self._clear_progress()
            self.totals.add(event)
            self._write_round(event)
        elif isinstance(event, Prefill):
            self._show_prefill(event)
        elif isinstance(event, SpeculationPlan):
            self.plan = event
        elif isinstance(event, Notice):
            self.start_new_line()
            self._write_stderr(f"localspec: {sanitize(event.message, multiline=False)}\n")
        elif isinstance(event, GenerationFinished):
            self._clear_progress()
            self.finished = event
            self._write_text(event.tail)
        sys.stdout.flush()

    def start_new_line(self) -> None:
        self._clear_progress()
        self._close_thinking_fold()
        if not self._at_line_start:
            self._write_stderr("\n")

    def finish(self) -> None:
        """End the line and print what is pending, also after an error."""
        self._clear_progress()
        for part in self._splitter.flush():
            self._write_part(part)
        self._close_thinking_fold()
        if not self._at_line_start:
            self._write_answer("\n")
        sys.stdout.flush()
        if self._mark_tokens and self._style.plain:
            for event in self._rounds:
                self._write_stderr(speculation_text.format_round(event, plain=True) + "\n")

    def _write_round(self, event: Round) -> None:
        if self._mark_tokens and self._style.plain:
            self._rounds.append(event)
        if self._mark_tokens and not self._style.plain:
            for token in event.tokens:
                self._write_answer(speculation_text.mark_token(token, self._style.colour))
        else:
            self._write_text("".join(token.text for token in event.tokens))

    def _write_text(self, text: str) -> None:
        if self._mark_tokens and not self._style.plain:
            self._write_answer(sanitize(text))
            return
        for part in self._splitter.feed(text):
            self._write_part(part)

    def _write_part(self, part: AnswerPart) -> None:
        if part.is_thinking and not self._show_thinking:
            self._fold_thinking(part.text)
            return
        self._close_thinking_fold()
        text = sanitize(part.text)
        if part.is_thinking:
            self._write_thinking(text)
            return
        if self._thinking and not self._answer_started:  # begin the answer on a new line
            text = text.lstrip()
            if text and not self._at_line_start:
                self._write("\n")
        self._answer_started = self._answer_started or bool(text.strip())
        self._write_answer(text)

    def _write_thinking(self, text: str) -> None:
        if self._style.plain:
            self._write(text if self._thinking else f"Thinking: {text}")
        else:
            self._write_name()
            self._write(text, dim=True)
        self._thinking.append(text)

    def _fold_thinking(self, text: str) -> None:
        self._thinking.append(text)
        if not self._thinking_folded:
            self._thinking_folded = True
            if not self._style.plain:
                self._write_name()
                self._write_stderr(self._dim("thinking … "))

    def _close_thinking_fold(self) -> None:
        if self._thinking_folded:
            self._thinking_folded = False
            n = len("".join(self._thinking).split())
            count = f"{n} word{'s' * (n != 1)}"
            summary = f"Thinking, {count}." if self._style.plain else f"({count})"
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
        if not self._started:
            self._splitter = ThinkingSplitter(self._markers, event.thinking)
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

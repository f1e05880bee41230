"""Events become what the terminal or a pipe gets; stdout is data, stderr is talk."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import click

from localspec.clean import clean
from localspec.cli import marks, rounds
from localspec.launch import HEAD
from localspec.protocol.events import (
    Event,
    Finished,
    Notice,
    Plan,
    Ready,
    Round,
    Token,
    token_body,
)
from localspec.units import gib

_UNANSWERED = (
    "localspec: It ended in its thinking: there is no answer yet.\n"
    "  More room: --max-tokens N.  Less thinking: --think-budget N, or --think off"
)


@dataclass(frozen=True)
class Show:
    """What to print of an answer."""

    tokens: bool
    stats: bool
    json: bool
    quiet: bool
    colour: bool
    plain: bool = False
    """Words alone: rounds are told at the end, no token is marked."""


class Printer:
    """Folds the events of one answer."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._tokens: list[Token] = []
        self._rounds: list[Round] = []
        self._ended_line = True
        self._ready: Ready | None = None
        self._plan: Plan | None = None
        self.finished: Finished | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._ready = event
            for notice in event.notices:
                self._talk(notice)
        elif isinstance(event, Notice):
            self._talk(event)
        elif isinstance(event, Plan):
            self._plan = event
        elif isinstance(event, Round):
            self._tokens += event.tokens
            if self._show.tokens and self._show.plain:
                self._rounds.append(event)
            for token in event.tokens:
                self._say(self._shown(token))
            sys.stdout.flush()
        elif isinstance(event, Finished):
            self.finished = event
            self._say(clean(event.tail))

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(token.text for token in self._tokens)

    def _shown(self, token: Token) -> str:
        """Cleaned text, inside our own colours where tokens are marked."""
        if self._show.tokens and not self._show.plain:
            return marks.marked(token, self._show.colour)
        return clean(token.text)

    def _say(self, text: str) -> None:
        if text and not self._show.json:
            sys.stdout.write(text)
            self._ended_line = text.endswith("\n")

    def _talk(self, notice: Notice) -> None:
        # A script need not hear what is well, but what drafts though nobody named it.
        asked = notice.level != "info" or notice.code == HEAD or sys.stderr.isatty()
        if not self._show.quiet and asked:
            click.echo(f"localspec: {clean(notice.message, multiline=False)}", err=True)

    def end_line(self) -> None:
        """What follows begins on its own line."""
        if not self._show.json and not self._ended_line:
            click.echo()
            self._ended_line = True

    def close(self, seed: int, verify: str) -> None:
        self.end_line()
        if self._show.json:
            click.echo(json.dumps(self._document(seed, verify)))
        elif self.finished is not None:
            if self._show.tokens and not self._show.quiet:
                self._explain()
            if self.finished.totals.get("thinking", {}).get("open") and not self._show.quiet:
                click.echo(_UNANSWERED, err=True)
            if self._show.stats:
                totals, plain = self.finished.totals, self._show.plain
                for line in marks.summary(self._plan, totals, seed, plain=plain):
                    click.echo(clean(line), err=True)
                if words := memory(self._ready):
                    click.echo(words, err=True)

    def _explain(self) -> None:
        """What the marks mean, or instead of them each round in words."""
        if not self._show.plain:
            click.echo(marks.legend(self._show.colour), err=True, color=self._show.colour)
        for event in self._rounds:
            click.echo(rounds.told(event, plain=True), err=True)

    def _document(self, seed: int, verify: str) -> dict[str, Any]:
        assert self._ready is not None and self.finished is not None
        totals = self.finished.totals
        timings = {"load_ms": round(self._ready.load_ms, 3), **totals["timings"]}
        return {
            "schema": 1,
            "text": self.text + self.finished.tail,
            "tokens": [token_body(token) for token in self._tokens],
            "finish_reason": self.finished.reason,
            "model": self._ready.model,
            "draft": self._ready.draft,
            "seed": seed,
            "verify": verify,
            "prompt_tokens": totals["prompt_tokens"],
            "timings": timings,
            "speculation": totals["speculation"],
        }


def memory(ready: Ready | None) -> str:
    """What was foretold, and what llama.cpp took; empty where it does not tell."""
    if ready is None or not (used := ready.memory.get("used")):
        return ""
    foretold = ready.memory.get("predicted")
    before = f", foretold {gib(foretold)}" if foretold else ""
    apart = f" ({(used - foretold) / 2**20:+.1f} MiB)" if foretold else ""
    return f"memory {gib(used)}{before}{apart}"

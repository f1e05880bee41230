"""One chat as the screen holds it: what was said, how it is asked, and the figures of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from localspec.chat.conversation import Conversation, Turn
from localspec.chat.settings import Loaded, Settings, request
from localspec.clean import clean
from localspec.launch import SETTINGS, Choice, Engine
from localspec.protocol.events import Event, FinishReason
from localspec.protocol.wire import Generate, Inspect
from localspec.tui.figures import Figures

_ENDS: dict[FinishReason, str] = {
    "length": "cut at the longest answer allowed: f4 settings",
    "context": "the context is full: ctrl+n begins a new chat",
    "error": "ended by an error",
}


class Dialogue:
    """No widgets here: a screen may come and go."""

    def __init__(self, choice: Choice, seed: int | None = None) -> None:
        self.choice = choice
        self.settings = Settings.of(choice.suggested)
        self.conversation = Conversation(secrets.randbits(31) if seed is None else seed)
        self.figures = Figures()
        self.loaded: Loaded | None = None
        self.chosen = ""
        """With what settings it was loaded, and why."""
        self._asked: Generate | None = None

    @property
    def model(self) -> str:
        return _stem(self.choice.target.name)

    @property
    def pair(self) -> str:
        """`model + draft`, for a title."""
        draft = self.choice.draft
        if draft == self.choice.target:
            return f"{self.model} + its own layer (MTP)"
        return f"{self.model} + {_stem(draft.name)}" if draft else self.model

    @property
    def title(self) -> str:
        """The first thing that was asked."""
        first = next((t.question for t in self.conversation.turns if t.question.strip()), "")
        return " ".join(clean(first).split())[:200]

    def opened(self, engine: Engine) -> None:
        """A pair is loaded, perhaps not for the first time."""
        self.loaded = Loaded.of(engine.ready, self.choice.spec, self.choice.why)
        told = [one.message for one in engine.ready.notices if one.code == SETTINGS]
        self.chosen = clean("\n".join(told))
        self.learn(engine)

    def learn(self, engine: Engine) -> None:
        """How fast plain decoding is here, as far as it was measured."""
        known = engine.measured
        if known is not None and known.t1_ms > 0:
            self.figures.plain = 1e3 / known.t1_ms

    def clear(self) -> None:
        """Another chat, with the same system prompt and settings."""
        plain = self.figures.plain
        self.conversation = Conversation(secrets.randbits(31), self.conversation.system)
        self.figures = Figures(plain=plain)

    def request(self, probabilities: bool) -> Generate:
        """What to ask the engine for the last turn."""
        assert self.loaded is not None
        self.figures.begin()
        self._asked = request(
            self.settings, self.conversation, self.loaded, probabilities=probabilities
        )
        return self._asked

    def inspection(self) -> Inspect | None:
        """What to ask about the last answer; None where its tokens came with their chances."""
        asked, turns = self._asked, self.conversation.turns
        tokens = [t for r in turns[-1].rounds for t in r.tokens] if turns else []
        if asked is None or asked.probabilities or not tokens:
            return None
        ids = tuple(token.id for token in tokens)
        return Inspect(ids, asked.text, asked.messages, asked.template, asked.think)

    def hear(self, events: Sequence[Event]) -> Turn:
        self.figures.take(events)
        return self.conversation.hear(events)

    def change(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)  # type: ignore[arg-type]


def ending(turn: Turn, stopped_ms: float | None) -> str:
    """Why an answer ended, where that is worth a line."""
    if turn.reason == "cancelled" and stopped_ms is not None:
        return f"stopped in {stopped_ms:.0f} ms"
    if turn.reason == "cancelled":
        return "stopped"
    return _ENDS.get(turn.reason, "") if turn.reason else ""


def _stem(name: str) -> str:
    return clean(name.removesuffix(".gguf"), multiline=False)

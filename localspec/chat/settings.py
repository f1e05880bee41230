"""What applies to the next turn: sampling, speculation, limits; how it is changed and shown."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from localspec.chat.conversation import Conversation
from localspec.errors import UsageError
from localspec.models import catalog
from localspec.protocol.events import Ready
from localspec.protocol.wire import DRAFT_MAX, Generate, Sampling, Spec, VerifyMode

COMPLETION = 256
"""Tokens of an answer where nobody said how many, of a model that does not know when to end."""


Overflow = Literal["ask", "stop", "drop", "summarise"]
"""Where a chat outgrows its context: ask the person, end there, or leave out the oldest turns, the
last with a summary in their place."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the next turn.  None stands for what suits: see the words of each field."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    spec: str = "auto"
    """`auto` is what the pair's entry says, or else whatever pays."""
    draft_length: int | None = None
    verify: VerifyMode = "coupled"
    exact: bool = False
    think: bool | None = None
    think_budget: int | None = None
    """Tokens after which thinking is ended and the answer begins."""
    show_thinking: bool = False
    overflow: Overflow = "ask"
    """What to do where a chat outgrows its context."""

    @classmethod
    def of(cls, suggested: catalog.Settings) -> Settings:
        """As a pair's entry suggests."""
        plain = Sampling()
        temperature = suggested.temperature
        warm = plain if temperature is None else replace(plain, temperature=temperature)
        return cls(warm, draft_length=suggested.draft_max)

    def changed(self, name: str, text: str) -> Settings:
        """With one value as typed.  Raises UsageError, which names what is possible."""
        about = _field(name)
        try:
            value = about.read(text.strip().lower())
        except (ValueError, OverflowError):
            raise UsageError(
                f"{about.label} cannot be {_short(text)!r}.", f"Possible: {about.hint}."
            ) from None
        if about.sampling:
            return replace(self, sampling=replace(self.sampling, **{about.attribute: value}))
        return replace(self, **{about.attribute: value})

    def shown(self, name: str) -> str:
        """A value in words."""
        about = _field(name)
        value = getattr(self.sampling if about.sampling else self, about.attribute)
        if value is None:
            return about.none
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Field:
    """One setting, as a person knows it."""

    name: str
    """As after `/set`, and on the command line with dashes."""
    label: str
    hint: str
    """What is possible."""
    read: Callable[[str], Any]
    """The value of a text; raises ValueError."""
    attribute: str
    sampling: bool = False
    none: str = ""
    """The word for None."""
    words: tuple[str, ...] = ()
    """Values that are words, for completion and menus."""


def _number(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text.replace(",", "."))
        if not (low < value if above else low <= value) or value > high or math.isinf(value):
            raise ValueError
        return value

    return read


def _whole(low: int, high: int = 2**31 - 1, none: str = "") -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        if none and text == none:
            return None
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


def _choice(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError
        return values[text]

    return read


_SWITCH = {"on": True, "off": False}
_THINK = {**_SWITCH, "auto": None}
_SPEC = {"on": "auto"} | {word: word for word in get_args(Spec)}
_OVERFLOW = {word: word for word in get_args(Overflow)}
_VERIFY = {word: word for word in get_args(VerifyMode)}


def _of(name: str, label: str, values: Mapping[str, Any], none: str = "") -> Field:
    return Field(name, label, ", ".join(values), _choice(values), name, False, none, tuple(values))


FIELDS: Mapping[str, Field] = {
    about.name: about
    for about in (
        Field(
            "temperature",
            "temperature",
            "0 (always the likeliest token) or more; 0.8 is usual",
            _number(0),
            "temperature",
            True,
        ),
        Field("top_k", "top-k", "a whole number; 0 is off", _whole(0), "top_k", True),
        Field(
            "top_p", "top-p", "above 0, up to 1; 1 is off", _number(0, 1, above=True), "top_p", True
        ),
        Field("min_p", "min-p", "0 to 1; 0 is off", _number(0, 1), "min_p", True),
        Field(
            "repeat_penalty",
            "repeat penalty",
            "above 0; 1 is off",
            _number(0, above=True),
            "repeat_penalty",
            True,
        ),
        Field(
            "repeat_last_n",
            "repeat window",
            "a whole number of tokens; 0 is off",
            _whole(0),
            "repeat_last_n",
            True,
        ),
        Field(
            "max_tokens",
            "longest answer",
            "a whole number of tokens from 1, or auto",
            _whole(1, none="auto"),
            "max_tokens",
            none="auto",
            words=("auto",),
        ),
        _of("spec", "speculation", _SPEC),
        Field(
            "draft_max",
            "guesses a round",
            f"0 to {DRAFT_MAX}, or auto",
            _whole(0, DRAFT_MAX, none="auto"),
            "draft_length",
            none="auto",
            words=("auto",),
        ),
        _of("verify", "guesses are checked by", _VERIFY),
        _of("exact", "near-ties computed alone", _SWITCH),
        _of("think", "thinking", _THINK, none="auto"),
        Field(
            "think_budget",
            "thinking ends after",
            "a whole number of tokens, or auto",
            _whole(0, none="auto"),
            "think_budget",
            none="auto",
            words=("auto",),
        ),
        _of("show_thinking", "thinking shown", _SWITCH),
        _of("overflow", "when the context is full", _OVERFLOW),
    )
}
"""By name, in the order of a screen."""


def names(name: str) -> tuple[str, ...]:
    """The words that a setting knows; none where it is a number, or no setting."""
    known = FIELDS.get(_plain(name))
    return known.words if known else ()


def _field(name: str) -> Field:
    plain = _plain(name)
    if plain in FIELDS:
        return FIELDS[plain]
    near = difflib.get_close_matches(plain, FIELDS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(FIELDS)}."
    raise UsageError(f"There is no setting called {_short(name)!r}.", hint)


def _plain(name: str) -> str:
    plain = name.strip().lower().replace("-", "_")
    return {"temp": "temperature", "draft_length": "draft_max"}.get(plain, plain)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What of a loaded pair decides how it is asked."""

    n_ctx: int
    template: str | None = None
    """`own`, a fallback's name, or None: it completes text."""
    thinking: tuple[str, str] | None = None
    """The markers around thinking, where the template has them."""
    spec: str = "auto"
    why: str = ""
    """How the pair's entry wants to speculate, and why."""
    asked: str | None = None
    """The fallback that was asked for, whatever the model brings."""

    @classmethod
    def of(
        cls,
        ready: Ready,
        spec: str = "auto",
        why: str = "",
        *,
        raw: bool = False,
        template: str | None = None,
    ) -> Loaded:
        """Of what the engine said.  `raw`: complete text even with a chat model."""
        n_ctx = int((ready.settings.get("target") or {}).get("n_ctx") or 0)
        chat = ready.settings.get("chat") or {}
        markers = chat.get("thinking")
        if raw:
            return cls(n_ctx, spec=spec, why=why)
        return cls(
            n_ctx,
            template or chat.get("template"),
            (str(markers[0]), str(markers[1])) if markers else None,
            spec,
            why,
            template,
        )

    @property
    def chats(self) -> bool:
        """Whether it answers messages, rather than going on with a text."""
        return self.template is not None


def request(
    settings: Settings, conversation: Conversation, loaded: Loaded, *, probabilities: bool = False
) -> Generate:
    """What to ask the engine for the last turn of a conversation."""
    length = settings.max_tokens
    if length is None:
        length = max(1, loaded.n_ctx) if loaded.chats else COMPLETION
    automatic = settings.spec == "auto"
    return Generate(
        text="" if loaded.chats else conversation.text(),
        messages=conversation.messages() if loaded.chats else (),
        said=() if loaded.chats else conversation.messages(),
        template=loaded.asked,
        sampling=replace(settings.sampling, seed=conversation.answer_seed),
        max_tokens=length,
        stop=settings.stop,
        verify=settings.verify,
        spec=loaded.spec if automatic else settings.spec,
        why=loaded.why if automatic else "",
        begun=conversation.turns[-1].tokens,
        think_budget=settings.think_budget if loaded.chats else None,
        draft_length=settings.draft_length,
        exact=settings.exact,
        think=settings.think if loaded.chats else None,
        probabilities=probabilities,
    )

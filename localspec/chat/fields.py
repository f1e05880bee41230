"""What of a chat's settings can be typed by name: what is possible, and how it is read."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from localspec.errors import UsageError
from localspec.protocol.wire import DRAFT_MAX, VerifyMode
from localspec.speculation import SPECS

Overflow = Literal["ask", "stop", "drop", "summarise"]
"""Where a chat outgrows its context: ask the person, end there, or leave out the oldest turns, the
last with a summary in their place."""


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
_SPEC = {"on": "auto"} | {word: word for word in SPECS}
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


def field_of(name: str) -> Field:
    """Raises UsageError, which names the nearest."""
    plain = _plain(name)
    if plain in FIELDS:
        return FIELDS[plain]
    near = difflib.get_close_matches(plain, FIELDS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(FIELDS)}."
    raise UsageError(f"There is no setting called {short(name)!r}.", hint)


def _plain(name: str) -> str:
    plain = name.strip().lower().replace("-", "_")
    return {"temp": "temperature", "draft_length": "draft_max"}.get(plain, plain)


def short(text: str) -> str:
    """What was typed, fit for a message."""
    return text if len(text) <= 40 else text[:39] + "…"

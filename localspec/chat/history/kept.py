"""What there is to know of a chat that was kept."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.chat.conversation import Conversation
from localspec.chat.settings import Settings
from localspec.chat.turn import Cut


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair that answers, as a person asks for it."""

    model: str
    """A reference or a path; `draft` too, or `auto` or `none`."""
    draft: str = "auto"
    name: str = ""
    """Of the model, for a person."""
    thinking: tuple[str, str] | None = None
    """The markers around what it thinks."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chat is kept: its id means nothing in another file."""

    file: str
    chat: int


@dataclass(frozen=True, slots=True)
class About:
    """All of a chat but its turns, to be written."""

    title: str
    seed: int
    system: str
    settings: Settings
    pair: Pair
    head: int | None
    cut: Cut
    turns: int
    """On the path to the head."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A chat in a list: nothing of its turns was read for it."""

    id: int
    title: str
    pair: Pair
    turns: int
    created: float
    """Seconds since 1970, UTC, by the clock of that moment; no order is made of it."""
    updated: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A chat to read or to go on with."""

    place: Place
    listed: Listed
    conversation: Conversation
    settings: Settings


@dataclass(frozen=True, slots=True)
class Found:
    """A chat in which something was found: in a turn, or in its title where `turn` is None."""

    listed: Listed
    turn: int | None
    excerpt: str

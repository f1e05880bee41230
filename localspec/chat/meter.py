"""How much of the context a chat takes, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from localspec.chat.conversation import Conversation
from localspec.chat.settings import Loaded, Settings
from localspec.chat.turn import Cut
from localspec.protocol.events import Event
from localspec.protocol.wire import Count, Generate


class Engine(Protocol):
    """A loaded pair that can also count."""

    def generate(self, request: Generate) -> Iterator[Event]: ...

    def count(self, count: Count) -> int: ...


@dataclass(frozen=True, slots=True)
class How:
    """How a conversation is asked."""

    settings: Settings
    loaded: Loaded
    probabilities: bool = False


@dataclass(frozen=True, slots=True)
class Meter:
    """What the next question would take of the context."""

    used: int
    n_ctx: int
    dropped: int = 0
    """Turns that are not sent any more."""
    summarised: bool = False
    """Whether a summary stands for them."""

    @property
    def left(self) -> int:
        """Tokens for the answer."""
        return max(0, self.n_ctx - self.used)


def meter(engine: Engine, conversation: Conversation, how: How, typed: str = "") -> Meter:
    """Exactly what would be sent with `typed` as the next question; not while one is answered.

    Raises what the engine raises.
    """
    used = engine.count(count(conversation, how, more=typed))
    cut = conversation.cut
    cut = cut if cut.holds(conversation.turns) else Cut()
    return Meter(used, how.loaded.n_ctx, cut.turns, bool(cut.summary))


def count(
    conversation: Conversation, how: How, cut: Cut | None = None, more: str | None = None
) -> Count:
    """What the last turn takes, or `more` after it; by another cut, to see what that would do."""
    messages = conversation.messages(cut, more)
    if how.loaded.chats:
        return Count(messages=messages, template=how.loaded.asked, think=how.settings.think)
    return Count(conversation.text(cut, more), said=messages)

"""One question and its answer, and what may stand in the place of several."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.protocol.events import Event, Finished, FinishReason, Prefill, Round


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that belongs to a question."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer so far; `question` is empty where a text was only continued."""

    question: str
    answer: str = ""
    """Every character the model said, thinking included, as it came."""
    reason: FinishReason | None = None
    """Why the answer ended; None while it is being written, or where it was interrupted."""
    attempt: int = 0
    """Makes its seed another than that of every other turn after the same one."""
    events: tuple[Event, ...] = ()
    """Those of the answer, for the token view and the replay."""
    attached: tuple[Attachment, ...] = ()
    id: int = 0
    """Its own in its chat, larger than those of all earlier turns."""
    parent: int | None = None
    """The turn that it follows; None at the beginning of the chat."""
    model: str = ""
    """The name of the one that answers; empty where nobody knows."""

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(event for event in self.events if isinstance(event, Round))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The answer's, as they came."""
        return tuple(token.id for heard in self.rounds for token in heard.tokens)

    @property
    def begins_inside(self) -> bool:
        """Whether the answer began inside a thinking part."""
        return any(isinstance(event, Prefill) and event.thinking for event in self.events)

    @property
    def ends_inside(self) -> bool:
        """Whether the answer ended before its thinking did."""
        ends = (event.totals for event in self.events if isinstance(event, Finished))
        return any(totals.get("thinking", {}).get("open") for totals in ends)

    def heard(self, events: Sequence[Event]) -> Turn:
        """The turn, with what just came from the engine."""
        text = [self.answer]
        reason = self.reason
        for event in events:
            if isinstance(event, Round):
                text += [token.text for token in event.tokens]
            elif isinstance(event, Finished):
                text.append(event.tail)
                reason = event.reason
        return replace(self, answer="".join(text), reason=reason, events=(*self.events, *events))

    def resumed(self) -> Turn:
        """The turn as if its answer had not ended."""
        ends = [event for event in self.events if isinstance(event, Finished)]
        answer = self.answer.removesuffix(ends[-1].tail) if ends else self.answer
        events = tuple(event for event in self.events if not isinstance(event, Finished))
        return replace(self, answer=answer, reason=None, events=events)


@dataclass(frozen=True, slots=True)
class Cut:
    """The oldest turns of a chat, which the model is not sent any more."""

    turns: int = 0
    """How many."""
    summary: str = ""
    """What stands for them, in the model's own words; empty where nothing does."""
    seal: int = 0
    """Made of what they say: on a path that begins otherwise the cut does not count."""

    @classmethod
    def of(cls, turns: Sequence[Turn], summary: str = "") -> Cut:
        """That of these turns, from the first."""
        return cls(len(turns), summary, _seal(turns))

    def holds(self, turns: Sequence[Turn]) -> bool:
        """Whether these turns begin with those that are cut off."""
        return self.turns <= len(turns) and self.seal == _seal(turns[: self.turns])


def _seal(turns: Sequence[Turn]) -> int:
    seal = 0
    for turn in turns:
        seal = zlib.crc32(repr((turn.question, turn.answer)).encode(), seal)
    return seal

"""The turns of one chat: what was asked, what was answered, and what to ask the engine next."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.protocol.events import Event, Finished, FinishReason, Prefill, Round
from localspec.protocol.wire import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer so far; `question` is empty where a text was only continued."""

    question: str
    answer: str = ""
    """Every character the model said, thinking included, as it came."""
    reason: FinishReason | None = None
    """Why the answer ended; None while it is being written, or where the engine died."""
    attempt: int = 0
    """How often it was written again."""
    events: tuple[Event, ...] = ()
    """Those of the answer, for the token view and the replay."""

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(event for event in self.events if isinstance(event, Round))

    @property
    def begins_inside(self) -> bool:
        """Whether the answer began inside a thinking part."""
        return any(isinstance(event, Prefill) and event.thinking for event in self.events)

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


class Conversation:
    """Turns in order; the last may still be in the making."""

    def __init__(self, seed: int, system: str = "") -> None:
        self.seed = seed
        self.system = system
        self.turns: list[Turn] = []

    def ask(self, question: str) -> Turn:
        """Begin a turn."""
        self.turns.append(Turn(question))
        return self.turns[-1]

    def hear(self, events: Sequence[Event]) -> Turn:
        """Add what came from the engine to the last turn."""
        self.turns[-1] = self.turns[-1].heard(events)
        return self.turns[-1]

    def again(self) -> Turn:
        """Begin the last answer anew, with another seed.  Raises IndexError where there is none."""
        last = self.turns[-1]
        self.turns[-1] = Turn(last.question, attempt=last.attempt + 1)
        return self.turns[-1]

    def restart(self) -> Turn:
        """Begin the last answer anew with the same seed: what was cut off comes again.

        Raises IndexError where there is none.
        """
        last = self.turns[-1]
        self.turns[-1] = Turn(last.question, attempt=last.attempt)
        return self.turns[-1]

    def take_back(self) -> Turn:
        """Remove the last turn, to be edited.  Raises IndexError where there is none."""
        return self.turns.pop()

    @property
    def answer_seed(self) -> int:
        """Of the last turn: a retry differs, a replay does not."""
        parts = (self.seed, len(self.turns), self.turns[-1].attempt)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def messages(self) -> tuple[Message, ...]:
        """What a chat model is asked: all turns up to the question of the last."""
        found = [Message("system", self.system)] if self.system else []
        for turn in self.turns[:-1]:
            found.append(Message("user", turn.question))
            found.append(Message("assistant", turn.answer))
        found.append(Message("user", self.turns[-1].question))
        return tuple(found)

    def text(self) -> str:
        """What a completion model is asked: everything so far, as one text."""
        text = self.system
        for turn in self.turns[:-1]:
            text = _joined(text, turn.question) + turn.answer
        return _joined(text, self.turns[-1].question)


def _joined(before: str, more: str) -> str:
    """What a person adds begins on a line of its own; nothing added, nothing between."""
    if not before or not more or before.endswith("\n"):
        return before + more
    return f"{before}\n{more}"

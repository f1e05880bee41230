"""Earlier turns and other branches, in the linear chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.chat.conversation import Conversation
from localspec.chat.turn import Turn
from localspec.clean import clean
from localspec.cli.state import State
from localspec.errors import UsageError

_LONGEST = 60


def lines(conversation: Conversation) -> Iterator[str]:
    """The turns of the path, and what was taken back."""
    for number, turn in enumerate(conversation.turns, 1):
        yield f"{number:>3}  {asked(turn)}{branch(conversation, turn)}"
    for turn in conversation.following()[-1:]:
        yield f"     taken back: {asked(turn)}"


def branch(conversation: Conversation, turn: Turn) -> str:
    """Which of several in one place it is."""
    ids = [one.id for one in conversation.branches(turn.id)]
    return f"  ({ids.index(turn.id) + 1} of {len(ids)})" if len(ids) > 1 else ""


def asked(turn: Turn) -> str:
    """A question, short."""
    words = turn.question or ", ".join(file.name for file in turn.attached)
    shown = clean(words, multiline=False).strip()
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def go(words: Sequence[str], state: State) -> str:
    """To the turn with a number, to be edited; or, with another, to that branch there.

    What was done, in words.  Raises UsageError.
    """
    conversation = state.conversation
    turn = _numbered(words[0], conversation.turns)
    state.died = False
    if len(words) == 1:
        conversation.leave(turn.id)
        state.begun, state.attached = clean(turn.question), turn.attached
        return f"Back before turn {words[0]}; what came stays a branch."
    other = _numbered(words[1], conversation.branches(turn.id))
    conversation.switch(other.id)
    return f"Branch {words[1]} of turn {words[0]}: {len(conversation.turns)} turns."


def _numbered(word: str, turns: Sequence[Turn]) -> Turn:
    if not word.isdecimal() or len(word) > 6 or not 1 <= int(word) <= len(turns):
        raise UsageError(f"There is no {clean(word[:20], multiline=False)!r} here.", "See: /turns")
    return turns[int(word) - 1]

"""The question what to do about a full context, and its answers, in words."""

from __future__ import annotations

from msgspec import Struct

from localspec.chat.context_window import ContextOverflow
from localspec.chat.settings import OverflowPolicy
from localspec.units import count


class ChoiceText(Struct, frozen=True):
    label: str
    consequence: str


_CHOICES: dict[OverflowPolicy, ChoiceText] = {
    "drop": ChoiceText(
        "Leave out the oldest turns",
        "They stay in the chat; the model no longer sees them",
    ),
    "summarise": ChoiceText(
        "Summarise the oldest turns",
        "The model sees its own summary in their place",
    ),
    "stop": ChoiceText("Stop here", "Nothing is left out; the answer ends"),
}
_DO_NOT_SEND = ChoiceText(
    "Do not send", "Nothing is left out; you can edit your message"
)


def describe_overflow(overflow: ContextOverflow) -> str:
    if overflow.mid_answer:
        return "The context is full"
    return "The conversation exceeds the context"


def describe_usage(overflow: ContextOverflow) -> str:
    turns = count(overflow.droppable_turns, "older turn")
    return f"{overflow.used:,} of {overflow.n_ctx:,} tokens, including {turns}."


def describe_choice(policy: OverflowPolicy, overflow: ContextOverflow) -> ChoiceText:
    if policy == "stop" and not overflow.mid_answer:
        return _DO_NOT_SEND
    return _CHOICES[policy]

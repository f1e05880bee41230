"""Helpers for the history tests: chats with made-up answers."""

from collections.abc import Sequence

from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import ChatHistory, ChatLocation, ChatMetadata, ChatPair
from localspec.chat.settings import ChatSettings
from localspec.chat.titles import make_title
from localspec.protocol import events as ev

PAIR = ChatPair("qwen3-8b", "qwen3-0.6b", "Qwen3 8B", ("<think>", "</think>"))


def spoken(text: str, n: int = 0) -> ev.Round:
    """One round of two tokens."""
    half = len(text) // 2
    tokens = (
        ev.Token(n, text[:half], "accepted"),
        ev.Token(n + 1, text[half:], "bonus"),
    )
    return ev.Round(
        n=n,
        source="model",
        reason="",
        drafted=1,
        accepted=1,
        tokens=tokens,
        ms=ev.RoundTimes(draft=0.5, verify=20.0, host=0.25),
    )


def answer(*texts: str, thinking: bool = False) -> list[ev.Event]:
    """A whole answer, one round per text."""
    begin: list[ev.Event] = [
        ev.SpeculationPlan("on", "pays", 1.5),
        ev.Prefill(9, 9, 3, thinking),
    ]
    return [
        *begin,
        *(spoken(text, n) for n, text in enumerate(texts)),
        ev.GenerationFinished("eog"),
    ]


def add_events(conversation: Conversation, events: Sequence[ev.Event]) -> Turn:
    """Add events to the last turn."""
    turn = conversation.turns[-1].with_events(events)
    conversation.update_turn(turn)
    return turn


def chat(*turns: tuple[str, str], system: str = "be brief") -> Conversation:
    conversation = Conversation(7, system)
    for question, said in turns:
        conversation.ask(question)
        add_events(conversation, answer(said))
    return conversation


def about(
    conversation: Conversation, settings: ChatSettings | None = None
) -> ChatMetadata:
    return ChatMetadata(
        make_title(conversation),
        conversation.seed,
        conversation.system,
        settings or ChatSettings(),
        PAIR,
        conversation.head,
        conversation.dropped,
        len(conversation.questions),
    )


def put(history: ChatHistory, *turns: tuple[str, str]) -> ChatLocation:
    """Save a whole chat."""
    conversation = chat(*turns)
    return history.save_chat(None, about(conversation), conversation.all_turns)


def said(history: ChatHistory) -> dict[int, Sequence[tuple[str, str]]]:
    """All readable turns, by chat."""
    return {
        one.id: [
            (turn.question, turn.answer)
            for turn in history.load_chat(one.id).conversation.turns
        ]
        for one in history.list_chats()
    }

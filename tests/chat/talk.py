"""Chats without an engine: what tests of the history keep in it."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.conversation import Conversation
from localspec.chat.history import About, History, Pair, Place
from localspec.chat.keeping import title
from localspec.chat.settings import Settings
from localspec.protocol.events import Event, Finished, Plan, Prefill, Round, Times, Token

PAIR = Pair("qwen3-8b", "qwen3-0.6b", "Qwen3 8B", ("<think>", "</think>"))


def spoken(text: str, n: int = 0) -> Round:
    """One round, of two tokens."""
    half = len(text) // 2
    tokens = (Token(n, text[:half], "accepted"), Token(n + 1, text[half:], "bonus"))
    return Round(n, "model", "", 1, 1, tokens, Times(0.5, 20.0, 0.25))


def answer(*texts: str, thinking: bool = False) -> list[Event]:
    """A whole answer, a round a text."""
    begin: list[Event] = [Plan("on", "pays", 1.5), Prefill(9, 9, 3, thinking)]
    return [*begin, *(spoken(text, n) for n, text in enumerate(texts)), Finished("eog")]


def chat(*turns: tuple[str, str], seed: int = 7) -> Conversation:
    conversation = Conversation(seed, "be brief")
    for question, said in turns:
        conversation.ask(question)
        conversation.hear(answer(said))
    return conversation


def about(conversation: Conversation, settings: Settings | None = None) -> About:
    return About(
        title(conversation),
        conversation.seed,
        conversation.system,
        settings or Settings(),
        PAIR,
        conversation.head,
        conversation.cut,
        len(conversation.turns),
    )


def put(history: History, *turns: tuple[str, str]) -> Place:
    """Keep a whole chat."""
    conversation = chat(*turns)
    return history.keep(None, about(conversation), conversation.all)


def said(history: History) -> dict[int, Sequence[tuple[str, str]]]:
    """All that can be read, by chat."""
    return {
        one.id: [(turn.question, turn.answer) for turn in history.read(one.id).conversation.turns]
        for one in history.list()
    }

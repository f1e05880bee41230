"""An answer as items that grow one after the other: thinking, text, and calls of tools."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from itertools import chain
from typing import Any, Literal

from localspec.serve.completion import PING, AnswerText, Completion
from localspec.serve.completion_formats import chat_logprobs
from localspec.serve.json_bodies import to_event

ItemKind = Literal["thinking", "text", "call"]


class ItemCompletion(Completion):
    """One answer as items, which change while their events are consumed.

    Each event is valid until the next one. Every event of a stream has its type as its
    name.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.items: list[dict[str, Any]] = []
        self.kind: ItemKind | None = None  # Of the last item, while it grows.

    # What each API has in a form of its own:
    _begin: Any  # (kind, name of a called tool) -> events; adds an item.
    _grow: Any  # (delta, logprobs) -> event
    _end: Any  # (is_cut) -> events
    # (batch) -> events before its text; the first and the last batch are empty.
    _news: Any
    _answer: Any  # () -> the whole answer

    def _ping(self) -> bytes:
        return PING

    def _whole(self) -> Any:
        deque(self._add(self._choices[0].text), maxlen=0)
        deque(self._close_item(self._is_cut), maxlen=0)
        return self._answer()

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        for event in self._news([]):
            yield self._line(event)
        choice = self._choices[0]
        async for batch, text in self._deltas(choice):
            for event in self._news(batch):
                yield self._line(event)
            if text is not None:
                for event in self._add(text):
                    yield self._line(event | self._chunk_extras(choice, text))
            elif not batch:
                yield self._ping()
        for event in chain(self._news([]), self._close_item(self._is_cut)):
            yield self._line(event)

    def _add(self, text: AnswerText) -> Iterator[dict[str, Any]]:
        n_top = self.options.n_logprobs
        logprobs = (
            [] if n_top is None else list(chat_logprobs(text.tokens, n_top)["content"])
        )
        if text.reasoning:
            yield from self._open_item("thinking")
            yield self._grow(text.reasoning, [])
        if text.content:
            yield from self._open_item("text")
            yield self._grow(text.content, logprobs)
        for call in text.calls:
            if call.name:  # the first delta of a call
                yield from self._open_item("call", call.name)
            if call.arguments:
                yield self._grow(call.arguments, [])

    def _open_item(self, kind: ItemKind, name: str = "") -> Iterator[dict[str, Any]]:
        if name or self.kind != kind:
            yield from self._close_item()
            self.kind = kind
            yield from self._begin(kind, name)

    def _close_item(self, is_cut: bool = False) -> Iterator[dict[str, Any]]:
        if self.kind is not None:
            yield from self._end(is_cut)
            self.kind = None

    @property
    def _is_cut(self) -> bool:
        return self._choices[0].finish_reason == "length"

    def _line(self, event: dict[str, Any]) -> bytes:
        return to_event(event, event["type"])

"""An answer as items that grow one after the other: thinking, text, and calls of tools."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Literal

from localspec.protocol.events import Event
from localspec.serve.completion import AnswerText, Completion
from localspec.serve.completion_formats import chat_logprobs
from localspec.serve.json_bodies import to_event

ItemKind = Literal["thinking", "text", "call"]
JsonEvent = dict[str, Any]
"""An event of a stream. Its `type` is also its name."""


class ItemCompletion(Completion):
    """One answer as items, which change while their events are consumed.

    An event refers to items, so it is valid until the next one. An answer that thinks,
    says something and calls a tool makes these calls:

        _begin("thinking"), _grow, _grow, …, _end
        _begin("text"), _grow, _grow, …, _end
        _begin("call", "weather"), _grow, …, _end
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.items: list[dict[str, Any]] = []
        self.kind: ItemKind | None = None  # Of the last item, while it grows.
        self._pieces: list[str] = []
        """The text of the growing item; as one string it would be copied for each piece."""

    # --- what each API has in a form of its own

    @abstractmethod
    def _begin(self, kind: ItemKind, name: str) -> Iterator[JsonEvent]:
        """Add an item; `name` is that of a called tool."""

    @abstractmethod
    def _grow(self, delta: str, logprobs: list[Any]) -> JsonEvent: ...

    @abstractmethod
    def _set_text(self, text: str) -> None:
        """Write the text, or the arguments of a call, to the last item."""

    @abstractmethod
    def _end(self, *, is_cut: bool) -> Iterator[JsonEvent]: ...

    @abstractmethod
    def _news(self, batch: Sequence[Event]) -> Iterator[JsonEvent]:
        """The events before the text of a batch; the first and the last one are empty."""

    @abstractmethod
    def _answer(self) -> dict[str, Any]: ...

    # --- the answer

    def _whole(self) -> dict[str, Any]:
        for _ in self._add(self._choices[0].text):
            pass  # Only the items are needed, not their events.
        for _ in self._close_item(is_cut=self._is_cut):
            pass
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
        # The last events repeat the whole text, and its probabilities.
        yield await asyncio.to_thread(self._end_lines)

    def _end_lines(self) -> bytes:
        lines = [self._line(event) for event in self._news([])]
        # An event refers to its item, which the next one changes.
        for event in self._close_item(is_cut=self._is_cut):
            lines.append(self._line(event))
        return b"".join(lines)

    def _add(self, text: AnswerText) -> Iterator[JsonEvent]:
        logprobs: list[Any] = []
        n_top = self.options.n_logprobs
        if n_top is not None:
            logprobs = chat_logprobs(text.tokens, n_top)["content"]
        if text.reasoning_pieces:
            yield from self._open_item("thinking")
            yield self._add_piece(text.reasoning)
        if text.content_pieces:
            yield from self._open_item("text")
            yield self._add_piece(text.content, logprobs)
        for call in text.calls:
            if call.name:  # The first delta of a call.
                yield from self._open_item("call", call.name)
            if call.arguments:
                yield self._add_piece(call.arguments)

    def _add_piece(self, delta: str, logprobs: Sequence[Any] = ()) -> JsonEvent:
        self._pieces.append(delta)
        return self._grow(delta, list(logprobs))

    def _open_item(self, kind: ItemKind, name: str = "") -> Iterator[JsonEvent]:
        if name or self.kind != kind:
            yield from self._close_item()
            self.kind = kind
            self._pieces = []
            yield from self._begin(kind, name)

    def _close_item(self, *, is_cut: bool = False) -> Iterator[JsonEvent]:
        if self.kind is not None:
            self._write_text()
            yield from self._end(is_cut=is_cut)
            self.kind = None

    def _write_text(self) -> None:
        """Make the growing item complete so far, before it is shown."""
        if self.kind is not None:
            self._set_text("".join(self._pieces))

    @property
    def _is_cut(self) -> bool:
        """Whether a limit ended the answer, be it behind complete calls."""
        finished = self._choices[0].answer.finished
        return finished is not None and finished.reason in ("length", "context")

    def _line(self, event: JsonEvent) -> bytes:
        return to_event(event, event["type"])

"""Takes the calls of tools out of an answer's text while it is generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from localspec.models.chat_template import generic_tools
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.models.chat_template.tool_calls import (
    ThinkingCallFinder,
    ToolCallDelta,
    ToolCallParser,
    ToolDelta,
)
from localspec.models.chat_template.tool_formats import TOOL_FORMATS
from localspec.protocol.wire import ToolCall

_N_IDS = 100_000
"""How many ids of five digits there are."""
_MAX_CALLS = 100
"""The most calls that one answer can have; more are left out."""


class AnswerCallReader:
    """Splits the parts of one answer into text and calls.

    Calls are found in what the model says, and at the end of thinking that it does not
    close. Text that may begin a call is held back until more of it, or the end, decides.
    """

    def __init__(
        self, format_name: str, schemas: Mapping[str, Any] | None = None
    ) -> None:
        """`schemas`: the JSON Schema of the arguments of each tool that is offered.

        Without them an earlier answer is read again.
        """
        if format_name not in TOOL_FORMATS:
            # A damaged file, or a later version, may name another one.
            format_name = generic_tools.FORMAT
        make_parser = partial(
            ToolCallParser, format_name, schemas or {}, reads_unknown=True
        )
        self.format = format_name
        self._parser = make_parser()
        self._thinking = ThinkingCallFinder(make_parser)
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        self.n_characters = 0
        """How many characters of calls were read: when it grows, there is more to show."""

    @property
    def n_calls(self) -> int:
        return len(self._names)

    def feed(self, part: AnswerPart) -> list[AnswerPart]:
        """The text of a part that is certainly no call."""
        if part.is_thinking:
            return _make_thinking(self._thinking.feed(part.text))
        rest = _make_thinking(self._thinking.close())
        return rest + self._add(self._parser.feed(part.text))

    def finish(self, *, is_cut: bool) -> list[AnswerPart]:
        """The rest of the text; `is_cut`: the answer may end within a call."""
        parts = self._add(self._parser.finish(is_cut=is_cut))
        held, calls = self._thinking.finish(is_cut=is_cut)
        parts += _make_thinking(held)
        return parts + self._add(calls)

    def _add(self, deltas: Sequence[ToolDelta]) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        for delta in deltas:
            if isinstance(delta, ToolCallDelta):
                self._add_call(delta)
            elif delta:
                parts.append(AnswerPart(False, delta, self.n_calls))
        return parts

    def _add_call(self, delta: ToolCallDelta) -> None:
        self.n_characters += len(delta.name) + len(delta.arguments)
        if delta.name:
            self._names.append(delta.name)
            self._arguments.append([])
        if delta.arguments and self._arguments:
            self._arguments[-1].append(delta.arguments)

    def make_calls(self, turn_id: int) -> tuple[ToolCall, ...]:
        """The calls so far; the last one may not be complete before `finish`.

        The ids are the same whenever the answer is read. They have nine letters and
        digits, as Mistral's templates demand: the second call of turn 12 is `call01201`.
        Five digits repeat after a thousand turns of a chat.
        """
        return self._make_calls(turn_id, self.n_calls)

    def make_complete_calls(self, turn_id: int) -> tuple[ToolCall, ...]:
        """Those that have their end, after `finish`.

        For `<tool_call>{"name": "now", "arguments": {}}</tool_call> It is <tool_call>
        {"name": "ad`, cut there, that is the first one.
        """
        n_complete = self.n_calls
        if self._parser.is_last_cut:
            n_complete -= 1
        return self._make_calls(turn_id, n_complete)

    def _make_calls(self, turn_id: int, n_calls: int) -> tuple[ToolCall, ...]:
        calls: list[ToolCall] = []
        for i, name in enumerate(self._names[: min(n_calls, _MAX_CALLS)]):
            number = (turn_id * _MAX_CALLS + i) % _N_IDS
            arguments = "".join(self._arguments[i])
            calls.append(ToolCall(f"call{number:05d}", name, arguments))
        return tuple(calls)


def _make_thinking(text: str) -> list[AnswerPart]:
    """The text as one part; none if there is no text."""
    if not text:
        return []
    return [AnswerPart(True, text)]

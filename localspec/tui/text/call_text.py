"""The rows of a tool call in an answer: what the model called, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from localspec.chat.conversation import CallResult, Turn
from localspec.chat.tool_loop import CallState, find_phase
from localspec.protocol.wire import ToolCall
from localspec.report.lines import Role
from localspec.report.tool_calls import (
    CallArgument,
    call_name,
    describe_arguments,
    describe_outcome,
    look_of_call,
    read_arguments,
    summarise_arguments,
)
from localspec.tools.approval import CallRequest
from localspec.tui.text.blocks import Paragraph, StyleMap
from localspec.tui.text.source_map import SourceMap
from localspec.tui.text.wrapping import fit_to_width
from localspec.units import count, duration

_STYLES: dict[Role, str] = {
    "muted": "muted",
    "accent": "speaker",
    "success": "speaker",
    "warning": "speaker",
    "error": "error",
}
"""The style of a sign, by the role of its state."""
_NO_STYLES: StyleMap = {"text": Style.null()}
SHOWN_SECONDS = 3
"""A call that runs for so long shows its seconds."""


class CallBlock:
    """Two rows, whatever the state, so that nothing below them moves.

    ✓ folder.read  path: notes.txt
      done · 1.2k characters: Shopping list
    """

    N_ROWS = 2

    def __init__(self, state: CallState) -> None:
        self.state = state
        self._running_since: float | None = None
        self._width = 1
        self._rows: tuple[str, str, str] | None = None
        """The name, the arguments and the state, as long as nothing has changed."""
        self.show(state)

    def show(self, state: CallState) -> None:
        was_running = self.is_running and self._running_since is not None
        self.state = state
        self._rows = None
        if not self.is_running:
            self._running_since = None
        elif not was_running:
            self._running_since = time.monotonic()

    @property
    def is_running(self) -> bool:
        return self.state.phase == "running"

    def tick(self) -> None:
        """Draw the state again: the seconds of a call that runs have changed."""
        self._rows = None

    def _describe_state(self) -> str:
        words = describe_outcome(self.state)
        if self._running_since is None:
            return words
        seconds = time.monotonic() - self._running_since
        if seconds >= SHOWN_SECONDS:
            words = f"{words} {duration(seconds)}"
        return f"{words} · esc stops"

    def _lay_out(self) -> tuple[str, str, str]:
        if self._rows is None:
            request = self.state.request
            arguments = summarise_arguments(request)
            self._rows = (call_name(request), arguments, self._describe_state())
        return self._rows

    def height(self, width: int) -> int:
        self._width = width
        return self.N_ROWS

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        name, arguments, words = self._lay_out()
        look = look_of_call(self.state)
        style = styles[_STYLES[look.role]]
        if y > 0:
            text = fit_to_width(f"  {words}", self._width).rstrip()
            return [Segment(text, styles["muted"])]
        row = fit_to_width(f"{look.sign} {name}  {arguments}", self._width).rstrip()
        n_head = len(f"{look.sign} {name}")
        return [
            Segment(row[:1], style),
            Segment(row[1:n_head], styles["text"]),
            Segment(row[n_head:], styles["muted"]),
        ]

    def source_map(self, y: int) -> SourceMap:
        name, arguments, words = self._lay_out()
        sign = look_of_call(self.state).sign
        source = f"{sign} {name}  {arguments}\n  {words}"
        rows = [fit_to_width(line, self._width).rstrip() for line in source.split("\n")]
        return SourceMap("\n".join(rows), rows)


_FOLDED_ROWS = 3
"""The rows of a longer value that are shown until it is unfolded."""
_SPARE_ROWS = 2
"""A value that is longer by so few rows is shown whole."""
_MIN_VALUE_WIDTH = 10
_GAP = 2


class ArgumentBlock:
    """An argument of a call: its name, and beside it the whole value or its beginning.

    path     src/main.py
    content  import os
             … 37 more lines
    """

    def __init__(
        self, argument: CallArgument, name_width: int, *, is_folded: bool
    ) -> None:
        """`name_width`: cells of the longest name beside it."""
        self._argument = argument
        self._name_width = name_width
        self._is_folded = is_folded
        self._value = Paragraph(argument.text)
        self._indent = 0
        self._n_rows = 0
        self.n_hidden = 0
        """How many rows are folded away, at the width that `height` was called with."""

    def height(self, width: int) -> int:
        self._indent = min(self._name_width, max(6, width // 4)) + _GAP
        n_rows = self._value.height(max(_MIN_VALUE_WIDTH, width - self._indent))
        self.n_hidden = n_rows - _FOLDED_ROWS
        if not self._is_folded or self.n_hidden <= _SPARE_ROWS:
            self.n_hidden = 0
        self._n_rows = n_rows - self.n_hidden
        if self.n_hidden:
            return self._n_rows + 1
        return max(1, self._n_rows)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        space = " " * self._indent
        if y == 0:
            name = fit_to_width(self._argument.name, self._indent - _GAP)
            space = f"{name}{' ' * _GAP}"
        head = Segment(space, styles["muted"])
        if y < self._n_rows:
            return [head, *self._value.line(y, styles)]
        if not self.n_hidden:
            return [head]
        return [head, Segment(self._more, styles["speaker"])]

    @property
    def _more(self) -> str:
        return f"… {count(self.n_hidden, 'more line')}"

    def source_map(self, y: int) -> SourceMap:
        if y >= self._n_rows:
            return SourceMap("", [""], y)
        source = self._value.source_map(y)
        rows = [
            "".join(segment.text for segment in self._value.line(row, _NO_STYLES))
            for row in range(source.first_row, source.first_row + source.n_rows)
        ]
        indented = [f"{' ' * self._indent}{row}" for row in rows]
        return SourceMap(source.source, indented, source.first_row)


def make_argument_blocks(
    request: CallRequest, *, is_folded: bool
) -> list[ArgumentBlock]:
    """One for each argument; none if the call has none."""
    arguments = describe_arguments(request)
    longest = max((cell_len(each.name) for each in arguments), default=0)
    return [ArgumentBlock(each, longest, is_folded=is_folded) for each in arguments]


class GapLine:
    """A blank line, as long as there is something that it separates."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed

    def source_map(self, y: int) -> SourceMap:
        return SourceMap("", [""])

    def height(self, width: int) -> int:
        if self._is_needed():
            return 1
        return 0

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return []


def stored_states(turn: Turn, results: Sequence[CallResult]) -> list[CallState]:
    """The states of the calls of a stored answer.

    `results`: those of the turn after it; a call without one was never run.
    """
    by_id = {result.call_id: result for result in results}
    return [_stored_state(call, by_id.get(call.id)) for call in turn.calls]


def _stored_state(call: ToolCall, result: CallResult | None) -> CallState:
    name = call.name
    if result is not None:
        name = result.tool
    request = CallRequest(
        call_id=call.id,
        name=name,
        tool=None,
        arguments=read_arguments(call.arguments),
        arguments_text=call.arguments,
    )
    if result is None:
        return CallState(request, "stopped")
    return CallState(request, find_phase(result), result)

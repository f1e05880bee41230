"""A provider of tools with behaviour, and a front end that answers as a person would."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.chat.conversation import Turn
from localspec.chat.tool_loop import CallState
from localspec.tools.approval import CallDecision, CallRequest
from localspec.tools.tool_types import (
    ResultPicture,
    StopSignal,
    ToolDefinition,
    ToolResult,
    make_error,
    make_result,
)

Behaviour = Callable[[Mapping[str, Any], StopSignal], ToolResult]
NUMBERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ANYTHING: Mapping[str, Any] = {"type": "object"}


class FakeTools:
    """Tools whose behaviour is a function; counts what ran."""

    def __init__(self, name: str = "fake") -> None:
        self._name = name
        self._definitions: dict[str, ToolDefinition] = {}
        self._behaviours: dict[str, Behaviour] = {}
        self.ran: list[tuple[str, Mapping[str, Any]]] = []
        self.is_closed = False

    @property
    def name(self) -> str:
        return self._name

    def offer(
        self,
        tool: str,
        behave: Behaviour,
        schema: Mapping[str, Any] = ANYTHING,
        description: str = "A tool.",
    ) -> None:
        """Add a tool, or change one."""
        self._definitions[tool] = ToolDefinition(
            self._name, tool, description, schema, origin="fake"
        )
        self._behaviours[tool] = behave

    def definitions(self) -> Sequence[ToolDefinition]:
        return tuple(self._definitions.values())

    def call(
        self, tool: str, arguments: Mapping[str, Any], stop: StopSignal
    ) -> ToolResult:
        self.ran.append((tool, arguments))
        return self._behaviours[tool](arguments, stop)

    def close(self) -> None:
        self.is_closed = True


def add_numbers(arguments: Mapping[str, Any], _: StopSignal) -> ToolResult:
    return make_result(str(arguments["a"] + arguments["b"]))


def fail(_: Mapping[str, Any], __: StopSignal) -> ToolResult:
    return make_error("It is broken.")


def wait_for_stop(_: Mapping[str, Any], stop: StopSignal) -> ToolResult:
    """A tool that never answers by itself."""
    while not stop.is_set():
        threading.Event().wait(0.005)
    return make_error("The call was stopped by the user.")


def returning(text: str, *pictures: ResultPicture) -> Behaviour:
    return lambda _, __: make_result(text, pictures)


def make_tools() -> FakeTools:
    """A provider called `fake` with the tools add, fail and wait."""
    tools = FakeTools()
    tools.offer("add", add_numbers, NUMBERS, "Add two numbers.")
    tools.offer("fail", fail)
    tools.offer("wait", wait_for_stop)
    return tools


def write_call(name: str, **arguments: Any) -> str:
    """A call in the generic form, as a model writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


class Person:
    """Gives these decisions in turn, the last one again and again; sees every state."""

    def __init__(self, *decisions: CallDecision) -> None:
        self._decisions = list(decisions) or [CallDecision("once")]
        self.asked: list[CallRequest] = []
        self.states: list[CallState] = []
        self.turns: list[Turn] = []
        self.on_state: Callable[[CallState], None] = lambda _: None

    def ask_call(self, request: CallRequest, stop: StopSignal) -> CallDecision:
        decision = self._decisions[min(len(self.asked), len(self._decisions) - 1)]
        self.asked.append(request)
        return decision

    def show_call(self, state: CallState) -> None:
        self.states.append(state)
        self.on_state(state)

    def begin_turn(self, turn: Turn) -> None:
        self.turns.append(turn)

    @property
    def phases(self) -> list[str]:
        """The phases that were shown, each once where it was repeated."""
        phases: list[str] = []
        for state in self.states:
            if not phases or phases[-1] != state.phase:
                phases.append(state.phase)
        return phases

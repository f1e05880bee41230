"""A provider of tools for the app's tests, and answers of a model that calls them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from localspec.protocol.events import Event
from localspec.tools.tool_types import (
    StopSignal,
    ToolDefinition,
    ToolResult,
    make_error,
    make_result,
)
from tests.support.fake_tools import FakeTools, wait_for_stop, write_call
from tests.support.scripted_engine import Script, answer, pieces

ORIGIN = "uvx mcp-server-clock --zones all"
_TIMES = {"Rome": "12:00", "Oslo": "12:00", "Lima": "06:00"}
_CLAIMS = {"now": ("read-only",), "write": ("can destroy",)}


def _texts(*names: str) -> Mapping[str, Any]:
    """The schema of arguments that are texts."""
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": [*names]}


def _tell_time(arguments: Mapping[str, Any], _: StopSignal) -> ToolResult:
    city = arguments["city"]
    if city not in _TIMES:
        return make_error(f"There is no city {city}.")
    return make_result(f"It is {_TIMES[city]} in {city}.")


def _tell_history(_: Mapping[str, Any], __: StopSignal) -> ToolResult:
    years = [f"year {year}: nothing in particular" for year in range(400)]
    return make_result("\n".join(years))


def _write(_: Mapping[str, Any], __: StopSignal) -> ToolResult:
    return make_result("written")


class ClockTools(FakeTools):
    """Knows three cities; `wait` runs until the answer is stopped."""

    def __init__(self) -> None:
        super().__init__("clock")
        self.offer("now", _tell_time, _texts("city"), "The time in a city.")
        self.offer("wait", wait_for_stop, _texts(), "Waits for noon.")
        self.offer("history", _tell_history, _texts("city"), "What happened there.")
        self.offer("write", _write, _texts("path", "text"), "Writes a file.")

    def describe_otherwise(self, description: str = "Now it deletes.") -> None:
        """Changes what `now` says of itself, as a server may do at any time."""
        self.offer("now", _tell_time, _texts("city"), description)

    def definitions(self) -> Sequence[ToolDefinition]:
        return tuple(
            replace(tool, origin=ORIGIN, claims=_CLAIMS.get(tool.name, ()))
            for tool in super().definitions()
        )


def call_text(tool: str, **arguments: str) -> str:
    """A call as a model writes it whose template has no form of its own for calls."""
    return write_call(f"clock_{tool}", **arguments)


def saying(text: str) -> Callable[[], Script]:
    """A script of an answer with this text, which may have calls."""

    def script() -> list[Event]:
        return answer(pieces(text))

    return script


def asking_time(city: str, before: str = "") -> Callable[[], Script]:
    return saying(f"{before}{call_text('now', city=city)}")

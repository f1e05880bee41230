"""Python functions as tools: their schemas, and what calls of them give."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from localspec.api.function_tools import FunctionTools
from localspec.errors import UsageError
from localspec.tools.tool_types import ToolResult

NEVER = threading.Event()


def weather(
    city: Annotated[str, "Its name."],
    days: int = 1,
    unit: Literal["C", "F"] = "C",
    near: str | None = None,
    tags: list[str] = [],  # noqa: B006  it is not changed
) -> dict[str, Any]:
    """The weather of a city.

    It is always good.
    """
    return {"city": city, "days": days, "unit": unit, "near": near, "tags": tags}


def call(function: Callable[..., Any], **arguments: Any) -> ToolResult:
    tools = FunctionTools([function])
    (definition,) = tools.definitions()
    return tools.call(definition.name, arguments, NEVER)


def test_a_signature_and_its_docstring_describe_the_tool() -> None:
    (tool,) = FunctionTools([weather]).definitions()
    assert tool.full_name == "weather"
    assert tool.description == "The weather of a city.\n\nIt is always good."
    assert tool.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name."},
            "days": {"type": "integer", "default": 1},
            "unit": {"enum": ["C", "F"], "default": "C"},
            "near": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_call_gives_what_the_function_returns_as_json() -> None:
    result = call(weather, city="Rom", tags=["hot"])
    assert not result.is_error
    assert result.text == (
        '{"city": "Rom", "days": 1, "unit": "C", "near": null, "tags": ["hot"]}'
    )


def test_a_number_that_is_written_as_a_text_is_read_as_a_number() -> None:
    assert '"days": 3' in call(weather, city="Rom", days="3").text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing required field `city`"),
        ({"city": "Rom", "unit": "K"}, "unit: Expected one of 'C', 'F', got 'K'"),
        ({"city": "Rom", "days": "many"}, "days: "),
        ({"city": "Rom", "wind": 1}, "unknown field `wind`"),
    ],
)
def test_wrong_arguments_are_an_error_that_names_them(
    arguments: dict[str, Any], problem: str
) -> None:
    result = call(weather, **arguments)
    assert result.is_error
    assert problem in result.text


def test_an_exception_of_a_function_is_an_error_result() -> None:
    def divide(a: float, b: float) -> float:
        return a / b

    assert call(divide, a=1, b=2) == ToolResult("0.5")
    failed = call(divide, a=1, b=0)
    assert failed.is_error
    assert failed.text.startswith("ZeroDivisionError: ")


def test_an_interrupt_in_a_function_ends_the_call() -> None:
    def wait() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(wait)


@dataclass
class Point:
    x: int
    y: int


def test_a_type_of_several_fields_is_part_of_the_schema() -> None:
    def move(point: Point, *, by: int) -> Point:
        return Point(point.x + by, point.y)

    (tool,) = FunctionTools([move]).definitions()
    assert tool.schema["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert set(tool.schema["$defs"]) == {"Point"}
    assert call(move, point={"x": 1, "y": 2}, by=3).text == '{"x": 4, "y": 2}'


def test_what_is_no_json_is_given_as_its_text() -> None:
    def nothing() -> None:
        """It does something."""

    def complex_number() -> complex:
        return 1j

    assert call(nothing).text == "Done."
    assert call(complex_number).text == "1j"


def test_a_part_of_a_function_has_its_name() -> None:
    (tool,) = FunctionTools([functools.partial(weather, "Rom")]).definitions()
    assert tool.name == "weather"
    assert "city" not in tool.schema["properties"]
    assert '"city": "Rom"' in call(functools.partial(weather, "Rom")).text


def test_a_positional_parameter_is_given_by_its_name() -> None:
    def add(a: int, /, b: int) -> int:
        return a + b

    assert call(add, a=1, b=2).text == "3"


class Unknown:
    pass


def unknown_type(a: Unknown) -> None: ...


def missing_type(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def any_number(*names: str) -> None: ...


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: 1, "A tool cannot be"),
        ("weather", "A tool cannot be"),
        (unknown_type, "The types of unknown_type cannot be read: type <class"),
        (missing_type, "name 'Missing' is not defined"),
        (any_number, r"any_number takes any number of arguments, as \*names"),
        (coroutine, "coroutine is a coroutine"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        FunctionTools([function])


def test_two_functions_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="Two tools are called weather"):
        FunctionTools([weather, functools.partial(weather, "Rom")])

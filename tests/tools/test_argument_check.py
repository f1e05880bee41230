"""Wrong arguments of a call, named in a sentence that helps a model."""

from typing import Any

import pytest

from localspec.tools.argument_check import find_problem

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "line": {"type": "integer"},
        "order": {"enum": ["up", "down"]},
        "deep": {"type": "object", "required": ["x"]},
        "many": {"type": "array", "items": {"type": "number"}},
        "maybe": {"type": ["string", "null"]},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"path": "a"}, ""),
        ({"path": "a", "line": 3.0, "maybe": None, "many": [1, 2.5]}, ""),
        ({}, "path is missing"),
        ({"path": 3}, "path must be of the type string"),
        ({"path": "a", "line": "3"}, "line must be of the type integer"),
        ({"path": "a", "line": True}, "line must be of the type integer"),
        ({"path": "a", "order": "left"}, "order must be one of: up, down"),
        ({"path": "a", "deep": {}}, "deep.x is missing"),
        ({"path": "a", "many": [1, "2"]}, "many[1] must be of the type number"),
        ({"path": "a", "maybe": 1}, "maybe must be of the type string or null"),
        (
            {"path": "a", "lin": 1},
            "lin is unknown; there are: path, line, order, deep, many, maybe",
        ),
    ],
)
def test_the_first_problem_is_named(arguments: dict[str, Any], problem: str) -> None:
    assert find_problem(SCHEMA, arguments) == problem


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": []},
        {"type": 3, "required": "path", "enum": {}},
        {"properties": {"path": {"pattern": "(a+)+$", "$ref": "#"}}},
        {"type": ["string", "unknown"]},
        {"required": [1, None]},
    ],
)
def test_a_schema_that_says_nothing_known_allows_everything(
    schema: dict[str, Any],
) -> None:
    assert find_problem(schema, {"path": "a" * 100_000 + "!"}) == ""


def test_a_value_that_is_nested_deeply_is_left_to_the_tool() -> None:
    schema: dict[str, Any] = {"type": "object"}
    value: dict[str, Any] = {}
    for _ in range(500):
        schema = {"properties": {"x": schema}}
        value = {"x": value}

    assert find_problem(schema, value) == ""

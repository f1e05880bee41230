"""Schemas that refer to themselves: those without an end are found."""

from typing import Any

import pytest

from localspec.spec.constraints.finite_values import (
    has_finite_value,
    have_all_finite_values,
)

TEXT = {"type": "string"}


def needing(part: Any) -> dict[str, Any]:
    """An object that must have the part."""
    return {"type": "object", "properties": {"a": part}, "required": ["a"]}


ENDLESS: tuple[dict[str, Any], ...] = (
    {"$ref": "#"},
    needing({"$ref": "#"}),
    {"anyOf": [{"$ref": "#"}]},
    {"oneOf": [needing({"$ref": "#"}), {"$ref": "#"}]},
    {"allOf": [TEXT, {"$ref": "#"}]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#"}}},
)
FINITE: tuple[Any, ...] = (
    True,
    {},
    TEXT,
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"type": "array", "items": {"$ref": "#"}},
    {"anyOf": [needing({"$ref": "#"}), {"type": "null"}]},
    {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"enum": [1], "$ref": "#"},
    {"$ref": "#/$defs/A", "$defs": {"A": TEXT}},
    {"$ref": "#/$defs/missing"},
    {"$ref": 5, "required": 3, "properties": [], "anyOf": "x", "items": 1},
)


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_a_schema_without_a_finite_value_is_found(schema: dict[str, Any]) -> None:
    assert not has_finite_value(schema)
    assert not have_all_finite_values(schema)


@pytest.mark.parametrize("schema", FINITE, ids=str)
def test_a_schema_with_a_finite_value_is_accepted(schema: Any) -> None:
    assert has_finite_value(schema)
    assert have_all_finite_values(schema)


def test_a_part_without_a_finite_value_is_found_where_it_may_be_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"$ref": "#/$defs/A"}},
    }
    assert has_finite_value(schema)
    assert not have_all_finite_values(schema)


@pytest.mark.timeout(20)
def test_long_chains_in_any_order_take_little_work() -> None:
    n = 3_000
    names = [f"d{i}" for i in range(n)]
    for order in (names, names[::-1]):
        definitions: dict[str, Any] = {}
        for name in order:
            after = int(name[1:]) + 1
            definitions[name] = needing({"$ref": f"#/$defs/d{after}"})
        definitions[f"d{n}"] = TEXT
        schema = {"$ref": "#/$defs/d0", "$defs": definitions}
        assert have_all_finite_values(schema)

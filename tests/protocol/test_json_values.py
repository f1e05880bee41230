"""Objects of JSON become Structs, or an error that names the field and its value."""

import json
from typing import Any, Literal, get_args

import pytest
from msgspec import Struct, field, to_builtins

from localspec.chat.conversation import DroppedTurns
from localspec.chat.history.records import ChatPair
from localspec.chat.settings import ChatSettings
from localspec.protocol.events import Event
from localspec.protocol.json_values import JsonError, Number, from_json
from localspec.protocol.wire import CommandReply, EngineCommand


class Leaf(Struct, frozen=True):
    size: int
    colour: Literal["red", "blue"] | None = None


class Sample(Struct, frozen=True):
    """A field of each form that is parsed."""

    name: str
    ratio: Number = 1.0
    is_on: bool = False
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    leaf: Leaf | None = None
    sizes: tuple[int, ...] = ()
    pair: tuple[str, float] | None = None
    leaves: tuple[Leaf, ...] = ()
    by_name: dict[str, float] = field(default_factory=dict)
    tables: dict[str, dict[str, Leaf]] = field(default_factory=dict)
    rest: Any = None


FULL = Sample(
    name="x",
    ratio=0.5,
    is_on=True,
    kind="b",
    limit=3,
    leaf=Leaf(1),
    sizes=(1, 2),
    pair=("a", 2.5),
    leaves=(Leaf(2), Leaf(3)),
    by_name={"c": 1.5},
    tables={"c": {"d": Leaf(4)}},
    rest={"free": [1, "x"]},
)


def test_an_object_is_read_as_it_was_written() -> None:
    body = json.loads(json.dumps(to_builtins(FULL)))

    assert from_json(Sample, body) == FULL


def test_unknown_fields_are_ignored() -> None:
    assert from_json(Sample, {"name": "x", "unknown": 1}) == Sample("x")


def test_a_whole_number_is_written_as_it_was_read() -> None:
    assert repr(from_json(Sample, {"name": "x", "ratio": 2}).ratio) == "2"


def test_a_lone_surrogate_and_nan_are_read() -> None:
    read = from_json(Sample, {"name": "\ud800", "ratio": float("nan")})

    assert read.name == "\ud800"
    assert repr(read.ratio) == "nan"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("name", 3, "name: Expected `str`, got `int`: 3"),
        ("name", None, "name: Expected `str`, got `null`: None"),
        ("ratio", "0.5", "ratio: Expected `int | float`, got `str`: '0.5'"),
        ("ratio", True, "ratio: Expected `int | float`, got `bool`: True"),
        ("is_on", 1, "is_on: Expected `bool`, got `int`: 1"),
        ("kind", "c", "kind: Expected one of 'a', 'b', got 'c'"),
        ("kind", ["a"], "kind: Expected `str`, got `array`: ['a']"),
        ("limit", 2.0, "limit: Expected `int | null`, got `float`: 2.0"),
        ("limit", True, "limit: Expected `int | null`, got `bool`: True"),
        ("leaf", [1], "leaf: Expected `object | null`, got `array`: [1]"),
        ("leaf", {"size": "x"}, "leaf.size: Expected `int`, got `str`: 'x'"),
        ("sizes", 1, "sizes: Expected `array`, got `int`: 1"),
        ("sizes", "12", "sizes: Expected `array`, got `str`: '12'"),
        ("sizes", [1, None], "sizes[1]: Expected `int`, got `null`: None"),
        ("pair", ["a"], "pair: Expected `array` of length 2, got 1: ['a']"),
        ("pair", [1.0, "a"], "pair[0]: Expected `str`, got `float`: 1.0"),
        ("leaves", [{"size": 1}, 2], "leaves[1]: Expected `object`, got `int`: 2"),
        ("by_name", [1], "by_name: Expected `object`, got `array`: [1]"),
        (
            "by_name",
            {"a": 1, "b": 2.5, "c": "x", "d": 4},
            "by_name.c: Expected `float`, got `str`: 'x'",
        ),
        ("by_name", {"a": 1, 2: 3}, "by_name: Expected `str`, got `int`: 2"),
        (
            "tables",
            {"a": {"x": {"size": 1}}, "b": {"x": {"size": 1}, "y": {"size": "z"}}},
            "tables.b.y.size: Expected `int`, got `str`: 'z'",
        ),
    ],
)
def test_a_value_of_another_type_is_named(
    name: str, value: object, problem: str
) -> None:
    with pytest.raises(JsonError) as error:
        from_json(Sample, {"name": "x"} | {name: value})

    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"leaf": {"size": 1, "colour": "x"}}, "leaf"),
        ({"leaves": [{"size": 1}, {"size": 1, "colour": "x"}]}, "leaves[1]"),
        ({"tables": {"a": {"b": {"size": 1, "colour": "x"}}}}, "tables.a.b"),
    ],
)
def test_the_possible_words_are_named_at_any_depth(
    body: dict[str, Any], place: str
) -> None:
    with pytest.raises(JsonError) as error:
        from_json(Sample, {"name": "x"} | body)

    expected = f"{place}.colour: Expected one of 'blue', 'red', got 'x'"
    assert str(error.value) == expected


def test_a_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(JsonError, match=r"^ratio: .* <= 9223372036854775807: 1000"):
        from_json(Sample, {"name": "x", "ratio": 10**400})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(JsonError, match="required field `name`"):
        from_json(Sample, {"ratio": 1.0})


@pytest.mark.parametrize("body", [[], "name", 3, None], ids=repr)
def test_what_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(JsonError, match=r"^Expected `object`, got `"):
        from_json(Sample, body)


@pytest.mark.parametrize("body", [{"\ud800": 1}, {"name": "x", "kind": "\udfff"}])
def test_a_lone_surrogate_where_no_text_is_expected_is_an_error(body: object) -> None:
    with pytest.raises(JsonError, match="lone surrogate"):
        from_json(Sample, body)


def test_every_type_that_is_parsed_has_fields_of_known_types() -> None:
    """A field of another type would raise TypeError when its first value comes."""
    kinds = (*get_args(EngineCommand), *get_args(CommandReply), *get_args(Event))
    for kind in (*kinds, ChatSettings, ChatPair, DroppedTurns):
        with pytest.raises(ValueError):
            from_json(kind, 3)

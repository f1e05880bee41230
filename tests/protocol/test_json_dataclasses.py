"""Objects of JSON become dataclasses, or an error that names the field."""

import json
from typing import Any, Literal, get_args

import pytest
from msgspec import Struct, field, to_builtins

from localspec.chat.conversation import DroppedTurns
from localspec.chat.history.records import ChatPair
from localspec.chat.settings import ChatSettings
from localspec.extras.workers.wire import WorkerStatus
from localspec.protocol.json_dataclasses import _converters, from_json
from localspec.protocol.wire import CommandReply, EngineCommand


class Leaf(Struct, frozen=True):
    size: int


class Sample(Struct, frozen=True):
    """A field of each form that is parsed."""

    name: str
    ratio: float = 1.0
    is_on: bool = False
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    leaf: Leaf | None = None
    sizes: tuple[int, ...] = ()
    pair: tuple[str, float] | None = None
    leaves: tuple[Leaf, ...] = ()
    by_name: dict[str, float] = field(default_factory=dict)
    rest: Any = None


WHOLE = Sample(
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
    rest={"free": [1, "x"]},
)


def test_an_object_is_read_as_it_was_written() -> None:
    assert from_json(Sample, json.loads(json.dumps(to_builtins(WHOLE)))) == WHOLE
    assert from_json(Sample, {"name": "x", "unknown": 1}) == Sample("x")


def test_a_whole_number_of_a_float_field_is_written_as_it_was_read() -> None:
    assert repr(from_json(Sample, {"name": "x", "ratio": 2}).ratio) == "2"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("name", 3, "name: not a text: 3"),
        ("name", None, "name: not a text: None"),
        ("ratio", "0.5", "ratio: not a number: '0.5'"),
        ("ratio", True, "ratio: not a number: True"),
        pytest.param(
            "ratio", 10**400, "ratio: a number that is too large", id="too large"
        ),
        ("is_on", 1, "is_on: not true or false: 1"),
        ("kind", "c", "kind: not one of 'a', 'b': 'c'"),
        ("kind", ["a"], "kind: not one of 'a', 'b': ['a']"),
        ("limit", 2.0, "limit: not a whole number: 2.0"),
        ("limit", True, "limit: not a whole number: True"),
        ("leaf", [1], "leaf: not an object: [1]"),
        ("leaf", {"size": "x"}, "leaf: size: not a whole number: 'x'"),
        ("sizes", 1, "sizes: not a list: 1"),
        ("sizes", "12", "sizes: not a list: '12'"),
        ("sizes", [1, None], "sizes: not a whole number: None"),
        ("pair", ["a"], "pair: not a list of 2 values: ['a']"),
        ("pair", ["a", 1.0, 2.0], "pair: not a list of 2 values: ['a', 1.0, 2.0]"),
        ("pair", [1.0, "a"], "pair: not a text: 1.0"),
        ("leaves", [{"size": 1}, 2], "leaves: not an object: 2"),
        ("by_name", [1], "by_name: not an object: [1]"),
        ("by_name", {"c": "x"}, "by_name: c: not a number: 'x'"),
    ],
)
def test_a_value_of_another_type_is_named(
    name: str, value: object, problem: str
) -> None:
    with pytest.raises(ValueError) as error:
        from_json(Sample, {"name": "x"} | {name: value})
    assert str(error.value) == problem


def test_a_missing_field_and_what_is_no_object_are_refused() -> None:
    with pytest.raises(ValueError, match="'name'"):
        from_json(Sample, {"ratio": 1.0})
    bodies: list[Any] = [[], "name", 3, None]
    for body in bodies:
        with pytest.raises(ValueError, match="not an object"):
            from_json(Sample, body)


def test_every_type_that_is_parsed_has_fields_of_known_types() -> None:
    """A field of another type would raise TypeError when the first value of it comes."""
    kinds = (*get_args(EngineCommand), *get_args(CommandReply))
    for kind in (*kinds, WorkerStatus, ChatSettings, ChatPair, DroppedTurns):
        _converters(kind)

"""The lazy dataclass decorator behaves as the standard one."""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from localspec import lazy_dataclass

STANDARD: Any = dataclasses.dataclass
LAZY: Any = lazy_dataclass.dataclass
OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "eq": False},
    {"repr": False},
)


def make(decorate: Any, options: dict[str, bool]) -> tuple[Any, Any]:
    @decorate(**options)
    class Point:
        x: int
        name: str = "a"
        seen: list[int] = field(default_factory=list, compare=False)

        def __post_init__(self) -> None:
            assert self.x != 13

    @decorate(**options)
    class Named(Point):
        more: int = 2

        def __repr__(self) -> str:
            return f"own {self.more}"

    return Point, Named


def outcome(act: Callable[[], object]) -> object:
    """What a call gives, or the type of its error."""
    try:
        return act()
    except (TypeError, AttributeError, AssertionError) as error:
        return type(error)


@pytest.mark.parametrize("options", OPTIONS)
def test_as_the_standard_decorator(options: dict[str, bool]) -> None:
    for lazy, standard in zip(
        make(LAZY, options), make(STANDARD, options), strict=True
    ):
        assert outcomes(lazy) == outcomes(standard)


def outcomes(point: Any) -> list[object]:
    parameters = inspect.signature(point).parameters.values()
    a, same, other = point(x=1), point(x=1, seen=[7]), point(x=2, name="b")
    return [
        outcome(lambda: point(13)),
        outcome(lambda: point(x=1, wrong=2)),
        outcome(lambda: point(1, x=1)),
        (a == same, a == other, a == 1),
        outcome(lambda: hash(a) == hash(same))
        if point.__eq__ is not object.__eq__
        else None,
        outcome(lambda: len({a, same, other})),
        repr(a) if point.__repr__ is not object.__repr__ else None,
        dataclasses.asdict(copy.deepcopy(dataclasses.replace(same, name="c"))),
        outcome(lambda: setattr(a, "x", 2)),
        [(each.name, each.kind, each.annotation) for each in parameters],
        point(x=1).seen is not point(x=1).seen,
    ]

"""A value of a YAML file with its line, and what can be wrong with one.  Needs no YAML library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the line it begins in."""

    value: str | list[Node] | dict[str, Node]
    line: int


class Damaged(Exception):  # noqa: N818  what it says of the file
    """The text cannot be read: why, and the line where that is known."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.line = line

"""Example messages of an empty chat.

They are tasks that even the small model which opens first does rightly each time, and
faster with speculation than without: `scripts/bench/bench.py examples` measures them.
Of some hundred others that were tried it did most wrongly now and then, such as another
mistake in the same list.
"""

from __future__ import annotations

import re

from msgspec import Struct


class Example(Struct, frozen=True):
    title: str
    message: str
    right: str
    """A regular expression that a right answer matches in full, with single spaces."""
    spec: str = "auto"
    """The drafter of its answer where the chat chooses none.

    `auto` follows what it has measured, so a busy computer would decide whether a first
    answer shows speculation at all.
    """

    max_tokens: int | None = None
    """Where the answer of a completion model ends if the chat sets no limit."""

    def is_right(self, answer: str) -> bool:
        words = " ".join(answer.split())
        return re.fullmatch(self.right, words) is not None


EXAMPLES = (
    Example(
        title="Correct a spelling mistake.",
        message="""\
Correct the spelling mistakes:

The months of the year are January, February, March, April, May, Junne, July, August, September, \
October, November, and December.""",
        right=r"The months of the year are January, February, March, April, May, June, July, "
        r"August, September, October, November, and December\.",
        spec="lookup",
    ),
    Example(
        title="Correct the name of a planet.",
        message="""\
Correct the spelling mistakes:

The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, and Neptun.""",
        right=r"The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, and "
        r"Neptune\.",
        spec="lookup",
    ),
)
CODE_EXAMPLE = Example(
    title="Complete a method.",
    message="""\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def __getitem__(self, index):""",
    right=r" ?if index < 0: return self\.items\[index\] else: return self\.items\[index\] ?",
    max_tokens=25,
)
"""For a model that completes code: the bundled demo does it well with temperature 0.

It would repeat the method without the limit.
"""
EXAMPLE_REASON = "an example whose answer repeats its question"
GAINING_HINT = "Enter in a new chat shows a task where guessing gains."


def find(question: str) -> Example | None:
    """The example that was sent as it is."""
    every = (*EXAMPLES, CODE_EXAMPLE)
    return next((each for each in every if each.message == question), None)

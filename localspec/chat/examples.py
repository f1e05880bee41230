"""Example messages of an empty chat.

The first is one that even the small model which opens first answers rightly each time,
and faster with speculation than without: `scripts/bench/bench.py examples` measures it.
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

    def is_right(self, answer: str) -> bool:
        words = " ".join(answer.split())
        return re.fullmatch(self.right, words, re.IGNORECASE) is not None


EXAMPLES = (
    Example(
        title="Correct the spelling of a sentence.",
        message="""\
Correct the spelling:

The sun rises in the east and sets in the west. It gives ligth and warmth to all the plants and \
animals on the earth.""",
        right=r"The sun rises in the east and sets in the west\. It gives light and warmth to all "
        r"the plants and animals on the earth\.",
        spec="lookup",
    ),
)
EXAMPLE_REASON = "an example whose answer repeats its question"
PAUSED_HINT = (
    "Speculation is paused: drafts would cost more here than they save. "
    "Enter in a new chat shows a task where they gain."
)


def find(question: str) -> Example | None:
    """The example that was sent as it is."""
    return next((each for each in EXAMPLES if each.message == question), None)

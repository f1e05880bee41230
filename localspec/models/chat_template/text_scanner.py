"""Reads a text that comes in pieces, step by step, so that no parser can stand still.

A parser of a model's answer is a set of steps. Each step looks at the text at one place
and says how far it has read. What may go wrong in such a parser is always the same: two
steps that hand the same place to each other for ever, a text that is lost between two
pieces, and a text that is read from its beginning again with each piece. The scanner
owns the place, so none of them can be written.

For example, this step reads words, and waits at the end of a piece, because the next
piece may go on with the same word:

    def read_word(text: str, start: int) -> int:
        end = text.find(" ", start)
        if end < 0:
            return start                  # more text decides
        words.append(text[start:end])
        return end + 1

    scanner = TextScanner()
    scanner.feed("one tw", read_word)     # words is ["one"], and "tw" waits
    scanner.feed("o three", read_word)    # words is ["one", "two"]
    scanner.take_unread()                 # returns "three", which no step has read
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Self

from localspec.models.chat_template.schema_references import (
    BudgetExceededError,
    WorkBudget,
)

Step = Callable[[str, int], int]
"""Reads a text from an index on, and returns the index after what it has read.

The index that it was called with means that more text must decide.
"""


class StepError(AssertionError):
    """A step read backwards, or beyond the text: a fault of the parser."""


class TextScanner:
    """The text that no step has read yet, and the only one who moves ahead in it.

    A step is called again only after it has read at least one character, or after more
    text has come. So a parser takes at most as many steps as its text has characters
    and pieces.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._again = ""
        self.is_at_end = False
        """Whether no more text comes: waiting for it is in vain."""

    @property
    def unread(self) -> str:
        """The text that waits for more of it."""
        return self._unread

    def feed(self, text: str, step: Step) -> None:
        """Read on, as far as the text so far decides.

        Raises StepError if the step does not return a place in the unread text.
        """
        text = self._again + self._unread + text
        self._again = ""
        # A step that raises must not leave a text behind that is read twice.
        self._unread = ""
        position = 0
        while position < len(text):
            reached = step(text, position)
            if not position <= reached <= len(text):
                raise StepError(f"a step from {position} to {reached} of {len(text)}")
            if self._again:
                text = self._again + text[reached:]
                self._again = ""
                position = 0
                continue
            if reached == position:
                break
            position = reached
        self._unread = text[position:]

    def finish(self, step: Step) -> str:
        """Read the rest, with `is_at_end`; return what no step has read."""
        self.is_at_end = True
        self.feed("", step)
        return self.take_unread()

    def read_again(self, text: str, budget: WorkBudget) -> bool:
        """Hand back a text that a step has read in vain; it is read once more.

        Returns False where the budget has less than its length left: then it has to
        stay what it is. So what is read again is bounded, too.
        """
        try:
            budget.spend(len(text))
        except BudgetExceededError:
            return False
        self._again = text
        return True

    def take_unread(self) -> str:
        """Return what no step has read, and forget it."""
        rest = self._unread
        self._unread = ""
        return rest

    def fork(self) -> Self:
        """A scanner of another continuation of the same text."""
        return copy.copy(self)

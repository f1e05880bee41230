"""What a reader of documents may use, and the error of a document that cannot be read.

The limits hold on every system; those of `reading_child.py`, of memory and of CPU time,
are the system's.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_CHARACTERS = 8_000_000
"""Of a document's text, about 2 million tokens."""
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""Of all files in an archive together. 64 MB of XML are some 5,000 pages."""
MAX_SCANNED_BYTES = 64 * 1024 * 1024
"""Of the pictures of a scan together; pages may all be the same one."""
MAX_DEPTH = 400
"""Elements within each other."""

ReportProgress = Callable[[str, int, int], None]
"""Takes the unit, the number of parts that were read, and of all."""


class UnreadableDocumentError(Exception):
    """`problem` goes on from the document's name: `is encrypted.`"""

    def __init__(self, problem: str, hint: str = "", *, is_scan: bool = False) -> None:
        """`is_scan`: whether its pages are pictures."""
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.is_scan = is_scan


def too_much_text() -> UnreadableDocumentError:
    return UnreadableDocumentError(
        f"has more than {MAX_CHARACTERS // 1_000_000} million characters of text.",
        "Choose parts of it, for example: pages 1-100",
    )


def too_deep() -> UnreadableDocumentError:
    return UnreadableDocumentError("is nested too deeply to be read.")


class CharacterBudget:
    """Counts the characters of a document that is being read."""

    def __init__(self) -> None:
        self._left = MAX_CHARACTERS

    def take(self, n_characters: int) -> None:
        """Raises UnreadableDocumentError if there are too many."""
        self._left -= n_characters
        if self._left < 0:
            raise too_much_text()

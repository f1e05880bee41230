"""A document: its text in numbered parts, some of which can be chosen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.units import count

PartUnit = Literal["page", "chapter", "section", "line"]
UNITS: tuple[PartUnit, ...] = ("page", "chapter", "section", "line")
_RANGE = re.compile(r"(\d{1,9})?(?:\s*([-–])\s*(\d{1,9})?)?", re.ASCII)
"""`3`, `3-10`, `3-` or `-10`; also nothing, and a dash alone."""


class PartRange(Struct, frozen=True):
    """Parts from `first` to `last`, counted from 1; without `last` to the end."""

    first: int
    last: int | None


class PartSelection(Struct, frozen=True):
    """The parts that a person names, such as `pages 3-10, 12`."""

    unit: PartUnit | None  # None: whatever the document's parts are.
    ranges: tuple[PartRange, ...]

    def resolve(self, name: str, unit: PartUnit, n_parts: int) -> tuple[int, ...]:
        """The numbers of the chosen parts, in order and without repetition.

        Of `pages 5-20` in a document of 12 pages it is 5 to 12. `name` is the
        document's. Raises UsageError for another unit, and if no such part exists.
        """
        if self.unit is not None and self.unit != unit:
            raise UsageError(
                f"{name} has {unit}s, not {self.unit}s.",
                f"Choose {unit}s: {unit}s 1-{n_parts}",
            )
        chosen: set[int] = set()
        for each in self.ranges:
            last = n_parts
            if each.last is not None:
                last = min(each.last, n_parts)
            chosen.update(range(each.first, last + 1))
        if not chosen:
            raise UsageError(
                f"{name} has only {count(n_parts, unit)}.",
                f"Choose some of these: {unit}s 1-{n_parts}",
            )
        return tuple(sorted(chosen))


EVERYTHING = PartSelection(None, (PartRange(1, None),))


def parse_ranges(text: str) -> tuple[PartRange, ...] | None:
    """The ranges of `3-10, 12, 20-`; None if the text is no such list."""
    ranges: list[PartRange] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or not (match[1] or match[3]):
            return None
        first = int(match[1] or 1)
        last: int | None = first
        if match[2] is not None:
            last = int(match[3]) if match[3] else None
        if first < 1 or (last is not None and last < first):
            return None
        ranges.append(PartRange(first, last))
    return tuple(ranges)


def format_numbers(numbers: Sequence[int]) -> str:
    """`3-10, 12` of 3, 4, …, 10 and 12; the numbers are in order."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    pieces = []
    for run in runs:
        piece = f"{run[0]}"
        if len(run) > 1:
            piece = f"{run[0]}-{run[-1]}"
        pieces.append(piece)
    return ", ".join(pieces)


class Document(Struct, frozen=True, kw_only=True):
    """The parts of a document that were read, and how many there are."""

    name: str
    unit: PartUnit
    n_parts: int
    numbers: tuple[int, ...]
    """Which parts were read, counted from 1 and in order."""
    parts: tuple[str, ...]
    """Their texts."""
    titles: tuple[str, ...] = ()
    """Their titles, if the document's parts have any; one may be empty."""
    note: str = ""
    """How it was read, if a person should know, such as `pages 3, 5 have no text`."""

    @property
    def is_whole(self) -> bool:
        return len(self.numbers) == self.n_parts

    @property
    def label(self) -> str:
        """Its name, and which parts these are if some are missing."""
        if self.is_whole:
            return self.name
        return f"{self.name}, {self.parts_label}"

    @property
    def parts_label(self) -> str:
        """`12 pages`, `page 3 of 12`, or `pages 3-10 of 12`."""
        if self.is_whole:
            return count(self.n_parts, self.unit)
        unit = self.unit if len(self.numbers) == 1 else f"{self.unit}s"
        return f"{unit} {format_numbers(self.numbers)} of {self.n_parts}"

    @property
    def text(self) -> str:
        """All parts that were read. Pages are numbered, so that an answer can name them."""
        return "\n".join(self.part_texts).rstrip("\n")

    @property
    def part_texts(self) -> tuple[str, ...]:
        """Each part as it is in the text."""
        if self.unit == "line":
            return self.parts
        if self.unit != "page" or self.n_parts == 1:
            return tuple(f"{part}\n" for part in self.parts)
        pages = zip(self.numbers, self.parts, strict=True)
        return tuple(f"[Page {number}]\n{part}\n" for number, part in pages)

    def select(self, selection: PartSelection) -> Document:
        """The document with some of the parts that it has.

        Raises UsageError if it has none of them.
        """
        chosen = set(selection.resolve(self.name, self.unit, self.n_parts))
        places = [i for i, number in enumerate(self.numbers) if number in chosen]
        if not places:
            raise UsageError(
                f"{self.name} was read without these {self.unit}s.", "Read it again."
            )
        titles: tuple[str, ...] = ()
        if self.titles:
            titles = tuple(self.titles[i] for i in places)
        return replace(
            self,
            numbers=tuple(self.numbers[i] for i in places),
            parts=tuple(self.parts[i] for i in places),
            titles=titles,
        )


class ScannedPage(Struct, frozen=True):
    """A page that is a JPEG; its EXIF data says how it is turned."""

    number: int
    data: bytes


class ScannedPages(Struct, frozen=True):
    """Pages of a PDF without text, as its reader found them."""

    n_pages: int  # The pages of the whole document.
    pages: tuple[ScannedPage, ...]


def make_text_document(name: str, text: str, note: str = "") -> Document:
    """A document of lines."""
    lines = tuple(text.split("\n"))
    return Document(
        name=name,
        unit="line",
        n_parts=len(lines),
        numbers=tuple(range(1, len(lines) + 1)),
        parts=lines,
        note=note,
    )

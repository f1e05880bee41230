"""Which parts of a document are chosen, and how they are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.documents.document import (
    EVERYTHING,
    Document,
    PartRange,
    PartSelection,
    format_numbers,
    make_text_document,
    parse_ranges,
)
from localspec.errors import UsageError

PAGES = Document(
    name="report.pdf",
    unit="page",
    n_parts=12,
    numbers=tuple(range(1, 13)),
    parts=tuple(f"text {number}" for number in range(1, 13)),
)


@pytest.mark.parametrize(
    ("typed", "ranges"),
    [
        ("3", [(3, 3)]),
        ("3-10", [(3, 10)]),
        ("3 – 10", [(3, 10)]),
        ("-4", [(1, 4)]),
        ("9-", [(9, None)]),
        ("1, 3-4,7", [(1, 1), (3, 4), (7, 7)]),
    ],
)
def test_ranges_are_typed_as_in_a_print_dialog(
    typed: str, ranges: list[tuple[int, int | None]]
) -> None:
    assert parse_ranges(typed) == tuple(PartRange(*each) for each in ranges)


@pytest.mark.parametrize("typed", ["", "-", "0", "5-3", "1,,2", "a", "1 2", "1-2-3"])
def test_what_is_no_list_of_numbers_is_refused(typed: str) -> None:
    assert parse_ranges(typed) is None


@given(st.sets(st.integers(1, 60), min_size=1))
def test_numbers_are_written_as_they_are_read(numbers: set[int]) -> None:
    ranges = parse_ranges(format_numbers(sorted(numbers)))

    assert ranges is not None
    chosen = PartSelection(None, ranges).resolve("it", "page", 60)
    assert set(chosen) == numbers


def test_a_range_ends_with_the_document() -> None:
    selection = PartSelection("page", (PartRange(10, 99),))

    assert PAGES.select(selection).numbers == (10, 11, 12)


def test_a_document_without_the_chosen_parts_says_how_many_it_has() -> None:
    selection = PartSelection(None, (PartRange(13, 15),))

    with pytest.raises(UsageError, match=r"report\.pdf has only 12 pages"):
        PAGES.select(selection)


def test_parts_of_another_kind_are_refused_by_name() -> None:
    selection = PartSelection("chapter", (PartRange(1, 2),))

    with pytest.raises(UsageError, match=r"report\.pdf has pages, not chapters"):
        PAGES.select(selection)


@pytest.mark.parametrize(
    ("numbers", "label"),
    [
        ((3,), "report.pdf, page 3 of 12"),
        ((3, 4, 5, 9), "report.pdf, pages 3-5, 9 of 12"),
    ],
)
def test_an_excerpt_is_named_by_its_pages(numbers: tuple[int, ...], label: str) -> None:
    ranges = tuple(PartRange(number, number) for number in numbers)

    assert PAGES.select(PartSelection("page", ranges)).label == label


def test_a_whole_document_has_its_own_name() -> None:
    assert PAGES.select(EVERYTHING).label == "report.pdf"


def test_pages_are_numbered_in_the_text() -> None:
    selection = PartSelection("page", (PartRange(2, 3),))

    text = PAGES.select(selection).text

    assert text == "[Page 2]\ntext 2\n\n[Page 3]\ntext 3"


@given(st.text(alphabet="ab \n", max_size=40))
def test_the_lines_of_a_text_are_the_text(text: str) -> None:
    stripped = text.rstrip("\n")

    assert make_text_document("a.txt", stripped).text == stripped

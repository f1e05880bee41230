"""The text of a PDF, page by page, by the package pypdf; runs in the child process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from localspec.documents.document import (
    EVERYTHING,
    Document,
    PartSelection,
    format_numbers,
)
from localspec.documents.reader_limits import (
    CharacterBudget,
    ReportProgress,
    UnreadableDocumentError,
)
from localspec.units import count

if TYPE_CHECKING:
    import pypdf

_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "\0": None}
)
_SPACES_BEFORE_LINE_END = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")
_MAX_LISTED = 12  # Numbers of pages in a note.


def read(
    name: str, data: bytes, selection: PartSelection | None, report: ReportProgress
) -> Document:
    """Raises UnreadableDocumentError, and whatever pypdf raises for damaged files."""
    reader = open_pdf(data)
    pages = reader.pages
    n_pages = len(pages)
    if not n_pages:
        raise UnreadableDocumentError("has no pages.")
    numbers = (selection or EVERYTHING).resolve(name, "page", n_pages)
    budget = CharacterBudget()
    texts: list[str] = []
    broken: list[int] = []
    for n_read, number in enumerate(numbers):
        report("page", n_read, n_pages)
        try:
            text = _clean(pages[number - 1].extract_text())
        except MemoryError:
            raise
        except Exception:  # Of one page: the others can still be read.
            broken.append(number)
            text = ""
        budget.take(len(text))
        texts.append(text)
    report("page", len(numbers), n_pages)
    if len(broken) == len(numbers):
        raise UnreadableDocumentError(
            "is damaged: none of its pages can be read.",
            "Open it with another program, and save it again.",
        )
    empty = []
    for number, text in zip(numbers, texts, strict=True):
        if not text and number not in broken:
            empty.append(number)
    if len(empty) + len(broken) == len(numbers):
        raise _no_text(reader, empty)
    return Document(
        name=name,
        unit="page",
        n_parts=n_pages,
        numbers=numbers,
        parts=tuple(texts),
        note=_describe_gaps(empty, broken),
    )


def open_pdf(data: bytes) -> pypdf.PdfReader:
    """Raises UnreadableDocumentError for one that needs a password."""
    from pypdf import PasswordType, PdfReader  # noqa: PLC0415  an optional package
    from pypdf.errors import DependencyError  # noqa: PLC0415

    reader = PdfReader(BytesIO(data), strict=False)
    if not reader.is_encrypted:
        return reader
    # Many are encrypted without a password: everybody may read them, not change them.
    try:
        is_open = reader.decrypt("") != PasswordType.NOT_DECRYPTED
    except (DependencyError, NotImplementedError):
        is_open = False
    if not is_open:
        raise UnreadableDocumentError("is encrypted.", "Save it without a password.")
    return reader


def _clean(text: str) -> str:
    text = text.translate(_LIGATURES)
    text = _SPACES_BEFORE_LINE_END.sub("", text)
    return _BLANK_LINES.sub("\n\n", text).strip()


def _no_text(reader: pypdf.PdfReader, empty: Sequence[int]) -> UnreadableDocumentError:
    """A scan is told by the pictures on its pages."""
    if empty and _has_picture(reader.pages[empty[0] - 1]):
        pages = count(len(empty), "page")
        have = "is a picture" if len(empty) == 1 else "are pictures"
        return UnreadableDocumentError(
            f"has no text: its {pages} {have}, as of a scan.",
            "Recognise its text first, for example: ocrmypdf scan.pdf text.pdf",
            is_scan=True,
        )
    return UnreadableDocumentError("has no text.")


def _has_picture(page: Any) -> bool:
    try:
        objects = page["/Resources"]["/XObject"]
        return any(
            each.get_object().get("/Subtype") == "/Image" for each in objects.values()
        )
    except Exception:  # Only the words of an error depend on it.
        return False


def _describe_gaps(empty: Sequence[int], broken: Sequence[int]) -> str:
    """The pages without text, which are blank or pictures, and those that are damaged."""
    notes = []
    if empty:
        verb = "has" if len(empty) == 1 else "have"
        notes.append(f"{_name_pages(empty)} {verb} no text")
    if broken:
        verb = "is" if len(broken) == 1 else "are"
        notes.append(f"{_name_pages(broken)} {verb} damaged")
    return ", ".join(notes)


def _name_pages(numbers: Sequence[int]) -> str:
    word = "page" if len(numbers) == 1 else "pages"
    shown = format_numbers(numbers)
    pieces = shown.split(", ")
    if len(pieces) > _MAX_LISTED:
        shown = f"{len(numbers):,}"
        return f"{shown} {word}"
    return f"{word} {shown}"

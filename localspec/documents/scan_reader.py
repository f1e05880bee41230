"""The pictures of a scan, a PDF without text, as they are stored; runs in the child."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from localspec.documents import pdf_reader
from localspec.documents.document import (
    EVERYTHING,
    PartSelection,
    ScannedPage,
    ScannedPages,
)
from localspec.documents.reader_limits import (
    MAX_SCANNED_BYTES,
    ReportProgress,
    UnreadableDocumentError,
)
from localspec.models.pictures import MAX_REQUEST_PICTURES
from localspec.units import size_limit

_JPEG = "/DCTDecode"
_PACKERS = frozenset(
    ("/FlateDecode", "/LZWDecode", "/ASCII85Decode", "/ASCIIHexDecode")
)
"""What a JPEG may be packed in."""
_ENCODINGS = {
    "/JPXDecode": "a JPEG 2000 picture",
    "/JBIG2Decode": "a JBIG2 picture",
    "/CCITTFaxDecode": "a fax (CCITT) picture",
}
_RECOGNISE = "Recognise its text first, for example: ocrmypdf scan.pdf text.pdf"

_Axes = tuple[float, float, float, float]
"""Where a picture's right and its top point on the page: x, y, x, y."""
_UPRIGHT: _Axes = (1, 0, 0, 1)
_ORIENTATIONS: dict[tuple[int, int, int, int], int] = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, -1, -1, 0): 5,
    (0, -1, 1, 0): 6,
    (0, 1, 1, 0): 7,
    (0, 1, -1, 0): 8,
}
"""How EXIF numbers what is to be done with a picture whose axes point there."""


class _DrawnPicture(Struct, frozen=True):
    """A picture that a page draws, and its axes there."""

    stream: Any  # pypdf's object.
    axes: _Axes


def read(
    name: str, data: bytes, selection: PartSelection | None, report: ReportProgress
) -> ScannedPages:
    """The chosen pages of a scan; pages without any picture are left out.

    Raises UnreadableDocumentError, also for a page that is not one JPEG, and whatever
    pypdf raises for damaged files.
    """
    pages = pdf_reader.open_pdf(data).pages
    n_pages = len(pages)
    numbers = (selection or EVERYTHING).resolve(name, "page", n_pages)
    if len(numbers) > MAX_REQUEST_PICTURES:
        raise UnreadableDocumentError(
            f"is a scan, and has {len(numbers):,} pages; a message has at most "
            f"{MAX_REQUEST_PICTURES} pictures.",
            f"Choose pages, for example: pages 1-{MAX_REQUEST_PICTURES}",
        )
    found: list[ScannedPage] = []
    n_bytes = 0
    for n_read, number in enumerate(numbers):
        report("page", n_read, n_pages)
        jpeg = _read_page(pages[number - 1], number)
        if jpeg is None:
            continue
        n_bytes += len(jpeg)
        if n_bytes > MAX_SCANNED_BYTES:
            raise UnreadableDocumentError(
                f"has pictures of more than {size_limit(MAX_SCANNED_BYTES)}.",
                "Choose fewer pages, for example: pages 1-3",
            )
        found.append(ScannedPage(number, jpeg))
    if not found:
        raise UnreadableDocumentError("has no pictures on these pages.")
    return ScannedPages(n_pages, tuple(found))


def _read_page(page: Any, number: int) -> bytes | None:
    """The JPEG that is the page; None if it is blank."""
    drawn = _find_drawn(page)
    if not drawn:
        return None
    if len(drawn) > 1:
        raise _refuse(number, "several pictures")
    picture = drawn[0]
    if picture is None:
        raise _refuse(number, "a drawing")
    given = _find(picture.stream, "/Filter") or []
    filters = [given] if isinstance(given, str) else list(given)
    last = str(filters[-1]) if filters else ""
    if last != _JPEG or not _PACKERS.issuperset(filters[:-1]):
        raise _refuse(number, _ENCODINGS.get(last, "a picture that is no JPEG"))
    orientation = _find_orientation(picture.axes, page.rotation)
    return turn_jpeg(bytes(picture.stream.get_data()), orientation)


def _refuse(number: int, what: str) -> UnreadableDocumentError:
    return UnreadableDocumentError(
        f"is a scan, but page {number} is {what}; only JPEG pages can be shown to a "
        "model.",
        _RECOGNISE,
    )


def _find_drawn(page: Any) -> list[_DrawnPicture | None]:
    """What a page draws by name: None in the place of what is no picture.

    Pages may share one dictionary with the pictures of all, so what counts is what the
    page's content draws.
    """
    contents = page.get_contents()
    if contents is None:
        return []
    resources = _find(page, "/Resources") or {}
    objects = _find(resources, "/XObject") or {}
    drawn: list[_DrawnPicture | None] = []
    axes = _UPRIGHT
    saved: list[_Axes] = []
    for operands, operator in contents.operations:
        if operator == b"q":
            saved.append(axes)
        elif operator == b"Q" and saved:
            axes = saved.pop()
        elif operator == b"cm":
            axes = _multiply([float(each) for each in operands], axes)
        elif operator == b"INLINE IMAGE":
            drawn.append(None)
        elif operator == b"Do" and operands[0] in objects:
            stream = objects[operands[0]].get_object()
            is_picture = _find(stream, "/Subtype") == "/Image"
            drawn.append(_DrawnPicture(stream, axes) if is_picture else None)
    return drawn


def _find(dictionary: Any, key: str) -> Any:
    """A value that may be an object of its own; None if it is missing."""
    value = dictionary.get(key)
    return None if value is None else value.get_object()


def _multiply(matrix: Sequence[float], axes: _Axes) -> _Axes:
    """The axes within a matrix that is set below those of before."""
    a, b, c, d, *_ = matrix
    right_x, right_y, top_x, top_y = axes
    return (
        a * right_x + b * top_x,
        a * right_y + b * top_y,
        c * right_x + d * top_x,
        c * right_y + d * top_y,
    )


def _find_orientation(axes: _Axes, degrees: int) -> int:
    """EXIF's number for a picture on a page that is shown turned clockwise.

    Crooked axes count as the next straight ones: a scan is turned by quarters.
    """
    for _ in range(degrees // 90 % 4):
        right_x, right_y, top_x, top_y = axes
        axes = (right_y, -right_x, top_y, -top_x)
    right_x, right_y, top_x, top_y = axes
    if abs(right_x) >= abs(right_y):
        straight = (_sign(right_x), 0, 0, _sign(top_y))
    else:
        straight = (0, _sign(right_y), _sign(top_x), 0)
    return _ORIENTATIONS[straight]


def _sign(number: float) -> int:
    return -1 if number < 0 else 1


# --- orientation within a JPEG

_START = b"\xff\xd8"
_APP1 = 0xE1
_FIRST_SEGMENTS = range(0xE0, 0xF0)


def turn_jpeg(data: bytes, orientation: int) -> bytes:
    """A JPEG whose EXIF data says only how it is turned.

    A PDF ignores the EXIF data of its pictures. That of the camera says how the JPEG
    would be turned by itself, so it must go.
    """
    if not data.startswith(_START):
        return data
    kept = bytearray()
    at = len(_START)
    while at + 4 <= len(data):
        before, marker, length = struct.unpack_from(">BBH", data, at)
        if before != 0xFF or marker not in _FIRST_SEGMENTS:
            break
        segment = data[at : at + 2 + length]
        if marker != _APP1:
            kept += segment
        at += 2 + length
    return _START + _write_exif(orientation) + bytes(kept) + data[at:]


def _write_exif(orientation: int) -> bytes:
    if orientation == 1:
        return b""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)
    body = b"Exif\0\0" + tiff
    return struct.pack(">BBH", 0xFF, _APP1, 2 + len(body)) + body

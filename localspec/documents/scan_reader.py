"""The pictures of a scan, a PDF without text; runs in the child.

A JPEG is taken as it is stored. A fax becomes a TIFF of the same bytes, and other samples
a PNG. So no pixels are decoded here but those that `FlateDecode` and its like pack.
"""

from __future__ import annotations

import struct
import zlib
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
from localspec.install_hints import install_command
from localspec.models.pictures import MAX_PIXELS, MAX_REQUEST_PICTURES, has_pillow
from localspec.units import size_limit

_JPEG = "/DCTDecode"
_FAX = "/CCITTFaxDecode"
_FLATE = "/FlateDecode"
_PACKERS = frozenset(
    (_FLATE, "/LZWDecode", "/ASCII85Decode", "/ASCIIHexDecode", "/RunLengthDecode")
)
"""What samples or a JPEG may be packed in."""
_ENCODINGS = {
    "/JPXDecode": "a JPEG 2000 picture",
    "/JBIG2Decode": "a JBIG2 picture",
}
_MAX_SAMPLE_BYTES = 75_000_000
"""The most that a picture may have when it is unpacked; pypdf unpacks no more."""
_RECOGNISE = "Recognise its text first, for example: ocrmypdf scan.pdf text.pdf"

_Axes = tuple[float, float, float, float]
"""The direction of a picture's right on the page (x, y), and that of its top (x, y)."""
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
"""EXIF's number for a picture by its axes.

For example, the right of a picture that is shown a quarter turned clockwise points down
the page, (0, -1), and its top points right, (1, 0). EXIF calls this 6.
"""


class _DrawnPicture(Struct, frozen=True):
    """A picture that a page draws, and its axes there."""

    stream: Any  # pypdf's object.
    axes: _Axes


def read(
    name: str, data: bytes, selection: PartSelection | None, report: ReportProgress
) -> ScannedPages:
    """The chosen pages of a scan; pages without any picture are left out.

    Raises UnreadableDocumentError, also for a page that is not one picture that can be
    shown, and whatever pypdf raises for damaged files.
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
        picture = _read_page(pages[number - 1], number)
        if picture is None:
            continue
        n_bytes += len(picture)
        if n_bytes > MAX_SCANNED_BYTES:
            raise UnreadableDocumentError(
                f"has pictures of more than {size_limit(MAX_SCANNED_BYTES)}.",
                "Choose fewer pages, for example: pages 1-3",
            )
        found.append(ScannedPage(number, picture))
    if not found:
        raise UnreadableDocumentError("has no pictures on these pages.")
    return ScannedPages(n_pages, tuple(found))


def _read_page(page: Any, number: int) -> bytes | None:
    """The JPEG, TIFF or PNG that is the page; None if it is blank."""
    drawn = _find_drawn(page)
    if not drawn:
        return None
    if len(drawn) > 1:
        raise _refuse(number, "several pictures")
    picture = drawn[0]
    if picture is None:
        raise _refuse(number, "a drawing")
    orientation = _find_orientation(picture.axes, page.rotation)
    try:
        return _read_picture(picture.stream, orientation)
    except _UnshownPictureError as error:
        raise _refuse(number, error.what, error.hint) from None


class _UnshownPictureError(Exception):
    """`what` names a picture that cannot be shown: "a JBIG2 picture"."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def _read_picture(stream: Any, orientation: int) -> bytes:
    """A JPEG, TIFF or PNG. Raises _UnshownPictureError."""
    filters = _list_filters(stream)
    if not filters:
        return _write_png(_read_samples(stream, filters), orientation)
    *packers, last = filters
    if not _PACKERS.issuperset(packers):
        raise _UnshownPictureError("a picture that is packed in an unusual way")
    if last == _JPEG:
        return turn_jpeg(bytes(stream.get_data()), orientation)
    if last == _FAX:
        return _wrap_fax(stream, orientation)
    if last in _PACKERS:
        return _write_png(_read_samples(stream, filters), orientation)
    what = _ENCODINGS.get(last, "a picture of an unknown encoding")
    raise _UnshownPictureError(what)


def _list_filters(stream: Any) -> list[str]:
    given = _find(stream, "/Filter") or []
    if isinstance(given, str):
        return [str(given)]
    return [str(each.get_object()) for each in given]


def _refuse(number: int, what: str, hint: str = "") -> UnreadableDocumentError:
    return UnreadableDocumentError(
        f"is a scan, but page {number} is {what}, which cannot be shown to a model.",
        hint or _RECOGNISE,
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
            if _find(stream, "/Subtype") == "/Image":
                drawn.append(_DrawnPicture(stream, axes))
            else:
                drawn.append(None)
    return drawn


def _find(dictionary: Any, key: str) -> Any:
    """A value that may be an object of its own; None if it is missing."""
    value = dictionary.get(key)
    if value is None:
        return None
    return value.get_object()


def _multiply(matrix: Sequence[float], axes: _Axes) -> _Axes:
    """The axes of what is drawn after a `cm` with this matrix, on a page with `axes`.

    `0 -600 400 0 0 600 cm` on upright axes gives (0, -600, 400, 0): the picture's right
    points down.
    """
    a, b, c, d, *_ = matrix
    right_x, right_y, top_x, top_y = axes
    return (
        a * right_x + b * top_x,
        a * right_y + b * top_y,
        c * right_x + d * top_x,
        c * right_y + d * top_y,
    )


def _find_orientation(axes: _Axes, degrees: int) -> int:
    """EXIF's number for a picture on a page that is shown turned by `degrees`, clockwise.

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
    """The sign of a number; that of 0 is 1."""
    if number < 0:
        return -1
    return 1


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
    body = b"Exif\0\0" + _write_orientation(orientation)
    return struct.pack(">BBH", 0xFF, _APP1, 2 + len(body)) + body


def _write_orientation(orientation: int) -> bytes:
    """EXIF data that says only how a picture is turned."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


# --- samples, which become a PNG

_GREYS = frozenset(("/DeviceGray", "/CalGray", "/G"))
_COLOURS = frozenset(("/DeviceRGB", "/CalRGB", "/RGB"))
_PNG_GREY = 0
_PNG_RGB = 2
_PNG_PALETTE = 3
_PNG_DEPTHS = {
    _PNG_GREY: (1, 2, 4, 8, 16),
    _PNG_RGB: (8, 16),
    _PNG_PALETTE: (1, 2, 4, 8),
}
_FIRST_PNG_PREDICTOR = 10
"""From this number on each row begins with the filter that PNG has there."""


class _Samples(Struct, frozen=True):
    """The rows of a picture as a PNG has them."""

    width: int
    height: int
    depth: int  # Bits of a sample.
    colour_type: int
    palette: bytes  # Three bytes for each colour; empty without a palette.
    rows: bytes  # Each begins with its filter.


class _ColourSpace(Struct, frozen=True):
    """The colours of a picture, as a PNG declares them."""

    colour_type: int
    palette: bytes = b""

    @property
    def n_samples(self) -> int:
        """The samples of one pixel."""
        if self.colour_type == _PNG_RGB:
            return 3
        return 1


def _read_samples(stream: Any, filters: Sequence[str]) -> _Samples:
    """The samples of a picture, as rows of a PNG.

    Rows that PNG's filters were applied to are taken as they are; others are unpacked.
    Raises _UnshownPictureError, and what pypdf raises for damaged data.
    """
    width = _read_number(stream, "/Width")
    height = _read_number(stream, "/Height")
    if width * height > MAX_PIXELS:
        raise _UnshownPictureError(
            f"a picture of more than {MAX_PIXELS // 1_000_000} million pixels"
        )
    depth = 1
    colours = _ColourSpace(_PNG_GREY)
    is_mask = getattr(_find(stream, "/ImageMask"), "value", False)
    if not is_mask:
        depth = _read_number(stream, "/BitsPerComponent")
        colours = _find_colours(_find(stream, "/ColorSpace"))
    is_inverted = _is_inverted(stream, colours)
    if is_inverted and colours.colour_type == _PNG_GREY and depth <= 8:
        # Rows that are filtered cannot be inverted, but a palette can.
        colours = _ColourSpace(_PNG_PALETTE, _list_inverted_greys(depth))
        is_inverted = False
    if depth not in _PNG_DEPTHS[colours.colour_type]:
        raise _UnshownPictureError(f"a picture of {depth} bits a sample")
    row_bytes = (width * depth * colours.n_samples + 7) // 8
    if not 0 < row_bytes * height <= _MAX_SAMPLE_BYTES:
        raise _UnshownPictureError(
            f"a picture of more than {size_limit(_MAX_SAMPLE_BYTES)}"
        )
    rows = b""
    if list(filters) == [_FLATE] and not is_inverted:
        rows = _unpack_filtered_rows(stream, row_bytes=row_bytes, height=height)
    if not rows:
        samples = bytes(stream.get_data())
        if len(samples) < row_bytes * height:
            raise _UnshownPictureError("a picture that is cut short")
        if is_inverted:
            samples = samples.translate(_INVERTED)
        starts = range(0, row_bytes * height, row_bytes)
        rows = b"".join(b"\0" + samples[at : at + row_bytes] for at in starts)
    return _Samples(
        width=width,
        height=height,
        depth=depth,
        colour_type=colours.colour_type,
        palette=colours.palette,
        rows=rows,
    )


_INVERTED = bytes(range(255, -1, -1))
"""The table by which `bytes.translate` inverts each byte: 0 becomes 255."""


def _read_number(dictionary: Any, key: str) -> int:
    """Raises _UnshownPictureError unless it is a whole number above 0."""
    value = _find(dictionary, key)
    if not isinstance(value, int) or value < 1:
        raise _UnshownPictureError("a damaged picture")
    return int(value)


def _find_colours(space: Any) -> _ColourSpace:
    """How a PNG declares a PDF's `/ColorSpace`.

    Raises _UnshownPictureError for inks and other colours.
    """
    if isinstance(space, str):
        if space in _GREYS:
            return _ColourSpace(_PNG_GREY)
        if space in _COLOURS:
            return _ColourSpace(_PNG_RGB)
        raise _UnshownPictureError("a picture of inks (CMYK) or other colours")
    parts = [each.get_object() for each in space or ()]
    name = ""
    if parts:
        name = str(parts[0])
    if len(parts) == 1 or name in ("/CalGray", "/CalRGB"):
        return _find_colours(name)
    if name == "/ICCBased":
        names = {1: "/DeviceGray", 3: "/DeviceRGB"}
        return _find_colours(names.get(_find(parts[1], "/N"), ""))
    if name in ("/Indexed", "/I") and len(parts) == 4:
        return _ColourSpace(_PNG_PALETTE, _read_palette(parts[1], parts[3]))
    raise _UnshownPictureError("a picture of inks (CMYK) or other colours")


def _read_palette(base: Any, table: Any) -> bytes:
    """Three bytes for each colour. Raises _UnshownPictureError."""
    if hasattr(table, "get_data"):
        found = bytes(table.get_data())
    else:
        # pypdf decodes strings to text, and keeps the bytes.
        found = getattr(table, "original_bytes", table)
    base_colours = _find_colours(base)
    if base_colours.palette:
        raise _UnshownPictureError("a damaged picture")
    n_samples = base_colours.n_samples
    found = found[: 256 * n_samples]
    if n_samples == 1:
        return bytes(value for value in found for _ in range(3))
    return found[: len(found) // 3 * 3]


def _list_inverted_greys(depth: int) -> bytes:
    """A palette that makes the least sample white: with 1 bit, white and then black."""
    last = (1 << depth) - 1
    palette = bytearray()
    for value in range(last, -1, -1):
        palette += bytes([value * 255 // last]) * 3
    return bytes(palette)


def _is_inverted(stream: Any, colours: _ColourSpace) -> bool:
    """Whether the least sample is the lightest: `/Decode [1 0]`."""
    decode = [float(each) for each in _find(stream, "/Decode") or ()]
    if colours.colour_type == _PNG_PALETTE or len(decode) < 2:
        return False
    return decode[0] > decode[1]


def _unpack_filtered_rows(stream: Any, *, row_bytes: int, height: int) -> bytes:
    """The rows of a picture whose filters are PNG's; empty if it has others.

    pypdf would undo the filters byte by byte in Python: 26 MB take some ten seconds.
    """
    parameters = _find(stream, "/DecodeParms")
    if isinstance(parameters, list) and parameters:
        parameters = parameters[0].get_object()
    if not isinstance(parameters, dict):
        return b""
    predictor = _find(parameters, "/Predictor")
    if not isinstance(predictor, int) or predictor < _FIRST_PNG_PREDICTOR:
        return b""
    bits = _find(parameters, "/BitsPerComponent") or 8
    n_samples = _find(parameters, "/Colors") or 1
    n_columns = _find(parameters, "/Columns") or 1
    if (bits * n_samples * n_columns + 7) // 8 != row_bytes:
        return b""
    packed = stream._data  # pypdf has no other way to the packed bytes.
    n_bytes = (row_bytes + 1) * height
    try:
        rows = zlib.decompressobj().decompress(packed, n_bytes)
    except zlib.error:
        return b""
    if len(rows) < n_bytes:
        return b""
    return rows


def _write_png(samples: _Samples, orientation: int) -> bytes:
    header = struct.pack(
        ">IIBBBBB",
        samples.width,
        samples.height,
        samples.depth,
        samples.colour_type,
        0,
        0,
        0,
    )
    chunks = [(b"IHDR", header)]
    if samples.palette:
        chunks.append((b"PLTE", samples.palette))
    if orientation != 1:
        chunks.append((b"eXIf", _write_orientation(orientation)))
    chunks.append((b"IDAT", zlib.compress(samples.rows, level=1)))
    chunks.append((b"IEND", b""))
    data = bytearray(b"\x89PNG\r\n\x1a\n")
    for name, body in chunks:
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    return bytes(data)


# --- a fax, which becomes a TIFF

_USUAL_COLUMNS = 1728
"""The width of a fax that does not say it, by the standard of PDF: that of A4."""
_GROUP_4 = 4
_SHORT = 3
_LONG = 4
_TIFF_HEADER_BYTES = 256


def _wrap_fax(stream: Any, orientation: int) -> bytes:
    """A TIFF of one strip, which has the bytes of the fax.

    Pillow reads it in a process of its own (`models/picture_conversion.py`). Raises
    _UnshownPictureError without Pillow, and for the old kinds of fax.
    """
    what = "a fax (CCITT) picture"
    if not has_pillow():
        raise _UnshownPictureError(
            what, f"Install Pillow, which reads it: {install_command('pillow')}"
        )
    parameters = _find(stream, "/DecodeParms")
    if isinstance(parameters, list) and parameters:
        parameters = parameters[-1].get_object()
    if not isinstance(parameters, dict):
        parameters = {}
    is_group_4 = (_find(parameters, "/K") or 0) < 0
    is_aligned = getattr(_find(parameters, "/EncodedByteAlign"), "value", False)
    if not is_group_4 or is_aligned or len(_list_filters(stream)) > 1:
        raise _UnshownPictureError(f"{what} of a rare kind")
    width = _find(parameters, "/Columns") or _USUAL_COLUMNS
    height = _read_number(stream, "/Height")
    if not isinstance(width, int) or not 0 < width * height <= MAX_PIXELS:
        raise _UnshownPictureError("a damaged picture")
    # A PDF shows the sample 0 as black. The black of a fax is 0, or 1 with /BlackIs1: then
    # the page shows the negative. An inverted /Decode turns either round.
    is_negative = getattr(_find(parameters, "/BlackIs1"), "value", False)
    if _is_inverted(stream, _ColourSpace(_PNG_GREY)):
        is_negative = not is_negative
    photometric = 0
    if is_negative:
        photometric = 1
    packed = bytes(stream._data)  # pypdf has no other way to the packed bytes.
    entries = [
        (256, _LONG, width),
        (257, _LONG, height),
        (258, _SHORT, 1),  # Bits of a sample.
        (259, _SHORT, _GROUP_4),
        (262, _SHORT, photometric),  # 0: what the fax calls black is black.
        (273, _LONG, _TIFF_HEADER_BYTES),  # Where the strip begins.
        (274, _SHORT, orientation),
        (277, _SHORT, 1),  # Samples of a pixel.
        (278, _LONG, height),  # Rows of the strip.
        (279, _LONG, len(packed)),
    ]
    data = bytearray(b"II*\0" + struct.pack("<IH", 8, len(entries)))
    for tag, kind, value in entries:
        data += struct.pack("<HHII", tag, kind, 1, value)
    return bytes(data).ljust(_TIFF_HEADER_BYTES, b"\0") + packed

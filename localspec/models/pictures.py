"""Pictures that people send: their headers, checked before llama.cpp reads them.

llama.cpp decodes JPEG, PNG, GIF and BMP. It would hand all other bytes to a program
called `ffprobe`, decode a picture of any size, show a JPEG that is cut in half without
an error, and ignore that a phone was held upright. So each picture is checked here
first, by its first bytes and its length, in the process that received it and again in
the engine. Nothing here decodes pixels.
"""

from __future__ import annotations

import atexit
import importlib.util
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from localspec import child_process, data_files, install_hints
from localspec.errors import PictureError, StorageError
from localspec.models.media_files import read_media_file
from localspec.sanitize import sanitize
from localspec.temporary_files import TemporaryFolder
from localspec.units import size_limit

PICTURE_MARK = "\ufdd6"
"""Stands for a picture in the text of a message; a noncharacter, as no text has it.

Text that comes from outside passes `without_marks` first.
"""
MAX_PIXELS = 40_000_000
"""A decoded picture takes 6 bytes a pixel."""
MAX_BYTES = 20 * 2**20
MAX_REQUEST_PICTURES = 20
"""The most pictures that a request brings."""
PICTURE_SUFFIXES = frozenset(
    (
        ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib",
        ".webp", ".tif", ".tiff", ".heic", ".heif", ".avif",
    )
)  # fmt: skip
"""Of files that are taken for pictures: also of kinds that are refused by name."""
PictureKind = Literal["jpeg", "png", "gif", "bmp"]

_MAX_SIDE = 1 << 24
"""The longest side that llama.cpp's decoder (stb_image) takes."""
_MAX_NAME = 100
_MAX_SEGMENTS = 10_000
"""Of a JPEG before its pixels; a colour profile of 1 MB has 16."""
_MAX_CHUNKS = 100_000
"""Of a PNG. Its encoders write chunks of 8 kB and more."""
_MAX_EXIF_TAGS = 500
SAVE_PICTURE_AS = "Save it as JPEG or PNG."


class Picture(Struct, frozen=True):
    """What is known of a picture without decoding it."""

    name: str  # For people: sanitized, and without its folder.
    sha256: str  # Of its bytes, in hexadecimal digits.
    kind: PictureKind
    width: int  # As it is stored, before `orientation` turns it.
    height: int
    orientation: int = 1
    """How the stored picture is to be turned: 1 to 8, as EXIF numbers them."""
    n_bytes: int = 0

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height after turning: 5 to 8 exchange both."""
        if self.orientation >= 5:
            return self.height, self.width
        return self.width, self.height


class PictureData(Struct, frozen=True):
    """A picture that llama.cpp can decode, and its bytes."""

    picture: Picture
    data: bytes


def read_picture(path: Path) -> Picture:
    """The header of a picture's file. Raises as `load_picture`."""
    return load_picture(path).picture


def load_picture(path: Path) -> PictureData:
    """A picture's file, converted if llama.cpp cannot decode its kind.

    Raises NotFoundError, StorageError, or PictureError if it cannot be used.
    """
    return accept_picture(_read_file(path), path.name)


def accept_picture(data: bytes, name: str) -> PictureData:
    """A picture that was received, converted if llama.cpp cannot decode its kind.

    WebP and TIFF need Pillow, the extra `images`. With it, transparent pictures come
    out on white, and pictures of inks (CMYK) with their colours. Raises PictureError.
    """
    if not has_pillow() or not _gains_by_conversion(data):
        return PictureData(check_picture(data, name), data)
    _check_length(data, _shown_name(name))
    converted = _convert(data, _shown_name(name))
    return PictureData(check_picture(converted, name), converted)


def check_picture(data: bytes, name: str) -> Picture:
    """The header of a JPEG, PNG, GIF or BMP.

    Raises PictureError for anything else, for a file that is cut short, and for one
    that is too large.
    """
    shown = _shown_name(name)
    _check_length(data, shown)
    kind = _find_kind(data)
    if kind is None:
        raise _refuse_kind(data, shown)
    try:
        header = _READERS[kind](data)
    except (IndexError, struct.error):
        raise _incomplete(shown) from None
    except _BadHeaderError as error:
        raise PictureError(f"{shown} {error}.", SAVE_PICTURE_AS) from None
    _check_size(header, shown)
    return Picture(
        name=shown,
        sha256=compute_sha256(data),
        kind=kind,
        width=header.width,
        height=header.height,
        orientation=header.orientation,
        n_bytes=len(data),
    )


def compute_sha256(data: bytes) -> str:
    import hashlib  # noqa: PLC0415  it loads OpenSSL, and most chats have no picture

    return hashlib.sha256(data).hexdigest()


def without_marks(text: str) -> str:
    """A text from outside, in which nothing stands for a picture."""
    return text.replace(PICTURE_MARK, "\ufffd")


def is_picture_name(path: str) -> bool:
    """Whether a file with this name is taken for a picture."""
    return Path(path).suffix.lower() in PICTURE_SUFFIXES


# --- files of pictures, for the engine


class PictureFiles:
    """A private folder of this process, where pictures are files named by their hash.

    The engine gets their paths: pictures do not pass through its pipe. What was not
    used for ten minutes goes when the folder has a gigabyte; the folder goes with the
    process. It may be used from any thread.
    """

    _MAX_BYTES = 2**30
    _UNUSED_SECONDS = 600.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: TemporaryFolder | None = None
        self._used_at: dict[Path, float] = {}
        """The files, the longest unused first."""
        self._n_bytes = 0

    def put(self, data: bytes) -> Path:
        """The file of these bytes, which is written unless it is there.

        Raises StorageError.
        """
        name = compute_sha256(data)
        try:
            with self._lock:
                return self._put(name, data)
        except OSError as error:
            raise StorageError(
                f"The picture cannot be handed to the engine: {error.strerror}.",
                "Free space in the folder for temporary files.",
            ) from error

    def _put(self, name: str, data: bytes) -> Path:
        if self._folder is None:
            self._folder = TemporaryFolder("pictures")
        path = self._folder.path / name
        is_known = self._used_at.pop(path, None) is not None
        if not is_known or not path.exists():
            self._remove_unused()
            data_files.replace_file(path, data)
            self._n_bytes += len(data)
        self._used_at[path] = time.monotonic()
        return path

    def _remove_unused(self) -> None:
        long_ago = time.monotonic() - self._UNUSED_SECONDS
        for path, used_at in list(self._used_at.items()):
            if self._n_bytes <= self._MAX_BYTES or used_at > long_ago:
                return
            del self._used_at[path]
            if path.exists():
                self._n_bytes -= path.stat().st_size
                path.unlink()

    def close(self) -> None:
        """May be called more than once."""
        with self._lock:
            if self._folder is not None:
                self._folder.close()
                self._folder = None
            self._used_at.clear()
            self._n_bytes = 0


PICTURE_FILES = PictureFiles()
"""The folder of this process; it is made with the first picture."""
atexit.register(PICTURE_FILES.close)


# --- kinds


class _BadHeaderError(Exception):
    """What is wrong with a picture; it continues the name of the file."""


class _PictureHeader(Struct, frozen=True):
    width: int
    height: int
    orientation: int = 1
    has_alpha: bool = False
    is_cmyk: bool = False


def _find_kind(data: bytes) -> PictureKind | None:
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(_PNG_SIGNATURE):
        return "png"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith(b"BM") and len(data) > 26:
        return "bmp"
    return None


def _refuse_kind(data: bytes, name: str) -> PictureError:
    """The error that names what a file is, if it is no picture that can be read."""
    if not data:
        return PictureError(f"{name} is empty.", "Send a picture.")
    what = _describe_kind(data)
    if what in ("a WebP picture", "a TIFF picture"):
        command = install_hints.install_command("pillow")
        return PictureError(
            f"{name} is {what}, which cannot be read without Pillow.",
            f"Save it as JPEG or PNG, or install Pillow: {command}",
        )
    if what == _AUDIO:
        return PictureError(
            f"{name} is audio, not a picture.",
            "Attach it as audio: /audio in a chat, --audio in run.",
        )
    if "picture" in what:
        return PictureError(f"{name} is {what}, which cannot be read.", SAVE_PICTURE_AS)
    return PictureError(f"{name} is {what}, not a picture.", "Send a JPEG or PNG.")


_AUDIO = "audio"
_OTHER_KINDS: tuple[tuple[bytes, int, str], ...] = (
    (b"WEBP", 8, "a WebP picture"),
    (b"WAVE", 8, _AUDIO),
    (b"AVI ", 8, "a video"),
    (b"II*\0", 0, "a TIFF picture"),
    (b"MM\0*", 0, "a TIFF picture"),
    (b"%PDF-", 0, "a PDF"),
    (b"\0\0\0\x0cJXL ", 0, "a JPEG XL picture"),
    (b"\xff\x0a", 0, "a JPEG XL picture"),
    (b"\0\0\0\x0cjP  ", 0, "a JPEG 2000 picture"),
    (b"8BPS", 0, "a Photoshop picture"),
    (b"\0\0\1\0", 0, "an icon (ICO picture)"),
    (b"qoif", 0, "a QOI picture"),
    (b"\x1aE\xdf\xa3", 0, "a video"),
    (b"OggS", 0, _AUDIO),
    (b"fLaC", 0, _AUDIO),
    (b"ID3", 0, _AUDIO),
    (b"\xff\xfb", 0, _AUDIO),
    (b"\xff\xf3", 0, _AUDIO),
    (b"\xff\xe0", 0, _AUDIO),
    (b"PK\x03\x04", 0, "an archive"),
    (b"GGUF", 0, "a model file"),
)
"""First bytes at an offset, and what such a file is."""

_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_SVG = re.compile(rb"<svg[\s>]", re.IGNORECASE)


def _describe_kind(data: bytes) -> str:
    for prefix, offset, what in _OTHER_KINDS:
        if data.startswith(prefix, offset):
            return what
    if data[4:8] == b"ftyp":
        # An AVIF may call itself mif1 first, and avif among the other brands.
        brands = data[8:64]
        if b"avif" in brands or b"avis" in brands:
            return "an AVIF picture"
        if data[8:12] in _HEIC_BRANDS:
            return "a HEIC picture"
        return "a video"
    start = data[:4096]
    if _SVG.search(start):
        return "an SVG picture"
    is_text = all(byte >= 32 or byte in b"\t\n\r\f\x1b" for byte in start)
    return "a text" if is_text else "a file of an unknown kind"


def _shown_name(name: str) -> str:
    shown = sanitize(name, multiline=False)
    if len(shown) > _MAX_NAME:
        shown = f"{shown[: _MAX_NAME - 1]}…"
    return shown or "The picture"


def _incomplete(name: str) -> PictureError:
    return PictureError(
        f"{name} is incomplete: it ends too early.", "Copy or download it again."
    )


def _too_many_bytes(n_bytes: int, name: str) -> PictureError:
    return PictureError(
        f"{name} has {n_bytes:,} bytes; a picture may have {size_limit(MAX_BYTES)}.",
        "Make it smaller.",
    )


def _check_length(data: bytes, name: str) -> None:
    if len(data) > MAX_BYTES:
        raise _too_many_bytes(len(data), name)


def _check_size(header: _PictureHeader, name: str) -> None:
    width = header.width
    height = header.height
    if width < 1 or height < 1:
        raise PictureError(
            f"{name} has no pixels: {width} × {height}.", SAVE_PICTURE_AS
        )
    is_too_long = max(width, height) > _MAX_SIDE
    if is_too_long or width * height > MAX_PIXELS:
        raise PictureError(
            f"{name} is too large: {width:,} × {height:,} pixels; a picture may have "
            f"{MAX_PIXELS // 1_000_000} million.",
            "Make it smaller.",
        )


def _read_file(path: Path) -> bytes:
    name = _shown_name(path.name)
    return read_media_file(
        path,
        name,
        n_max=MAX_BYTES,
        too_large=_too_many_bytes,
        is_folder=PictureError(
            f"{name} is a folder, not a picture.", "Send a JPEG or PNG."
        ),
    )


# --- JPEG

_FILL_BYTES = re.compile(rb"\xff*")
_MARKERS_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
_END_OF_IMAGE = 0xD9
_START_OF_SCAN = 0xDA
_APP1 = 0xE1
_READABLE_FRAMES = frozenset((0xC0, 0xC1, 0xC2))  # Baseline and progressive.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame's header; the three others are tables."""


def _read_jpeg(data: bytes) -> _PictureHeader:
    """The frame's header and the orientation, and whether the end is there.

    A file is a row of segments: FF, a marker, two bytes of length, and the rest. In the
    pixels FF is followed by 00, so FF D9 there is the end.
    """
    at = 2
    orientation = 1
    frame: tuple[int, int, int] | None = None
    for _ in range(_MAX_SEGMENTS):
        if data[at] != 0xFF:  # Some programs leave bytes between segments.
            at = data.find(b"\xff", at)
            if at < 0:
                raise IndexError
        fill = _FILL_BYTES.match(data, at)
        assert fill is not None
        at = fill.end()
        marker = data[at]
        at += 1
        if marker in _MARKERS_WITHOUT_LENGTH or marker == 0:
            continue
        if marker == _END_OF_IMAGE:
            raise _BadHeaderError("is damaged: it has no pixels")
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2:
            raise _BadHeaderError("is damaged: a part of it has no length")
        if marker == _APP1 and data.startswith(b"Exif\0\0", at + 2):
            orientation = _exif_orientation(data[at + 8 : at + length])
        elif marker in _FRAMES and frame is None:
            precision, height, width, n_colours = struct.unpack_from(
                ">BHHB", data, at + 2
            )
            if marker not in _READABLE_FRAMES or precision != 8:
                raise _BadHeaderError("is a JPEG of a rare kind, which cannot be read")
            if n_colours not in (1, 3, 4):
                raise _BadHeaderError("is damaged: it has no colours")
            frame = width, height, n_colours
        elif marker == _START_OF_SCAN:
            if data.find(b"\xff\xd9", at + length) < 0:
                raise IndexError
            break
        at += length
    else:
        raise _BadHeaderError("is damaged: it has no pixels")
    if frame is None:
        raise _BadHeaderError("is damaged: it has no size")
    width, height, n_colours = frame
    return _PictureHeader(
        width, height, orientation=orientation, is_cmyk=n_colours == 4
    )


def _exif_orientation(tiff: bytes) -> int:
    """The orientation of EXIF data; 1, as stored, if there is none or it is damaged."""
    orders: dict[bytes, str] = {b"II": "<", b"MM": ">"}
    order = orders.get(tiff[:2])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (n_tags,) = struct.unpack_from(f"{order}H", tiff, directory)
        for i in range(min(n_tags, _MAX_EXIF_TAGS)):
            entry = directory + 2 + 12 * i
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if tag != 0x0112 or kind != 3:
                continue
            (orientation,) = struct.unpack_from(f"{order}H", tiff, entry + 8)
            return int(orientation) if 1 <= orientation <= 8 else 1
    except struct.error:
        pass
    return 1


# --- PNG

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS = (1, 2, 4, 8, 16)
_PNG_COLOUR_TYPES = (0, 2, 3, 4, 6)
_PNG_ALPHA_TYPES = (4, 6)


def _read_png(data: bytes) -> _PictureHeader:
    """The first chunk, IHDR; the chunks behind it are followed to the last, IEND."""
    at = len(_PNG_SIGNATURE)
    orientation = 1
    has_alpha = False
    size: tuple[int, int] | None = None
    for _ in range(_MAX_CHUNKS):
        length, name = struct.unpack_from(">I4s", data, at)
        body = at + 8
        at = body + length + 4  # The checksum is behind the chunk's data.
        if at > len(data):
            raise IndexError
        if name == b"IHDR":
            width, height, depth, colours = struct.unpack_from(">IIBB", data, body)
            if depth not in _PNG_DEPTHS or colours not in _PNG_COLOUR_TYPES:
                raise _BadHeaderError("is damaged: its colours are unknown")
            size = width, height
            has_alpha = colours in _PNG_ALPHA_TYPES
        elif name == b"tRNS":
            has_alpha = True
        elif name == b"eXIf":
            orientation = _exif_orientation(data[body : body + length])
        elif name == b"IEND":
            break
        elif size is None and name != b"CgBI":  # Apple's tools write CgBI first.
            raise _BadHeaderError("is damaged: it has no size")
    else:
        raise _BadHeaderError("is damaged: it has no end")
    if size is None:
        raise _BadHeaderError("is damaged: it has no size")
    return _PictureHeader(*size, orientation=orientation, has_alpha=has_alpha)


# --- GIF

_GIF_EXTENSION = 0x21
_GIF_IMAGE = 0x2C


def _read_gif(data: bytes) -> _PictureHeader:
    """The size of the screen; of the pictures on it llama.cpp reads the first."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _gif_palette_bytes(flags)
    for _ in range(_MAX_CHUNKS):
        block = data[at]
        if block == _GIF_IMAGE:
            left, top, *size, image_flags = struct.unpack_from("<HHHHB", data, at + 1)
            if left + size[0] > width or top + size[1] > height:
                raise _BadHeaderError("is damaged: its picture is outside its frame")
            # The size of codes, and the length of the first block of pixels.
            pixels = at + 10 + _gif_palette_bytes(image_flags)
            if not data[pixels + 1]:
                raise IndexError
            return _PictureHeader(width, height)
        if block != _GIF_EXTENSION:
            break
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    raise _BadHeaderError("is damaged: it has no picture")


def _gif_palette_bytes(flags: int) -> int:
    if not flags & 0x80:
        return 0
    n_colours = 2 << (flags & 7)
    return 3 * n_colours


# --- BMP

_BMP_HEADER_SIZES = (12, 40, 56, 108, 124)
_BMP_DEPTHS = (1, 4, 8, 16, 24, 32)
_BMP_BIT_MASKS = 3


def _read_bmp(data: bytes) -> _PictureHeader:
    """The header, of which there are several lengths; all pixels must be there."""
    pixels, header_size = struct.unpack_from("<II", data, 10)
    compression = 0
    if header_size == 12:
        width, height, _, depth = struct.unpack_from("<HHHH", data, 18)
    elif header_size in _BMP_HEADER_SIZES:
        width, height, _, depth, compression = struct.unpack_from("<iiHHI", data, 18)
    else:
        raise _BadHeaderError("is not a BMP that can be read")
    if depth not in _BMP_DEPTHS or compression not in (0, _BMP_BIT_MASKS):
        raise _BadHeaderError("is a compressed BMP, which cannot be read")
    height = abs(height)  # A negative one: the first row is the highest.
    row_bytes = (max(width, 0) * depth + 31) // 32 * 4
    if pixels + row_bytes * height > len(data):
        raise IndexError
    return _PictureHeader(width, height)


_READERS: Mapping[PictureKind, Callable[[bytes], _PictureHeader]] = {
    "jpeg": _read_jpeg,
    "png": _read_png,
    "gif": _read_gif,
    "bmp": _read_bmp,
}
"""Each raises _BadHeaderError, or IndexError or struct.error at an early end."""


# --- conversion with Pillow

_CONVERSION_SECONDS = 60.0


def has_pillow() -> bool:
    """Whether the optional package is installed that reads WebP and TIFF."""
    return importlib.util.find_spec("PIL") is not None


def _gains_by_conversion(data: bytes) -> bool:
    """Whether llama.cpp cannot read the picture, or not as it looks."""
    kind = _find_kind(data)
    if kind in ("jpeg", "png"):
        try:
            header = _READERS[kind](data)
        except (IndexError, struct.error, _BadHeaderError):
            return False
        return header.has_alpha or header.is_cmyk
    is_tiff = data.startswith((b"II*\0", b"MM\0*"))
    return kind is None and (is_tiff or data.startswith(b"WEBP", 8))


def _convert(data: bytes, name: str) -> bytes:
    """The picture as a PNG, made by Pillow in a process of its own.

    A hostile file can use up that process, and nothing else.
    """
    command = [sys.executable, "-P", "-m", "localspec.models.picture_conversion"]
    try:
        process = child_process.start(command)
    except OSError as error:
        raise PictureError(
            f"{name} cannot be converted: {error.strerror}.", SAVE_PICTURE_AS
        ) from error
    try:
        converted, _ = process.communicate(data, timeout=_CONVERSION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        converted = b""
    finally:
        child_process.terminate(process, grace_seconds=0)
    if process.returncode != 0 or not converted:
        raise PictureError(
            f"{name} cannot be converted: it is damaged.", SAVE_PICTURE_AS
        )
    return converted

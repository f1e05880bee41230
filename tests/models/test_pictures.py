"""Only pictures that llama.cpp can decode, within limits, get past their headers."""

import hashlib
import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import LocalspecError, NotFoundError, PictureError
from localspec.models import pictures
from localspec.models.pictures import (
    MAX_BYTES,
    MAX_PIXELS,
    PICTURE_MARK,
    PictureFiles,
    accept_picture,
    check_picture,
    is_picture_name,
    load_picture,
    read_picture,
    without_marks,
)
from tests.support import picture_bytes
from tests.support.picture_bytes import (
    bmp,
    exif,
    gif,
    jpeg,
    jpeg_header,
    jpeg_segment,
    png,
    png_chunk,
    png_header,
    shades,
)

GOOD = {
    "jpeg": jpeg(shades(3, 2)),
    "png": png(shades(24, 16)),
    "gif": gif(24, 16),
    "bmp": bmp(shades(24, 16)),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_picture_of_each_kind_is_described_without_decoding_it(kind: str) -> None:
    data = GOOD[kind]

    picture = check_picture(data, "a.b")

    assert picture.kind == kind
    assert (picture.width, picture.height) == (24, 16)
    assert picture.orientation == 1
    assert picture.name == "a.b"
    assert picture.n_bytes == len(data)
    assert picture.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("header_size", [12, 40, 56, 108, 124])
def test_each_header_of_a_bmp_is_read(header_size: int) -> None:
    picture = check_picture(bmp(shades(5, 3), header_size=header_size), "x")

    assert (picture.width, picture.height) == (5, 3)


def test_a_bmp_whose_first_row_is_the_highest_is_read() -> None:
    data = bytearray(bmp(shades(5, 3)))
    data[22:26] = struct.pack("<i", -3)

    assert check_picture(bytes(data), "x").height == 3


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_photograph_is_read(orientation: int, order: str) -> None:
    segment = jpeg_segment(0xE1, b"Exif\0\0" + exif(orientation, order))
    photograph = b"\xff\xd8" + segment + jpeg(shades(3, 2))[2:]
    screenshot = png(shades(24, 16), png_chunk(b"eXIf", exif(orientation, order)))

    for data in (photograph, screenshot):
        picture = check_picture(data, "x")

        assert picture.orientation == orientation
        is_turned = orientation >= 5
        assert picture.shown_size == ((16, 24) if is_turned else (24, 16))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"II",
        b"XX" + exif(6)[2:],
        exif(6)[:12],
        exif(0),
        exif(9),
        exif(6).replace(b"\x08\0\0\0", b"\xff\xff\xff\xff", 1),
    ],
    ids=["none", "cut", "order", "cut tag", "0", "9", "outside"],
)
def test_damaged_exif_data_turn_nothing(data: bytes) -> None:
    segment = jpeg_segment(0xE1, b"Exif\0\0" + data)

    picture = check_picture(b"\xff\xd8" + segment + jpeg(shades(3, 2))[2:], "x")

    assert picture.orientation == 1


# --- what is no picture

OTHERS = {
    "a WebP picture": b"RIFF\x24\0\0\0WEBPVP8 " + bytes(60),
    "a TIFF picture": b"II*\0" + bytes(60),
    "a HEIC picture": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50),
    "an AVIF picture": b"\0\0\0\x1cftypmif1\0\0\0\0avifmif1miaf" + bytes(50),
    "an SVG picture": b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "a JPEG XL picture": b"\xff\x0a" + bytes(50),
    "a PDF": b"%PDF-1.7\n" + bytes(50),
    "a video": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(50),
    "audio": b"RIFF\x24\0\0\0WAVEfmt " + bytes(60),
    "an archive": b"PK\x03\x04" + bytes(50),
    "a model file": b"GGUF" + bytes(50),
    "a text": b"hello " * 50,
    "a file of an unknown kind": b"\x00\x01\x02\x03" + bytes(50),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_picture_is_named(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "has_pillow", lambda: False)

    with pytest.raises(PictureError) as failure:
        accept_picture(OTHERS[what], "holiday.x")

    assert what in failure.value.message
    assert failure.value.message.startswith("holiday.x ")
    assert failure.value.hint
    can_be_installed = what in ("a WebP picture", "a TIFF picture")
    assert ("pillow" in failure.value.hint) == can_be_installed


def test_no_bytes_and_one_byte_are_refused() -> None:
    with pytest.raises(PictureError, match="is empty"):
        check_picture(b"", "a.png")
    with pytest.raises(PictureError, match="not a picture"):
        check_picture(b"x", "a.png")


@pytest.mark.parametrize("kind", ["jpeg", "png", "bmp"])
def test_a_picture_that_is_cut_anywhere_is_refused(kind: str) -> None:
    data = GOOD[kind]

    for length in range(len(data)):
        with pytest.raises(PictureError):
            check_picture(data[:length], "x")


def test_a_gif_that_is_cut_before_its_pixels_is_refused() -> None:
    data = GOOD["gif"]
    first_block = data.index(b"\0,\0") + 12

    for length in range(first_block):
        with pytest.raises(PictureError):
            check_picture(data[:length], "x")


def test_bytes_behind_the_end_of_a_jpeg_are_allowed() -> None:
    assert check_picture(GOOD["jpeg"] + b"a film of the same moment", "x").width == 24


@pytest.mark.parametrize(
    "data",
    [
        jpeg_header(9, 9, frame=0xC3) + b"\xff\xda\0\x02\xff\xd9",
        jpeg_header(9, 9, frame=0xC9) + b"\xff\xda\0\x02\xff\xd9",
        jpeg_header(9, 9, precision=12) + b"\xff\xda\0\x02\xff\xd9",
        jpeg_header(9, 9, n_colours=2) + b"\xff\xda\0\x02\xff\xd9",
        b"\xff\xd8\xff\xda\0\x02\xff\xd9",
        b"\xff\xd8\xff\xd9",
        bmp(shades(4, 4)).replace(b"\x18\0\0\0\0\0", b"\x18\0\x01\0\0\0", 1),
        png_header(9, 9, depth=3) + png_chunk(b"IEND", b""),
        png_header(9, 9, colours=1) + png_chunk(b"IEND", b""),
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IEND", b""),
        b"GIF89a" + bytes(7) + b"\x3b" + bytes(20),
    ],
    ids=[
        "lossless",
        "arithmetic",
        "12 bits",
        "two colours",
        "no frame",
        "no pixels",
        "compressed bmp",
        "3 bits",
        "colours 1",
        "no header",
        "empty gif",
    ],
)
def test_what_the_decoder_would_not_read_is_refused(data: bytes) -> None:
    with pytest.raises(PictureError):
        check_picture(data, "x")


@pytest.mark.parametrize("size", [(20_000, 20_000), (40_001, 1000), (1, 1 << 24 | 1)])
def test_a_picture_of_too_many_pixels_is_refused_by_its_header(
    size: tuple[int, int],
) -> None:
    small_file = png_header(*size) + png_chunk(b"IEND", b"")

    with pytest.raises(PictureError, match="too large"):
        check_picture(small_file, "x")


def test_a_picture_at_the_limit_is_accepted() -> None:
    data = png_header(MAX_PIXELS // 1000, 1000) + png_chunk(b"IEND", b"")

    assert check_picture(data, "x").height == 1000


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_a_picture_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(PictureError, match="no pixels"):
        check_picture(png_header(*size) + png_chunk(b"IEND", b""), "x")


def test_a_file_of_too_many_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(GOOD["png"] + bytes(MAX_BYTES))

    with pytest.raises(PictureError, match="20 MB"):
        load_picture(path)
    with pytest.raises(PictureError, match="20 MB"):
        accept_picture(path.read_bytes(), "a.png")


def test_the_name_in_an_error_is_short_and_harmless() -> None:
    with pytest.raises(PictureError) as failure:
        check_picture(b"", "\x1b[31m" + "x" * 5000)

    assert "\x1b" not in failure.value.message
    assert len(failure.value.message) < 200


# --- hostile headers

BEGINNINGS = [
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"BM" + bytes(8),
    b"RIFF\0\0\0\0WEBP",
    b"",
]


@given(st.sampled_from(BEGINNINGS), st.binary(max_size=400))
@settings(max_examples=400, deadline=None)
def test_no_bytes_raise_anything_but_an_error_for_people(
    beginning: bytes, rest: bytes
) -> None:
    check_or_refuse(beginning + rest)


@given(
    st.sampled_from(sorted(GOOD)),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6),
    st.integers(0, 60),
)
@settings(max_examples=400, deadline=None)
def test_no_changed_byte_of_a_picture_raises_anything_else(
    kind: str, changes: list[tuple[int, int]], n_cut: int
) -> None:
    data = bytearray(GOOD[kind])
    for place, value in changes:
        data[place % len(data)] = value

    check_or_refuse(bytes(data[: len(data) - n_cut]))


def check_or_refuse(data: bytes) -> None:
    try:
        picture = check_picture(data, "x")
    except PictureError as error:
        assert error.message.startswith("x ")
        assert error.hint
    else:
        assert 0 < picture.width * picture.height <= MAX_PIXELS
        assert 1 <= picture.orientation <= 8


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff" + b"\x01\xff" * (MAX_BYTES // 2 - 2),
        b"\xff\xd8" + b"\xff" * (MAX_BYTES - 2),
        b"\xff\xd8" + b"\xff\xe0\0\x02" * (MAX_BYTES // 4 - 1),
        b"\xff\xd8\xff" + bytes(MAX_BYTES - 3),
        png_header(9, 9) + png_chunk(b"teXt", b"") * (MAX_BYTES // 12 - 3),
        b"GIF89a\x09\0\x09\0\0\0\0" + b"\x21\xfe\x00" * (MAX_BYTES // 3 - 5),
        b"GIF89a\x09\0\x09\0\0\0\0\x21\xfe" + b"\x01\x01" * (MAX_BYTES // 2 - 8),
    ],
    ids=[
        "markers", "fill bytes", "segments", "zeros", "chunks", "extensions", "blocks",
    ],
)  # fmt: skip
def test_a_file_of_20_mb_without_a_picture_is_refused(data: bytes) -> None:
    with pytest.raises(PictureError):
        check_picture(data, "x")


# --- files


def test_a_file_is_read_and_named_without_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(GOOD["jpeg"])

    loaded = load_picture(path)

    assert loaded.picture == read_picture(path)
    assert loaded.picture.name == "photo.jpg"
    assert loaded.data == GOOD["jpeg"]


def test_what_is_no_file_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file .*none\.png"):
        read_picture(tmp_path / "none.png")
    with pytest.raises(NotFoundError):
        read_picture(Path("a\0b.png"))
    with pytest.raises(PictureError, match="is a folder"):
        read_picture(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")

    with pytest.raises(LocalspecError):
        read_picture(tmp_path / "pipe.png")


def test_pictures_are_told_by_their_suffix() -> None:
    assert is_picture_name("/a/b/Photo.JPG")
    assert is_picture_name("x.heic")
    assert not is_picture_name("notes.txt")
    assert not is_picture_name("png")


def test_no_text_from_outside_holds_a_place_of_a_picture() -> None:
    assert without_marks(f"a{PICTURE_MARK}b") == "a\ufffdb"


def test_equal_pictures_are_one_private_file_until_the_end() -> None:
    files = PictureFiles()

    first = files.put(b"one")
    second = files.put(b"one")
    other = files.put(b"two")

    assert first == second != other
    assert first.read_bytes() == b"one"
    assert first.name == hashlib.sha256(b"one").hexdigest()
    if os.name == "posix":
        assert first.stat().st_mode & 0o077 == 0
        assert first.parent.stat().st_mode & 0o077 == 0
    files.close()
    assert not first.parent.exists()
    assert files.put(b"one").read_bytes() == b"one"
    files.close()


def test_a_file_that_somebody_removed_is_written_again() -> None:
    files = PictureFiles()
    files.put(b"one").unlink()

    assert files.put(b"one").read_bytes() == b"one"
    files.close()


def test_pictures_that_nobody_used_for_long_go_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(PictureFiles, "_MAX_BYTES", 5)
    files = PictureFiles()
    old = files.put(b"old")
    used = files.put(b"used")
    now += 500
    files.put(b"used")
    now += 200

    new = files.put(b"new")

    assert not old.exists()
    assert used.exists()
    assert new.exists()
    files.close()


def test_the_support_writes_a_picture_of_any_size() -> None:
    data = picture_bytes.empty_png(3000, 2000)

    assert len(data) < 20_000
    assert check_picture(data, "x").shown_size == (3000, 2000)

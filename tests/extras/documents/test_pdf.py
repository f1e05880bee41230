"""What is read of PDF files, and of broken and hostile ones."""

from __future__ import annotations

import importlib.util
import io
import random
import zlib
from pathlib import Path

import pytest

from localspec.documents import reading
from localspec.documents.document import Document
from localspec.documents.reading import FileRequest, parse_file_request, read_file
from localspec.errors import LocalspecError, UsageError
from tests.support.document_files import make_pdf, write_pdf

pypdf = pytest.importorskip("pypdf")

SCAN = b"\xff\xd8\xff\xe0 a JPEG \xff\xd9"


def read(path: Path, data: bytes, choice: str = "") -> Document:
    path.write_bytes(data)
    return read_file(parse_file_request(f"{path} {choice}"))


def refuse(path: Path, data: bytes) -> LocalspecError:
    with pytest.raises(LocalspecError) as refused:
        read(path, data)
    error = refused.value
    assert "\n" not in f"{error.message}{error.hint}"
    assert error.message.startswith(path.name)
    return error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "report.pdf"


@pytest.mark.parametrize("compress", [True, False])
def test_the_pages_of_a_pdf_are_its_parts(file: Path, compress: bool) -> None:
    document = read(file, make_pdf(["First page\nof two", "Second"], compress=compress))

    assert document.unit == "page"
    assert document.text == "[Page 1]\nFirst page\nof two\n\n[Page 2]\nSecond"


def test_a_single_page_needs_no_number(file: Path) -> None:
    assert read(file, make_pdf(["Only this"])).text == "Only this"


def test_chosen_pages_alone_are_read(file: Path) -> None:
    pages = [f"text {number}" for number in range(1, 31)]

    document = read(file, make_pdf(pages), "pages 3-4, 30")

    assert document.label == "report.pdf, pages 3-4, 30 of 30"
    assert document.parts == ("text 3", "text 4", "text 30")


def test_pages_that_it_does_not_have_are_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r"^report\.pdf has only 2 pages\.$"):
        read(file, make_pdf(["a", "b"]), "pages 7-9")


def test_a_scan_is_named(file: Path) -> None:
    error = refuse(file, make_pdf([SCAN, SCAN, SCAN]))

    assert error.message == (
        "report.pdf has no text: its 3 pages are pictures, as of a scan."
    )


def test_pages_without_text_among_others_are_named(file: Path) -> None:
    document = read(file, make_pdf(["text", SCAN, "more", SCAN]))

    assert document.note == "pages 2, 4 have no text"
    assert document.text.count("[Page") == 4


def test_a_pdf_without_any_text_or_picture_says_so(file: Path) -> None:
    assert refuse(file, make_pdf(["", ""])).message == "report.pdf has no text."


def encrypt(data: bytes, password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=pypdf.PdfReader(io.BytesIO(data)))
    writer.encrypt(password, "the owner's", algorithm="RC4-128")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def test_a_pdf_with_a_password_is_refused(file: Path) -> None:
    error = refuse(file, encrypt(make_pdf(["secret"]), "a password"))

    assert error.message == "report.pdf is encrypted."


def test_a_pdf_that_everybody_may_read_is_read(file: Path) -> None:
    """It is encrypted, with an empty password, so that nobody prints it."""
    assert read(file, encrypt(make_pdf(["for all"]), "")).text == "for all"


def test_without_the_package_its_command_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(UsageError, match="pypdf") as refused:
        read(file, make_pdf(["text"]))

    assert "pypdf" in refused.value.hint


# --- hostile


def one_page(content: bytes, entries: bytes = b"", resources: bytes = b"") -> bytes:
    """A PDF of one page with this content stream."""
    stream = b"<< /Length %d %s >>\nstream\n%s\nendstream" % (
        len(content),
        entries,
        content,
    )
    return write_pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R "
            b"/Resources << %s >> >>" % resources,
            stream,
        ],
        root=1,
    )


def write_bomb() -> bytes:
    """1.5 MB that are 1.5 GB when they are unpacked."""
    packer = zlib.compressobj(9)
    piece = b" " * (16 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(96)) + packer.flush()
    return one_page(packed, b"/Filter /FlateDecode")


def write_loop() -> bytes:
    """A tree of pages that has itself as a branch."""
    return write_pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>",
        ],
        root=1,
    )


def write_deep() -> bytes:
    return one_page(b"[" * 200_000)


def write_deep_objects() -> bytes:
    return one_page(b"", entries=b"/A " + b"[" * 100_000 + b"]" * 100_000)


def write_many_references() -> bytes:
    """Forms each of which draws the next one twice: 2 ** 40 of them in all."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R "
        b"/Resources << /XObject << /F 5 0 R >> >> >>",
        b"<< /Length 5 >>\nstream\n/F Do\nendstream",
    ]
    for number in range(5, 45):
        objects.append(
            b"<< /Type /XObject /Subtype /Form /Length 11 "
            b"/Resources << /XObject << /F %d 0 R >> >> >>\n"
            b"stream\n/F Do /F Do\nendstream" % (number + 1)
        )
    objects.append(
        b"<< /Type /XObject /Subtype /Form /Length 0 >>\nstream\n\nendstream"
    )
    return write_pdf(objects, root=1)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(write_bomb, id="bomb"),
        pytest.param(write_loop, id="loop"),
        pytest.param(write_deep, id="deep content"),
        pytest.param(write_deep_objects, id="deep objects"),
        pytest.param(write_many_references, id="references"),
        pytest.param(lambda: b"%PDF-1.7\n", id="nothing"),
        pytest.param(lambda: b"%PDF-1.7\n" + b"\0" * 100_000, id="zeros"),
        pytest.param(lambda: make_pdf(["text"])[:300], id="cut"),
    ],
)
def test_a_hostile_pdf_ends_in_one_line(
    data: object, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 4)
    assert callable(data)
    error = refuse(file, data())

    assert error.message


def test_a_pdf_of_ten_thousand_pages_ends_in_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 4)
    text = "A page has some lines of text.\n" * 30

    error = refuse(file, make_pdf([text] * 10_000))

    assert "takes more than 4 s to read" in error.message


def test_some_pages_of_ten_thousand_are_read_at_once(file: Path) -> None:
    data = make_pdf([f"page {number}" for number in range(1, 10_001)])

    document = read(file, data, "pages 9999-10000")

    assert document.parts == ("page 9999", "page 10000")


def test_any_damage_to_a_pdf_ends_in_a_text_or_a_line(file: Path) -> None:
    whole = make_pdf(["First page of two", "Second"], compress=False)
    dice = random.Random(1)
    for _ in range(8):
        damaged = bytearray(whole)
        for _ in range(30):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        file.write_bytes(bytes(damaged))
        try:
            read_file(FileRequest(path=str(file)))
        except LocalspecError as error:
            assert error.message.startswith("report.pdf")

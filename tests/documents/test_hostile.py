"""Encrypted, broken and hostile documents: one line each, in bounded time."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest

from localspec.documents import reading
from localspec.documents.reader_limits import MAX_CHARACTERS
from localspec.documents.reading import FileRequest, read_file
from localspec.errors import LocalspecError, UsageError
from tests.support.document_files import (
    make_docx,
    make_epub,
    make_odt,
    make_zip,
    word_paragraph,
    wrap_word,
)

LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>'
)
SECRETS = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
BODY = f"<w:body>{word_paragraph('text')}</w:body>"


def make_bomb(name: str, n_megabytes: int) -> bytes:
    """A zip file of some hundred kilobytes in which a member is so large."""
    head = wrap_word("document", "<w:body>").removesuffix("</w:document>")
    text = word_paragraph("A" * 1_000_000)
    return make_zip({name: head + text * n_megabytes})


def read(path: Path, data: bytes) -> str:
    """The text of a file, or the line that says why there is none."""
    path.write_bytes(data)
    try:
        return read_file(FileRequest(path=str(path))).text
    except LocalspecError as error:
        assert "\n" not in f"{error.message}{error.hint}"
        assert error.message.startswith(path.name)
        return error.message


HOSTILE: list[tuple[str, bytes, str]] = [
    (
        "entities.docx",
        make_zip({"word/document.xml": LAUGHS + wrap_word("document", BODY)[55:]}),
        "declares XML entities",
    ),
    (
        "outside.docx",
        make_zip({"word/document.xml": SECRETS + wrap_word("document", BODY)[55:]}),
        "declares XML entities",
    ),
    ("bomb.docx", make_bomb("word/document.xml", 300), "million characters"),
    (
        "spaces.docx",
        make_zip({"word/document.xml": " " * (300 << 20)}),
        "holds more than 256 MB",
    ),
    (
        "deep.docx",
        make_docx("<w:tbl><w:tr><w:tc>" * 5_000),
        "nested too deeply",
    ),
    ("cut.docx", make_docx(word_paragraph("text"))[:-40], "cannot be unpacked"),
    (
        "broken.docx",
        make_zip({"word/document.xml": "<w:document"}),
        "XML cannot be read",
    ),
    ("empty.docx", make_docx(""), "has no text"),
    ("empty.odt", make_odt(""), "has no text"),
    (
        "locked.odt",
        make_odt(
            "x",
            **{
                "META-INF/manifest.xml": '<manifest><file-entry full-path="content.xml">'
                "<encryption-data/></file-entry></manifest>"
            },
        ),
        "is encrypted",
    ),
    (
        "locked.docx",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
        "is encrypted",
    ),
    ("page.rtf", b"{\\rtf1 text}", "the format RTF"),
    ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 Word", "old Office"),
    ("drm.epub", make_epub(["<p>a"], encrypted=[0]), "is encrypted (DRM)"),
    ("none.epub", make_zip({"META-INF/container.xml": "<a/>"}), "damaged"),
    ("none.zip", b"PK\x05\x06" + b"\0" * 18, "a zip file and no document"),
    ("no.zip", b"PK\x03\x04 and no more", "cannot be unpacked"),
    ("empty.html", b"<p></p>", "has no text"),
]


@pytest.mark.parametrize(
    ("name", "data", "line"),
    HOSTILE,
    ids=[name for name, _, _ in HOSTILE],
)
def test_a_document_that_cannot_be_read_ends_in_one_line(
    name: str, data: bytes, line: str, tmp_path: Path
) -> None:
    assert line in read(tmp_path / name, data)


def test_many_files_in_an_archive_are_too_many(tmp_path: Path) -> None:
    members = {f"{number}": "" for number in range(20_001)}

    line = read(tmp_path / "many.docx", make_zip(members, zipfile.ZIP_STORED))

    assert "too many files" in line


def test_elements_within_each_other_without_end_are_read_flat(tmp_path: Path) -> None:
    page = "<div>" * 100_000 + "the text" + "<table><tr><td>" * 1000

    assert read(tmp_path / "deep.html", page.encode()) == "the text"


def test_a_text_that_is_too_long_is_never_cut_silently(tmp_path: Path) -> None:
    page = b"<p>" + b"long " * (MAX_CHARACTERS // 4)

    assert "8 million characters" in read(tmp_path / "long.html", page)


def test_a_reader_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 4)
    monkeypatch.setattr(reading, "_CHILD", "tests.support.endless_reader")
    path = tmp_path / "slow.html"
    path.write_bytes(b"<p>text")

    with pytest.raises(UsageError) as refused:
        read_file(FileRequest(path=str(path)))

    assert refused.value.message == (
        "slow.html takes more than 4 s to read: 40 of 10000 pages in that time."
    )
    assert refused.value.hint == "Choose pages, for example: pages 1-20"


def test_a_child_that_is_killed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CHILD", "no.such.module")

    line = read(tmp_path / "a.html", b"<p>text")

    assert line == "a.html cannot be read: it is damaged, or its reader ended."


def test_no_process_is_left(tmp_path: Path) -> None:
    import psutil  # noqa: PLC0415

    before = set(psutil.Process().children(recursive=True))
    read(tmp_path / "a.html", b"<p>text")

    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize("kind", ["docx", "odt", "epub"])
def test_any_damage_to_a_file_ends_in_a_text_or_a_line(
    kind: str, tmp_path: Path
) -> None:
    whole = {
        "docx": make_docx(word_paragraph("a text") * 20),
        "odt": make_odt("<text:p>a text</text:p>" * 20),
        "epub": make_epub(["<p>a text</p>"] * 5),
    }[kind]
    dice = random.Random(kind)
    for _ in range(4):
        damaged = bytearray(whole)
        for _ in range(12):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        end = dice.randrange(len(whole) // 2, len(whole) + 1)
        read(tmp_path / f"it.{kind}", bytes(damaged[:end]))


def test_a_text_with_a_wrong_suffix_is_read_as_text(tmp_path: Path) -> None:
    assert read(tmp_path / "notes.docx", b"plain") == "plain"


def test_a_picture_is_refused_with_the_command_for_pictures(tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"\xff\xd8\0")

    with pytest.raises(UsageError, match="is not a text file") as refused:
        read_file(FileRequest(path=str(file)))

    assert "/image" in refused.value.hint


def test_a_binary_file_is_refused_with_what_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"\0\1\2")

    with pytest.raises(UsageError, match="is not a text file") as refused:
        read_file(FileRequest(path=str(file)))

    assert "PDF" in refused.value.hint

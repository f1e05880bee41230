"""Which reader a file gets."""

from __future__ import annotations

import pytest

from localspec.documents.reading import FileKind, find_kind


@pytest.mark.parametrize(
    ("data", "name", "media_type", "kind"),
    [
        (b"%PDF-1.4 ...", "a", "", "pdf"),
        (b"junk %PDF-1.4 ...", "a.pdf", "", "pdf"),
        (b"junk %PDF-1.4 ...", "a", "application/pdf", "pdf"),
        (b'MAGIC = b"%PDF-"', "magic.py", "", "text"),
        (b"PK\x03\x04...", "a.txt", "", "zip"),
        (b"<p>", "a.HTM", "", "html"),
        (b"<p>", "", "text/html", "html"),
        (b"<!doctype html>", "a.php", "", "text"),
        (b"a,b\n1,2", "a.csv", "", "text"),
        (b"", "a.pdf", "", "text"),
    ],
)
def test_the_first_bytes_tell_most_kinds(
    data: bytes, name: str, media_type: str, kind: FileKind
) -> None:
    assert find_kind(data, name, media_type) == kind

"""Text that is not UTF-8 is read with a note, never silently damaged."""

import pytest

from localspec.text_decoding import decode_text

TEXT = "Crème brûlée für £5 – naïve?"


@pytest.mark.parametrize(
    ("encoding", "note"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", "read as UTF-16"),
        ("utf-32", "read as UTF-32"),
        ("cp1252", "read as Windows-1252"),
    ],
)
def test_every_character_of_an_encoding_is_kept(encoding: str, note: str) -> None:
    assert decode_text(TEXT.encode(encoding)) == (TEXT, note)
    assert decode_text(TEXT[:5].encode(encoding)) == (TEXT[:5], note)


def test_invalid_bytes_in_utf8_are_replaced_and_counted() -> None:
    data = TEXT.encode()
    assert decode_text(data + b"\xff\xfe") == (
        f"{TEXT}\ufffd\ufffd",
        "2 invalid bytes replaced by \ufffd",
    )
    assert decode_text(data[:-3] + b"\xc3")[1] == "1 invalid byte replaced by \ufffd"


@pytest.mark.parametrize("byte", range(0x80, 0x100))
def test_no_byte_is_lost(byte: int) -> None:
    """A byte alone, among ASCII and among other text has a note or a character."""
    for around in (b"", b"f r", TEXT.encode(), TEXT.encode("cp1252")):
        text, note = decode_text(around + bytes([byte]) + around)
        assert note
        assert len(text) >= len(decode_text(around)[0]) * 2 + 1


@pytest.mark.parametrize(
    "data", [b"a\0b", b"\x89PNG\r\n\x1a\n\xff", b"GIF89a\x01\x00\xff"]
)
def test_binary_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_text(data)

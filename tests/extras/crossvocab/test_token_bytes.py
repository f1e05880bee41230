"""What tokens stand for, in damaged vocabularies too."""

import pytest

from localspec.extras.crossvocab.token_bytes import read_token_bytes
from localspec.models.gguf.tokenizer import SPM, TokenizerMetadata, TokenTexts

_BYTE_TYPE = 6


def vocabulary(*texts: bytes) -> TokenizerMetadata:
    tokens = TokenTexts(texts, (_BYTE_TYPE,) * len(texts))
    return TokenizerMetadata(
        SPM,
        "llama",
        "",
        len(texts),
        fingerprint=repr(texts),
        read_texts=lambda: tokens,
    )


def test_every_byte_token_stands_for_its_byte() -> None:
    upper = [b"<0x%02X>" % byte for byte in range(256)]
    lower = [b"<0x%02x>" % byte for byte in range(256)]

    for texts in (upper, lower):
        pieces = read_token_bytes(vocabulary(*texts)).pieces
        assert pieces == [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize(
    "text",
    [
        b"<0xZZ>",
        b"<0x-1>",
        b"<0x+1>",
        b"<0x 1>",
        b"<0x1 >",
        b"<0x\xff\xff>",
        b"<0x1_>",
        b"<0x41",
        b"<0x141>",
        b"",
        b"word",
    ],
)
def test_a_byte_token_without_a_hexadecimal_number_stands_for_its_text(
    text: bytes,
) -> None:
    assert read_token_bytes(vocabulary(b"<0x41>", text)).pieces == [b"A", text]

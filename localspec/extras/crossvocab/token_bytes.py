"""What the tokens of a vocabulary stand for, as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from localspec.models.gguf.tokenizer import BPE, TokenizerMetadata

_NORMAL_KIND = 1  # The kinds are numbers of tokenizer.ggml.token_type.
_KINDS_WITHOUT_TEXT = (2, 3, 5)
"""Unknown, control and unused tokens."""
_BYTE_KIND = 6
_BYTES_BY_TEXT = {b"<0X%02X>" % byte: bytes((byte,)) for byte in range(256)}
"""The bytes of byte tokens, by their text in upper case: `<0x0a>` and `<0x0A>` are one.

Another text, such as `<0xZZ>` in a damaged file, is no byte and stays as it is.
"""
_UNPRINTABLE_BYTES = (*range(33), *range(127, 161), 173)
_GPT2_BYTES = {256 + n: chr(byte) for n, byte in enumerate(_UNPRINTABLE_BYTES)}
"""GPT-2's vocabularies have the characters from 256 on for unprintable bytes, in order.

Here each such character has its byte, as a character below 256: "Ġ" (288) is the 33rd
unprintable byte, the space. Printable bytes are themselves (GPT-2's bytes_to_unicode).
"""
_SEPARATOR = "\uffff"
"""A character that no token has: it joins all texts, so that one call decodes them."""
_MAX_KEPT = 4


class TokenBytes(Struct, frozen=True, eq=False):
    """What each token stands for; nothing for control, unknown and unused tokens."""

    pieces: Sequence[bytes]
    ids: Mapping[bytes, int]
    """The token of each piece. If a byte token and a normal token stand for the same
    byte, it is the normal one.
    """


_read_before: dict[tuple[object, ...], TokenBytes] = {}
"""The results for the last few vocabularies, by all that they depend on."""


def read_token_bytes(tokenizer: TokenizerMetadata) -> TokenBytes:
    """The bytes that llama.cpp's llama_token_to_piece gives, without special tokens."""
    key = (tokenizer.fingerprint, tokenizer.kind, tokenizer.model, tokenizer.eog_ids)
    if key not in _read_before:
        if len(_read_before) >= _MAX_KEPT:
            oldest = next(iter(_read_before))
            del _read_before[oldest]
        _read_before[key] = _decode_tokens(tokenizer)
    return _read_before[key]


def _decode_tokens(tokenizer: TokenizerMetadata) -> TokenBytes:
    vocabulary = tokenizer.read_texts()
    texts = vocabulary.texts
    silent = tokenizer.eog_ids | {i for i in tokenizer.special_ids.values() if i >= 0}
    if tokenizer.kind == BPE and tokenizer.model != "gemma4":
        normal = _decode_gpt2(texts)
    else:
        normal = [text.replace("▁".encode(), b" ") for text in texts]
    pieces: list[bytes] = []
    ids: dict[bytes, int] = {}
    kinds = vocabulary.types or (_NORMAL_KIND,) * len(texts)
    for token, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
        piece = normal[token] if kind == _NORMAL_KIND else text
        if kind == _BYTE_KIND:
            piece = _BYTES_BY_TEXT.get(text.upper(), text)
        if token in silent or kind in _KINDS_WITHOUT_TEXT:
            piece = b""
        pieces.append(piece)
        is_twin = kind == _BYTE_KIND and piece in ids
        if piece and not is_twin:
            ids[piece] = token
    return TokenBytes(pieces, ids)


def _decode_gpt2(texts: Sequence[bytes]) -> list[bytes]:
    """Decode GPT-2's alphabet, in which every byte is a printable character.

    A text with other characters stays as it is.
    """
    joined = _SEPARATOR.join(text.decode("utf-8", "replace") for text in texts)
    decoded = joined.translate(_GPT2_BYTES).split(_SEPARATOR)
    pieces: list[bytes] = []
    for text, raw in zip(decoded, texts, strict=True):
        is_of_bytes = max(text, default="") <= "\xff"
        pieces.append(text.encode("latin-1") if is_of_bytes else raw)
    return pieces

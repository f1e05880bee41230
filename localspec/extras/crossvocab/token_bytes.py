"""What the tokens of a vocabulary stand for, as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from localspec.models.gguf.tokenizer import BPE, TokenizerMetadata

_KINDS_WITHOUT_TEXT = (2, 3, 5)
"""Unknown, control and unused, in tokenizer.ggml.token_type."""
_BYTE_KIND = 6
_GPT2_BYTES = {
    256 + n: chr(byte) for n, byte in enumerate((*range(33), *range(127, 161), 173))
}
"""The byte of each character, as a character below 256 (bytes_to_unicode of GPT-2)."""
_SEPARATOR = "\uffff"


class TokenBytes(Struct, frozen=True, eq=False):
    """What each token stands for; nothing for control, unknown and unused tokens."""

    pieces: Sequence[bytes]
    # The token of each piece. Where a byte token has a twin, the twin.
    ids: Mapping[bytes, int]


# The last few, by what they depend on.
_read_before: dict[tuple[object, ...], TokenBytes] = {}


def read_token_bytes(tokenizer: TokenizerMetadata) -> TokenBytes:
    """As llama.cpp's llama_token_to_piece without special tokens; kept by fingerprint."""
    key = (tokenizer.fingerprint, tokenizer.kind, tokenizer.model, tokenizer.eog_ids)
    if key not in _read_before:
        if len(_read_before) >= 4:
            del _read_before[next(iter(_read_before))]
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
    types = vocabulary.types or (1,) * len(texts)
    for token, (kind, text, decoded) in enumerate(
        zip(types, texts, normal, strict=True)
    ):
        piece = decoded if kind == 1 else text
        if kind == _BYTE_KIND and text.startswith(b"<0x") and len(text) == 6:
            piece = bytes.fromhex(text[3:5].decode("ascii", "replace"))
        if token in silent or kind in _KINDS_WITHOUT_TEXT:
            piece = b""
        pieces.append(piece)
        if piece and not (kind == _BYTE_KIND and piece in ids):
            ids[piece] = token
    return TokenBytes(pieces, ids)


def _decode_gpt2(texts: Sequence[bytes]) -> list[bytes]:
    """GPT-2's alphabet, in which every byte is a printable character."""
    joined = _SEPARATOR.join(text.decode("utf-8", "replace") for text in texts)
    decoded = joined.translate(_GPT2_BYTES).split(_SEPARATOR)
    return [
        text.encode("latin-1") if max(text, default="") <= "\xff" else raw
        for text, raw in zip(decoded, texts, strict=True)
    ]

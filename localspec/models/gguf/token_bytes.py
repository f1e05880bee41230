"""The bytes that tokens stand for, from a header: how vocabularies of different models compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from localspec.lazy_dataclass import dataclass
from localspec.models.gguf.tokenizer import BPE, SPM, TokenizerMetadata

SUPPORTED_KINDS = (SPM, BPE)  # Vocabularies whose tokens stand for bytes in every context.
_UNKNOWN, _CONTROL, _UNUSED, _BYTE = 2, 3, 5, 6  # Values of tokenizer.ggml.token_type.
_BYTE_TEXTS = frozenset(b"<0x%02X>" % byte for byte in range(256))
_SPACE = "▁".encode()
_UNPRINTABLE = (*range(33), *range(127, 161), 173)
_GPT2_BYTES = {256 + n: chr(byte) for n, byte in enumerate(_UNPRINTABLE)}
"""The byte of each character, as a character below 256 (bytes_to_unicode of GPT-2)."""
_SEPARATOR = "\uffff"
_SAMPLE = """\
The bicycle is one of the most efficient machines that people have built. Most of the energy \
goes into motion, and at 20 km/h a rider needs about 75 watts; walking the same distance takes \
three times as much. "How can that be?" asked my brother, who didn't believe it.

Here is a function that reverses a string:

```python
def reverse(text: str) -> str:
    result = []
    for character in text:
        result.insert(0, character)
    return "".join(result)


if __name__ == "__main__":
    assert reverse("abc") == "cba", "it isn't reversed"
```

1. **First**, read the text from the end to the beginning.
2. Then join the characters again: `"".join(...)` does this in one step.
3. Finally, compare both versions (they should be equal).

| name | type | default |
|------|------|---------|
| `width` | integer | 80 |

La Seine traverse Paris d'est en ouest ; c'est le fleuve le plus célèbre de France. \
Über die Straße führt eine alte Brücke, die 1607 fertig wurde.
"""
"""Prose, code, lists and two other languages, as a model writes them."""


@dataclass(frozen=True, eq=False, slots=True)
class TokenBytes:
    """What each token stands for; nothing for control, unknown and unused tokens."""

    pieces: Sequence[bytes]
    ids: Mapping[bytes, int]  # The token of each piece. Where a byte token has a twin, the twin.
    can_spell_any_text: bool = True
    """False if llama.cpp's tokenizer aborts on a text that needs a missing byte token."""

    def longest_matches(self, text: bytes) -> Iterator[int]:
        """Tokens of a text by longest match, which is close to what the tokenizer would choose."""
        longest = max(map(len, self.ids), default=1)
        at = 0
        while at < len(text):
            ends = range(min(len(text), at + longest), at, -1)
            end = next((end for end in ends if text[at:end] in self.ids), None)
            if end is not None:
                yield self.ids[text[at:end]]
            at = end or at + 1


_read_before: dict[tuple[object, ...], TokenBytes] = {}  # The last few, by what they depend on.


def read_token_bytes(tokenizer: TokenizerMetadata) -> TokenBytes:
    """As llama.cpp's llama_token_to_piece without special tokens; kept by fingerprint."""
    key = (tokenizer.fingerprint, tokenizer.kind, tokenizer.model, tokenizer.eog_ids)
    if key not in _read_before:
        if len(_read_before) >= 4:
            del _read_before[next(iter(_read_before))]
        _read_before[key] = _read(tokenizer)
    return _read_before[key]


def _read(tokenizer: TokenizerMetadata) -> TokenBytes:
    vocabulary = tokenizer.read_texts()
    texts = [vocabulary.texts[token] for token in range(len(vocabulary.texts))]
    silent = tokenizer.eog_ids | {i for i in tokenizer.special_ids.values() if i >= 0}
    is_gpt2 = tokenizer.kind == BPE and tokenizer.model != "gemma4"
    normal = _decode_gpt2(texts) if is_gpt2 else [text.replace(_SPACE, b" ") for text in texts]
    pieces: list[bytes] = []
    ids: dict[bytes, int] = {}
    types = vocabulary.types or (1,) * len(texts)
    for token, (kind, text, piece) in enumerate(zip(types, texts, normal, strict=True)):
        if kind != 1:
            is_byte = kind == _BYTE and text.startswith(b"<0x") and len(text) == 6
            piece = bytes.fromhex(text[3:5].decode("ascii", "replace")) if is_byte else text  # noqa: PLW2901
        if token in silent or kind in (_UNKNOWN, _CONTROL, _UNUSED):
            piece = b""  # noqa: PLW2901
        pieces.append(piece)
        if piece and not (kind == _BYTE and piece in ids):
            ids[piece] = token
    has_all_bytes = tokenizer.kind == BPE or _BYTE_TEXTS.issubset(texts)
    return TokenBytes(pieces, ids, has_all_bytes)


def _decode_gpt2(texts: Sequence[bytes]) -> list[bytes]:
    """GPT-2's alphabet, in which every byte is a printable character."""
    joined = _SEPARATOR.join(text.decode("utf-8", "replace") for text in texts)
    decoded = joined.translate(_GPT2_BYTES).split(_SEPARATOR)
    return [
        text.encode("latin-1") if max(text, default="") <= "\xff" else raw
        for text, raw in zip(decoded, texts, strict=True)
    ]


def can_draft_across(target: TokenizerMetadata, draft: TokenizerMetadata) -> bool:
    """Whether each can tokenize whatever text the other writes."""
    return all(
        tokenizer.kind in SUPPORTED_KINDS and read_token_bytes(tokenizer).can_spell_any_text
        for tokenizer in (target, draft)
    )


def estimate_coverage(target: TokenizerMetadata, draft: TokenizerMetadata) -> float:
    """The share of the target's tokens that are one token of the draft, too, in a sample text."""
    return _estimate_coverage(read_token_bytes(target), read_token_bytes(draft))


@lru_cache(maxsize=8)
def _estimate_coverage(target: TokenBytes, draft: TokenBytes) -> float:
    tokens = list(target.longest_matches(_SAMPLE.encode()))
    shared = sum(target.pieces[token] in draft.ids for token in tokens)
    return shared / len(tokens) if tokens else 0.0

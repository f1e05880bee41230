"""Whether a model can draft for one whose vocabulary differs."""

from __future__ import annotations

from localspec.extras.crossvocab.token_bytes import read_token_bytes
from localspec.models.gguf import tokenizer
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenizerMetadata
from localspec.models.pair_compatibility import CompatibilityResult

_BYTE_TEXTS = frozenset(b"<0x%02X>" % byte for byte in range(256))


def check(
    target: Header, draft: Header, mismatch: CompatibilityResult
) -> CompatibilityResult | None:
    """The verdict on two models; None if they cannot exchange text at all.

    `mismatch` says in what the vocabularies differ.
    """
    for header in (target, draft):
        if not _can_spell_every_text(header.tokenizer):
            return None
    if draft.has_trimmed_vocabulary:
        detail = "its vocabulary is trimmed, and another than the target's"
        return CompatibilityResult("incompatible", mismatch.rule, detail)
    if draft.is_recurrent or draft.is_hybrid:
        detail = "a model with a recurrent state cannot draft for another vocabulary"
        return CompatibilityResult("incompatible", "recurrent-state", detail)
    share = 100 * share_of_tokens(target.tokenizer, draft.tokenizer)
    detail = f"drafts by text, shares {share:.0f} % of the target's tokens"
    return CompatibilityResult("cross-vocabulary", mismatch.rule, detail)


def _can_spell_every_text(vocabulary: TokenizerMetadata) -> bool:
    """Whether the vocabulary can tokenize every text that the other model writes.

    llama.cpp's SPM tokenizer aborts on a text that needs a missing byte token.
    """
    if vocabulary.kind == tokenizer.BPE:
        return True
    if vocabulary.kind != tokenizer.SPM:
        return False
    return _BYTE_TEXTS.issubset(vocabulary.read_texts().texts)


def share_of_tokens(target: TokenizerMetadata, draft: TokenizerMetadata) -> float:
    """The share of the target's tokens that are tokens of the draft, too."""
    ids = read_token_bytes(target).ids
    others = read_token_bytes(draft).ids
    return len(ids.keys() & others.keys()) / max(1, len(ids))

"""Compatibility of a target and a draft model, by llama.cpp's rule for vocabularies.

The rule is common_speculative_are_compatible in llama.cpp's common/speculative.cpp: same
vocabulary type, same BOS and EOS if they are added, sizes at most 128 apart, and the same text
for every id from 5 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from localspec.errors import IncompatiblePairError
from localspec.models.gguf import architectures
from localspec.models.gguf.header import Header
from localspec.sanitize import sanitize

MAX_SIZE_DIFFERENCE = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE: allows for padding."""
FIRST_COMPARED_TOKEN = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first ids are special tokens whose names differ."""
MIN_SIZE_RATIO = 3
"""A draft larger than a third of its target gains little."""

_VOCABULARY_TYPES = {
    0: "none",
    1: "SPM",
    2: "BPE",
    3: "WPM",
    4: "UGM",
    5: "RWKV",
    6: "PLaMo-2",
    -1: "unknown",
}


class ComparableVocabulary(Protocol):
    """The properties that the rule compares, in llama.cpp's numbering."""

    @property
    def kind(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...

    def token_text(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class CompatibilityResult:
    """The verdict, the rule that decided it, and the first token that differs."""

    verdict: Literal["compatible", "compatible-padding", "incompatible"]
    rule: str
    detail: str
    token: int | None = None

    @property
    def is_compatible(self) -> bool:
        return self.verdict != "incompatible"


def check_vocabularies(
    target: ComparableVocabulary, draft: ComparableVocabulary
) -> CompatibilityResult:
    """Apply llama.cpp's rule in its own order."""
    mismatch = (
        _check_type(target, draft)
        or _check_special_token("bos", target, draft)
        or _check_special_token("eos", target, draft)
    )
    if mismatch is not None:
        return mismatch
    a, b = target.n_tokens, draft.n_tokens
    if abs(a - b) > MAX_SIZE_DIFFERENCE:
        detail = f"its vocabulary has {b:,} tokens, the target's has {a:,}; at most 128 may differ"
        return _incompatible("vocabulary-size", detail)
    token = _first_different_token(target, draft)
    if token is not None:
        target_text, draft_text = (_quote(v.token_text(token)) for v in (target, draft))
        detail = f"token {token} is {draft_text} in the draft and {target_text} in the target"
        return _incompatible("token-text", detail, token)
    if a != b:
        detail = f"equal up to padding: {a:,} and {b:,} tokens"
        return CompatibilityResult("compatible-padding", "vocabulary-size", detail, min(a, b))
    return CompatibilityResult("compatible", "same-vocabulary", f"the same {a:,} tokens")


def _check_type(
    target: ComparableVocabulary, draft: ComparableVocabulary
) -> CompatibilityResult | None:
    if target.kind != draft.kind:
        target_type, draft_type = (
            _VOCABULARY_TYPES.get(v.kind, str(v.kind)) for v in (target, draft)
        )
        return _incompatible(
            "vocabulary-type",
            f"its vocabulary is of type {draft_type}, the target's is {target_type}",
        )
    if not target.kind:  # llama.cpp aborts when a token's text is requested
        return _incompatible("vocabulary-type", "neither file has a vocabulary")
    return None


def _check_special_token(
    name: Literal["bos", "eos"], target: ComparableVocabulary, draft: ComparableVocabulary
) -> CompatibilityResult | None:
    adds = [bool(getattr(v, f"add_{name}")) for v in (target, draft)]
    if adds[0] != adds[1]:
        role = ["the target", "the draft"][adds.index(True)]
        return _incompatible(f"add-{name}", f"only {role} adds a {name.upper()} token")
    ids = [int(getattr(v, name)) for v in (target, draft)]
    if adds[0] and ids[0] != ids[1]:
        detail = f"its {name.upper()} token is {ids[1]}, the target's is {ids[0]}"
        return _incompatible(name, detail, ids[1])
    return None


def _first_different_token(target: ComparableVocabulary, draft: ComparableVocabulary) -> int | None:
    fingerprints = [getattr(vocabulary, "fingerprint", "") for vocabulary in (target, draft)]
    if fingerprints[0] and fingerprints[0] == fingerprints[1]:
        return None
    for token in range(FIRST_COMPARED_TOKEN, min(target.n_tokens, draft.n_tokens)):
        if target.token_text(token) != draft.token_text(token):
            return token
    return None


def _incompatible(rule: str, detail: str, token: int | None = None) -> CompatibilityResult:
    return CompatibilityResult("incompatible", rule, detail, token)


def _quote(text: bytes) -> str:
    return repr(sanitize(text.decode("utf-8", "replace"), multiline=False))


def incompatible_pair_error(
    result: CompatibilityResult, target: str, draft: str
) -> IncompatiblePairError:
    """`target` and `draft` are file names."""
    message = f"{draft} cannot draft for {target}: {result.detail}."
    return IncompatiblePairError(
        sanitize(message, multiline=False),
        "Use a draft of the same model family, or --draft none (prompt lookup still works).",
    )


def list_warnings(target: Header, draft: Header) -> tuple[str, ...]:
    """Properties that may make a compatible pair slow or inaccurate, most serious first."""
    warnings = [
        *(
            f"{role} cannot be run: {header.unsupported_reason}."
            for role, header in _with_roles(target, draft)
            if header.unsupported_reason
        ),
        *_memory_warnings(target, draft),
        *_cost_warnings(target, draft),
        *_text_warnings(target, draft),
    ]
    return tuple(sanitize(warning, multiline=False) for warning in warnings)


def _with_roles(target: Header, draft: Header) -> tuple[tuple[str, Header], ...]:
    return (("The target", target), ("The draft", draft))


def _memory_warnings(target: Header, draft: Header) -> Iterator[str]:
    for role, header in _with_roles(target, draft):
        rollback = header.architecture in architectures.ROLLBACK
        if header.is_recurrent or (header.is_hybrid and not rollback):
            effect = "speculation is off" if header is target else "it is not used"
            yield f"{role} has a recurrent state and cannot remove rejected tokens: {effect}."
        elif header.is_hybrid:
            yield f"{role} has a recurrent state: checkpoints for rollback need extra memory."
    if draft.architecture in architectures.DRAFT_HEADS:
        yield "The draft reads its target's hidden states: it works with one target only."


def _cost_warnings(target: Header, draft: Header) -> Iterator[str]:
    if target.weight_bytes and draft.weight_bytes * MIN_SIZE_RATIO > target.weight_bytes:
        share = 100 * draft.weight_bytes / target.weight_bytes
        yield f"The draft has {share:.0f} % of the target's bytes: it is too large to gain much."
    if target.is_moe:
        yield (
            "The target is a mixture of experts: verifying several tokens reads more experts, "
            "so speculation gains less."
        )


def _text_warnings(target: Header, draft: Header) -> Iterator[str]:
    a, b = target.tokenizer, draft.tokenizer
    if a.kind == b.kind and a.pre != b.pre:
        yield f"Their pre-tokenizers differ ({a.pre or 'default'}, {b.pre or 'default'})."
    if a.eog_ids != b.eog_ids:
        yield "Their end-of-generation tokens differ: the draft may continue past the end."
    templates = (target.chat_template, draft.chat_template)
    if all(templates) and templates[0] != templates[1]:
        yield "Their chat templates differ: the draft may expect another chat format."
    for key in ("general.quantized_by", "general.organization"):
        names = (target.keys.get(key), draft.keys.get(key))
        if all(names) and names[0] != names[1]:
            shown = " and ".join(str(name)[:40] for name in names)
            yield f"Their publishers differ ({shown}): details of the files may differ."
            break

"""Whether a draft can speculate for a target: llama.cpp's rule, and which part of it fails.

The rule is common_speculative_are_compatible in llama.cpp's common/speculative.cpp: same
vocabulary type, same BOS and EOS where they are added, sizes at most 128 apart, and the same text
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
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE: room for padding."""
FIRST_COMPARED_TOKEN = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first ids are special tokens whose names differ."""
MIN_SIZE_RATIO = 3
"""A draft with more than a third of its target's bytes hardly pays."""

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
    """What the rule looks at; llama.cpp's numbers and texts."""

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
    """Whether a pair may run, by which rule, and the first token that differs."""

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
    refusal = (
        _check_type(target, draft)
        or _check_special_token("bos", target, draft)
        or _check_special_token("eos", target, draft)
    )
    if refusal is not None:
        return refusal
    a, b = target.n_tokens, draft.n_tokens
    if abs(a - b) > MAX_SIZE_DIFFERENCE:
        detail = f"its vocabulary has {b:,} tokens, the target's has {a:,}; at most 128 may differ"
        return _incompatible("vocabulary-size", detail)
    token = _first_different_token(target, draft)
    if token is not None:
        mine, theirs = (_quote(v.token_text(token)) for v in (target, draft))
        detail = f"token {token} is {theirs} in the draft and {mine} in the target"
        return _incompatible("token-text", detail, token)
    if a != b:
        detail = f"equal up to padding: {a:,} and {b:,} tokens"
        return CompatibilityResult("compatible-padding", "vocabulary-size", detail, min(a, b))
    return CompatibilityResult("compatible", "same-vocabulary", f"the very same {a:,} tokens")


def incompatible_pair_error(
    result: CompatibilityResult, target: str, draft: str
) -> IncompatiblePairError:
    """An incompatible pair, to be raised; by the names of the files."""
    what = f"{draft} cannot draft for {target}: {result.detail}."
    return IncompatiblePairError(
        sanitize(what, multiline=False),
        "Use a draft of the same model family, or --draft none (lookup still works).",
    )


def _first_different_token(target: ComparableVocabulary, draft: ComparableVocabulary) -> int | None:
    prints = [getattr(vocabulary, "fingerprint", "") for vocabulary in (target, draft)]
    if prints[0] and prints[0] == prints[1]:
        return None
    for token in range(FIRST_COMPARED_TOKEN, min(target.n_tokens, draft.n_tokens)):
        if target.token_text(token) != draft.token_text(token):
            return token
    return None


def list_warnings(target: Header, draft: Header) -> tuple[str, ...]:
    """What does not forbid a pair but may make it slow or odd, most serious first."""
    found = [
        *(
            f"{who} cannot be run: {h.unsupported_reason}."
            for who, h in _with_roles(target, draft)
            if h.unsupported_reason
        ),
        *_memory_warnings(target, draft),
        *_cost_warnings(target, draft),
        *_text_warnings(target, draft),
    ]
    return tuple(sanitize(warning, multiline=False) for warning in found)


def _with_roles(target: Header, draft: Header) -> tuple[tuple[str, Header], ...]:
    return (("The target", target), ("The draft", draft))


def _memory_warnings(target: Header, draft: Header) -> Iterator[str]:
    for who, header in _with_roles(target, draft):
        rollback = header.architecture in architectures.ROLLBACK
        if header.is_recurrent or (header.is_hybrid and not rollback):
            end = "it runs plain" if header is target else "it is not used"
            yield f"{who} cannot take back a wrong guess (recurrent memory): {end}."
        elif header.is_hybrid:
            yield f"{who} has a hybrid memory: snapshots to go back to take room."
    if draft.architecture in architectures.DRAFT_HEADS:
        yield "The draft reads its target's hidden states: it fits one target only."


def _cost_warnings(target: Header, draft: Header) -> Iterator[str]:
    if target.weight_bytes and draft.weight_bytes * MIN_SIZE_RATIO > target.weight_bytes:
        share = 100 * draft.weight_bytes / target.weight_bytes
        yield f"The draft has {share:.0f} % of the target's bytes: it is too large to gain much."
    if target.is_moe:
        yield (
            "The target is a mixture of experts: several tokens at once need more of them, "
            "so guessing gains less."
        )


def _text_warnings(target: Header, draft: Header) -> Iterator[str]:
    a, b = target.tokenizer, draft.tokenizer
    if a.kind == b.kind and a.pre != b.pre:
        yield f"They split texts in different ways ({a.pre or 'default'}, {b.pre or 'default'})."
    if a.eog_ids != b.eog_ids:
        yield "They end an answer with different tokens: the draft may guess past the end."
    templates = (target.chat_template, draft.chat_template)
    if all(templates) and templates[0] != templates[1]:
        yield "Their chat templates differ: the draft may know another form of chat."
    for key in ("general.quantized_by", "general.organization"):
        names = (target.keys.get(key), draft.keys.get(key))
        if all(names) and names[0] != names[1]:
            shown = " and ".join(str(name)[:40] for name in names)
            yield f"They come from different publishers ({shown}): details may differ."
            break


def _check_type(
    target: ComparableVocabulary, draft: ComparableVocabulary
) -> CompatibilityResult | None:
    if target.kind != draft.kind:
        mine, theirs = (_VOCABULARY_TYPES.get(v.kind, str(v.kind)) for v in (target, draft))
        return _incompatible(
            "vocabulary-type", f"its vocabulary is of type {theirs}, the target's is {mine}"
        )
    if not target.kind:  # llama.cpp aborts when it is asked for a text of it
        return _incompatible("vocabulary-type", "neither file has a vocabulary")
    return None


def _check_special_token(
    name: Literal["bos", "eos"], target: ComparableVocabulary, draft: ComparableVocabulary
) -> CompatibilityResult | None:
    adds = [bool(getattr(v, f"add_{name}")) for v in (target, draft)]
    if adds[0] != adds[1]:
        who = ["the target", "the draft"][adds.index(True)]
        return _incompatible(f"add-{name}", f"only {who} adds a {name.upper()} token")
    ids = [int(getattr(v, name)) for v in (target, draft)]
    if adds[0] and ids[0] != ids[1]:
        detail = f"its {name.upper()} token is {ids[1]}, the target's is {ids[0]}"
        return _incompatible(name, detail, ids[1])
    return None


def _incompatible(rule: str, detail: str, token: int | None = None) -> CompatibilityResult:
    return CompatibilityResult("incompatible", rule, detail, token)


def _quote(text: bytes) -> str:
    return repr(sanitize(text.decode("utf-8", "replace"), multiline=False))

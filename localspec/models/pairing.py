"""Whether a draft can speculate for a target: llama.cpp's rule, and which part of it fails.

The rule is common_speculative_are_compatible in llama.cpp's common/speculative.cpp: same
vocabulary type, same BOS and EOS where they are added, sizes at most 128 apart, and the same text
for every id from 5 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from localspec.clean import clean

MOST_SIZE_DIFFERENCE = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE: room for padding."""
FIRST_COMPARED = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first ids are special tokens whose names differ."""

_KINDS = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


class Vocabulary(Protocol):
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
class Verdict:
    """Whether a pair may run, by which rule, and the first token that differs."""

    verdict: Literal["compatible", "compatible-padding", "incompatible"]
    rule: str
    detail: str
    token: int | None = None

    @property
    def compatible(self) -> bool:
        return self.verdict != "incompatible"


def check(target: Vocabulary, draft: Vocabulary) -> Verdict:
    """Apply llama.cpp's rule in its own order."""
    if target.kind != draft.kind:
        mine, theirs = (_KINDS.get(v.kind, str(v.kind)) for v in (target, draft))
        return _no("vocabulary-type", f"its vocabulary is of type {theirs}, the target's is {mine}")
    refusal = _special("bos", target, draft) or _special("eos", target, draft)
    if refusal is not None:
        return refusal
    a, b = target.n_tokens, draft.n_tokens
    if abs(a - b) > MOST_SIZE_DIFFERENCE:
        detail = f"its vocabulary has {b:,} tokens, the target's has {a:,}; at most 128 may differ"
        return _no("vocabulary-size", detail)
    for token in range(FIRST_COMPARED, min(a, b)):
        if target.token_text(token) != draft.token_text(token):
            mine, theirs = (_shown(v.token_text(token)) for v in (target, draft))
            detail = f"token {token} is {theirs} in the draft and {mine} in the target"
            return _no("token-text", detail, token)
    if a != b:
        detail = f"equal up to padding: {a:,} and {b:,} tokens"
        return Verdict("compatible-padding", "vocabulary-size", detail, min(a, b))
    return Verdict("compatible", "same-vocabulary", f"the very same {a:,} tokens")


def _special(name: Literal["bos", "eos"], target: Vocabulary, draft: Vocabulary) -> Verdict | None:
    adds = [bool(getattr(v, f"add_{name}")) for v in (target, draft)]
    if adds[0] != adds[1]:
        who = ["the target", "the draft"][adds.index(True)]
        return _no(f"add-{name}", f"only {who} adds a {name.upper()} token")
    ids = [int(getattr(v, name)) for v in (target, draft)]
    if adds[0] and ids[0] != ids[1]:
        detail = f"its {name.upper()} token is {ids[1]}, the target's is {ids[0]}"
        return _no(name, detail, ids[1])
    return None


def _no(rule: str, detail: str, token: int | None = None) -> Verdict:
    return Verdict("incompatible", rule, detail, token)


def _shown(text: bytes) -> str:
    return repr(clean(text.decode("utf-8", "replace"), multiline=False))

"""Scores a draft: how many of its tokens a recorded answer would have accepted.

There is a score for each place of the answer. A draft token counts only while all before it are accepted, and until then the text is
the recorded one. So one pass of the draft model over the answer decides for every place
and every draft length, exactly for greedy answers and for those of `coupled`, whose
noise is the same. A head reads what the target computes of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from localspec.protocol.wire import DRAFT_MAX, DraftScore
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prefix_cache import PrefixCache, common_prefix_length
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import Drafter, HiddenStateListener, Logits
from localspec.spec.sampling import compute_distribution

if TYPE_CHECKING:
    from localspec.llama.context import LlamaContext

READ_WIDTH = 32
"""So many tokens of an answer are read at once. From 64 on, the CPU's attention rounds
differently than in the narrow passes of a run.
"""


class ScoredAnswer(Struct, frozen=True):
    """A recorded answer of the target, and the inputs it was generated with."""

    prepared: PreparedAnswer
    tokens: tuple[int, ...]
    n_vocab: int  # The target's.

    @property
    def prompt(self) -> list[int]:
        return self.prepared.prompt

    def draw(self, row: Logits, recent: Sequence[int], index: int) -> int:
        """The draft token at position `index` of the answer."""
        row = row[: self.n_vocab]
        distribution = compute_distribution(row, self.prepared.sampling, recent)
        return self.prepared.verifier.sample_draft_token(distribution, index)


def score_lookup(answer: ScoredAnswer) -> DraftScore:
    drafter = LookupDrafter()
    text = answer.prompt
    drafted: list[int] = []
    accepted: list[int] = []
    for i, token in enumerate(answer.tokens):
        draft = drafter.propose(text, DRAFT_MAX).tokens
        expected = answer.tokens[i : i + DRAFT_MAX]
        drafted.append(len(draft))
        accepted.append(common_prefix_length(draft, expected))
        text.append(token)
    return DraftScore(tuple(drafted), tuple(accepted))


def score_model(draft: PrefixCache, answer: ScoredAnswer) -> DraftScore:
    """The model of `draft` gives READ_WIDTH rows of logits at once."""
    prompt = answer.prompt
    start = len(prompt)
    text = [*prompt, *answer.tokens]
    n_recent = answer.prepared.sampling.history_length
    is_drafted: list[bool] = []
    for n, row in _read(draft, text, start):
        recent = text[max(0, n - n_recent) : n]
        is_drafted.append(answer.draw(row, recent, n - start) == text[n])
    # How many tokens in a row are drafted, from each place on.
    runs = [0] * (len(answer.tokens) + 1)
    for i in range(len(is_drafted) - 1, -1, -1):
        runs[i] = min(DRAFT_MAX, runs[i + 1] + 1) if is_drafted[i] else 0
    return _to_score(runs[:-1])


def score_drafter(drafter: Drafter, answer: ScoredAnswer) -> DraftScore:
    """Any drafter that reads text alone: at each place it drafts until a token differs."""
    tokens = answer.prompt
    accepted: list[int] = []
    for i, token in enumerate(answer.tokens):
        expected = answer.tokens[i : i + DRAFT_MAX]
        accepted.append(_count_equal(drafter, tokens, expected))
        tokens.append(token)
    return _to_score(accepted)


def _to_score(accepted: Sequence[int]) -> DraftScore:
    return DraftScore((DRAFT_MAX,) * len(accepted), tuple(accepted))


def _count_equal(
    drafter: Drafter, tokens: Sequence[int], expected: Sequence[int]
) -> int:
    """How many tokens of a draft after `tokens` are the expected ones."""
    draft = drafter.propose(tokens, len(expected), stop_policy=_WhileEqual(expected))
    return common_prefix_length(draft.tokens, expected)


def score_head(
    target: LlamaContext,
    listener: HiddenStateListener,
    drafter: Drafter,
    answer: ScoredAnswer,
) -> DraftScore:
    """The target reads the answer in wide passes, and the head a token at a time.

    The head is the target's listener; it drafts until a token differs. This is
    approximate for block heads, whose drafts depend on their length. Empties the memory.
    """
    target.truncate(0)
    prompt = answer.prompt
    n_prompt = len(prompt)
    text = [*prompt, *answer.tokens]
    for at in range(0, n_prompt - 1, target.n_batch):
        target.decode(text[at : min(at + target.n_batch, n_prompt - 1)], 0)
    tokens = text[:n_prompt]
    accepted = [0]
    step = min(READ_WIDTH, target.n_batch)
    for at in range(n_prompt - 1, len(text) - 2, step):
        part = text[at : min(at + step, len(text) - 2)]
        for i, state in enumerate(target.read_hidden_states(part)):
            listener.on_decode(part[i : i + 1], state[np.newaxis])
            tokens.append(text[at + i + 1])
            expected = text[len(tokens) : len(tokens) + DRAFT_MAX]
            accepted.append(_count_equal(drafter, tokens, expected))
    target.truncate(0)
    return _to_score(accepted)


class _WhileEqual:
    """Ends a draft at the first token that differs; a `DraftStopPolicy`."""

    def __init__(self, expected: Sequence[int]) -> None:
        self._expected = iter(expected)

    def should_draft_token(self, confidence: float) -> bool:
        return True

    def should_continue(self, token: int) -> bool:
        return token == next(self._expected, None)


def _read(
    draft: PrefixCache, text: Sequence[int], start: int
) -> Iterator[tuple[int, Logits]]:
    """Read a text; yields each place from `start` on, with the logits of its token.

    What the last text began with too is not read again. Ends early where the model's
    context is full.
    """
    text = text[: draft.model.n_ctx]
    n_batch = draft.model.n_batch
    draft.rewind_to(text[:start])
    for at in range(draft.n_cached, start - 1, n_batch):
        draft.decode(text[at : min(at + n_batch, start - 1)], 0)
    step = min(READ_WIDTH, n_batch)
    for at in range(start - 1, len(text) - 1, step):
        batch = text[at : min(at + step, len(text) - 1)]
        yield from enumerate(draft.decode(batch, len(batch)), at + 1)

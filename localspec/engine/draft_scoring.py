"""Scores a draft: how many of its tokens a recorded answer would have accepted.

There is a score for each place of the answer. A draft token counts only while all before
it are accepted, and until then the text is the recorded one. So one pass of the draft
model over the answer decides for every place and every draft length. That is exact for
greedy answers and for those of `coupled`, whose noise is the same.

For example, the answer is "a b c d". After each of its tokens the draft model's choice is
the next one, but after "b" it is "x". From the first place on two tokens are accepted
("a b"), from the second one ("b"), from the third none, from the fourth one ("d").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from localspec.protocol.wire import DRAFT_MAX, MODEL_DRAFT_MAX, DraftScore
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.picture_ids import without_pictures
from localspec.spec.prefix_cache import PrefixCache, common_prefix_length
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import Drafter, HiddenStateListener, Logits
from localspec.spec.sampling import compute_distribution

if TYPE_CHECKING:
    from localspec.llama.context import LlamaContext

READ_WIDTH = 32
"""So many tokens of an answer are read at once.

From 64 on, the CPU's attention rounds differently than in the narrow passes of a run.
"""


class ScoredAnswer(Struct, frozen=True):
    """A recorded answer of the target, and the inputs it was generated with."""

    prepared: PreparedAnswer
    tokens: tuple[int, ...]
    n_vocab: int  # The target's.

    @property
    def prompt(self) -> list[int]:
        return self.prepared.prompt

    @property
    def prompt_text(self) -> list[int]:
        """What a draft model or head reads of the prompt."""
        return without_pictures(self.prepared.prompt)

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
    """Score a draft model, which gives READ_WIDTH rows of logits at once.

    Where its context is full, it drafts nothing more.
    """
    prompt = answer.prompt_text
    start = len(prompt)
    text = [*prompt, *answer.tokens]
    n_recent = answer.prepared.sampling.history_length
    is_drafted = [False] * len(answer.tokens)
    for n, row in _read(draft, text, start):
        recent = text[max(0, n - n_recent) : n]
        index = n - start
        is_drafted[index] = answer.draw(row, recent, index) == text[n]

    accepted: list[int] = []  # From the last place to the first.
    n_in_a_row = 0
    for is_right in reversed(is_drafted):
        n_in_a_row = n_in_a_row + 1 if is_right else 0
        accepted.append(min(n_in_a_row, MODEL_DRAFT_MAX))
    accepted.reverse()
    return _to_score(accepted)


def score_drafter(drafter: Drafter, answer: ScoredAnswer) -> DraftScore:
    """Score any drafter that reads text alone.

    At each place it drafts until a token differs.
    """
    tokens = answer.prompt_text
    accepted: list[int] = []
    for i, token in enumerate(answer.tokens):
        expected = answer.tokens[i : i + MODEL_DRAFT_MAX]
        accepted.append(_count_equal(drafter, tokens, expected))
        tokens.append(token)
    return _to_score(accepted)


def _to_score(accepted: Sequence[int]) -> DraftScore:
    return DraftScore((MODEL_DRAFT_MAX,) * len(accepted), tuple(accepted))


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
    """Score a head, which is the target's listener. Empties the memory.

    The target reads the answer in wide passes; the head reads the target's hidden states
    a token at a time, and drafts until a token differs. This is approximate for block
    heads, whose drafts depend on their length.

    A head drafts from a token's hidden state and the token after it. For example, the
    prompt is "p q" and the answer "a b c". From the state of "q" and the token "a" it
    drafts "b …"; from the state of "a" and the token "b" it drafts "c". So nothing
    drafts "a", and the states of "b" and "c" are of no use: the last two tokens of the
    text are not read.
    """
    target.truncate(0)
    prompt = answer.prompt
    text = [*prompt, *answer.tokens]
    first = len(prompt) - 1  # The place of the first token whose state is of use.
    end = len(text) - 2  # The end of these places.
    for _ in PrefixCache(target).prefill_until(text[: first + 1], 1, lambda: False):
        pass
    tokens = answer.prompt_text  # What the head drafts after.
    accepted = [0]
    step = min(READ_WIDTH, target.n_batch)
    for at in range(first, end, step):
        part = text[at : min(at + step, end)]
        for i, state in enumerate(target.read_hidden_states(part)):
            listener.on_decode(part[i : i + 1], state[np.newaxis])
            tokens.append(text[at + i + 1])
            next_place = at + i + 2
            expected = text[next_place : next_place + MODEL_DRAFT_MAX]
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

    The logits of a place come from the token before it: for the places 3, 4 and 5 the
    tokens 2, 3 and 4 are decoded. A beginning that the text read last had, too, is not
    read again. Ends early where the model's context is full.
    """
    text = text[: draft.model.n_ctx]
    n_batch = draft.model.n_batch
    first = start - 1
    end = len(text) - 1
    draft.rewind_to(text[:start])
    for at in range(draft.n_cached, first, n_batch):
        draft.decode(text[at : min(at + n_batch, first)], 0)
    step = min(READ_WIDTH, n_batch)
    for at in range(first, end, step):
        batch = text[at : min(at + step, end)]
        yield from enumerate(draft.decode(batch, len(batch)), at + 1)

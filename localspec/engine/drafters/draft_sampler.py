"""A draft grown guess by guess, each from a row of logits that the last one led to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.engine.drafters import DrafterInputs
from localspec.engine.protocols import Distribution, Draft, DraftStopPolicy, Logits
from localspec.engine.sampling import InvalidLogitsError, compute_distribution, top_token_confidence

NextLogits = Callable[[int | None], tuple[Logits, float | None]]
"""Logits after a guess; after the text and what stands ahead, for None.

With them how sure the drafter is of its likeliest token; None: as the logits tell.
"""


class DraftSampler:
    """Draws guesses as the verifier wants them, until they end or no more are wanted.

    `n_vocab` tokens are the drafter's; only those that the target knows are drafted.
    """

    def __init__(self, inputs: DrafterInputs, source: str, n_vocab: int) -> None:
        self._inputs, self._source = inputs, source
        self._n_vocab = min(n_vocab, inputs.n_vocab)

    def sample_draft(
        self,
        tokens: Sequence[int],
        draft_prefix: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None,
        next_logits: NextLogits,
    ) -> Draft:
        """At most `limit` guesses to follow `tokens` and `ahead`; their time is not known here."""
        needs = self._inputs
        guessed: list[int] = []
        laws: list[Distribution] = []
        rows: list[Logits] = []
        place = len(tokens) - needs.prompt_length + len(draft_prefix)
        for i in range(limit):
            logits, sure = next_logits(guessed[-1] if guessed else None)
            if len(logits) > self._n_vocab:
                logits = logits[: self._n_vocab]
            try:
                said = compute_distribution(
                    logits, needs.sampling, self._recent_tokens(tokens, [*draft_prefix, *guessed])
                )
            except InvalidLogitsError:  # a broken draft costs speed, never the answer
                break
            if stop_policy is not None and not stop_policy.should_draft_token(
                _confidence(logits, said, sure)
            ):
                break
            if needs.keep_logits:
                rows.append(logits.copy())
            token = needs.verifier.sample_draft_token(said, place + i)
            laws.append(said)
            guessed.append(token)
            if needs.is_eog(token) or (
                stop_policy is not None and not stop_policy.should_continue(token)
            ):
                break
        return Draft(guessed, laws, self._source, logits=rows if needs.keep_logits else None)

    def _recent_tokens(self, tokens: Sequence[int], guessed: list[int]) -> Sequence[int]:
        sampling = self._inputs.sampling
        if sampling.repeat_penalty == 1.0:
            return ()
        return [*tokens[-sampling.repeat_last_n :], *guessed]


def _confidence(logits: Logits, distribution: Distribution, head_confidence: float | None) -> float:
    return (
        top_token_confidence(logits, distribution)
        if head_confidence is None
        else min(max(head_confidence, 0.0), 1.0)
    )

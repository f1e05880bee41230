"""Samples a draft token by token from a drafter's logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.engine.drafters import DrafterInputs
from localspec.engine.protocols import Distribution, Draft, DraftStopPolicy, Logits
from localspec.engine.sampling import InvalidLogitsError, compute_distribution, top_token_confidence

NextLogits = Callable[[int | None], tuple[Logits, float | None]]
"""Given a draft token, returns the logits after it; given None, those of the first draft token.

Also returns the head's confidence in its likeliest token; None to derive it from the logits.
"""


class DraftSampler:
    """Samples draft tokens with the verifier's rule until a stop.

    `n_vocab` is the drafter's vocabulary size; only tokens of the target's vocabulary are drafted.
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
        """At most `limit` tokens after `tokens` and `draft_prefix`; `decode_seconds` stays 0."""
        inputs = self._inputs
        drafted: list[int] = []
        distributions: list[Distribution] = []
        rows: list[Logits] = []
        index = len(tokens) - inputs.prompt_length + len(draft_prefix)
        for i in range(limit):
            logits, head_confidence = next_logits(drafted[-1] if drafted else None)
            if len(logits) > self._n_vocab:
                logits = logits[: self._n_vocab]
            recent = self._recent_tokens(tokens, [*draft_prefix, *drafted])
            try:
                distribution = compute_distribution(logits, inputs.sampling, recent)
            except InvalidLogitsError:  # a broken draft model costs speed, never the answer
                break
            if stop_policy is not None and not stop_policy.should_draft_token(
                _confidence(logits, distribution, head_confidence)
            ):
                break
            if inputs.keep_logits:
                rows.append(logits.copy())
            token = inputs.verifier.sample_draft_token(distribution, index + i)
            distributions.append(distribution)
            drafted.append(token)
            if inputs.is_eog(token) or (
                stop_policy is not None and not stop_policy.should_continue(token)
            ):
                break
        logits_rows = rows if inputs.keep_logits else None
        return Draft(drafted, distributions, self._source, logits=logits_rows)

    def _recent_tokens(self, tokens: Sequence[int], drafted: list[int]) -> Sequence[int]:
        sampling = self._inputs.sampling
        if sampling.repeat_penalty == 1.0:
            return ()
        return [*tokens[-sampling.repeat_last_n :], *drafted]


def _confidence(logits: Logits, distribution: Distribution, head_confidence: float | None) -> float:
    return (
        top_token_confidence(logits, distribution)
        if head_confidence is None
        else min(max(head_confidence, 0.0), 1.0)
    )

"""Makes a draft: token by token from a drafter's logits, or from the drafts of two sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.engine.drafters import DrafterInputs
from localspec.engine.protocols import (
    Distribution,
    Draft,
    DraftStopPolicy,
    GrammarState,
    LanguageModel,
    Logits,
)
from localspec.engine.sampling import (
    InvalidLogitsError,
    NoAllowedTokenError,
    compute_distribution,
    one_hot,
    top_token_confidence,
)

NextLogits = Callable[[int | None], tuple[Logits, float | None]]
"""Given a draft token, returns the logits after it; given None, those of the first draft token.

Also returns the head's confidence in its likeliest token; None to derive it from the logits.
"""


class DraftSampler:
    """Samples draft tokens with the verifier's rule until a stop.

    `model` is the draft model or head; only tokens of the target's vocabulary are drafted.
    """

    def __init__(self, inputs: DrafterInputs, source: str, model: LanguageModel) -> None:
        self._inputs, self._source, self._model = inputs, source, model

    def sample_draft(
        self,
        tokens: Sequence[int],
        draft_prefix: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None,
        next_logits: NextLogits,
        since: float,
    ) -> Draft:
        """At most `limit` tokens after `tokens` and `draft_prefix`.

        `since` is the model's `decode_seconds` before the draft.
        """
        inputs = self._inputs
        drafted: list[int] = []
        distributions: list[Distribution] = []
        rows: list[Logits] = []
        index = len(tokens) - inputs.prompt_length + len(draft_prefix)
        for i in range(limit):
            logits, head_confidence = next_logits(drafted[-1] if drafted else None)
            logits = logits[: inputs.n_vocab]
            before = [*draft_prefix, *drafted]
            try:
                distribution, grammar = self.distribution_after(logits, tokens, before)
            except (InvalidLogitsError, NoAllowedTokenError):
                break  # a broken draft model costs speed, never the answer
            if not _is_worth_drafting(stop_policy, logits, distribution, head_confidence, grammar):
                break
            if inputs.keep_logits:
                rows.append(logits.copy())
            token = inputs.verifier.sample_draft_token(distribution, index + i)
            distributions.append(distribution)
            drafted.append(token)
            if inputs.is_eog(token):
                break
            if stop_policy is not None and not stop_policy.should_continue(token):
                break
        seconds = self._model.decode_seconds - since
        kept_rows = rows if inputs.keep_logits else None
        return Draft(drafted, distributions, self._source, seconds, logits=kept_rows)

    def distribution_after(
        self, logits: Logits, tokens: Sequence[int], drafted: list[int]
    ) -> tuple[Distribution, GrammarState | None]:
        """The distribution of the token after `tokens` and `drafted`, and the grammar there.

        Raises InvalidLogitsError or NoAllowedTokenError.
        """
        sampling, constraint = self._inputs.sampling, self._inputs.constraint
        recent: Sequence[int] = ()
        if sampling.has_penalties:
            recent = [*tokens[-sampling.repeat_last_n :], *drafted]
        grammar = constraint.state_after(tokens, drafted) if constraint is not None else None
        return compute_distribution(logits, sampling, recent, grammar), grammar


def _is_worth_drafting(
    stop_policy: DraftStopPolicy | None,
    logits: Logits,
    distribution: Distribution,
    head_confidence: float | None,
    grammar: GrammarState | None,
) -> bool:
    if stop_policy is None:
        return True
    if head_confidence is None:
        return stop_policy.should_draft_token(top_token_confidence(logits, distribution, grammar))
    return stop_policy.should_draft_token(min(max(head_confidence, 0.0), 1.0))


def join_drafts(first: Draft, second: Draft) -> Draft:
    """Append one draft to the other; with distributions or logits for all if either has them."""
    seconds = first.decode_seconds + second.decode_seconds
    if not second.tokens:
        return replace(first, decode_seconds=seconds)
    distributions: list[Distribution] | None = None
    if first.distributions is not None or second.distributions is not None:
        distributions = [*_draft_distributions(first), *_draft_distributions(second)]
    rows: list[Logits | None] | None = None
    if first.logits is not None or second.logits is not None:
        rows = [*_draft_logits(first), *_draft_logits(second)]
    return Draft(
        [*first.tokens, *second.tokens],
        distributions,
        f"{first.source}+{second.source}",
        seconds,
        max(first.match_length, second.match_length),
        f"{first.reason}; {second.reason}",
        rows,
        first.overlap or second.overlap,
    )


def _draft_logits(draft: Draft) -> Sequence[Logits | None]:
    return draft.logits if draft.logits is not None else [None] * len(draft.tokens)


def _draft_distributions(draft: Draft) -> list[Distribution]:
    return (
        draft.distributions
        if draft.distributions is not None
        else [one_hot(token) for token in draft.tokens]
    )

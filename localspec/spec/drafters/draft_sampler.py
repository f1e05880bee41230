"""Makes a draft token by token from a drafter's logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.spec.drafters import DrafterInputs
from localspec.spec.picture_ids import last_tokens
from localspec.spec.protocols import (
    Distribution,
    Draft,
    DraftStopPolicy,
    GrammarState,
    LanguageModel,
    Logits,
)
from localspec.spec.sampling import (
    InvalidLogitsError,
    NoAllowedTokenError,
    compute_distribution,
    top_token_confidence,
)

NextLogits = Callable[[int | None], tuple[Logits, float | None]]
"""The next row of a draft, given the draft token before it; None for the first row.

Returns the logits, and the head's confidence in its likeliest token: None to derive it
from the logits.
"""


class DraftSampler:
    """Samples draft tokens with the verifier's rule until a stop.

    `model` is the draft model or head; only tokens of the target's vocabulary are
    drafted.
    """

    def __init__(
        self, inputs: DrafterInputs, source: str, model: LanguageModel
    ) -> None:
        self._inputs = inputs
        self._source = source
        self._model = model

    def sample_draft(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None,
        next_logits: NextLogits,
        since: float,
    ) -> Draft:
        """Draft at most `limit` tokens after `tokens`.

        `since` is the model's `decode_seconds` before the draft.
        """
        inputs = self._inputs
        drafted: list[int] = []
        distributions: list[Distribution] = []
        rows: list[Logits] = []
        index = len(tokens) - inputs.prompt_length
        token: int | None = None
        for i in range(limit):
            logits, head_confidence = next_logits(token)
            logits = logits[: inputs.n_vocab]
            try:
                distribution, grammar = self.distribution_after(logits, tokens, drafted)
            except (InvalidLogitsError, NoAllowedTokenError):
                break  # A broken draft model costs speed, never the answer.
            if stop_policy is not None:
                confidence = head_confidence
                if confidence is None:
                    confidence = top_token_confidence(logits, distribution, grammar)
                if not stop_policy.should_draft_token(min(max(confidence, 0.0), 1.0)):
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
        """The distribution of the token after `tokens` and `drafted`.

        Also returns the grammar's state there. Raises InvalidLogitsError or
        NoAllowedTokenError.
        """
        sampling = self._inputs.sampling
        recent: Sequence[int] = ()
        n = sampling.history_length
        if n:
            recent = [*last_tokens(tokens, n), *drafted]
        grammar: GrammarState | None = None
        constraint = self._inputs.constraint
        if constraint is not None:
            grammar = constraint.state_after(tokens, drafted)
        return compute_distribution(logits, sampling, recent, grammar), grammar

"""Draft model drafter: a smaller model with the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Draft, DraftStopPolicy, Logits


class ModelDrafter:
    """Drafts with a draft model, which is not run over the verified batch.

    Rejected tokens are dropped from its cache by common prefix; tokens it lacks are
    decoded in the first batch of the next draft (algorithms.md 1.6). A recurrent state
    returns to where the draft began, and accepted draft tokens are decoded again.
    """

    def __init__(self, draft_cache: PrefixCache, inputs: DrafterInputs) -> None:
        self._draft_cache = draft_cache
        self._cancelled = inputs.cancelled
        self._is_first = True
        self._sampler = DraftSampler(inputs, "model", draft_cache.model)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        draft_cache, model = self._draft_cache, self._draft_cache.model
        limit = min(limit, model.n_ctx - len(tokens))
        if limit <= 0:
            return Draft(reason="the draft model's context is full")
        before = model.decode_seconds
        draft_cache.rewind_to(tokens)
        # of the target only
        if max(tokens[draft_cache.n_cached :], default=0) >= model.n_vocab:
            return Draft()
        # The first draft's prompt may need a checkpoint.
        unread = (
            draft_cache.prefill(tokens, self._cancelled) if self._is_first else None
        )
        for _ in unread or draft_cache.prefill_until(
            tokens, model.n_batch, self._cancelled
        ):
            pass
        self._is_first = False
        if self._cancelled():
            return Draft()

        def next_logits(token: int | None) -> tuple[Logits, None]:
            batch = tokens[draft_cache.n_cached :] if token is None else [token]
            if token is not None and draft_cache.n_cached == len(tokens):
                draft_cache.save_draft_start()
            return draft_cache.decode(batch, 1)[0], None

        return self._sampler.sample_draft(
            tokens, limit, stop_policy, next_logits, since=before
        )


def make(inputs: DrafterInputs) -> ModelDrafter:
    if inputs.draft_cache is None:
        raise KeyError("model")
    return ModelDrafter(inputs.draft_cache, inputs)

"""Draft model drafter: a smaller model with the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Draft, DraftStopPolicy, Logits


class ModelDrafter:
    """Drafts with a draft model, which is not run over the verified batch.

    Its KV cache follows the text by common prefix. It drafts [8, 9, 2] after a text that
    ends in 40, and the target accepts 8 and 9 and emits 6:

        in its cache     … 40 8 9      the last draft token is never decoded
        the text         … 40 8 9 6
        next batch       6             what the cache lacks; its row is the first of the draft

    If 9 is rejected for 6, the cache is truncated to … 40 8, and the next batch is 6,
    too. A recurrent state cannot be truncated: it returns to the checkpoint from before
    the draft (… 40), and the accepted tokens are decoded again.
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
        draft_cache = self._draft_cache
        model = draft_cache.model
        limit = min(limit, model.n_ctx - len(tokens))
        if limit <= 0:
            return Draft(reason="the draft model's context is full")
        since = model.decode_seconds
        draft_cache.rewind_to(tokens)
        # The target's vocabulary may have more tokens, which this model cannot read.
        if max(tokens[draft_cache.n_cached :], default=0) >= model.n_vocab:
            return Draft()
        if self._is_first:
            # Also saves a checkpoint of the prompt, if the memory needs them.
            unread = draft_cache.prefill(tokens, self._cancelled)
        else:
            unread = draft_cache.prefill_until(tokens, model.n_batch, self._cancelled)
        for _ in unread:
            pass
        self._is_first = False
        if self._cancelled():
            return Draft()

        def next_logits(token: int | None) -> tuple[Logits, None]:
            if token is None:
                return draft_cache.decode(tokens[draft_cache.n_cached :], 1)[0], None
            if draft_cache.n_cached == len(tokens):
                draft_cache.save_draft_start()
            return draft_cache.decode([token], 1)[0], None

        return self._sampler.sample_draft(
            tokens,
            limit,
            stop_policy=stop_policy,
            next_logits=next_logits,
            since=since,
        )


def make(inputs: DrafterInputs) -> ModelDrafter:
    if inputs.draft_cache is None:
        raise KeyError("model")
    return ModelDrafter(inputs.draft_cache, inputs)

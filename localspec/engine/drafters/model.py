"""Guess with a smaller model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.draft_sampler import DraftSampler
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Draft, DraftStopPolicy, Logits


class ModelDrafter:
    """The draft model is never run over the verified batch: it catches up when asked again.

    What it read and the text did not become is forgotten by common prefix; what it has not read
    rides along in the first batch of its next draft (algorithms.md 1.6).
    """

    def __init__(self, draft_cache: PrefixCache, inputs: DrafterInputs) -> None:
        self._draft_cache = draft_cache
        self._cancelled = inputs.cancelled
        self._sampler = DraftSampler(inputs, "model", draft_cache.model.n_vocab)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        reader, model = self._draft_cache, self._draft_cache.model
        limit = min(limit, model.n_ctx - len(tokens) - len(draft_prefix))
        if limit <= 0:
            return Draft(reason="the draft's context is full")
        before = model.decode_seconds
        reader.rewind_to(tokens)
        unread = [*tokens[reader.n_cached :], *draft_prefix]
        if max(unread, default=0) >= model.n_vocab:  # unknown to the draft
            return Draft()
        for _ in reader.prefill_until(tokens, model.n_batch - len(draft_prefix), self._cancelled):
            pass
        if self._cancelled():
            return Draft()

        def row(guess: int | None) -> tuple[Logits, None]:
            fresh = [*tokens[reader.n_cached :], *draft_prefix] if guess is None else [guess]
            return reader.decode(fresh, 1)[0], None

        draft = self._sampler.sample_draft(tokens, draft_prefix, limit, stop_policy, row)
        return replace(draft, decode_seconds=model.decode_seconds - before)


def make(inputs: DrafterInputs) -> ModelDrafter:
    if inputs.draft_cache is None:
        raise KeyError("model")
    return ModelDrafter(inputs.draft_cache, inputs)

"""Constrained drafter: keeps another drafter within a grammar, and adds the tokens it forces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.constraints.output_constraint import OutputConstraint
from localspec.engine.drafters.draft_sampler import join_drafts
from localspec.engine.protocols import Draft, Drafter, DraftStopPolicy


class ConstrainedDrafter:
    def __init__(self, drafter: Drafter, constraint: OutputConstraint) -> None:
        self._drafter, self._constraint = drafter, constraint

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        """A draft of the other drafter alone, up to its first forbidden token, then forced ones."""
        draft = self._drafter.propose(tokens, limit, draft_prefix, stop_policy)
        n_allowed = self._constraint.count_allowed(tokens, draft.tokens)
        if n_allowed < len(draft.tokens):
            # A forbidden token that was sampled stays: the one after its rejection has to come
            # from the residual distribution.
            return _cut_draft(draft, n_allowed + (draft.distributions is not None))
        forced = self._constraint.forced_after(tokens, draft.tokens)[: limit - len(draft.tokens)]
        if not forced:
            return draft
        addition = Draft(forced, None, "grammar", reason="the grammar allows nothing else")
        if not draft.tokens:
            return replace(addition, decode_seconds=draft.decode_seconds)
        return join_drafts(draft, addition)


def _cut_draft(draft: Draft, n: int) -> Draft:
    return replace(
        draft,
        tokens=draft.tokens[:n],
        distributions=draft.distributions and draft.distributions[:n],
        logits=draft.logits and draft.logits[:n],
    )

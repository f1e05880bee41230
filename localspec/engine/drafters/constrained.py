"""Constrained drafter: keeps another drafter within a grammar, and adds the tokens it forces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.constraints.output_constraint import OutputConstraint
from localspec.engine.protocols import Draft, Drafter, DraftStopPolicy
from localspec.engine.sampling import one_hot


class ConstrainedDrafter:
    def __init__(self, drafter: Drafter, constraint: OutputConstraint) -> None:
        self._drafter, self._constraint = drafter, constraint

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        """A draft of the other drafter alone, up to its first forbidden token, then forced ones."""
        draft = self._drafter.propose(tokens, limit, stop_policy)
        n_allowed = self._constraint.count_allowed(tokens, draft.tokens)
        if n_allowed < len(draft.tokens):
            # A forbidden token that was sampled stays: the one after its rejection has to come
            # from the residual distribution.
            return _cut_draft(draft, n_allowed + (draft.distributions is not None))
        forced = self._constraint.forced_after(tokens, draft.tokens)[: limit - len(draft.tokens)]
        if not forced:
            return draft
        reason = "the grammar allows nothing else"
        if not draft.tokens:
            return Draft(forced, None, "grammar", draft.decode_seconds, reason=reason)
        certain = [one_hot(token) for token in forced]
        return replace(
            draft,
            tokens=[*draft.tokens, *forced],
            distributions=draft.distributions and [*draft.distributions, *certain],
            source=f"{draft.source}+grammar",
            reason=f"{draft.reason}; {reason}",
        )


def _cut_draft(draft: Draft, n: int) -> Draft:
    return replace(
        draft,
        tokens=draft.tokens[:n],
        distributions=draft.distributions and draft.distributions[:n],
        logits=draft.logits and draft.logits[:n],
    )

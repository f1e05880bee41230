"""The state of a grammar along one answer, and along the drafts that follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from localspec.engine.prefix_cache import common_prefix_length
from localspec.engine.protocols import Draft, Drafter, DraftStopPolicy, GrammarState
from localspec.engine.sampling import NoAllowedTokenError, one_hot


class OutputConstraint:
    """The grammar's state after the text of an answer and any draft that follows it.

    The states of a draft are kept until the text contradicts them, so drafting and verifying
    compute each only once. With `marker` the grammar begins after the token that completes this
    text, which ends the thinking part.
    """

    def __init__(
        self,
        start: GrammarState,
        n_prompt: int,
        marker: bytes = b"",
        piece: Callable[[int], bytes] = lambda _: b"",
    ) -> None:
        self._start = start
        self._marker, self._piece = marker, piece
        self._n_committed = n_prompt  # Length of the text that the first state belongs to.
        self._tokens: list[int] = []  # The tokens after it; `_states` has one element more.
        self._states: list[GrammarState | _ThinkingTail] = [_ThinkingTail(b"") if marker else start]

    def state_after(self, text: Sequence[int], drafted: Sequence[int] = ()) -> GrammarState | None:
        """The state after prompt, answer and draft tokens; None inside the thinking part.

        Raises NoAllowedTokenError if the grammar does not allow one of the tokens.
        """
        following = [*text[self._n_committed :], *drafted]
        known = common_prefix_length(self._tokens, following)
        if known < len(following):
            del self._tokens[known:], self._states[known + 1 :]
        for token in following[known:]:
            self._states.append(self._advance(self._states[-1], token))
            self._tokens.append(token)
        state = self._states[len(following)]
        return None if isinstance(state, _ThinkingTail) else state

    def commit(self, text: Sequence[int]) -> None:
        """The text has grown to `text`: states before its end are not needed again."""
        self.state_after(text)
        self._states = [self._states[len(text) - self._n_committed]]
        self._tokens, self._n_committed = [], len(text)

    def count_allowed(self, text: Sequence[int], drafted: Sequence[int]) -> int:
        """How many of the draft tokens come before the first that the grammar forbids."""
        try:
            self.state_after(text, drafted)
        except NoAllowedTokenError:
            return len(self._tokens) - (len(text) - self._n_committed)
        return len(drafted)

    def forced_after(self, text: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Tokens that must follow, where the grammar knows them without a search."""
        state = self.state_after(text, drafted)
        return state.forced_tokens() if state is not None else []

    def _advance(
        self, state: GrammarState | _ThinkingTail, token: int
    ) -> GrammarState | _ThinkingTail:
        if isinstance(state, _ThinkingTail):
            tail = state.text + self._piece(token)
            return (
                self._start if self._marker in tail else _ThinkingTail(tail[-len(self._marker) :])
            )
        if not state.allows(np.array([token]))[0]:
            raise NoAllowedTokenError("The grammar does not allow the text so far.")
        return state.advance(token)


class _ThinkingTail:
    """Inside the thinking part: the last bytes of its text."""

    def __init__(self, text: bytes) -> None:
        self.text = text


class ConstrainedDrafter:
    """Keeps another drafter within a grammar, and adds the tokens that the grammar forces."""

    def __init__(self, drafter: Drafter, constraint: OutputConstraint) -> None:
        self._drafter, self._constraint = drafter, constraint

    def propose(
        self, tokens: Sequence[int], limit: int, stop_policy: DraftStopPolicy | None = None
    ) -> Draft:
        """A draft of the other drafter alone, up to its first forbidden token, then forced ones."""
        draft = self._drafter.propose(tokens, limit, stop_policy)
        n = self._constraint.count_allowed(tokens, draft.tokens)
        if n < len(draft.tokens):
            # A forbidden token that was sampled stays: the one after its rejection has to come
            # from the residual distribution.
            n += draft.distributions is not None
            return replace(
                draft,
                tokens=draft.tokens[:n],
                distributions=draft.distributions and draft.distributions[:n],
                logits=draft.logits and draft.logits[:n],
            )
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

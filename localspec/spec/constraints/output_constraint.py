"""The state of a grammar along one answer, and along the drafts that follow it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from localspec.spec.constraints.answer_start import AnswerStart
from localspec.spec.constraints.tool_call_text import TextBetweenCalls, ToolCallText
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.protocols import Draft, GrammarState
from localspec.spec.sampling import NoAllowedTokenError, one_hot


class OutputConstraint:
    """The grammar's state after the text of an answer and any draft that follows it.

    The states of a draft are kept until the text contradicts them, so drafting and
    verifying compute each only once.
    """

    def __init__(self, start: GrammarState, n_prompt: int) -> None:
        """`start` is the state after the prompt: the grammar's, or an `AnswerStart`."""
        self._n_committed = n_prompt
        """Length of the text that the first state belongs to."""
        self._tokens: list[int] = []
        """The tokens after that text; `_states` has one element more."""
        self._states: list[GrammarState] = [start]

    def state_after(
        self, text: Sequence[int], drafted: Sequence[int] = (), n_left_out: int = 0
    ) -> GrammarState | None:
        """The state after prompt, answer and draft tokens.

        It is None where any token may follow. Of the prompt, `text` may lack cells of
        pictures: `n_left_out`. Raises NoAllowedTokenError if the grammar does not allow
        one of the tokens.
        """
        start = self._n_committed - n_left_out
        following = [*text[start:], *drafted]
        known = common_prefix_length(self._tokens, following)
        if known < len(following):
            del self._tokens[known:], self._states[known + 1 :]
        n_text = len(text) - start
        for i in range(known, len(following)):
            token = following[i]
            state = self._advance(self._states[-1], token, is_draft=i >= n_text)
            self._states.append(state)
            self._tokens.append(token)
        state = self._states[len(following)]
        return None if _is_free(state) else state

    def commit(self, text: Sequence[int]) -> None:
        """The text has grown to `text`: states before its end are not needed again."""
        self.state_after(text)
        self._states = [self._states[len(text) - self._n_committed]]
        self._tokens = []
        self._n_committed = len(text)

    def fit_draft(self, text: Sequence[int], draft: Draft, limit: int) -> Draft:
        """The draft, cut at a token that the grammar forbids, or continued by force.

        `draft` has at most `limit` tokens, and so has the result. With a grammar whose
        only texts are `[1]` and `[2]`, before the first token, and a limit of 4:

            drafted       returned
            `[` `3` `]`   `[`           `3` is forbidden
            `[` `1`       `[` `1` `]`   nothing but `]` can follow
                          `[`           nor anything but `[` here
        """
        n = self.count_allowed(text, draft.tokens)
        if n < len(draft.tokens):
            # A forbidden token that was sampled stays: the one after its rejection has
            # to come from the residual distribution.
            if draft.distributions is not None:
                n += 1
            return draft.first(n)
        forced = self.forced_after(text, draft.tokens)
        forced = forced[: limit - len(draft.tokens)]
        if not forced:
            return draft

        reason = "the grammar allows nothing else"
        if not draft.tokens:
            seconds = draft.decode_seconds
            return Draft(
                forced, source="grammar", decode_seconds=seconds, reason=reason
            )
        distributions = draft.distributions
        if distributions is not None:
            distributions = [*distributions, *map(one_hot, forced)]
        return replace(
            draft,
            tokens=[*draft.tokens, *forced],
            distributions=distributions,
            source=f"{draft.source}+grammar",
            reason=f"{draft.reason}; {reason}",
        )

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

    @staticmethod
    def _advance(state: GrammarState, token: int, *, is_draft: bool) -> GrammarState:
        """The next state.

        Before the answer's body a text may hold what a draft may not: the tokens that
        end a thinking part are given, and so are those of a resumed answer. One with
        tools may have been begun by the client.
        """
        may_differ = isinstance(state, _TOLERANT_STATES) and not is_draft
        is_allowed = may_differ or _is_free(state) or state.allows(np.array([token]))[0]
        if not is_allowed:
            raise NoAllowedTokenError("The grammar does not allow the text so far.")
        return state.advance(token)


class PicturelessConstraint(OutputConstraint):
    """The grammar of an answer, for a drafter that reads the text without its pictures.

    It shares the states of the answer's `constraint`. The text that the drafter has is
    shorter by the `n_left_out` cells of the prompt's pictures.
    """

    def __init__(self, constraint: OutputConstraint, n_left_out: int) -> None:
        self._constraint = constraint
        self._n_left_out = n_left_out

    def state_after(
        self, text: Sequence[int], drafted: Sequence[int] = (), n_left_out: int = 0
    ) -> GrammarState | None:
        return self._constraint.state_after(
            text, drafted, n_left_out + self._n_left_out
        )


_TOLERANT_STATES = (AnswerStart, TextBetweenCalls, ToolCallText)
"""States that go on after a token which they do not allow."""


def _is_free(state: GrammarState) -> bool:
    """Whether any token may follow: in thinking, in a tool call, or outside of calls."""
    return isinstance(state, AnswerStart | TextBetweenCalls) and state.is_free

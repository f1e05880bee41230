"""Prompt lookup (n-gram) drafter: copies what followed the same tokens earlier in the
text.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.spec.drafters import DrafterInputs
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.protocols import Draft, DraftStopPolicy


class SuffixAutomaton:
    """Index of all substrings of a growing text, O(1) amortised per token (Blumer et
    al. 1985).

    After each token it holds the longest suffix that occurred before, and where that
    ended.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._last_positions = [-1]  # By state: end position of an earlier occurrence.
        self._last = 0
        self.size = 0
        self.match_length = 0  # Length of the longest suffix that occurred before.
        self.match_end = -1  # Position of that occurrence's last token.

    def extend(self, token: int) -> None:
        new = self._add_state(self._length[self._last] + 1, self.size)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._link[new] = 0 if state < 0 else self._split_state(state, token)
        self._last = new
        repeated = self._link[new]
        self.match_length, self.match_end = (
            self._length[repeated],
            self._last_positions[repeated],
        )
        self._last_positions[repeated] = self.size
        self.size += 1

    def _add_state(self, length: int, end: int) -> int:
        self._next.append({})
        self._link.append(0)
        self._length.append(length)
        self._last_positions.append(end)
        return len(self._length) - 1

    def _split_state(self, state: int, token: int) -> int:
        """The state of exactly the longest text of `state` followed by `token`."""
        target = self._next[state][token]
        if self._length[target] == self._length[state] + 1:
            return target
        clone = self._add_state(self._length[state] + 1, self._last_positions[target])
        self._next[clone] = dict(self._next[target])
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone


_BREAK = -1  # Ends a prediction; no text contains it.


class LookupDrafter:
    """Drafts if at least `min_match` tokens match earlier text; at most twice the match
    length.

    A draft may continue into itself, so that a repeating sequence is continued.
    """

    def __init__(self, min_match: int = 2) -> None:
        self._min_match = min_match
        # Indexed before the text, with `_BREAK` at its end.
        self._prediction: list[int] = []
        self._automaton = SuffixAutomaton()
        self._indexed_tokens: list[int] = []  # Of the text.
        self._last_text: Sequence[int] = ()

    def set_prediction(self, tokens: Sequence[int]) -> None:
        """Also copy from text that the next answer probably repeats."""
        prediction = [*tokens, _BREAK] if tokens else []
        if prediction != self._prediction:
            self._prediction = prediction
            self._restart()

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._index_tokens(tokens)
        match, match_end = self._automaton.match_length, self._automaton.match_end
        if match < self._min_match:
            return Draft()
        n, drafted = len(tokens), list[int]()
        for i in range(match_end + 1, match_end + 1 + min(limit, 2 * match)):
            at = i - len(self._prediction)
            token = (
                self._prediction[i]
                if at < 0
                else tokens[at]
                if at < n
                else drafted[at - n]
            )
            if token == _BREAK:
                break
            drafted.append(token)
        if not drafted:
            return Draft()
        start = match_end + 1 - len(self._prediction)
        return Draft(drafted, None, "lookup", match_length=match, copied_from=start)

    def _index_tokens(self, tokens: Sequence[int]) -> None:
        """Index new tokens; start over if the text does not continue the indexed one."""
        if tokens is not self._last_text:
            if common_prefix_length(self._indexed_tokens, tokens) < len(
                self._indexed_tokens
            ):
                self._restart()
            self._last_text = tokens
        for token in tokens[len(self._indexed_tokens) :]:
            self._automaton.extend(token)
            self._indexed_tokens.append(token)

    def _restart(self) -> None:
        self._automaton, self._indexed_tokens = SuffixAutomaton(), []
        for token in self._prediction:
            self._automaton.extend(token)


def make(inputs: DrafterInputs) -> LookupDrafter:
    return LookupDrafter()

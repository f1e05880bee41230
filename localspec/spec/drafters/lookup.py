"""Prompt lookup (n-gram) drafter: copies what followed the same tokens earlier.

With the text [5, 6, 7, 2, 5, 6] the longest end that occurred before is [5, 6], at the
places 0 and 1. It was followed by 7, 2, 5, 6, which is the draft. It has at most twice
as many tokens as matched, here 4. After [5, 6, 5, 6] the end [5, 6] was followed by 5, 6
and then by the draft itself: the draft is 5, 6, 5, 6.

The longest end wins, and of several places with the same end the newest. What an earlier
prompt or answer had and the present text lacks, such as an answer that is asked for
again, counts as text before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.spec.drafters import DrafterInputs
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.protocols import Draft, DraftStopPolicy

Symbol = int | None
"""A token id, or `_END`."""
_END = None
"""Ends each text that is indexed before the chat's. No token id is equal to it, also not
the negative ids of pictures (`spec/picture_ids.py`).
"""
_MAX_EARLIER = 4096
"""Tokens of earlier texts that are kept: indexing them takes some 10 ms."""
_MIN_EARLIER = 8
"""Fewer lost tokens are no text: the end of an answer may be tokenized otherwise."""
_CONTEXT = 8
"""Tokens before a lost text that are kept with it, so that its beginning is found."""
_MAX_SUFFIXES = 64
"""So many ends of the text get their newest place; a text that repeats itself more has
its copies behind the longest ones.
"""


class SuffixAutomaton:
    """Index of all substrings of a growing text, in amortised O(1) a token (Blumer 1985).

    After each token it holds the longest suffix that occurred before, and where that
    ended. A state stands for all substrings that end at the same places; its link is
    the state of their longest suffix that ends at more places. Of [5, 6, 5]:

        state  substrings        ends at  link
        0      the empty one     all      none (-1)
        1      [5]               0, 2     0
        2      [5, 6], [6]       1        0
        3      [5, 6, 5], [6, 5] 2        1

    The whole text is in state 3. Its link says that [5] is the longest suffix that
    occurred before: `match_length` is 1, and `match_end` 0.
    """

    def __init__(self) -> None:
        # By state: the state after one more token, the link, the length of the longest
        # substring, and where it ended last but for the newest token.
        self._next: list[dict[Symbol, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._last_positions = [-1]
        self._last = 0  # The state of the whole text.
        self.size = 0
        self.match_length = 0  # Length of the longest suffix that occurred before.
        self.match_end = -1  # Position of that occurrence's last token.

    def extend(self, token: Symbol) -> None:
        new = self._add_state(self._length[self._last] + 1, self.size)
        # The text's suffixes, the longest first, until one was followed by `token`.
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        repeated = 0
        if state >= 0:
            repeated = self._split_state(state, token)
        self._link[new] = repeated
        self._last = new
        self.match_length = self._length[repeated]
        self.match_end = self._last_positions[repeated]
        self._mark_newest(repeated)
        self.size += 1

    def _mark_newest(self, state: int) -> None:
        """The substrings of a state, and their own suffixes, end at the newest token."""
        for _ in range(_MAX_SUFFIXES):
            if state <= 0:
                return
            self._last_positions[state] = self.size
            state = self._link[state]

    def _add_state(self, length: int, end: int) -> int:
        self._next.append({})
        self._link.append(0)
        self._length.append(length)
        self._last_positions.append(end)
        return len(self._length) - 1

    def _split_state(self, state: int, token: Symbol) -> int:
        """The state of exactly the longest text of `state` followed by `token`.

        The state that holds it may hold longer texts too, which now end at fewer places:
        then it is split in two.
        """
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


class LookupDrafter:
    """Drafts if at least `min_match` tokens match earlier text."""

    def __init__(self, min_match: int = 2) -> None:
        self._min_match = min_match
        self._owner = ""
        self._prediction: Sequence[int] = ()
        self._earlier: list[Symbol] = []
        """What earlier texts of the owner had and the present one lacks, each ended."""
        self._before: list[Symbol] = []
        """Indexed before the text: the earlier texts and the prediction."""
        self._automaton = SuffixAutomaton()
        self._indexed_tokens: list[int] = []  # Of the text.
        self._last_text: Sequence[int] = ()

    def begin_answer(self, prediction: Sequence[int] = (), owner: str = "") -> None:
        """Also copy from text that the next answer probably repeats.

        Texts of another `owner`, a client of the server, are forgotten: how fast an
        answer is must not tell what others were answered.
        """
        is_other_owner = owner != self._owner
        if is_other_owner:
            self._owner = owner
            self._earlier = []
        if is_other_owner or list(prediction) != list(self._prediction):
            self._prediction = prediction
            self._restart()

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._index_tokens(tokens)
        match = self._automaton.match_length
        if match < self._min_match:
            return Draft()
        # In the text; negative in what is indexed before it.
        start = self._automaton.match_end + 1 - len(self._before)
        drafted = self._copy(tokens, start, min(limit, 2 * match))
        if not drafted:
            return Draft()
        return Draft(
            tokens=drafted, source="lookup", match_length=match, copied_from=start
        )

    def _copy(self, tokens: Sequence[int], start: int, n: int) -> list[int]:
        """At most n tokens from the place `start` on.

        A copy ends before a picture, and with the text that it is from, if that is an
        earlier one or the prediction. At the end of the present text it goes on with its own tokens, so that
        a repeating sequence is continued.
        """
        copied: list[int] = []
        for place in range(start, start + n):
            token: Symbol
            if place < 0:
                token = self._before[place]  # It ends where the text begins.
            elif place < len(tokens):
                token = tokens[place]
            else:
                token = copied[place - len(tokens)]
            if token is _END or token < 0:
                break
            copied.append(token)
        return copied

    def _index_tokens(self, tokens: Sequence[int]) -> None:
        """Index new tokens; start over if the text does not continue the indexed one."""
        if tokens is not self._last_text:
            n_shared = common_prefix_length(self._indexed_tokens, tokens)
            n_lost = len(self._indexed_tokens) - n_shared
            if n_lost >= _MIN_EARLIER:
                start = max(0, n_shared - _CONTEXT)
                lost = self._indexed_tokens[start:]
                self._earlier = [*self._earlier, *lost, _END][-_MAX_EARLIER:]
            if n_lost:
                self._restart()
            self._last_text = tokens
        for token in tokens[len(self._indexed_tokens) :]:
            self._automaton.extend(token)
            self._indexed_tokens.append(token)

    def _restart(self) -> None:
        self._automaton = SuffixAutomaton()
        self._indexed_tokens = []
        self._last_text = ()
        self._before = [*self._earlier]
        if self._prediction:
            self._before += [*self._prediction, _END]
        for token in self._before:
            self._automaton.extend(token)


def make(inputs: DrafterInputs) -> LookupDrafter:
    return LookupDrafter()

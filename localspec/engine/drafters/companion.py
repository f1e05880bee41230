"""A head beside its target: what the target reads becomes its rows, and its rows guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.drafters import Needs
from localspec.engine.drafters.chain import Chain
from localspec.engine.drafters.trail import Trail
from localspec.engine.protocols import Draft, Encoder, Gauge, Logits, States


class Companion:
    """A head beside its target, from answer to answer; a `Follower`.

    States wait until the head is asked for a draft, or they are too many: so the rows of what was
    accepted ride along in the pass that the next draft begins with, and rows of what was rejected
    are never made.  A row is a token and the state before it, encoded.

    `batch` is the most that the target reads at once; `first` as a trail's.
    """

    def __init__(self, head: Encoder, batch: int, first: int = 1) -> None:
        self.head = head
        self._trail = Trail(batch + 1, head.taken_width, first)

    # --- following ----------------------------------------------------------------------

    def heard(self, tokens: Sequence[int], states: States) -> None:
        trail = self._trail
        try:
            if not trail.fits(len(tokens)) and self._able():
                self._take(tokens[0], 0)
        finally:  # whatever fails, the text is the target's
            if not trail.fits(len(tokens)):
                trail.drop()
            trail.add(tokens, states)

    def keeps(self, n_past: int) -> int:
        return self._trail.keeps(n_past)

    def forgot(self, n_past: int) -> None:
        self._trail.forget(n_past)

    def state(self) -> States | None:
        return self._trail.state()

    def returned(self, state: States) -> None:
        self._trail.returned(state)

    # --- guessing -----------------------------------------------------------------------

    def ready(self, tokens: Sequence[int]) -> bool:
        """Whether the target has read all of the text but its last token."""
        return len(self._trail.text) == len(tokens) - 1 > 0 and self._able()

    def begin(self, following: int) -> Logits:
        """Logits after the text and the token that follows it."""
        logits: Logits = self._take(following, 1)[0]
        return logits

    def after(self, guess: int) -> Logits:
        """Logits after one guess more."""
        head = self.head
        logits: Logits = head.read([guess], 1, head.last_state())[0]
        return logits

    def _able(self) -> bool:
        """Whether the rows that wait can be made: not where some before them were lost."""
        return self._trail.reopen() and self.head.n_past >= self._trail.n_taken

    def _take(self, following: int, outputs: int) -> Logits:
        """Make the rows that wait; logits of the last one, if asked for."""
        head, trail = self.head, self._trail
        head.forget(trail.n_taken)  # the guesses of the draft before
        tokens, states = trail.waiting(following)
        for start in range(0, len(tokens), head.n_batch):
            part = slice(start, start + head.n_batch)
            last = part.stop >= len(tokens)
            encoded = head.encode(states[part])
            rows = head.read(tokens[part], outputs if last else 0, encoded)
        trail.took(following)
        return rows


class HeadDrafter:
    """One answer's guesses.  Its own only: where others stand ahead there is no state to go on."""

    def __init__(self, companion: Companion, needs: Needs, source: str) -> None:
        self._companion = companion
        self._chain = Chain(needs, source, companion.head.n_vocab)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        companion, head = self._companion, self._companion.head
        limit = min(limit, head.n_ctx - len(tokens))
        if ahead or limit <= 0 or not companion.ready(tokens):
            return Draft()
        before = head.seconds

        def row(guess: int | None) -> tuple[Logits, None]:
            logits = companion.begin(tokens[-1]) if guess is None else companion.after(guess)
            return logits, None

        draft = self._chain.grow(tokens, (), limit, gauge, row)
        return replace(draft, seconds=head.seconds - before)

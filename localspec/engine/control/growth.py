"""A draft of the model while it grows, and drafts of two sources put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.engine.control.survival import confidence_bucket
from localspec.engine.control.worth import Worth
from localspec.engine.protocols import Draft, Law, Logits
from localspec.engine.sampling import certain

_SLIM = 0.2
"""A try goes no further once its guesses stand together less often than this."""


class Growth:
    """A `Gauge`: ends a draft where one more guess, or one more pass, would not pay.

    `overtaken` says whether another source now guesses as well for nothing; `forced` makes the
    first guess whatever it promises.
    """

    def __init__(
        self,
        worth: Worth,
        ahead: Sequence[int],
        chance: float,
        limit: int,
        overtaken: Callable[[list[int]], bool],
    ) -> None:
        self._worth, self._overtaken = worth, overtaken
        self._drafted, self._end = list(ahead), len(ahead) + limit
        self.start = len(ahead)
        self.chance = chance
        """That all guesses so far stand."""
        self.forced = False
        self.expected = 0.0
        """How many of the model's guesses will stand, as far as is known."""
        self.buckets: list[int] = []
        self.passes = 0

    def wanted(self, confidence: float) -> bool:
        self.passes += 1
        place, bucket = len(self._drafted), confidence_bucket(confidence)
        survival = self._worth.survival
        own = survival.model.chance(bucket, place)
        chance = self.chance * own
        gain = chance - self._worth.width_price(place)
        if gain <= 0:
            gain += max(0.0, self._worth.guessing(place + 1, chance, self._end - place - 1))
        if gain <= 0 and not self.forced:
            survival.saw_model(place, own)
            return False
        self.chance = chance
        self.expected += chance
        self.buckets.append(bucket)
        return True

    def more(self, guess: int) -> bool:
        self._drafted.append(guess)
        place = len(self._drafted)
        if place >= self._end:
            return False
        if self._worth.guessing(place, self.chance, self._end - place) <= 0:
            cheap = self.chance > _SLIM and self._worth.nearly_free(place)
            return self.forced and cheap
        return not self._overtaken(self._drafted)


def joined(first: Draft, second: Draft) -> Draft:
    """One draft after the other; laws for all, where any guess was drawn from one."""
    seconds = first.seconds + second.seconds
    if not second.tokens:
        return replace(first, seconds=seconds)
    laws: list[Law] | None = None
    if first.laws is not None or second.laws is not None:
        laws = [*_laws(first), *_laws(second)]
    rows: list[Logits | None] | None = None
    if first.rows is not None or second.rows is not None:
        rows = [*_rows(first), *_rows(second)]
    return Draft(
        [*first.tokens, *second.tokens],
        laws,
        f"{first.source}+{second.source}",
        seconds,
        max(first.match, second.match),
        f"{first.reason}; {second.reason}",
        rows,
    )


def _rows(draft: Draft) -> Sequence[Logits | None]:
    return draft.rows if draft.rows is not None else [None] * len(draft.tokens)


def _laws(draft: Draft) -> list[Law]:
    return draft.laws if draft.laws is not None else [certain(token) for token in draft.tokens]

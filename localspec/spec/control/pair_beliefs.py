"""What is believed of a pair: how often its drafts and copies are right.

A belief is a prior and what was counted since. An example for drafts of medium
confidence, of which .62 are accepted by the prior: 10 were drafted, of which 3 were
accepted, and nothing else was drafted. So this draft is at .61 of its kind's level
(`acceptance` has the sum), and its own prior is .61 * .62 = .38. That weighs as much as 5
drafted tokens: the belief is (3 + 5 * .38) / (10 + 5) = .33.

The numbers outlive the process. They are saved by pair, build, devices and temperature
class, whatever the verification method is: that moves acceptance by a few hundredths.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from localspec.protocol.wire import DEFAULT_DRAFT_LENGTH, SamplingParams

CONFIDENCE_EDGES = (0.4, 0.6, 0.8, 0.95)
"""Between the buckets of a draft's confidence in its likeliest token."""
SIBLING_PRIOR = (0.35, 0.50, 0.62, 0.78, 0.94)
"""Acceptance by confidence of a draft model of the target's family, and of a head.

From the ranks that a 700 M target gives to the choices of its 30 M draft.
"""
STRANGER_PRIOR = (0.20, 0.30, 0.42, 0.60, 0.85)
"""The same of a draft with another vocabulary, or of a kind that nobody has measured."""
_USUAL_CONFIDENCES = (0.22, 0.15, 0.16, 0.17, 0.30)
"""How often a confidence is in each bucket, before any was seen."""
MATCH_EDGES = (2, 3, 4, 6, 12)
"""Between the buckets of a copy's match length: 2 or less, 3, 4, up to 6, up to 12, more."""
_COPY_PRIOR = (0.45, 0.60, 0.72, 0.80, 0.90, 0.95)
"""How often the next token behind a match is right, before any was seen."""

_PRIOR_WEIGHT = 5.0  # Of a bucket's prior, in draft tokens.
_LEVEL_WEIGHT = 2.0  # Of a draft's level, in draft tokens.
_MAX_PRIOR = 0.97
_DRAFT_WINDOW = 33.0  # Draft tokens that a bucket remembers: older ones decay.
_SEEN_WEIGHT = 20.0  # Of the usual confidences, in confidences.
_MAX_SEEN = 150.0
_SEEN_WINDOW = 100.0
_COPY_PRIOR_WEIGHT = 8.0  # Of earlier answers in this one, in copied tokens.
_COPY_WINDOW = 60.0
_WHOLE_ANSWER = 30.0  # With so many copied tokens an answer counts as half of one.
_MAX_COPY_ANSWERS = 10  # An answer has at least so small a share in what is known.
_ERROR_KEEP = 0.98
_PROBE_ERROR_KEEP = 0.5
"""What a round leaves of the older errors.

After a pause they say less, so that a pause can end.
"""
_ERROR_TRUST = 60.0  # Rounds with an error of 0 that are added to those that were.
_COPY_ERROR_TRUST = 5.0
_COPY_ERROR_KEEP = 0.95
_DECLINED_COPY_KEEP = 0.98
"""What a copy that was not made leaves of the older errors: so copies are tried again."""
_N_KNOWN = 24
"""Draft tokens that have to be judged before the draft counts as known."""
_OWN_WEIGHT = 0.02  # Of a token, in the share that was not copied.
_FIRST_LENGTH = 120.0  # Tokens of an answer, before any has ended.
_MIN_LENGTH_WEIGHT = 0.1
_LONG_READING = 32
"""A measured reading of this many tokens counts as much as what was known before."""


class Acceptance(Struct, frozen=True):
    """Probabilities that a draft token is accepted if those before it are."""

    by_confidence: tuple[float, ...]
    mean: float  # Over the confidences that were seen.


class PairBeliefs(Struct):
    """The beliefs of a pair in one temperature class.

    All of it is saved but what is counted anew in each answer.
    """

    prior: tuple[float, ...] = SIBLING_PRIOR
    accepted: list[float] = field(default_factory=lambda: [0.0] * len(SIBLING_PRIOR))
    drafted: list[float] = field(default_factory=lambda: [0.0] * len(SIBLING_PRIOR))
    """Judged draft tokens by confidence, and the accepted ones of them."""
    seen: list[float] = field(
        default_factory=lambda: [_SEEN_WEIGHT * share for share in _USUAL_CONFIDENCES]
    )
    """Confidences, also of tokens that were not drafted because of theirs.

    Without those a hopeless draft seems to be confident, and is used for ever.
    """
    copy_rates: list[float] = field(default_factory=lambda: list(_COPY_PRIOR))
    """The share of right tokens by match length in earlier answers: the copies' prior."""
    copied_right: list[float] = field(default_factory=lambda: [0.0] * len(_COPY_PRIOR))
    copied: list[float] = field(default_factory=lambda: [0.0] * len(_COPY_PRIOR))
    """Copied tokens of this answer by match length, used or not, and the right ones.

    They are counted anew in each answer, because how a text repeats itself is a matter of
    the text: one list that goes round in circles copies hundreds of tokens rightly, and says
    nothing of the next answer. With the counts of all answers in one, later answers were
    5 % slower than first ones.
    """
    error_sum: float = 0.0
    error_rounds: float = 0.0
    """Measured minus planned gain of the rounds with a draft, and their number."""
    copy_error_sum: float = 0.0
    copy_error_rounds: float = 0.0
    """The same of the rounds of this answer that copied."""
    n_judged: int = 0  # Draft tokens that were judged, ever.
    tokens_since_draft: int = 0
    own_share: float = 1.0  # Of the tokens: those that were not copied.
    mean_length: float = _FIRST_LENGTH  # Tokens of an answer.
    n_answers: int = 0
    answer_tokens: int = 0  # Of the answer that is written or was the last.
    reading: float | None = None
    """Cost of a token of text that the draft reads, in draft passes; None if unknown."""

    @classmethod
    def from_saved(
        cls, saved: Mapping[str, Any], prior: tuple[float, ...]
    ) -> PairBeliefs:
        """The beliefs that `saved` gave in an earlier process.

        The parent has checked their ranges: `SavedBeliefs` of `machine.measurements` has
        the same form. A table of another length, of another version, is left out.
        """
        beliefs = cls(prior)
        drafts = saved.get("drafts", ())
        if len(drafts) == len(prior):
            beliefs.accepted = [float(accepted) for accepted, _ in drafts]
            beliefs.drafted = [float(drafted) for _, drafted in drafts]
        confidences = saved.get("confidences", ())
        if len(confidences) == len(prior) and sum(confidences) > 0:
            beliefs.seen = [float(n) for n in confidences]
        copy_rates = saved.get("copy_rates", ())
        if len(copy_rates) == len(_COPY_PRIOR):
            beliefs.copy_rates = [float(rate) for rate in copy_rates]
        beliefs.error_sum = saved.get("error", 0.0)
        beliefs.error_rounds = saved.get("error_rounds", 0.0)
        beliefs.n_judged = saved.get("judged", 0)
        beliefs.tokens_since_draft = saved.get("since", 0)
        beliefs.own_share = saved.get("own", 1.0)
        length = saved.get("length")
        if length is not None:
            beliefs.mean_length = length
        beliefs.n_answers = saved.get("answers", 0)
        beliefs.reading = saved.get("reading")
        return beliefs

    def saved(self) -> dict[str, Any]:
        """All of it, as if the answer had ended: it may be the last of this process."""
        length, n_answers = self._length_with_answer()
        drafts = zip(self.accepted, self.drafted, strict=True)
        saved = {
            "drafts": [[round(right, 3), round(n, 3)] for right, n in drafts],
            "confidences": [round(n, 3) for n in self.seen],
            "copy_rates": [round(rate, 4) for rate in self._rates_with_answer()],
            "error": round(self.error_sum, 4),
            "error_rounds": round(self.error_rounds, 3),
            "judged": self.n_judged,
            "since": self.tokens_since_draft,
            "own": round(self.own_share, 4),
            "length": round(length, 1),
            "answers": n_answers,
        }
        if self.reading is not None:
            saved["reading"] = round(self.reading, 4)
        return saved

    # --- what is believed

    @property
    def is_known(self) -> bool:
        """Whether enough draft tokens were judged to believe what was counted."""
        return self.n_judged >= _N_KNOWN

    def acceptance(self) -> Acceptance:
        """By confidence: the prior at this draft's level, and what was counted.

        The level is one number for all buckets, so that a draft which is worse than its
        kind is known after some ten tokens in all buckets together. With 10 tokens
        drafted at a prior of .62, of which 3 were accepted, it is
        (3 + 2) / (10 * .62 + 2) = .61, and the prior of each bucket is .61 of what it was.
        """
        expected = sum(n * p for n, p in zip(self.drafted, self.prior, strict=True))
        level = (sum(self.accepted) + _LEVEL_WEIGHT) / (expected + _LEVEL_WEIGHT)
        by_confidence = []
        weighted = 0.0
        for i, prior in enumerate(self.prior):
            own_prior = min(_MAX_PRIOR, prior * level)
            p = (self.accepted[i] + _PRIOR_WEIGHT * own_prior) / (
                self.drafted[i] + _PRIOR_WEIGHT
            )
            by_confidence.append(p)
            weighted += p * self.seen[i]
        return Acceptance(tuple(by_confidence), weighted / sum(self.seen))

    def copy_probability(self, match_length: int) -> float:
        """The probability that the token behind a match of this length is right."""
        bucket = match_bucket(match_length)
        prior = _COPY_PRIOR_WEIGHT * self.copy_rates[bucket]
        n_seen = self.copied[bucket] + _COPY_PRIOR_WEIGHT
        return (self.copied_right[bucket] + prior) / n_seen

    @property
    def gain_error(self) -> float:
        """What a round with a draft gains beyond its plan, in tokens."""
        return self.error_sum / (self.error_rounds + _ERROR_TRUST)

    @property
    def copy_error(self) -> float:
        """What a round that copies gains beyond its plan, in tokens.

        A copy is made where it promises most, so its promise is too good on average: on
        two cores, where 8 rows cost 4.4 passes, code copied 3.0 of 7 tokens where 3.7 were
        expected, and each answer lost 13 %.
        """
        return self.copy_error_sum / (self.copy_error_rounds + _COPY_ERROR_TRUST)

    def expected_rest(self, max_left: int) -> float:
        """Tokens that the answer is expected to have still, at most `max_left`.

        An answer that is longer than the usual one goes on for half of what it has. Near
        its usual end it may still have half of the usual length, because lengths differ
        that much: with 120 as usual, 60 are expected after 100, and 100 after 200.
        """
        done = self.answer_tokens
        usual = self.mean_length
        return min(max(usual - done, usual / 2, done / 2), max_left)

    # --- what rounds show

    def record_draft_token(self, bucket: int, *, is_accepted: bool) -> None:
        """A draft token that was judged: all before it were accepted."""
        if self.drafted[bucket] > _DRAFT_WINDOW:
            self.accepted[bucket] *= 1 - 1 / _DRAFT_WINDOW
            self.drafted[bucket] *= 1 - 1 / _DRAFT_WINDOW
        if is_accepted:
            self.accepted[bucket] += 1
        self.drafted[bucket] += 1
        self.n_judged += 1
        self.record_confidence(bucket)

    def record_confidence(self, bucket: int) -> None:
        """A confidence of a place that was reached."""
        self.seen[bucket] += 1
        total = sum(self.seen)
        if total > _MAX_SEEN:
            self.seen = [n * _SEEN_WINDOW / total for n in self.seen]

    def record_copy(self, match_length: int, n_right: int, n_copied: int) -> None:
        """A copy behind a match, up to its first wrong token, whether it was used or not.

        Behind each right token the match is one longer. That costs nothing, so copies
        need no trial.
        """
        for place in range(min(n_right + 1, n_copied)):
            bucket = match_bucket(match_length + place)
            if self.copied[bucket] > _COPY_WINDOW:
                self.copied_right[bucket] *= 1 - 1 / _COPY_WINDOW
                self.copied[bucket] *= 1 - 1 / _COPY_WINDOW
            if place < n_right:
                self.copied_right[bucket] += 1
            self.copied[bucket] += 1

    def record_gain(self, gain: float, *, planned: float, is_probe: bool) -> None:
        """A round with a draft gained so many tokens, where so many were planned."""
        keep = _PROBE_ERROR_KEEP if is_probe else _ERROR_KEEP
        self.error_sum = keep * self.error_sum + gain - planned
        self.error_rounds = keep * self.error_rounds + 1

    def record_copy_gain(self, gain: float, *, planned: float) -> None:
        """A round that copied gained so many tokens, where so many were planned."""
        self.copy_error_sum = _COPY_ERROR_KEEP * self.copy_error_sum + gain - planned
        self.copy_error_rounds = _COPY_ERROR_KEEP * self.copy_error_rounds + 1

    def record_declined_copy(self) -> None:
        """A copy was not made because of the errors of those before it."""
        self.copy_error_sum *= _DECLINED_COPY_KEEP
        self.copy_error_rounds *= _DECLINED_COPY_KEEP

    def record_round(self, n_tokens: int, *, has_draft: bool, is_copy: bool) -> None:
        self.answer_tokens += n_tokens
        if has_draft:
            self.tokens_since_draft = 0
        else:
            self.tokens_since_draft += n_tokens
        own = 0.0 if is_copy else 1.0
        self.own_share += min(1.0, _OWN_WEIGHT * n_tokens) * (own - self.own_share)

    def record_reading(self, share: float, n_tokens: int) -> None:
        """Reading `n_tokens` of text cost this many draft passes a token."""
        known = share if self.reading is None else self.reading
        self.reading = known + n_tokens / (n_tokens + _LONG_READING) * (share - known)

    def record_score(self, accepted: Sequence[int]) -> None:
        """The rounds that an answer would have had with this draft.

        `accepted`: how many draft tokens would have been accepted at each place of the
        answer, whose first token comes from the prompt. Their confidences are not known,
        so they are spread over the buckets as confidences were seen and as the prior
        tells easy tokens from hard ones.
        """
        n_drafted = 0
        n_accepted = 0
        place = 1
        while place < len(accepted):
            n = min(accepted[place], DEFAULT_DRAFT_LENGTH)
            n_accepted += n
            n_drafted += n
            if n < DEFAULT_DRAFT_LENGTH:
                n_drafted += 1
            place += n + 1
        if not n_drafted:
            return
        total = sum(self.seen)
        shares = [n / total for n in self.seen]
        mean_prior = sum(s * p for s, p in zip(shares, self.prior, strict=True))
        rate = n_accepted / n_drafted
        # A bucket remembers no more than its window.
        n_counted = min(n_drafted, len(shares) * _DRAFT_WINDOW)
        for i, share in enumerate(shares):
            # The prior itself, if the rate is its mean; 0 and 1 stay what they are.
            own_rate = rate ** (math.log(self.prior[i]) / math.log(mean_prior))
            self.drafted[i] += share * n_counted
            self.accepted[i] += share * n_counted * own_rate
        self.n_judged += n_drafted

    def start_answer(self) -> None:
        """Count the answer before, if there was one."""
        self.copy_rates = self._rates_with_answer()
        self.copied_right = [0.0] * len(self.copied)
        self.copied = [0.0] * len(self.copied)
        self.copy_error_sum = 0.0
        self.copy_error_rounds = 0.0
        self.mean_length, self.n_answers = self._length_with_answer()
        self.answer_tokens = 0

    def _rates_with_answer(self) -> list[float]:
        """The right shares by match length, with those of the answer that is written.

        For example .9 were right in earlier answers, and 24 of 30 in this one. As the
        first answer it counts for a third, its 30 tokens for half of an answer: the share
        moves by .5 / 3 of the way from .9 to .8, to .88.
        """
        weight = 1 / (min(self.n_answers, _MAX_COPY_ANSWERS) + 3)
        rates: list[float] = []
        for rate, right, n in zip(
            self.copy_rates, self.copied_right, self.copied, strict=True
        ):
            moved = rate
            if n > 0:
                share = n / (n + _WHOLE_ANSWER)
                moved += weight * share * (right / n - rate)
            rates.append(moved)
        return rates

    def _length_with_answer(self) -> tuple[float, int]:
        """The mean length, and the number of answers, with the one that is written."""
        if not self.answer_tokens:
            return self.mean_length, self.n_answers
        n_answers = self.n_answers + 1
        weight = max(_MIN_LENGTH_WEIGHT, 1 / (n_answers + 2))
        change = weight * (self.answer_tokens - self.mean_length)
        return self.mean_length + change, n_answers


def confidence_bucket(confidence: float) -> int:
    return bisect_left(CONFIDENCE_EDGES, confidence)


def match_bucket(match_length: int) -> int:
    return bisect_left(MATCH_EDGES, match_length)


_LOW_TEMPERATURE = 0.5
_HIGH_TEMPERATURE = 1.0
"""Acceptance is counted apart up to, between and beyond these temperatures."""


def temperature_class(sampling: SamplingParams) -> str:
    """The name under which the beliefs of a temperature are saved."""
    if sampling.temperature <= 0:
        return "greedy"
    if sampling.temperature <= _LOW_TEMPERATURE:
        return "low temperature"
    if sampling.temperature <= _HIGH_TEMPERATURE:
        return "usual temperature"
    return "high temperature"

"""Overlapped drafting: the draft model drafts on while the target verifies.

The method is SSD (arXiv 2603.03251). A thread drafts for the likeliest outcomes of the
round: how many draft tokens are accepted, and which token follows them. If the outcome
is one of these, the next draft is there already, or its beginning.

For example, the draft is "the", "cat". While the target verifies it, the thread drafts
for "the cat sat", "the cat is" and "the dog". If the target accepts "the" and writes
"dog", the next draft is that for "the dog". If it writes "a", nothing of it can be used.

`propose` always completes a draft, so neither the text nor the width of a target pass
depends on timing. The proposed tokens are the same as without overlap: only the draft
model's passes come earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import LocalspecError
from localspec.extras.overlapped.verification import verification_error
from localspec.protocol.events import Overlap
from localspec.spec import drafters
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.prefix_cache import Branch, BranchCache
from localspec.spec.prepared_answer import DraftRequest
from localspec.spec.protocols import (
    DecodeInterrupted,
    Distribution,
    Draft,
    Drafter,
    DraftStopPolicy,
    DraftWait,
    Logits,
)
from localspec.spec.sampling import InvalidLogitsError, NoAllowedTokenError, top_k_ids
from localspec.spec.speculative_loop import Drafting, RoundResult
from localspec.spec.verifiers import RankingVerifier

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

IsStopped = Callable[[], bool]

_N_RANKS = 4  # So many tokens of a place are outcomes that can be drafted for.
_RANK_PROBABILITIES = (
    (0.4, (0.37, 0.19, 0.12, 0.03)),
    (0.6, (0.64, 0.18, 0.08, 0.02)),
    (0.8, (0.62, 0.24, 0.05, 0.01)),
    (0.95, (0.77, 0.10, 0.03, 0.01)),
    (1.0, (0.96, 0.01, 0.01, 0.0)),
)
"""How probable the target's token is the draft's first, second, … choice.

Each row holds for confidences of the draft up to its first number. Measured with a 700 M
target and its 30 M draft at temperature 0.8.
"""
_UNKNOWN_CONFIDENCE = 0.7  # Of a place that the draft model has not drafted.
_MIN_GAIN = 0.03  # Share of a round's time that overlap must be worth.
_TRIAL_ROUNDS = 16  # Rounds with and without overlap in turn, to compare their times.
_CHECK_INTERVAL = 32
"""While overlap is on, one of so many rounds runs without it, to compare further."""
_FIRST_PAUSE = 128
"""Rounds until the next trial after one that showed no gain; doubled each time."""
_MAX_PAUSE = 4096
_NEW_TIME_WEIGHT = 0.05  # The least weight of a new time in a mean.


class ThreadWorker:
    """Runs one job at a time, on a thread that starts with the first job."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._stop = False

    def start(self, job: Callable[[IsStopped], None]) -> None:
        """Begin a job, which is to check now and then whether it has to stop."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  few need it

            self._executor = ThreadPoolExecutor(1, "draft")
        self._stop = False
        self._job = self._executor.submit(job, lambda: self._stop)

    def finish(self) -> float:
        """Stop the job and wait for its end; return the seconds.

        Raises what the job raised.
        """
        assert self._job is not None
        self._stop = True
        began = time.perf_counter()
        self._job.result()
        return time.perf_counter() - began

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


class _MeanTime(Struct):
    """The mean time of rounds, in units of the usual time of their target pass.

    First the mean of all; later the newest has a weight of `_NEW_TIME_WEIGHT`, so that
    the mean follows changes.
    """

    n_rounds: int = 0
    mean: float = 0.0

    def add(self, time_ratio: float) -> None:
        self.n_rounds += 1
        weight = max(_NEW_TIME_WEIGHT, 1 / self.n_rounds)
        self.mean += weight * (time_ratio - self.mean)


class OverlapPolicy:
    """Decides whether a pair's rounds overlap, by their times; kept across answers.

    A target pass and the draft after it are timed together, relative to the usual time
    of the pass, which depends on its width. For example, a pass usually takes 60 ms.
    Without overlap it takes 60 ms and the draft after it 24 ms: 84 / 60 = 1.4. With
    overlap the pass takes 66 ms, because both models share the processor, and 6 ms of
    drafting are left after it: 72 / 60 = 1.2, so overlap is worth it.

    A trial compares both in turn. If overlap is worth it, it stays on as long as it is
    faster. Otherwise it is off until the next trial.
    """

    def __init__(self, costs: PassCosts | None = None) -> None:
        self.costs = costs or PassCosts()
        self.is_forced = False
        """Overlap every round in which it is possible."""
        self._without = _MeanTime()
        self._with_overlap = _MeanTime()
        self._draft_share = 0.0  # The draft's part of the last round without overlap.
        self._is_on = False
        self._usual_ms = 0.0
        """The usual time of the last round's target pass; 0 if it is not to be timed."""
        self._spent_ms = 0.0
        """The time of that pass, and of what followed it but for the next draft."""
        self._n_rounds = 0
        self._next_trial = 0  # The round with which the next trial begins.
        self._pause = _FIRST_PAUSE

    def choose(self) -> bool:
        """Whether to overlap this round."""
        self._n_rounds += 1
        if self.is_forced:
            return True
        n_in_trial = self._n_rounds - self._next_trial
        if n_in_trial < 0 or self._draft_share < _MIN_GAIN:
            return False
        if n_in_trial < _TRIAL_ROUNDS:
            self._is_on = False
            return n_in_trial % 2 == 1

        limit = self._without.mean
        if not self._is_on:
            limit *= 1 - _MIN_GAIN
        if self._with_overlap.mean < limit:
            self._is_on = True
            self._pause = _FIRST_PAUSE
            return self._n_rounds % _CHECK_INTERVAL > 0
        self._next_trial = self._n_rounds + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE)
        self._without = _MeanTime()
        self._with_overlap = _MeanTime()
        return False

    def record_round(self, result: RoundResult) -> None:
        """Add the time of the last round's target pass and of this round's draft."""
        draft = result.draft
        n_drafted = len(draft.tokens)
        draft_ms = draft.decode_seconds * 1e3
        if n_drafted and self._usual_ms:
            total_ms = self._spent_ms + draft_ms
            if draft.overlap:
                self._with_overlap.add(total_ms / self._usual_ms)
            else:
                self._without.add(total_ms / self._usual_ms)
                self._draft_share = draft_ms / total_ms
        self._usual_ms = 0.0
        width = n_drafted + 1
        if n_drafted and result.width == width:
            self._usual_ms = self.costs.verify_ms[width]
            self._spent_ms = result.ms.total - draft_ms


class OverlappedDrafter:
    """Drafts with `drafter`, whose draft model is `cache`; `meanwhile` drafts ahead."""

    def __init__(
        self,
        drafter: Drafter,
        cache: BranchCache,
        inputs: DrafterInputs,
        policy: OverlapPolicy,
        worker: ThreadWorker,
    ) -> None:
        self._drafter = drafter
        self._cache = cache
        self._inputs = inputs
        self._policy = policy
        self._worker = worker
        self._sampler = DraftSampler(inputs, "model", cache.model)
        self._n_text = 0  # Length of the text for which the last draft was made.
        self._was_overlapped = False  # Whether the last target pass was overlapped.

    def join(self, drafting: Drafting) -> Drafting:
        """The drafting of an answer, with its passes overlapped and rounds recorded."""

        def on_round(result: RoundResult) -> None:
            self._policy.record_round(result)
            drafting.on_round(result)

        return replace(drafting, overlap=self.meanwhile, on_round=on_round)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        was_overlapped = self._was_overlapped
        self._was_overlapped = False
        n_served_before = self._cache.n_served
        draft = self._drafter.propose(tokens, limit, stop_policy)
        self._n_text = len(tokens)
        if not was_overlapped:
            return draft
        overlap: Overlap = "miss"
        if self._cache.n_served > n_served_before:
            overlap = "hit"
        return replace(draft, overlap=overlap)

    @contextmanager
    def meanwhile(self, tokens: Sequence[int], draft: Draft) -> Iterator[DraftWait]:
        """Draft ahead while the target verifies `draft`."""
        wait = DraftWait()
        if not (self._can_draft_ahead(tokens, draft) and self._policy.choose()):
            yield wait
            return
        self._was_overlapped = True
        self._worker.start(
            lambda is_stopped: self._draft_ahead(tokens, draft, is_stopped)
        )
        try:
            yield wait
        except BaseException:
            with suppress(LocalspecError, DecodeInterrupted):
                self._worker.finish()
            raise
        wait.seconds = self._worker.finish()

    def _can_draft_ahead(self, tokens: Sequence[int], draft: Draft) -> bool:
        """Whether the draft model drafted in this round and its context has space.

        With a verifier that draws draft tokens at random, the text would depend on
        timing.
        """
        cache = self._cache
        n_text = len(tokens)
        n_drafted = len(draft.tokens)
        if not isinstance(self._inputs.verifier, RankingVerifier):
            return False
        is_own_draft = n_drafted > 0 and self._n_text == n_text
        if not is_own_draft or cache.n_cached < n_text:
            return False
        # The text's own draft and each branch have up to `n_drafted + 1` cells.
        n_cells = (cache.n_branches + 1) * (n_drafted + 1)
        return n_text + n_cells <= cache.model.n_ctx

    def _draft_ahead(
        self, tokens: Sequence[int], draft: Draft, is_stopped: IsStopped
    ) -> None:
        """The thread's job: make a branch for each likely outcome, and let all grow."""
        try:
            places = self._rank_places(tokens, draft)
            if self._should_stop(is_stopped):
                return
            self._start_branches(tokens, draft.tokens, places)
            while not self._should_stop(is_stopped):
                if not self._grow_branches(tokens, max_length=len(draft.tokens)):
                    return
        except BaseException:
            self._cache.drop_branches()
            raise

    def _start_branches(
        self, tokens: Sequence[int], drafted: list[int], places: Sequence[Place]
    ) -> None:
        """Decode the last draft token, and the token of each outcome that rejects one.

        The tokens of the other outcomes follow the whole draft: they are known when its
        last token is decoded, and are decoded later.
        """
        cache = self._cache
        outcomes = likely_outcomes(places, max(1, cache.n_branches))
        cache.begin_branches(tokens, drafted)
        steps: list[tuple[Branch, int]] = []
        for n_accepted, rank in outcomes:
            if n_accepted < len(drafted):
                token = places[n_accepted].tokens[rank]
                branch = cache.add_branch([*drafted[:n_accepted], token])
                steps.append((branch, token))
        row = cache.decode_branches(steps, text_token=drafted[-1])
        assert row is not None
        n_accepting_all = len(outcomes) - len(steps)
        for token in self._rank_after(row, tokens, drafted)[:n_accepting_all]:
            cache.add_branch([*drafted, token])

    def _grow_branches(self, tokens: Sequence[int], max_length: int) -> bool:
        """Decode one token more of each branch; False if none can grow."""
        steps: list[tuple[Branch, int]] = []
        for branch in self._cache.branches:
            if len(branch.rows) < max_length:
                token = self._next_token(tokens, branch)
                if token is not None:
                    steps.append((branch, token))
        if not steps:
            return False
        self._cache.decode_branches(steps)
        return True

    def _should_stop(self, is_stopped: IsStopped) -> bool:
        return is_stopped() or self._inputs.cancelled()

    def _rank_places(self, tokens: Sequence[int], draft: Draft) -> list[Place]:
        """The places of a draft, with what the draft model says of each."""
        index = len(tokens) - self._inputs.prompt_length
        rows = draft.logits or ()
        places: list[Place] = []
        for i, token in enumerate(draft.tokens):
            confidence = _UNKNOWN_CONFIDENCE
            likeliest = [token]
            if draft.distributions is not None:
                distribution = draft.distributions[i]
                confidence = float(distribution.probs.max())
                row = rows[i] if i < len(rows) else None
                ranked = self._rank(distribution, row, index + i)
                likeliest += [other for other in ranked if other != token]
            places.append(Place(confidence, likeliest[:_N_RANKS]))
        return places

    def _rank_after(
        self, row: Logits, tokens: Sequence[int], drafted: list[int]
    ) -> list[int]:
        """The likeliest tokens after the draft."""
        row = row[: self._inputs.n_vocab]
        try:
            distribution, _ = self._sampler.distribution_after(row, tokens, drafted)
        except (InvalidLogitsError, NoAllowedTokenError):
            return []
        index = len(tokens) - self._inputs.prompt_length + len(drafted)
        return self._rank(distribution, row, index)

    def _rank(
        self, distribution: Distribution, row: Logits | None, index: int
    ) -> list[int]:
        """The likeliest tokens of a place, best first.

        They are ranked by `row`, the logits, where the distribution has one token only.
        """
        ids = distribution.ids
        verifier = self._inputs.verifier
        if len(ids) > 1 and isinstance(verifier, RankingVerifier):
            ids = verifier.rank_draft_tokens(distribution, index, _N_RANKS)
        elif row is not None:
            ids = top_k_ids(row[: self._inputs.n_vocab], _N_RANKS)
        return [int(token) for token in ids]

    def _next_token(self, tokens: Sequence[int], branch: Branch) -> int | None:
        """The token that a branch continues with; None if it ends here."""
        inputs = self._inputs
        drafted = [*branch.outcome, *branch.decoded[1:]]
        token = drafted[-1]
        if branch.rows:
            row = branch.rows[-1][: inputs.n_vocab]
            try:
                distribution, _ = self._sampler.distribution_after(row, tokens, drafted)
            except (InvalidLogitsError, NoAllowedTokenError):
                return None
            index = len(tokens) - inputs.prompt_length + len(drafted)
            token = inputs.verifier.sample_draft_token(distribution, index)
        return None if inputs.is_eog(token) else token


class Place(Struct, frozen=True):
    """A place of a draft."""

    confidence: float
    tokens: list[int]
    """The draft model's likeliest tokens, the drafted one first."""


def likely_outcomes(places: Sequence[Place], n: int) -> list[tuple[int, int]]:
    """The `n` outcomes to draft for, as (number of accepted tokens, rank of the next).

    First that all draft tokens are accepted and the likeliest token follows, then the
    likeliest others. For example, two tokens were drafted with confidences 0.9 and 0.5,
    so the rows of `_RANK_PROBABILITIES` are those up to 0.95 and 0.6. The target's first
    token is the draft's second choice with probability 0.10. It is the drafted one, and
    its second token the second choice, with 0.77 x 0.18 = 0.14. The token after both is
    the second choice with 0.77 x 0.64 x 0.24 = 0.12. So four outcomes are (2, 0), (1, 1),
    (2, 1) and (0, 1).
    """
    candidates: list[tuple[float, int, int]] = []
    p_reached = 1.0  # That all draft tokens before the place are accepted.
    after_all = Place(_UNKNOWN_CONFIDENCE, [0] * _N_RANKS)
    for n_accepted, place in enumerate([*places, after_all]):
        probabilities = _rank_probabilities(place.confidence)
        for rank in range(1, len(place.tokens)):
            candidates.append((p_reached * probabilities[rank], n_accepted, rank))
        p_reached *= probabilities[0]
    candidates.sort(reverse=True)
    others = [(n_accepted, rank) for _, n_accepted, rank in candidates[: n - 1]]
    return [(len(places), 0), *others]


def _rank_probabilities(confidence: float) -> tuple[float, ...]:
    for bound, probabilities in _RANK_PROBABILITIES:
        if confidence <= bound + 1e-6:
            return probabilities
    raise ValueError(f"a confidence of {confidence}")


class DraftOverlap:
    """What overlapped drafting keeps across the answers of a pair."""

    def __init__(
        self, cache: BranchCache | None, default: bool | None, *, across_devices: bool
    ) -> None:
        """`cache` is the draft model's, if it may draft beside the target.

        `default` is `LoadCommand.overlap`: it holds for requests that leave it open.
        """
        self._cache = cache
        self._default = default
        self._across_devices = across_devices
        self._policy = OverlapPolicy()
        self.worker = ThreadWorker()

    def may_overlap(self, method: str, overlap: bool | None) -> bool:
        if self._cache is None or method not in ("auto", "model"):
            return False
        wanted = self._wanted(overlap)
        return self._across_devices if wanted is None else wanted

    def _wanted(self, overlap: bool | None) -> bool | None:
        """What the request asks for, else what the pair was loaded with."""
        return self._default if overlap is None else overlap

    def make_drafter(
        self, inputs: DrafterInputs, request: DraftRequest, costs: PassCosts
    ) -> OverlappedDrafter | None:
        """None if drafting does not overlap verification. Raises UsageError."""
        if not isinstance(inputs.verifier, RankingVerifier):
            if request.overlap:
                raise verification_error(request.verify)
            return None
        if not self.may_overlap(request.method, request.overlap):
            return None
        assert self._cache is not None
        self._policy.costs = costs
        self._policy.is_forced = bool(self._wanted(request.overlap))
        # `_rank_places` ranks the other tokens of a place by these logits.
        inputs = replace(inputs, keep_logits=True)
        drafter = drafters.make("model", inputs)
        return OverlappedDrafter(
            drafter, self._cache, inputs, policy=self._policy, worker=self.worker
        )

    def close(self) -> None:
        self.worker.close()

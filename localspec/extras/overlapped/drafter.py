"""Overlapped drafting: the draft model drafts on while the target verifies (SSD, arXiv
2603.03251).

A worker thread drafts for the likeliest outcomes of the round: how many draft tokens
are accepted, and which token follows them. If the outcome is one of these, the next
draft is there already, or its beginning: `propose` always completes it, so neither the
text nor the width of a target pass depends on timing. What the draft proposes is the
same as without: only its passes are earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from localspec.errors import LocalspecError
from localspec.extras.overlapped.verification import verification_error
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

_N_RANKS = 4  # Of a place, this many tokens are outcomes that can be drafted for.
_RANK_PROBABILITIES = (
    (0.4, (0.37, 0.19, 0.12, 0.03)),
    (0.6, (0.64, 0.18, 0.08, 0.02)),
    (0.8, (0.62, 0.24, 0.05, 0.01)),
    (0.95, (0.77, 0.10, 0.03, 0.01)),
    (1.0, (0.96, 0.01, 0.01, 0.0)),
)
"""That the target's token is the draft's first, second, … choice, by upper bound of the
draft's confidence: of a 700 M target and its 30 M draft at temperature 0.8.
"""
_UNKNOWN_CONFIDENCE = 0.7  # Of a place that the draft model did not draft, or not yet.
_MIN_GAIN = 0.03  # Share of a round's time that overlap must be worth.
_TRIAL_ROUNDS = 16  # Rounds with and without overlap in turn, to compare their times.
_CHECK_INTERVAL = 32
"""While overlap is on, every so many rounds run without it, for the same reason."""
_FIRST_PAUSE, _MAX_PAUSE = 128, 4096
"""Rounds until the next trial after one that showed no gain; doubled each time."""
_NEW_TIME_WEIGHT = 0.05


class ThreadWorker:
    """Runs one job at a time beside the caller, on a thread that starts with the first
    job.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._stop = False

    def start(self, job: Callable[[IsStopped], None]) -> None:
        """Begin a job, which asks now and then whether it has to stop."""
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
        self._stop, began = True, time.perf_counter()
        self._job.result()
        return time.perf_counter() - began

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


class OverlapPolicy:
    """Whether rounds with overlap are faster; of one pair, kept across answers.

    A target pass and the draft after it are timed together, relative to the usual time
    of the pass, in turns with overlap and without. `is_forced` overlaps every round in
    which it can.
    """

    def __init__(self, costs: PassCosts | None = None) -> None:
        self.costs = costs or PassCosts()
        self.is_forced = False
        self._times: dict[bool, list[float]] = {False: [0, 0.0], True: [0, 0.0]}
        """With and without overlap: number of rounds, and their mean relative time."""
        self._draft_share = 0.0  # The draft's part of the last round without overlap.
        self._is_on = False
        self._usual_ms = self._spent_ms = 0.0
        """Of the last target pass, with the wait for the draft after it."""
        self._n_rounds = self._next_trial = 0
        self._pause = _FIRST_PAUSE

    def choose(self) -> bool:
        """Whether to overlap this round."""
        self._n_rounds += 1
        n_in_trial = self._n_rounds - self._next_trial
        if self.is_forced or n_in_trial < 0 or self._draft_share < _MIN_GAIN:
            return self.is_forced
        if n_in_trial < _TRIAL_ROUNDS:
            self._is_on = False
            return n_in_trial % 2 == 1
        (_, without), (_, with_overlap) = self._times[False], self._times[True]
        if with_overlap < without * (1 if self._is_on else 1 - _MIN_GAIN):
            self._is_on, self._pause = True, _FIRST_PAUSE
            return self._n_rounds % _CHECK_INTERVAL > 0
        self._next_trial = self._n_rounds + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE)
        self._times = {False: [0, 0.0], True: [0, 0.0]}
        return False

    def record_round(self, result: RoundResult) -> None:
        n, draft_ms = len(result.draft.tokens), result.draft.decode_seconds * 1e3
        if n and self._usual_ms:
            times = self._times[result.draft.overlap != ""]
            times[0] += 1
            time_ratio = (self._spent_ms + draft_ms) / self._usual_ms
            times[1] += max(_NEW_TIME_WEIGHT, 1 / times[0]) * (time_ratio - times[1])
            if not result.draft.overlap:
                self._draft_share = draft_ms / (self._spent_ms + draft_ms)
        self._usual_ms = 0.0
        if n and result.width == n + 1:
            self._usual_ms = self.costs.verify_ms[n + 1]
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
        self._drafter, self._cache, self._inputs = drafter, cache, inputs
        self._policy, self._worker = policy, worker
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
        was_overlapped, n_served = self._was_overlapped, self._cache.n_served
        self._was_overlapped = False
        draft = self._drafter.propose(tokens, limit, stop_policy)
        self._n_text = len(tokens)
        if not was_overlapped:
            return draft
        return replace(
            draft, overlap="hit" if self._cache.n_served > n_served else "miss"
        )

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
        """False if the draft model did not draft in this round, or its context is
        nearly full.

        With a verifier that draws draft tokens at random, the text would depend on
        timing.
        """
        cache, n = self._cache, len(draft.tokens)
        if not isinstance(self._inputs.verifier, RankingVerifier):
            return False
        if not n or self._n_text != len(tokens) or cache.n_cached < len(tokens):
            return False
        return len(tokens) + (cache.n_branches + 1) * (n + 1) <= cache.model.n_ctx

    def _draft_ahead(
        self, tokens: Sequence[int], draft: Draft, is_stopped: IsStopped
    ) -> None:
        cache, drafted = self._cache, draft.tokens
        try:
            places = self._rank_places(tokens, draft)
            outcomes = likely_outcomes(places, max(1, cache.n_branches))
            if self._should_stop(is_stopped):
                return
            cache.begin_branches(tokens, drafted)
            steps: list[tuple[Branch, int]] = []
            for n_accepted, rank in outcomes:
                if n_accepted < len(drafted):
                    token = places[n_accepted][1][rank]
                    steps.append(
                        (cache.add_branch([*drafted[:n_accepted], token]), token)
                    )
            row = cache.decode_branches(steps, drafted[-1])
            assert row is not None
            for token in self._rank_after(row, tokens, drafted)[
                : len(outcomes) - len(steps)
            ]:
                cache.add_branch([*drafted, token])
            while not self._should_stop(is_stopped):
                growing = [
                    branch
                    for branch in cache.branches
                    if len(branch.rows) < len(drafted)
                ]
                drawn = [
                    (branch, self._next_token(tokens, branch)) for branch in growing
                ]
                steps = [
                    (branch, token) for branch, token in drawn if token is not None
                ]
                if not steps:
                    return
                cache.decode_branches(steps)
        except BaseException:
            cache.drop_branches()
            raise

    def _should_stop(self, is_stopped: IsStopped) -> bool:
        return is_stopped() or self._inputs.cancelled()

    def _rank_places(self, tokens: Sequence[int], draft: Draft) -> list[Place]:
        """Of the draft's places, as far as the draft model drafted them."""
        index, rows = len(tokens) - self._inputs.prompt_length, draft.logits or ()
        places: list[Place] = []
        for i, token in enumerate(draft.tokens):
            confidence, others = _UNKNOWN_CONFIDENCE, list[int]()
            if draft.distributions is not None:
                distribution = draft.distributions[i]
                confidence = float(distribution.probs.max())
                others = self._rank(
                    distribution, rows[i] if i < len(rows) else None, index + i
                )
            likeliest = [token, *(other for other in others if other != token)]
            places.append((confidence, likeliest[:_N_RANKS]))
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
        """The likeliest tokens of a place, best first; by the logits where only one is
        left.
        """
        ids, verifier = distribution.ids, self._inputs.verifier
        if len(ids) > 1 and isinstance(verifier, RankingVerifier):
            ids = verifier.rank_draft_tokens(distribution, index, _N_RANKS)
        elif row is not None:
            ids = top_k_ids(row[: self._inputs.n_vocab], _N_RANKS)
        return [int(token) for token in ids]

    def _next_token(self, tokens: Sequence[int], branch: Branch) -> int | None:
        """The token that a branch continues with; None if it ends here."""
        inputs, drafted = self._inputs, [*branch.outcome, *branch.decoded[1:]]
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


Place = tuple[float, list[int]]
"""A place of a draft: the draft's confidence, and the likeliest tokens, the drafted one
first.
"""


def likely_outcomes(places: Sequence[Place], n: int) -> list[tuple[int, int]]:
    """The `n` outcomes to draft for: number of accepted draft tokens, rank of the token
    after them.

    First that all are accepted and the likeliest token follows, then the likeliest
    others.
    """
    found, reached = [], 1.0
    for i, (confidence, tokens) in enumerate(
        [*places, (_UNKNOWN_CONFIDENCE, [0] * _N_RANKS)]
    ):
        ranks = next(
            ranks for bound, ranks in _RANK_PROBABILITIES if confidence <= bound + 1e-6
        )
        found += [(reached * ranks[rank], i, rank) for rank in range(1, len(tokens))]
        reached *= ranks[0]
    found.sort(reverse=True)
    return [(len(places), 0), *((i, rank) for _, i, rank in found[: n - 1])]


class DraftOverlap:
    """What overlapped drafting keeps across the answers of a pair."""

    def __init__(
        self, cache: BranchCache | None, default: bool | None, *, across_devices: bool
    ) -> None:
        """`cache` is the draft model's, if it may draft beside the target.

        `default` holds for requests that leave it open, as `overlap` of `LoadCommand`.
        """
        self._cache, self._default, self._across_devices = (
            cache,
            default,
            across_devices,
        )
        self._policy = OverlapPolicy()
        self.worker = ThreadWorker()

    def make_drafter(
        self, inputs: DrafterInputs, request: DraftRequest, costs: PassCosts
    ) -> OverlappedDrafter | None:
        """None if drafting does not overlap verification. Raises UsageError."""
        if not isinstance(inputs.verifier, RankingVerifier):
            if request.overlap:
                raise verification_error(request.verify)
            return None
        wanted = self._default if request.overlap is None else request.overlap
        is_model_used = request.method in ("auto", "model")
        is_on = self._across_devices if wanted is None else wanted
        if self._cache is None or not (is_model_used and is_on):
            return None
        self._policy.costs, self._policy.is_forced = costs, bool(wanted)
        # to rank the other tokens of a place
        inputs = replace(inputs, keep_logits=True)
        drafter = drafters.make("model", inputs)
        return OverlappedDrafter(
            drafter, self._cache, inputs, self._policy, self.worker
        )

    def close(self) -> None:
        self.worker.close()

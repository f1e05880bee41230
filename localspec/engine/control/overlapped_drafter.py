"""Overlapped drafting: the draft model drafts on while the target verifies (SSD, arXiv 2603.03251).

A worker thread drafts for the likeliest outcomes of the round: how many draft tokens are accepted,
and which token follows them. If the outcome is one of these, the next draft is there already, or
its beginning: `propose` always completes it, so neither the text nor the width of a target pass
depends on timing. What the draft proposes is the same as without: only its passes are earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from localspec import speculation_methods
from localspec.engine import drafters
from localspec.engine.control.overlap_policy import N_RANKS, OverlapPolicy, PlaceRanking
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.draft_sampler import DraftSampler
from localspec.engine.prefix_cache import Branch, BranchCache
from localspec.engine.protocols import (
    DecodeInterrupted,
    Distribution,
    Draft,
    Drafter,
    DraftStopPolicy,
    DraftWait,
    Logits,
)
from localspec.engine.sampling import (
    InvalidLogitsError,
    NoAllowedTokenError,
    top_k_ids,
)
from localspec.engine.speculative_loop import GenerationJob, RoundResult
from localspec.engine.verifiers import RankingVerifier
from localspec.errors import LocalspecError
from localspec.protocol.wire import GenerateCommand

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

IsStopped = Callable[[], bool]


class BackgroundWorker(Protocol):
    """Runs one job at a time beside the caller."""

    def start(self, job: Callable[[IsStopped], None]) -> None:
        """Begin a job, which asks now and then whether it has to stop."""
        ...

    def finish(self) -> float:
        """Stop the job and wait for its end; return the seconds. Raises what the job raised."""
        ...


class ThreadWorker:
    """A thread of its own, started with the first job."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._stop = False

    def start(self, job: Callable[[IsStopped], None]) -> None:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  few need it

            self._executor = ThreadPoolExecutor(1, "draft")
        self._stop = False
        self._job = self._executor.submit(job, lambda: self._stop)

    def finish(self) -> float:
        assert self._job is not None
        self._stop, began = True, time.perf_counter()
        error = self._job.exception()
        if error is not None:
            raise error
        return time.perf_counter() - began

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


class OverlappedDrafter:
    """Drafts with `drafter`, whose draft model is `cache`; `meanwhile` drafts ahead."""

    def __init__(
        self,
        drafter: Drafter,
        cache: BranchCache,
        inputs: DrafterInputs,
        policy: OverlapPolicy,
        worker: BackgroundWorker,
    ) -> None:
        self._drafter, self._cache, self._inputs = drafter, cache, inputs
        self._policy, self._worker = policy, worker
        self._sampler = DraftSampler(inputs, "model", cache.model)
        self._n_text = 0
        """Length of the text for which the last draft was made."""
        self._was_overlapped = False
        """Whether the last target pass was overlapped."""
        self._rankings: list[PlaceRanking] = []
        """Of the places of that draft."""

    def join_job(self, job: GenerationJob) -> GenerationJob:
        """The job, with its passes overlapped and its rounds recorded."""

        def on_round(result: RoundResult) -> None:
            self._policy.record_round(result)
            job.on_round(result)

        return replace(job, overlap=self.meanwhile, on_round=on_round)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        was_overlapped, n_served = self._was_overlapped, self._cache.n_served
        self._was_overlapped = False
        self._policy.record_outcome(self._rankings, tokens[self._n_text :])
        self._rankings = []
        draft = self._drafter.propose(tokens, limit, stop_policy)
        self._n_text = len(tokens)
        if not was_overlapped:
            return draft
        is_hit = self._cache.n_served > n_served
        return replace(draft, overlap="hit" if is_hit else "miss")

    @contextmanager
    def meanwhile(self, tokens: Sequence[int], draft: Draft) -> Iterator[DraftWait]:
        """Draft ahead while the target verifies `draft`."""
        wait = DraftWait()
        fan = self._choose_fan(tokens, draft)
        if not fan:
            yield wait
            return
        self._was_overlapped = True
        self._worker.start(lambda is_stopped: self._draft_ahead(tokens, draft, fan, is_stopped))
        try:
            yield wait
        except BaseException:
            with suppress(LocalspecError, DecodeInterrupted):
                self._worker.finish()
            raise
        wait.seconds = self._worker.finish()

    def _choose_fan(self, tokens: Sequence[int], draft: Draft) -> int:
        """For how many outcomes to draft; 0 if the draft model did not draft in this round.

        With a verifier that draws draft tokens at random, the text would depend on timing.
        """
        cache = self._cache
        if not isinstance(self._inputs.verifier, RankingVerifier):
            return 0
        if not draft.tokens or self._n_text != len(tokens) or cache.n_cached < len(tokens):
            return 0
        n = len(draft.tokens)
        fan = self._policy.choose_fan(n, cache.n_branches)
        has_space = len(tokens) + (fan + 1) * (n + 1) <= cache.model.n_ctx
        return fan if has_space else 0

    def _draft_ahead(
        self, tokens: Sequence[int], draft: Draft, fan: int, is_stopped: IsStopped
    ) -> None:
        try:
            self._grow_branches(tokens, draft, fan, is_stopped)
        except BaseException:
            self._cache.drop_branches()
            raise

    def _grow_branches(
        self, tokens: Sequence[int], draft: Draft, fan: int, is_stopped: IsStopped
    ) -> None:
        cache, drafted, inputs = self._cache, draft.tokens, self._inputs
        self._rankings = list(self._rank_places(tokens, draft))
        outcomes = self._policy.likely_outcomes(self._rankings, len(drafted), fan)
        if is_stopped() or inputs.cancelled():
            return
        cache.begin_branches(tokens, drafted)
        steps: list[tuple[Branch, int]] = []
        for n_accepted, rank in outcomes:
            if n_accepted < len(drafted):
                token = self._rankings[n_accepted].tokens[rank]
                steps.append((cache.add_branch([*drafted[:n_accepted], token]), token))
        n_after_draft = len(outcomes) - len(steps)
        before = cache.model.decode_seconds
        row = cache.decode_branches(steps, drafted[-1] if n_after_draft else None)
        if row is not None:
            self._rankings.append(self._rank_after(row, tokens, drafted))
            for token in self._rankings[-1].tokens[:n_after_draft]:
                cache.add_branch([*drafted, token])
        n_passes = 1
        while not (is_stopped() or inputs.cancelled()):
            growing = [branch for branch in cache.branches if len(branch.rows) < len(drafted)]
            drawn = [(branch, self._next_token(tokens, branch)) for branch in growing]
            steps = [(branch, token) for branch, token in drawn if token is not None]
            if not steps:
                break
            cache.decode_branches(steps)
            n_passes += 1
        self._policy.record_passes(len(outcomes), (cache.model.decode_seconds - before) / n_passes)

    def _rank_places(self, tokens: Sequence[int], draft: Draft) -> Iterator[PlaceRanking]:
        """Of the draft's places, as far as the draft model drafted them."""
        index = len(tokens) - self._inputs.prompt_length
        rows = draft.logits if draft.logits is not None else [None] * len(draft.tokens)
        for i, (distribution, row) in enumerate(zip(draft.distributions or (), rows, strict=False)):
            others = self._rank(distribution, row, index + i)
            others = [token for token in others if token != draft.tokens[i]]
            likeliest = [draft.tokens[i], *others][:N_RANKS]
            yield PlaceRanking(float(distribution.probs.max()), likeliest)

    def _rank_after(self, row: Logits, tokens: Sequence[int], drafted: list[int]) -> PlaceRanking:
        row = row[: self._inputs.n_vocab]
        try:
            distribution, _ = self._sampler.distribution_after(row, tokens, drafted)
        except (InvalidLogitsError, NoAllowedTokenError):
            return PlaceRanking(0.0, [])
        index = len(tokens) - self._inputs.prompt_length + len(drafted)
        ranked = self._rank(distribution, row, index)
        return PlaceRanking(float(distribution.probs.max()), ranked)

    def _rank(self, distribution: Distribution, row: Logits | None, index: int) -> list[int]:
        """The likeliest tokens of a place, best first; by the logits where only one is left."""
        ids, verifier = distribution.ids, self._inputs.verifier
        if len(ids) > 1 and isinstance(verifier, RankingVerifier):
            ids = verifier.rank_draft_tokens(distribution, index, N_RANKS)
        elif row is not None:
            ids = top_k_ids(row[: self._inputs.n_vocab], N_RANKS)
        return [int(token) for token in ids]

    def _next_token(self, tokens: Sequence[int], branch: Branch) -> int | None:
        """The token that a branch continues with; None if it ends here."""
        inputs, drafted = self._inputs, [*branch.outcome, *branch.decoded[1:]]
        if branch.rows:
            row = branch.rows[-1][: inputs.n_vocab]
            try:
                distribution, _ = self._sampler.distribution_after(row, tokens, drafted)
            except (InvalidLogitsError, NoAllowedTokenError):
                return None
            index = len(tokens) - inputs.prompt_length + len(drafted)
            token = inputs.verifier.sample_draft_token(distribution, index)
        else:
            token = drafted[-1]
        return None if inputs.is_eog(token) else token


class DraftOverlap:
    """What overlapped drafting keeps across the answers of a pair."""

    def __init__(
        self, cache: BranchCache | None, default: bool | None, *, across_devices: bool
    ) -> None:
        """`cache` is the draft model's, if it may draft beside the target.

        `default` holds for requests that leave it open, as `overlap` of `LoadCommand`.
        """
        self._cache, self._default, self._across_devices = cache, default, across_devices
        self._policy = OverlapPolicy()
        self.worker: BackgroundWorker = ThreadWorker()

    def make_drafter(
        self, inputs: DrafterInputs, request: GenerateCommand, costs: PassCosts
    ) -> OverlappedDrafter | None:
        """None if drafting does not overlap verification. Raises UsageError."""
        if not isinstance(inputs.verifier, RankingVerifier):
            if request.overlap:
                raise speculation_methods.overlap_error(request.verify)
            return None
        wanted = self._default if request.overlap is None else request.overlap
        is_model_used = request.spec in ("auto", "model")
        is_on = self._across_devices if wanted is None else wanted
        if self._cache is None or not (is_model_used and is_on):
            return None
        self._policy.costs, self._policy.is_forced = costs, bool(wanted)
        inputs = replace(inputs, keep_logits=True)  # to rank the other tokens of a place
        drafter = drafters.make("model", inputs)
        return OverlappedDrafter(drafter, self._cache, inputs, self._policy, self.worker)

    def close(self) -> None:
        if isinstance(self.worker, ThreadWorker):
            self.worker.close()

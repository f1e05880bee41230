"""A worker without a thread, and the production's drafter over a fake model."""

from collections.abc import Callable

from localspec.errors import EngineError
from localspec.extras.overlapped.drafter import (
    IsStopped,
    OverlappedDrafter,
    OverlapPolicy,
    ThreadWorker,
)
from localspec.spec import drafters
from localspec.spec.drafters.model import ModelDrafter
from localspec.spec.prefix_cache import BranchCache
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import DecodeInterrupted, Verifier
from tests.support.fake_models import BranchingModel, Stop


class ScheduledWorker(ThreadWorker):
    """Runs its jobs when they are started or when they are finished.

    A job ends after a number of checks.
    """

    def __init__(self, schedule: Callable[[], tuple[bool, int]]) -> None:
        """`schedule` gives for each job whether it runs at once, and its checks."""
        super().__init__()
        self._schedule = schedule
        self._scheduled: Callable[[], None] | None = None
        self._error: Exception | None = None

    def start(self, job: Callable[[IsStopped], None]) -> None:
        assert self._scheduled is None, "a job before the end of the last one"
        runs_at_once, n_checks = self._schedule()
        stop = Stop(n_checks)
        self._scheduled = lambda: job(stop)
        if runs_at_once:
            self._run()

    def finish(self) -> float:
        self._run()
        error = self._error
        self._error = None
        if error is not None:
            raise error
        return 0.0

    def _run(self) -> None:
        job = self._scheduled
        self._scheduled = None
        try:
            if job is not None:
                job()
        except (EngineError, DecodeInterrupted) as error:
            self._error = error


def overlapped_drafter(
    model: BranchingModel | BranchCache,
    verifier: Verifier,
    what: PreparedAnswer,
    worker: ThreadWorker | None = None,
    *,
    fan: int = 3,
    policy: OverlapPolicy | None = None,
) -> OverlappedDrafter:
    """The production's drafter over a fake.

    It drafts in every round with `fan` outcomes unless there is a `policy`. By default its
    jobs end in time.
    """
    cache = model if isinstance(model, BranchCache) else BranchCache(model)
    assert isinstance(cache.model, BranchingModel)
    cache.model.n_branches = fan
    inputs = drafters.DrafterInputs(
        draft_cache=cache,
        verifier=verifier,
        sampling=what.sampling,
        prompt_length=len(what.prompt),
        n_vocab=cache.model.n_vocab,
        is_eog=what.is_eog,
        cancelled=what.is_cancelled,
        constraint=what.constraint,
        keep_logits=True,
    )
    if policy is None:
        policy = OverlapPolicy()
        policy.is_forced = True
    worker = worker or ScheduledWorker(lambda: (True, 1000))
    drafter = ModelDrafter(cache, inputs)
    return OverlappedDrafter(drafter, cache, inputs, policy=policy, worker=worker)

"""Overlapped drafting: the draft model drafts on while the target verifies."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice, product
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.errors import EngineError, UsageError
from localspec.extras.overlapped.drafter import (
    DraftOverlap,
    IsStopped,
    OverlapPolicy,
    ThreadWorker,
)
from localspec.protocol.events import Overlap, RoundTimes
from localspec.protocol.wire import LoadCommand, MeasuredCosts, SamplingParams
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.prefix_cache import BranchCache, PrefixCache
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import DecodeInterrupted, Draft, Logits
from localspec.spec.speculative_loop import (
    RoundResult,
    speculative_decode,
)
from localspec.spec.verifiers import make_verifier
from tests.extras.overlapped.fakes import ScheduledWorker, overlapped_drafter
from tests.spec.laws import PROMPT, SAMPLED, SEED
from tests.support.fake_models import (
    GREEDY,
    BranchingModel,
    HistoryModel,
    Run,
    Stop,
    drafting_with,
    job,
    model_drafter,
    run,
)
from tests.support.long_cases import LONG
from tests.support.sessions import (
    SETTINGS,
    loaded,
    require_same_logits_at_every_width,
    say,
)
from tests.support.zoo import Zoo

FANS = (1, 3, 5)
TARGET = HistoryModel(1)


class LikeTarget(BranchingModel):
    def row(self, past: Sequence[int]) -> Logits:
        mixed: Logits = TARGET.row(past) + np.float32(0.4) * super().row(past)
        return mixed


def answer(
    what: PreparedAnswer,
    fan: int = 0,
    n_checks: int = 1000,
    draft: int = 1,
    target: int = 1,
) -> Run:
    verifier, model = make_verifier("coupled", SEED), LikeTarget(draft)
    if not fan:
        drafter = model_drafter(
            model, verifier, what.sampling, len(what.prompt), is_eog=what.is_eog
        )
        return run(HistoryModel(target), drafter, verifier, what)
    worker = ScheduledWorker(lambda: (True, n_checks))
    overlapped = overlapped_drafter(model, verifier, what, worker, fan=fan)
    return run(HistoryModel(target), overlapped, verifier, what)


@pytest.mark.parametrize("fan", FANS)
def test_every_draft_is_the_same_as_without_overlap(fan: int) -> None:
    penalised = replace(SAMPLED, repeat_penalty=1.4, repeat_last_n=4)
    for sampling, length, seed in product(
        (GREEDY, SAMPLED, penalised), (1, 2, 3, 5), (1, 2)
    ):
        what = job(PROMPT, 24, sampling=sampling, draft_length=length)
        expected = answer(what, draft=seed)
        for n_checks in (0, 1, 2, 4, 1000):
            got = answer(what, fan, n_checks, draft=seed)
            assert (got.drafts, got.tokens) == (expected.drafts, expected.tokens)


def test_branches_leave_their_cells_to_a_text_that_fills_the_context() -> None:
    """Also those that did not come true; so near its end nothing is drafted ahead."""
    for seed, fan, n_ctx in product((2, 3, 4), FANS, (30, 37)):
        what = job(PROMPT, 60, sampling=replace(SAMPLED, seed=seed), draft_length=3)
        verifier = make_verifier("coupled", seed)
        plain = model_drafter(
            LikeTarget(seed, n_ctx=n_ctx), verifier, what.sampling, len(PROMPT)
        )
        ahead = overlapped_drafter(
            LikeTarget(seed, n_ctx=n_ctx), verifier, what, fan=fan
        )
        drafts = [
            run(HistoryModel(1), each, verifier, what).drafts for each in (plain, ahead)
        ]
        assert drafts[0] == drafts[1]


def test_a_draft_that_is_always_right_is_always_there_already() -> None:
    what = job(PROMPT, 41, sampling=SAMPLED, draft_length=4)
    verifier, model = make_verifier("coupled", SEED), BranchingModel(1)
    drafter = overlapped_drafter(model, verifier, what, fan=1)
    rounds = run(HistoryModel(1), drafter, verifier, what).steps
    assert [step.draft.overlap for step in rounds[2:]] == ["hit"] * 7
    assert all(step.draft.decode_seconds == 0.0 for step in rounds[2:])


class FailingPasses(HistoryModel):
    """Its n-th pass fails, after it has changed the memory."""

    fails_at = -1
    error: type[Exception] = EngineError

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        rows = super().decode(tokens, outputs)
        self.fail()
        return rows

    def fail(self) -> None:
        self.fails_at -= 1
        if self.fails_at == -1:
            raise self.error("a pass failed")


class FailingDraft(FailingPasses, LikeTarget):
    def decode_branches(self, steps: Sequence[tuple[int, int]]) -> Logits:
        rows = super().decode_branches(steps)
        self.fail()
        return rows


def disturbed_answers(seed: int) -> None:
    """Answers that are stopped, cancelled, edited or fail, with jobs of any length and
    order; then the drafts of one answer are those of a fresh pair.
    """
    rng = Random(seed)
    target, draft = (
        FailingPasses(1, n_batch=8),
        FailingDraft(rng.choice((1, 2)), n_batch=8),
    )
    target_cache, draft_cache = PrefixCache(target), BranchCache(draft)
    worker = ScheduledWorker(
        lambda: (rng.random() < 0.5, rng.choice((0, 1, 2, 3, 5, 99)))
    )
    text = list(PROMPT)
    for _ in range(4):
        what = _random_job(text, rng)
        drafter = overlapped_drafter(
            draft_cache,
            make_verifier("coupled", SEED),
            what,
            worker,
            fan=rng.choice(FANS),
        )
        prepared = replace(what, verifier=make_verifier("coupled", SEED))
        loop = speculative_decode(target_cache, prepared, drafting_with(drafter, what))
        target.fails_at = rng.randrange(1, 12) if rng.random() < 0.2 else -1
        draft.fails_at = rng.randrange(1, 30) if rng.random() < 0.3 else -1
        draft.error = rng.choice((EngineError, DecodeInterrupted))
        with suppress(EngineError):
            for step in islice(loop, rng.choice((2, 5, 99))):
                text += step.tokens if isinstance(step, RoundResult) else []
        assert isinstance(loop, Generator)
        loop.close()
        target.fails_at = draft.fails_at = -1
        text = text[: rng.randrange(3, len(text) + 1)] + rng.choices(
            range(5), k=rng.randrange(3)
        )
    what = replace(_random_job(text, rng), is_cancelled=lambda: False)
    drafter = overlapped_drafter(
        draft_cache, make_verifier("coupled", SEED), what, worker, fan=rng.choice(FANS)
    )
    got = run(target_cache, drafter, make_verifier("coupled", SEED), what)
    fresh = model_drafter(
        LikeTarget(draft._seed),
        make_verifier("coupled", SEED),
        what.sampling,
        len(what.prompt),
    )
    expected = run(HistoryModel(1), fresh, make_verifier("coupled", SEED), what)
    assert got.drafts == expected.drafts
    assert got.tokens == expected.tokens


def _random_job(text: list[int], rng: Random) -> PreparedAnswer:
    sampling = rng.choice((GREEDY, SAMPLED))
    cancelled = Stop(rng.randrange(40)) if rng.random() < 0.3 else lambda: False
    draft_length = rng.choice((1, 2, 3, 5))
    return job(
        text[-60:],
        25,
        sampling=sampling,
        draft_length=draft_length,
        cancelled=cancelled,
    )


@pytest.mark.parametrize(
    "seeds",
    [range(40), pytest.param(range(40, 500), marks=LONG)],
    ids=["40", "460 more"],
)
def test_the_next_answer_is_as_from_a_fresh_pair(seeds: range) -> None:
    for seed in seeds:
        disturbed_answers(seed)


OVERLAPS: tuple[Overlap, Overlap] = ("", "hit")


def overlapped_rounds(
    n: int, verify_ms: tuple[float, float], draft_ms: tuple[float, float]
) -> list[bool]:
    """In which rounds a policy overlaps; the times are without overlap, and with it."""
    usual = MeasuredCosts(verify_ms[0], {"1": 1.0, "4": 1.0, "8": 1.0})
    policy, rounds, was_overlapped = (
        OverlapPolicy(PassCosts(usual)),
        list[bool](),
        False,
    )
    for _ in range(n):
        drafting, overlap = draft_ms[was_overlapped], OVERLAPS[was_overlapped]
        draft = Draft([7] * 3, None, "model", drafting / 1e3, overlap=overlap)
        rounds.append(was_overlapped)
        was_overlapped = policy.choose()
        times = RoundTimes(drafting, verify_ms[was_overlapped], 0.0)
        policy.record_round(RoundResult(draft, 3, [7] * 4, times, 4))
    return rounds


def test_auto_overlaps_where_it_pays() -> None:
    for verify_ms in (60.0, 120.0):
        rounds = overlapped_rounds(200, (verify_ms, verify_ms), (24.0, 5.0))
        assert sum(rounds[20:]) > 0.9 * len(rounds[20:])


def test_auto_does_not_overlap_where_it_loses() -> None:
    slowed = overlapped_rounds(100, (60.0, 78.0), (24.0, 12.0))
    assert 0 < sum(slowed[:24]) <= 12
    assert not any(slowed[24:100])
    assert not any(overlapped_rounds(100, (300.0, 300.0), (6.0, 0.0))), (
        "too little to gain"
    )


class AtOnce(ThreadWorker):
    def start(self, job: Callable[[IsStopped], None]) -> None:
        super().start(lambda _: job(lambda: False))
        assert self._job is not None
        self._job.exception()


def test_an_error_of_the_thread_ends_the_answer() -> None:
    what = job(PROMPT, 60, sampling=SAMPLED, draft_length=3)
    model, verifier = FailingDraft(3), make_verifier("coupled", SEED)
    with closing(AtOnce()) as worker:
        drafter = overlapped_drafter(model, verifier, what, worker, fan=3)
        model.fails_at = 4
        with pytest.raises(EngineError):
            run(HistoryModel(1), drafter, verifier, what)
        model.fails_at, model.error = 4, DecodeInterrupted
        assert run(HistoryModel(1), drafter, verifier, what).end == "cancelled"


def overlap_of(session: Session) -> DraftOverlap:
    (overlap,) = session._drafters._overlaps
    assert isinstance(overlap, DraftOverlap)
    return overlap


@pytest.fixture(scope="module", params=["a thread", "at once"])
def pair(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[Session]:
    """A target with one thread, and a draft with another, whose cache holds branches."""
    require_same_logits_at_every_width(zoo["target"])
    files = str(zoo["target"]), str(zoo["cousin"])
    session = Session(LoadCommand(*files, SETTINGS, SETTINGS, overlap=True))
    if request.param == "at once":  # so that drafts are there in time
        overlap_of(session).worker = AtOnce()
    yield session
    session.close()


def test_the_text_is_the_same_with_overlap(pair: Session) -> None:
    for seed, spec in product(range(3), ("model", "auto")):
        sampling = SamplingParams(temperature=0.7 * (seed > 0), seed=seed)
        options: dict[str, Any] = {
            "spec": spec,
            "max_tokens": 60,
            "sampling": sampling,
            "draft_length": 3,
        }
        expected = say(pair, "the one ", overlap=False, **options)
        got = say(pair, "the one ", **options)
        assert got.ids == expected.ids
        if spec == "model":
            assert got.speculation["overlap"]["rounds"] > 0
            if isinstance(overlap_of(pair).worker, AtOnce):
                assert got.speculation["overlap"]["hits"] > 0
            assert "overlap" not in expected.speculation


def test_methods_that_draw_draft_tokens_at_random_refuse_overlap(pair: Session) -> None:
    for verify in ("rejection", "block"):
        with pytest.raises(UsageError, match=verify):
            say(pair, "the one ", verify=verify, overlap=True)
        assert say(pair, "the one ", verify=verify, max_tokens=5).ids


def test_on_one_device_auto_does_not_overlap(zoo: Zoo) -> None:
    with loaded(zoo["target"], zoo["cousin"]) as session:
        said = say(session, "the one ", spec="model", max_tokens=30)
        assert "overlap" not in said.speculation
        said = say(session, "the one ", spec="model", max_tokens=30, overlap=True)
        assert said.speculation["overlap"]["rounds"] > 0

"""Overlapped drafting: the draft model drafts on while the target verifies."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice, product
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.errors import EngineError, UsageError
from localspec.extras.overlapped.drafter import (
    DraftOverlap,
    IsStopped,
    OverlappedDrafter,
    OverlapPolicy,
    Place,
    ThreadWorker,
    likely_outcomes,
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


def answer_without_overlap(what: PreparedAnswer, draft_seed: int) -> Run:
    verifier = make_verifier("coupled", SEED)
    drafter = model_drafter(
        LikeTarget(draft_seed),
        verifier,
        what.sampling,
        len(what.prompt),
        is_eog=what.is_eog,
    )
    return run(HistoryModel(1), drafter, verifier, what)


def answer_with_overlap(
    what: PreparedAnswer, draft_seed: int, *, fan: int, n_checks: int
) -> Run:
    verifier = make_verifier("coupled", SEED)
    worker = ScheduledWorker(lambda: (True, n_checks))
    drafter = overlapped_drafter(
        LikeTarget(draft_seed), verifier, what, worker, fan=fan
    )
    return run(HistoryModel(1), drafter, verifier, what)


@pytest.mark.parametrize("fan", FANS)
def test_every_draft_is_the_same_as_without_overlap(fan: int) -> None:
    penalized = replace(SAMPLED, repeat_penalty=1.4, repeat_last_n=4)
    samplings = (GREEDY, SAMPLED, penalized)
    for sampling, length, seed in product(samplings, (1, 2, 3, 5), (1, 2)):
        what = job(PROMPT, 24, sampling=sampling, draft_length=length)
        expected = answer_without_overlap(what, seed)
        for n_checks in (0, 1, 2, 4, 1000):
            got = answer_with_overlap(what, seed, fan=fan, n_checks=n_checks)
            assert got.drafts == expected.drafts
            assert got.tokens == expected.tokens


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

        expected = run(HistoryModel(1), plain, verifier, what)
        got = run(HistoryModel(1), ahead, verifier, what)

        assert got.drafts == expected.drafts


def test_a_draft_that_is_always_right_is_always_there_already() -> None:
    what = job(PROMPT, 41, sampling=SAMPLED, draft_length=4)
    verifier = make_verifier("coupled", SEED)
    drafter = overlapped_drafter(BranchingModel(1), verifier, what, fan=1)

    rounds = run(HistoryModel(1), drafter, verifier, what).steps

    assert [step.draft.overlap for step in rounds[2:]] == ["hit"] * 7
    assert all(step.draft.decode_seconds == 0.0 for step in rounds[2:])


def test_the_likeliest_outcomes_are_drafted_for() -> None:
    """The worked example of `likely_outcomes`."""
    places = [Place(0.9, [10, 11, 12, 13]), Place(0.5, [20, 21, 22, 23])]

    assert likely_outcomes(places, 4) == [(2, 0), (1, 1), (2, 1), (0, 1)]


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


class DisturbedPair:
    """A pair whose answers are stopped, cancelled, edited or fail, at random.

    Its overlapped jobs have any length and order.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.verifier = make_verifier("coupled", SEED)
        self.target = FailingPasses(1, n_batch=8)
        self.draft_seed = rng.choice((1, 2))
        self.draft = FailingDraft(self.draft_seed, n_batch=8)
        self.target_cache = PrefixCache(self.target)
        self.draft_cache = BranchCache(self.draft)
        self.worker = ScheduledWorker(self._schedule_job)

    def _schedule_job(self) -> tuple[bool, int]:
        runs_at_once = self.rng.random() < 0.5
        return runs_at_once, self.rng.choice((0, 1, 2, 3, 5, 99))

    def make_drafter(self, what: PreparedAnswer) -> OverlappedDrafter:
        fan = self.rng.choice(FANS)
        return overlapped_drafter(
            self.draft_cache, self.verifier, what, self.worker, fan=fan
        )

    def disturbed_answer(self, text: list[int]) -> list[int]:
        """An answer to `text` that may end early; returns a text that was edited."""
        rng = self.rng
        what = replace(random_job(text, rng), verifier=self.verifier)
        drafting = drafting_with(self.make_drafter(what), what)
        loop = speculative_decode(self.target_cache, what, drafting)
        if rng.random() < 0.2:
            self.target.fails_at = rng.randrange(1, 12)
        if rng.random() < 0.3:
            self.draft.fails_at = rng.randrange(1, 30)
        self.draft.error = rng.choice((EngineError, DecodeInterrupted))
        said: list[int] = []
        with suppress(EngineError):
            for step in islice(loop, rng.choice((2, 5, 99))):
                if isinstance(step, RoundResult):
                    said += step.tokens
        assert isinstance(loop, Generator)
        loop.close()
        self.target.fails_at = -1
        self.draft.fails_at = -1
        whole = text + said
        n_kept = rng.randrange(3, len(whole) + 1)
        return whole[:n_kept] + rng.choices(range(5), k=rng.randrange(3))


def check_answer_after_disturbed_ones(seed: int) -> None:
    """The drafts of an answer after four disturbed ones are those of a fresh pair."""
    rng = Random(seed)
    pair = DisturbedPair(rng)
    text = list(PROMPT)
    for _ in range(4):
        text = pair.disturbed_answer(text)
    what = replace(random_job(text, rng), is_cancelled=lambda: False)

    got = run(pair.target_cache, pair.make_drafter(what), pair.verifier, what)

    expected = answer_without_overlap(what, pair.draft_seed)
    assert got.drafts == expected.drafts
    assert got.tokens == expected.tokens


def random_job(text: list[int], rng: Random) -> PreparedAnswer:
    cancelled: Callable[[], bool] = lambda: False  # noqa: E731
    if rng.random() < 0.3:
        cancelled = Stop(rng.randrange(40))
    return job(
        text[-60:],
        25,
        sampling=rng.choice((GREEDY, SAMPLED)),
        draft_length=rng.choice((1, 2, 3, 5)),
        cancelled=cancelled,
    )


@pytest.mark.parametrize(
    "seeds",
    [range(40), pytest.param(range(40, 500), marks=LONG)],
    ids=["40", "460 more"],
)
def test_the_next_answer_is_as_from_a_fresh_pair(seeds: range) -> None:
    for seed in seeds:
        check_answer_after_disturbed_ones(seed)


class PassMs(Struct, frozen=True):
    """Milliseconds of a target pass, and of the draft after it."""

    verify: float
    draft: float


def overlapped_rounds(n: int, without: PassMs, with_overlap: PassMs) -> list[bool]:
    """In which of `n` rounds a policy overlaps, with these times in each."""
    usual = MeasuredCosts(without.verify, {"1": 1.0, "4": 1.0, "8": 1.0})
    policy = OverlapPolicy(PassCosts(usual))
    rounds: list[bool] = []
    was_overlapped = False
    for _ in range(n):
        rounds.append(was_overlapped)
        draft_ms = without.draft
        overlap: Overlap = ""
        if was_overlapped:
            draft_ms = with_overlap.draft
            overlap = "hit"
        draft = Draft(
            [7] * 3, source="model", decode_seconds=draft_ms / 1e3, overlap=overlap
        )
        was_overlapped = policy.choose()
        verify_ms = with_overlap.verify if was_overlapped else without.verify
        times = RoundTimes(draft=draft_ms, verify=verify_ms, host=0.0)
        result = RoundResult(draft, accepted=3, tokens=[7] * 4, ms=times, width=4)
        policy.record_round(result)
    return rounds


def test_auto_overlaps_where_it_pays() -> None:
    for verify_ms in (60.0, 120.0):
        rounds = overlapped_rounds(
            200,
            without=PassMs(verify_ms, draft=24.0),
            with_overlap=PassMs(verify_ms, draft=5.0),
        )
        assert sum(rounds[20:]) > 0.9 * len(rounds[20:])


def test_auto_does_not_overlap_where_it_loses() -> None:
    rounds = overlapped_rounds(
        100,
        without=PassMs(60.0, draft=24.0),
        with_overlap=PassMs(78.0, draft=12.0),
    )

    assert 0 < sum(rounds[:24]) <= 12, "the trial"
    assert not any(rounds[24:])


def test_auto_does_not_overlap_where_there_is_too_little_to_gain() -> None:
    rounds = overlapped_rounds(
        100,
        without=PassMs(300.0, draft=6.0),
        with_overlap=PassMs(300.0, draft=0.0),
    )

    assert not any(rounds)


class AtOnce(ThreadWorker):
    def start(self, job: Callable[[IsStopped], None]) -> None:
        super().start(lambda _: job(lambda: False))
        assert self._job is not None
        self._job.exception()


def test_an_error_of_the_thread_ends_the_answer() -> None:
    what = job(PROMPT, 60, sampling=SAMPLED, draft_length=3)
    model = FailingDraft(3)
    verifier = make_verifier("coupled", SEED)
    with closing(AtOnce()) as worker:
        drafter = overlapped_drafter(model, verifier, what, worker, fan=3)
        model.fails_at = 4
        with pytest.raises(EngineError):
            run(HistoryModel(1), drafter, verifier, what)
        model.fails_at = 4
        model.error = DecodeInterrupted
        assert run(HistoryModel(1), drafter, verifier, what).end == "cancelled"


def overlap_of(session: Session) -> DraftOverlap:
    (overlap,) = session._drafters._overlaps
    assert isinstance(overlap, DraftOverlap)
    return overlap


@pytest.fixture(scope="module", params=["a thread", "at once"])
def pair(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[Session]:
    """A target with one thread, and a draft with another, whose cache holds branches."""
    require_same_logits_at_every_width(zoo["target"])
    session = Session(
        LoadCommand(
            target=str(zoo["target"]),
            draft=str(zoo["cousin"]),
            target_settings=SETTINGS,
            draft_settings=SETTINGS,
            overlap=True,
        )
    )
    if request.param == "at once":  # so that drafts are there in time
        overlap_of(session).worker = AtOnce()
    yield session
    session.close()


def test_the_text_is_the_same_with_overlap(pair: Session) -> None:
    for seed, spec in product(range(3), ("model", "auto")):
        temperature = 0.7 if seed else 0.0
        sampling = SamplingParams(temperature=temperature, seed=seed)
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

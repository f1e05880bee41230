"""Passes are timed by width and by thread count, and leave the memories as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from localspec.engine import pass_timing
from localspec.spec.protocols import Logits
from tests.support.fake_models import HistoryModel


class TimedModel(HistoryModel):
    """Its passes alone take time: what `milliseconds` says of the model after each."""

    n_threads = n_threads_batch = 2
    now = 0.0

    def __init__(
        self, milliseconds: Callable[[TimedModel], float] = lambda _: 1.0
    ) -> None:
        super().__init__(1)
        self._milliseconds = milliseconds

    def set_n_threads(self, n: int, n_batch: int) -> None:
        self.n_threads = n
        self.n_threads_batch = n_batch

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        rows = super().decode(tokens, outputs)
        TimedModel.now += self._milliseconds(self) / 1e3
        return rows

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_timing, "time", TimedModel)


def last(seconds: float, most: int = 16, draft: bool = True) -> pass_timing.PassTimes:
    target = TimedModel()
    guesser = TimedModel()
    (*_, times) = pass_timing.measure_passes(
        target, guesser if draft else None, most, seconds
    )
    assert target.n_past == guesser.n_past == 0
    return times


def test_widths_are_tried_as_far_as_there_is_time_and_drafts_are_long() -> None:
    times = last(5.0)
    assert sorted(times.verify) == [1, 2, 4, 5, 8]
    assert times.verify_curve()["1"] == times.c() == 1.0
    hurried = last(0.0, draft=False)
    assert list(hurried.verify) == [1] and hurried.t1() > 0 and hurried.c() is None
    assert max(last(5.0, most=3).verify) == 4


@pytest.mark.parametrize(("warm", "t1"), [(0, 5.0), (2, 4.0)])
def test_passes_settle_before_one_is_timed(warm: int, t1: float) -> None:
    """On CUDA the first passes of a width cost more than all that follow."""
    capturing = TimedModel(
        lambda model: 5.0 - (model.reads[-3:] == model.reads[-1:] * 3)
    )
    (*_, times) = pass_timing.measure_passes(capturing, None, 16, 5.0, warm)
    assert times.t1() == pytest.approx(t1)
    assert set(times.verify_curve().values()) == {1.0}


def test_each_kind_of_pass_gets_its_fastest_thread_count() -> None:
    """One token is fastest with one thread, a wider pass with two."""
    target, draft = (
        TimedModel(lambda m: 5 if m.n_threads == 1 + (m.reads[-1] == 1) else 1)
        for _ in range(2)
    )
    (*_, times) = pass_timing.measure_threads(target, draft, (2, 1), 8)
    assert times.best() == (1, 2)
    assert (target.n_threads, draft.n_threads_batch) == (2, 2)


def test_the_default_count_stays_unless_another_is_clearly_faster() -> None:
    times = pass_timing.ThreadTimes(
        {4: [10.0, 30.0], 3: [9.8, 9.9]}, {4: [10.0], 3: [7.0]}
    )
    assert times.best() == (4, 3)

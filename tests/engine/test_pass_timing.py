"""Passes are timed by width and by thread count, and leave the memories as they were."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from localspec.engine import pass_timing
from localspec.engine.protocols import Logits
from tests.support.fake_models import HistoryModel


def last(seconds: float, most: int = 16, draft: bool = True) -> pass_timing.PassTimes:
    target, guesser = HistoryModel(1), HistoryModel(2)
    (*_, times) = pass_timing.measure_passes(target, guesser if draft else None, most, seconds)
    assert target.n_past == guesser.n_past == 0
    return times


def test_widths_are_tried_as_far_as_there_is_time_and_drafts_are_long() -> None:
    times = last(5.0)
    assert sorted(times.verify) == [1, 2, 4, 5, 8]
    assert times.verify_curve()["1"] == 1.0
    assert times.c() is not None
    hurried = last(0.0, draft=False)
    assert 1 in hurried.verify and hurried.t1() > 0 and hurried.c() is None
    assert max(last(5.0, most=3).verify) == 4


def test_passes_settle_before_one_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the first passes of a width cost more than all that follow."""
    clock = Clock()
    monkeypatch.setattr(pass_timing, "time", clock)

    class Capturing(HistoryModel):
        widths: tuple[int, ...] = ()

        def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
            self.widths = (*self.widths[-2:], len(tokens))
            clock.now += 0.004 if len(self.widths) == 3 and len({*self.widths}) == 1 else 0.005
            return super().decode(tokens, outputs)

    for warm, expected in ((0, 5.0), (2, 4.0)):
        (*_, times) = pass_timing.measure_passes(Capturing(1), None, 16, 5.0, warm)
        assert times.t1() == pytest.approx(expected)
        assert set(times.verify_curve().values()) == {1.0}


class Clock(SimpleNamespace):
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class ThreadedFake(HistoryModel):
    """A pass of one token is fastest with one thread, a wider one with two."""

    n_threads = n_threads_batch = 2

    def __init__(self, seed: int, clock: Clock) -> None:
        super().__init__(seed)
        self._clock = clock

    def set_n_threads(self, n: int, n_batch: int) -> None:
        self.n_threads, self.n_threads_batch = n, n_batch

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        slow = self.n_threads == 2 if len(tokens) == 1 else self.n_threads_batch == 1
        self._clock.now += 0.005 if slow else 0.001
        return super().decode(tokens, outputs)


def test_each_kind_of_pass_gets_its_fastest_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pass_timing, "time", clock)
    target, draft = ThreadedFake(1, clock), ThreadedFake(2, clock)
    (*_, times) = pass_timing.measure_threads(target, draft, (2, 1), 8)
    assert times.best() == (1, 2)
    assert (target.n_threads, draft.n_threads_batch) == (2, 2)


def test_the_default_count_stays_unless_another_is_clearly_faster() -> None:
    times = pass_timing.ThreadTimes({4: [10.0, 30.0], 3: [9.8, 9.9]}, {4: [10.0], 3: [7.0]})
    assert times.best() == (4, 3)

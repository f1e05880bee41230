"""Passes are timed by width and by thread count, and leave the memories as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from localspec.engine import pass_timing
from localspec.spec.protocols import Logits
from tests.support.fake_models import HistoryModel


class TimedModel(HistoryModel):
    """Its passes alone take time: what `milliseconds` says of the model after each."""

    n_threads = 2
    n_threads_batch = 2
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


def time_passes(
    target: TimedModel,
    draft: TimedModel | None = None,
    *,
    seconds: float = 5.0,
    longest: int = 16,
    warm: int = 0,
) -> pass_timing.PassTimes:
    *_, times = pass_timing.measure_passes(
        target, draft, longest=longest, seconds=seconds, warm=warm
    )
    return times


def test_every_width_and_the_draft_are_timed_and_nothing_stays_in_memory() -> None:
    target = TimedModel()
    draft = TimedModel()

    times = time_passes(target, draft)

    assert sorted(times.verify) == [1, 2, 4, 5, 8]
    assert times.verify_curve()["1"] == 1.0
    assert times.c() == 1.0
    assert target.n_past == 0
    assert draft.n_past == 0


def test_width_one_is_timed_even_if_there_is_no_time() -> None:
    times = time_passes(TimedModel(), seconds=0.0)

    assert list(times.verify) == [1]
    assert times.t1() > 0
    assert times.c() is None


def test_no_width_is_timed_that_no_draft_reaches() -> None:
    times = time_passes(TimedModel(), longest=3)

    assert max(times.verify) == 4


@pytest.mark.parametrize(("warm", "t1"), [(0, 5.0), (2, 4.0)])
def test_passes_settle_before_one_is_timed(warm: int, t1: float) -> None:
    """On CUDA the first passes of a width cost more than all that follow."""

    def pass_ms(model: TimedModel) -> float:
        last_widths = model.reads[-3:]
        is_settled = len(last_widths) == 3 and len(set(last_widths)) == 1
        return 4.0 if is_settled else 5.0

    times = time_passes(TimedModel(pass_ms), warm=warm)

    assert times.t1() == pytest.approx(t1)
    assert set(times.verify_curve().values()) == {1.0}


def test_each_kind_of_pass_gets_its_fastest_thread_count() -> None:
    """One token is fastest with one thread, a wider pass with two."""

    def pass_ms(model: TimedModel) -> float:
        fastest = 1 if model.reads[-1] == 1 else 2
        return 1.0 if model.n_threads == fastest else 5.0

    target = TimedModel(pass_ms)
    draft = TimedModel(pass_ms)

    *_, times = pass_timing.measure_threads(target, draft, counts=(2, 1), width=8)

    assert times.best() == (1, 2)
    assert target.n_threads == 2, "its own again"
    assert draft.n_threads_batch == 2


def test_the_default_count_stays_unless_another_is_clearly_faster() -> None:
    times = pass_timing.ThreadTimes(
        narrow={4: [10.0, 30.0], 3: [9.8, 9.9]}, wide={4: [10.0], 3: [7.0]}
    )

    assert times.best() == (4, 3)

"""Probing: every kind of pass is timed, within the time given, and the memories end empty."""

from __future__ import annotations

from dataclasses import replace

from localspec.engine import pass_timing
from localspec.protocol.events import SpeculationPlan
from localspec.protocol.wire import MeasuredCosts, ProbeCommand
from tests.fakes import HistoryModel
from tests.sessions import SETTINGS, loaded, say
from tests.zoo import Zoo


def last(seconds: float, most: int = 16, draft: bool = True) -> pass_timing.PassTimes:
    target, guesser = HistoryModel(1), HistoryModel(2)
    (*_, times) = pass_timing.measure_passes(target, guesser if draft else None, most, seconds)
    assert target.n_past == guesser.n_past == 0
    return times


def test_all_widths_are_tried_when_there_is_time() -> None:
    times = last(5.0)
    assert sorted(times.verify) == [1, 2, 4, 5, 8]
    assert times.verify_curve()["1"] == 1.0
    assert times.c() is not None


def test_without_time_one_width_is_enough() -> None:
    times = last(0.0)
    assert 1 in times.verify
    assert times.t1() > 0


def test_no_width_beyond_the_longest_draft() -> None:
    assert max(last(5.0, most=3).verify) == 4


def test_no_draft_no_ratio() -> None:
    assert last(0.1, draft=False).c() is None


def test_a_session_probes_and_answers_as_before(zoo: Zoo) -> None:
    with loaded(zoo["target"], zoo["cousin"]) as session:
        before = say(session, "Hello", max_tokens=20).ids
        said = list(session.probe(ProbeCommand(seconds=0.5, difference=True)))
        assert isinstance(said[-1], MeasuredCosts)
        assert all(isinstance(event, SpeculationPlan) for event in said[:-1])
        assert said[-1].difference is not None
        assert said[-1].c is not None
        assert say(session, "Hello", max_tokens=20).ids == before


def test_widths_that_agree_differ_by_nothing(zoo: Zoo) -> None:
    with loaded(zoo["f32"]) as session:
        (*_, shown) = session.probe(ProbeCommand(0.1, difference=True))
        assert isinstance(shown, MeasuredCosts)
        assert shown.difference is not None
        assert shown.difference < 1.0


def test_unasked_threads_are_chosen_and_told(zoo: Zoo) -> None:
    with loaded(zoo["target"], settings=replace(SETTINGS, n_threads=None)) as session:
        (*_, shown) = session.probe(ProbeCommand(0.1))
        assert isinstance(shown, MeasuredCosts)
        assert shown.threads is not None
        assert shown.threads >= 1

"""scripts/bench/published.py: estimates beside what others have measured."""

from functools import cache

import published
import pytest
from published import Comparison, GroupSummary
from speed_fit import MeasuredDevice, TimedRun, fit, leave_one_source_out, predict_ms

_FEW = 5
"""The median of fewer runs is that of one or two computers."""
_OF_RAM = ("CPU only", "partly in RAM")
_LITTLE_KNOWN = "partly in RAM, which part is not said"
"""Settings decide these speeds, and their sources do not state them."""


@cache
def compared() -> Comparison:
    return published.compare(published.ignore_result)


@cache
def summaries() -> dict[str, GroupSummary]:
    return {group.name: group for group in published.summarize(compared())}


def limits(name: str) -> tuple[float, float]:
    """Between which the median of a group is to be."""
    if name in _OF_RAM or name == _LITTLE_KNOWN:
        return 0.8, 1.25
    if name.startswith("intel"):
        return 0.8, 1.3  # Two sources, of which one has builds from before a change.
    return 0.92, 1.08


def test_a_group_is_estimated_right_by_runs_of_other_sources() -> None:
    for group in summaries().values():
        if group.other_ratio is None or group.n_other < _FEW:
            continue
        low, high = limits(group.name)
        assert low <= round(group.other_ratio, 2) <= high, group
        if group.name == _LITTLE_KNOWN:
            continue
        share = group.n_other_near / group.n_other
        assert share >= 0.8, group


def test_nine_of_ten_runs_are_in_the_range_that_is_shown() -> None:
    every = summaries()["all speeds"]
    assert every.n_other > 280
    assert every.n_other_near / every.n_other >= 0.9
    assert every.width <= 0.25


def test_gains_of_mtp_layers_are_within_a_fifth_by_runs_of_other_sources() -> None:
    gains = summaries()["MTP gain"]
    assert gains.n_other > 60
    assert gains.n_other_near / gains.n_other >= 0.8


def test_what_ran_whole_on_a_gpu_fits_there() -> None:
    assert compared().n_whole > 300
    lost = [line for line in compared().moved if line.startswith("does not fit")]
    assert not lost


def run(source: str, generation: str, ms: float, backend: str = "CUDA") -> TimedRun:
    return TimedRun(
        source=source,
        device=MeasuredDevice("nvidia", generation, backend),
        weight=1.0,
        published_ms=ms,
        n_layers=32,
        n_mixtures=0,
        n_recurrent=0,
        dense_ms=5.0,
        experts_ms=0.0,
        expert_mb=1.0,
        ram_ms=0.0,
    )


def test_a_device_of_one_source_is_estimated_by_the_others_of_its_maker() -> None:
    slow = [run("a", "Ada", 8.0), run("b", "Ada", 8.2), run("c", "Ampere", 8.1)]
    alone = run("d", "Turing", 16.0)

    estimates = leave_one_source_out([*slow, alone])

    assert estimates[-1] == pytest.approx(8.1, rel=0.1), "not by its own run"


def test_another_backend_of_a_generation_says_something_of_it() -> None:
    others = [run("a", "Ampere", 8.0), run("b", "Ampere", 8.0, "Vulkan")]
    fast = [*others, run("c", "Ada", 6.0)]

    estimates = leave_one_source_out([*fast, run("d", "Ada", 9.0, "Vulkan")])

    assert estimates[-1] < predict_ms(others[1], fit(others))

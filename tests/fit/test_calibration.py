"""fit/calibration.py: speeds of synthetic machines are recovered from their passes."""

from functools import partial
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.fit.calibration import TimedPass, calibrate, fit_line, summarize_reads
from localspec.fit.speed import (
    TABLE_ERROR,
    TYPICAL_CPU_SPEED,
    DeviceSpeed,
    UseCase,
    from_devices,
)
from localspec.machine import gpu_catalog
from localspec.machine.device import HOST
from localspec.machine.measurements import ModelReads, PairMeasurement, PairReads
from localspec.machine.type_speeds import TIMED_WEIGHTS, TypeSpeed
from localspec.protocol.wire import ContextSettings, LoadCommand, MeasuredCosts
from tests.fit.test_speed import BIG, DRAFT
from tests.support import shapes

LOAD = LoadCommand("target", "draft")
CURVE = {"1": 1.0, "2": 1.1, "4": 1.4, "8": 2.0}
CARD = from_devices([gpu_catalog.find("RTX 4060").as_device()])

quiet_costs = partial(MeasuredCosts, other_load=0.0)


def record(
    target: float,
    draft: float | None = None,
    *,
    a: float = 1.0,
    gbps: float = 20.0,
    threads: int = 4,
    kind: str = "Q8_0",
) -> PairMeasurement:
    """A measured pair: `target` and `draft` are bytes, `a` the fixed milliseconds."""
    target_ms = a + target / (gbps * 1e6)
    draft_share = None
    draft_reads = None
    if draft is not None:
        draft_share = (a + draft / (gbps * 1e6)) / target_ms
        draft_reads = ModelReads(int(draft), (HOST,), kind)
    costs = quiet_costs(target_ms, CURVE, draft_share, threads=threads)
    reads = PairReads(ModelReads(int(target), (HOST,), kind), draft_reads)
    return PairMeasurement("key", costs, reads, None)


def learn(*records: PairMeasurement, kind: str = "Q8_0") -> DeviceSpeed:
    """The CPU's speed, learnt from these alone."""
    return calibrate(from_devices([]), records).find_speed(HOST, kind)


def test_one_pair_has_two_sizes() -> None:
    rate = learn(record(2e9, 2e8, a=0.4, gbps=25))
    assert (rate.fixed_ms, rate.bandwidth) == pytest.approx((0.4, 25))
    assert (rate.efficiency, rate.measured) == (1, True)
    assert rate.verify_cost(3, "Q8_0") == pytest.approx(1.25)
    assert "2 Q8_0 models measured here, 4 threads" in rate.basis


def test_only_the_latest_number_of_threads_and_quiet_hours_count() -> None:
    known = [record(2e9, 2e8, gbps=25, threads=4), record(2e9, 2e8, gbps=9, threads=1)]
    assert learn(*known).bandwidth == pytest.approx(25)
    assert learn(*known[::-1]).bandwidth == pytest.approx(9)
    slow = replace(record(2e9), measured=quiet_costs(1607.0, CURVE, threads=4))
    assert learn(slow, record(2e9, 2e8)).bandwidth == pytest.approx(20), "the fastest"
    for load in (0.5, None):  # earlier versions did not record it
        alone = replace(
            slow, measured=MeasuredCosts(1607.0, CURVE, threads=4, other_load=load)
        )
        assert learn(alone).bandwidth is None


def test_other_weights_borrow_and_say_so() -> None:
    rate = learn(record(2e9, 2e8), kind="Q4_K")
    assert rate.bandwidth == pytest.approx(20)
    assert (rate.measured, rate.error, rate.verify_curve) == (False, TABLE_ERROR, {})
    assert "other models" in rate.basis


def test_what_fits_a_cache_says_nothing_of_the_memory() -> None:
    demo = record(1.2e7, 1.3e6, a=0.1, gbps=200)
    real = record(2e9, 2e8, gbps=20)
    assert learn(demo, real).bandwidth == pytest.approx(20)
    assert learn(demo).bandwidth is None


def test_a_far_larger_model_is_estimated_from_what_was_measured_and_less_sure() -> None:
    part = ModelReads(int(1e8), ("CUDA0",), "Q8_0")
    small = PairMeasurement(
        "", quiet_costs(1.0, CURVE, threads=4), PairReads(part), None
    )
    calibrated = calibrate(CARD, [small])
    assert calibrated.find_speed("CUDA0", "Q8_0", 3e8).error < TABLE_ERROR
    far = calibrated.find_speed("CUDA0", "Q8_0", 5e9)
    of_table = CARD.nominal_speeds["CUDA0"].error
    assert (far.bandwidth, far.measured, far.error) == (272, False, of_table)


def test_a_far_smaller_model_takes_the_speed_of_the_table() -> None:
    """The fixed time of a large model says nothing of a small one's."""
    part = ModelReads(int(8e9), ("CUDA0",), "Q8_0")
    large = PairMeasurement(
        "", quiet_costs(90.0, CURVE, threads=4), PairReads(part), None
    )
    hardware = calibrate(CARD, [large])
    near = hardware.find_speed("CUDA0", "Q8_0", 2e9, 2e9)
    far = hardware.find_speed("CUDA0", "Q8_0", 1e8, 1e8)
    assert near.measured and not far.measured
    assert far.bandwidth == 272
    assert far.error == CARD.nominal_speeds["CUDA0"].error
    assert "far larger" in far.basis
    in_part = hardware.find_speed("CUDA0", "Q8_0", 1e8, 8e9)
    assert in_part.measured, "a small part of a large model is of its class"


@given(
    st.lists(
        st.tuples(
            st.floats(7e7, 2e10), st.floats(5, 90), st.sampled_from(["Q8_0", "Q4_K"])
        ),
        max_size=5,
    ),
    st.sampled_from(["Q8_0", "Q4_K", "BF16"]),
    st.floats(1e7, 4e10),
    st.floats(1.0, 100),
)
def test_of_one_list_the_larger_model_is_never_the_faster(
    seen: list[tuple[float, float, str]], weight_type: str, n_bytes: float, times: float
) -> None:
    """Whatever was measured: models of one weight type have one source."""
    known = [record(read, gbps=gbps, kind=kind) for read, gbps, kind in seen]
    machine = calibrate(from_devices([], TYPICAL_CPU_SPEED), known)
    ms = []
    for size in (n_bytes, n_bytes * times):
        speed = machine.find_speed(HOST, weight_type, size, size)
        ms.append(speed.fixed_ms + speed.read_ms(size))
        assert ("measured here" in speed.basis) == bool(known)
    assert ms[0] <= ms[1] * (1 + 1e-9)


@pytest.mark.parametrize("ms", [0.0, -1.0, nan, "fast", None])
def test_nonsense_is_not_learnt_from(ms: object) -> None:
    reads = PairReads(ModelReads(int(2e9), (HOST,), "Q8_0"), ModelReads(0, (), ""))
    c = 0.1 if isinstance(ms, float) else None
    bad = quiet_costs(ms, {"1": 1.0, "x": 2.0, "8": nan}, c, threads=4)  # type: ignore[arg-type]
    empty = PairMeasurement("", None, None, None)
    assert learn(PairMeasurement("", bad, reads, None), empty).bandwidth is None


def test_a_calibrated_machine_predicts_another_model() -> None:
    """Two pairs were measured; a third is estimated from the fitted line."""
    fixed_ms = 0.8
    gbps = 18.0
    known = [
        record(4e8, 5e7, a=fixed_ms, gbps=gbps, kind="Q4_K"),
        record(9e9, 6e8, a=fixed_ms, gbps=gbps, kind="Q4_K"),
    ]
    where = calibrate(from_devices([]), known)
    settings = ContextSettings(n_threads=4)
    load = replace(LOAD, target_settings=settings, draft_settings=settings)
    use = UseCase("code", context=0)

    found = shapes.estimate_speed(load, BIG, DRAFT, where, use=use)

    reads = summarize_reads(found)
    assert reads is not None
    assert reads.draft is not None
    assert found.costs is not None
    assert found.plain is not None
    assert found.calibrated
    target_ms = fixed_ms + reads.target.read / (gbps * 1e6)
    draft_ms = fixed_ms + reads.draft.read / (gbps * 1e6)
    assert found.t1_ms == pytest.approx(target_ms, rel=0.01)
    assert found.costs.c == pytest.approx(draft_ms / target_ms, rel=0.01)
    assert found.costs.verify_cost(4) == pytest.approx(1.4)
    assert found.plain[1] / found.plain[0] == pytest.approx(1.08 / 0.92, rel=0.01)
    assert "4 Q4_K models measured here" in found.explanation


def test_a_type_that_was_timed_is_estimated_by_it_until_a_model_is_measured() -> None:
    timed = {"Q4_0": TypeSpeed("Q4_0", {1: 2.0, 2: 2.6, 4: 4.0, 8: 8.0, 256: 100.0})}
    speed = calibrate(from_devices([]), [], timed).find_speed(HOST, "Q4_0")
    assert speed.read_ms(TIMED_WEIGHTS * 4.5 / 8, "Q4_0") == pytest.approx(2.0)
    assert speed.verify_cost(4, "Q4_0") == pytest.approx(2.0) and "timed" in speed.basis
    assert (
        calibrate(from_devices([]), [], timed).find_speed(HOST, "Q8_0").bandwidth
        is None
    )


def test_points_that_do_not_tell_fixed_time_and_bandwidth_apart_are_no_error() -> None:
    """Times so long that the sums of their inverses are zero."""
    line = fit_line([TimedPass(1e9, 1e165), TimedPass(2e9, 1e165)], 1.0)
    assert line.fixed_ms == 1.0

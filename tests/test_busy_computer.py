"""Measurements made while other programs use the CPUs do not become estimates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from localspec import launch, paths
from localspec.fit import calibration, machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.machine.measurements import MeasurementStore, is_trusted
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    SamplingParams,
)
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

SETTINGS = ContextSettings(n_ctx=256, n_threads=1)
SPIN = "import sys; sys.stdout.write('.'); sys.stdout.flush()\nwhile True: pass"


@contextmanager
def busy_cpus() -> Iterator[None]:
    """Another program keeps every CPU busy."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.read(1)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


@pytest.fixture(autouse=True)
def no_cache_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the measurements of tiny models calibrate estimates."""
    monkeypatch.setattr(calibration, "_CPU_CACHE_BYTES", 0)


@pytest.fixture
def request_(zoo: Zoo) -> SettingsRequest:
    return SettingsRequest(LoadCommand(str(zoo["target"]), str(zoo["cousin"]), SETTINGS, SETTINGS))


def measure(request: SettingsRequest) -> MeasuredCosts:
    """As a bench does: costs, then answers.  Returns what is stored."""
    engine = launch.start_engine(request)
    try:
        for _ in engine.probe(ProbeCommand(seconds=0.3)):
            pass
        answer(engine)
    finally:
        engine.close()
    return stored()


def answer(engine: launch.EngineClient, spec: str = "auto") -> None:
    for _ in engine.generate(GenerateCommand("a", SamplingParams(temperature=0.0), 40, spec=spec)):
        pass


def stored() -> MeasuredCosts:
    (record,) = MeasurementStore(paths.data_dir() / "measured.sqlite").read_all()
    assert record.measured is not None
    return record.measured


@pytest.mark.load
def test_what_a_busy_computer_measures_is_not_believed(request_: SettingsRequest) -> None:
    with busy_cpus():
        measured = measure(request_)
    assert measured.other_load is not None
    assert measured.other_load > 0.3
    assert not is_trusted(measured)
    assert not machine_profile.detect().hardware.measured_speeds


def test_what_a_quiet_computer_measures_is_believed(request_: SettingsRequest) -> None:
    assert is_trusted(measure(request_))
    assert machine_profile.detect().hardware.measured_speeds


def test_trusted_costs_outlive_a_busy_hour(
    request_: SettingsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then only the acceptance counts are new; the next quiet answers count again."""
    quiet = measure(request_)
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.6)
    engine = launch.start_engine(request_)
    try:
        answer(engine)
        engine.close()
        after = stored()
        assert after == replace(quiet, survival=after.survival)
        assert after.survival != quiet.survival
    finally:
        engine.close()
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.0)
    assert measure(request_).curve != quiet.curve


QUIET = """
from localspec.machine.cpu_and_ram import OtherCpuLoad
OtherCpuLoad.read = lambda self: 0.0
"""


@pytest.fixture
def quiet_for_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process gives up after three measurements beside other tests."""
    (tmp_path / "sitecustomize.py").write_text(QUIET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("quiet_for_engines")
def test_untrusted_costs_are_measured_again_where_that_is_asked_for(
    request_: SettingsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain answers alone make them trusted too, but do not correct the cost of wider passes."""
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.6)
    untrusted = measure(request_)
    assert not is_trusted(untrusted)
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    (record,) = store.read_all()
    wrong_curve = {width: 1.0 if width == "1" else 1000.0 for width in untrusted.curve}
    assert store.write_costs(record.key, replace(untrusted, curve=wrong_curve))
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.0)
    engine = launch.start_engine(request_, probe=True)
    began, pause = monotonic(), 1.0

    def is_measured() -> bool:
        nonlocal began, pause
        if monotonic() > began + pause:  # longer each time: an answer interrupts the measuring
            answer(engine, spec="off")
            began, pause = monotonic(), 2 * pause
        curve = stored().curve
        return len(curve) > 2 and max(curve.values()) < 100 and is_trusted(stored())

    try:
        wait_for(is_measured, 60)
    finally:
        engine.close()


def test_costs_of_an_earlier_version_are_trusted_after_some_quiet_passes(
    request_: SettingsRequest,
) -> None:
    """Earlier versions did not record the load."""
    quiet = measure(request_)
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    (record,) = store.read_all()
    assert store.write_costs(record.key, replace(quiet, other_load=None))
    assert not machine_profile.detect().hardware.measured_speeds
    engine = launch.start_engine(request_)
    try:
        answer(engine)
    finally:
        engine.close()
    assert is_trusted(stored())
    assert machine_profile.detect().hardware.measured_speeds

"""machine/measurements.py: measurements are stored and read, and errors never raise."""

import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import launch, paths
from localspec.errors import EngineError
from localspec.fit import calibration, machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.launch import start
from localspec.machine import device_detection, installed_llama_cpp
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.machine.device import Device
from localspec.machine.device_detection import MachineDevices
from localspec.machine.measurements import (
    SCHEMA_VERSION,
    MeasurementStore,
    MemoryMeasurement,
    ModelReads,
    PairReads,
    is_trusted,
    make_key,
)
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    SamplingParams,
)
from localspec.tools import server_settings
from tests.support.zoo import Zoo

COSTS = MeasuredCosts(
    t1_ms=20.5,
    curve={"1": 1.0, "4": 1.3},
    c=0.1,
    threads=4,
    survival={"greedy": {"drafts": [[2.0, 5.0]]}},
)


def run_sql(path: Path, *statements: str) -> None:
    base = sqlite3.connect(path)
    for statement in statements:
        base.execute(statement)
    base.commit()
    base.close()


def test_a_damaged_file_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    path.write_bytes(b"this is no database, and longer than a header of one " * 40)
    store = MeasurementStore(path)
    assert store.write_costs("a pair", COSTS) and store.read_costs("a pair") == COSTS
    assert path.with_suffix(".damaged").exists()
    nowhere = MeasurementStore(path / "measured.sqlite")
    assert (nowhere.read_all(), nowhere.read_costs("key")) == ((), None)
    assert not nowhere.write_memory("key", MEMORY)
    assert not nowhere.write_costs("key", COSTS)


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    run_sql(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    assert not MeasurementStore(path).write_costs("a pair", COSTS)
    assert MeasurementStore(path).read_costs("a pair") is None
    assert path.read_bytes() == before


def test_a_key_names_all_that_measurements_depend_on(tmp_path: Path) -> None:
    target = tmp_path / "t.gguf"
    draft = tmp_path / "d.gguf"
    target.write_bytes(b"GGUF target")
    draft.write_bytes(b"GGUF draft")
    load = LoadCommand(str(target), str(draft))
    others = (
        replace(load, draft=None),
        replace(load, draft_max=4),
        replace(load, target_settings=ContextSettings(n_threads=3)),
        replace(load, draft_settings=ContextSettings(n_gpu_layers=0)),
    )
    names = {make_key(load), *map(make_key, others)}
    assert len(names) == 5
    assert make_key(replace(load, measured=COSTS)) == make_key(load)
    os.utime(target, ns=(1, 1))
    assert make_key(load) not in names, "another file of the same size"
    target.write_bytes(b"GGUF another target")
    assert make_key(load) not in names


READS = PairReads(
    ModelReads(4 << 30, ("CUDA0",), "Q4_K"),
    ModelReads(1 << 30, ("CPU",), "Q8_0", moe=True),
)
MEMORY = MemoryMeasurement({"CUDA0": 6018, "CPU": 300}, {"CUDA0": 6021})


def make_pair_key(folder: Path, name: str) -> str:
    path = folder / name
    path.write_bytes(b"GGUF")
    return make_key(LoadCommand(str(path)))


def test_all_records_of_this_machine(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "measured.sqlite")
    first = make_pair_key(tmp_path, "a.gguf")
    second = make_pair_key(tmp_path, "b.gguf")
    assert store.read_all() == ()
    assert store.write_costs(first, COSTS, READS)
    assert store.write_costs(first, replace(COSTS, c=0.2)), "the stored reads remain"
    assert store.write_memory(first, MEMORY)
    # A load comes before the first measurement.
    assert store.write_memory(second, MEMORY)
    assert store.write_costs("not a key", COSTS)
    assert store.write_costs(first.replace('"engine"', '"engines"'), COSTS)
    first_record, second_record = store.read_all()
    assert first_record.key == first
    assert first_record.measured == replace(COSTS, c=0.2)
    assert first_record.reads == READS and first_record.memory is not None
    assert first_record.memory.predicted == MEMORY.predicted
    assert first_record.memory.used == MEMORY.used
    assert second_record.key == second
    assert second_record.measured is None
    assert second_record.reads is None
    assert second_record.memory == MEMORY
    assert store.read_costs(second) is None


CARD = Device("Vulkan0", "llvmpipe")
OTHER_CARD = Device("Vulkan0", "AMD Radeon RX 7800 XT")


def build(
    monkeypatch: pytest.MonkeyPatch,
    backends: tuple[str, ...],
    *devices: Device,
    size: int = 1,
) -> None:
    """Installs a pretended build of llama.cpp that finds these devices."""
    found = MachineDevices(devices, Device("CPU", kind="cpu"))
    monkeypatch.setattr(installed_llama_cpp, "find_gpu_backends", lambda: backends)
    monkeypatch.setattr(installed_llama_cpp, "library_bytes", lambda: size)
    monkeypatch.setattr(device_detection, "detect_devices", lambda: found)


@pytest.fixture
def cpu_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasurementStore:
    """Holds what a build without GPUs measured of `a.gguf`."""
    store = MeasurementStore(tmp_path / "measured.sqlite")
    build(monkeypatch, ())
    key = make_pair_key(tmp_path, "a.gguf")
    store.write_costs(key, COSTS, READS)
    store.write_memory(key, MEMORY)
    return store


@pytest.mark.parametrize(
    ("backends", "devices"),
    [
        (("vulkan",), (CARD,)),
        (("vulkan",), (OTHER_CARD,)),
        (("vulkan",), ()),
        (("cuda",), ()),
    ],
)
def test_each_device_and_build_has_its_own_measurements(
    cpu_store: MeasurementStore,
    backends: tuple[str, ...],
    devices: tuple[Device, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(monkeypatch, backends, *devices)
    other = make_key(LoadCommand(str(tmp_path / "a.gguf")))
    assert cpu_store.read_costs(other) is None
    assert cpu_store.read_all() == ()

    cpu_store.write_costs(other, replace(COSTS, t1_ms=0.5), READS)

    assert [record.key for record in cpu_store.read_all()] == [other]
    build(monkeypatch, backends, *devices, size=2)
    assert cpu_store.read_all() == ()
    build(monkeypatch, ())
    assert [record.measured for record in cpu_store.read_all()] == [COSTS]


def test_measurements_of_another_computer_are_not_read(
    cpu_store: MeasurementStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [record.measured for record in cpu_store.read_all()] == [COSTS]

    monkeypatch.setattr("platform.node", lambda: "elsewhere")

    assert cpu_store.read_all() == ()


def test_invalid_rows_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    store = MeasurementStore(path)
    name = make_pair_key(tmp_path, "a.gguf")
    store.write_costs(name, COSTS, READS)
    store.write_memory(name, MEMORY)
    for text in (
        "[]",
        "{",
        "null",
        '{"target": 1, "draft": 2}',
        '{"predicted": [], "used": 1}',
    ):
        run_sql(
            path,
            f"UPDATE about SET said = '{text}'",
            f"UPDATE memory SET said = '{text}'",
        )
        (one,) = store.read_all()
        assert (one.measured, one.reads, one.memory) == (COSTS, None, None)
    for text in ("[]", "{", '{"t1_ms": 1, "unknown": 2}', "null"):
        run_sql(path, f"UPDATE measured SET said = '{text}'")
        assert store.read_costs(name) is None


# What is measured while other programs use the CPUs is not believed.


SETTINGS = ContextSettings(n_ctx=256, n_threads=1)


@pytest.fixture
def request_(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> SettingsRequest:
    """Of tiny models, whose measurements calibrate estimates too."""
    monkeypatch.setattr(calibration, "_CPU_CACHE_BYTES", 0)
    return SettingsRequest(
        LoadCommand(str(zoo["target"]), str(zoo["cousin"]), SETTINGS, SETTINGS)
    )


def measure(request: SettingsRequest, *, probe: bool = True) -> MeasuredCosts:
    """As a bench does: costs, then answers. Returns what is stored."""
    engine = launch.start_engine(request)
    ask = GenerateCommand("a", SamplingParams(temperature=0.0), 40, spec="auto")
    try:
        if probe:
            for _ in engine.probe(ProbeCommand(seconds=0.3)):
                pass
        for _ in engine.generate(ask):
            pass
    finally:
        engine.close()
    return stored()


def stored() -> MeasuredCosts:
    (record,) = MeasurementStore(paths.data_dir() / "measured.sqlite").read_all()
    assert record.measured is not None
    return record.measured


def test_a_busy_hour(
    request_: SettingsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then only the acceptance counts are new; the next quiet answers count again."""
    quiet = measure(request_)
    assert is_trusted(quiet) and machine_profile.detect().hardware.measured_speeds
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.6)
    after = measure(request_, probe=False)
    assert after.survival != quiet.survival
    assert after == replace(quiet, survival=after.survival)
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.0)
    assert measure(request_).curve != quiet.curve
    # As of an earlier version, which did not record the load: after some quiet passes.
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    (record,) = store.read_all()
    assert store.write_costs(record.key, replace(quiet, other_load=None))
    assert not machine_profile.detect().hardware.measured_speeds
    assert is_trusted(measure(request_, probe=False))
    assert machine_profile.detect().hardware.measured_speeds


def test_untrusted_costs_are_measured_again_where_that_is_asked_for(
    request_: SettingsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the idle engine: tests/engine/test_idle_profiler.py."""
    loads: list[LoadCommand] = []

    def note(_: object, load: LoadCommand, *_others: object) -> None:
        loads.append(load)
        raise EngineError("It is not loaded.")

    monkeypatch.setattr(start, "_load_pair", note)
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    quiet = replace(COSTS, other_load=0.0)
    for costs, is_due in (
        (None, True),
        (quiet, False),
        (replace(quiet, other_load=0.6), True),
        (replace(quiet, curve={"1": 1.0}), True),
    ):
        assert costs is None or store.write_costs(make_key(loads[0]), costs)
        for probe in (True, False):
            with pytest.raises(EngineError, match="not loaded"):
                launch.start_engine(request_, probe=probe)
            assert loads[-1].measure_when_idle == (probe and is_due)


def test_an_engine_prepares_calls_if_a_server_of_tools_is_on(
    request_: SettingsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[LoadCommand] = []

    def note(_: object, load: LoadCommand, *_others: object) -> None:
        loads.append(load)
        raise EngineError("It is not loaded.")

    monkeypatch.setattr(start, "_load_pair", note)
    for is_on in (False, True):
        server_settings.save_server("mine", {"command": "x", "enabled": is_on})
        for probe in (True, False):
            with pytest.raises(EngineError, match="not loaded"):
                launch.start_engine(request_, probe=probe)
            assert loads[-1].expects_tools == (probe and is_on)


def test_of_costs_measured_beside_other_programs_only_the_acceptance_is_used(
    request_: SettingsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that another program interrupted takes many times as long as the next."""
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.6)
    written = measure(request_)
    assert written.curve

    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    (record,) = store.read_all()
    used = store.read_costs(record.key)

    assert used == replace(written, curve={}, c=None)
    assert used.survival

"""Choosing settings that fit, and what is said before a load."""

from collections import deque
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import launch, paths
from localspec.errors import DoesNotFitError
from localspec.fit import calibration, machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.launch import start
from localspec.machine import device_detection
from localspec.machine.device import Device
from localspec.machine.device_detection import MachineDevices
from localspec.machine.measurements import MeasurementStore, make_key
from localspec.protocol.events import Notice
from localspec.protocol.wire import (
    ContextSettings,
    LoadCommand,
    LoadEvent,
    LoadProgress,
    MeasuredCosts,
    ProbeCommand,
    ProjectorSettings,
)
from tests.support import ghost_projectors
from tests.support.zoo import Zoo

CPU = Device("CPU", kind="cpu", free=8 << 30, total=8 << 30, unified=True)


def test_what_seems_not_to_fit_can_be_loaded(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reported free memory may be wrong; --anyway overrides the check."""
    cpu = Device("CPU", kind="cpu", free=1 << 20, total=1 << 20, unified=True)
    tiny = MachineProfile((), cpu, from_devices((), TYPICAL_CPU_SPEED))
    monkeypatch.setattr(machine_profile, "detect", lambda refresh=False: tiny)
    wish = SettingsRequest(LoadCommand(str(zoo["target"])))
    with pytest.raises(DoesNotFitError) as refused:
        launch.choose_settings(wish)
    assert "run --anyway" in refused.value.hint
    plan = launch.choose_settings(replace(wish, skip_memory_check=True))
    assert plan is not None
    assert plan.verdict == "no"


def test_a_draft_length_that_has_no_room_is_said(zoo: Zoo) -> None:
    request = SettingsRequest(LoadCommand(str(zoo["hybrid"])), draft_length=62)
    plan = launch.choose_settings(request)
    assert plan is not None
    assert plan.load.draft_max == 62
    assert start._draft_length_notice(request, plan) is None
    shorter = replace(plan, load=replace(plan.load, draft_max=6))

    notice = start._draft_length_notice(request, shorter)

    assert notice is not None
    assert notice.message == "No room for drafts of 62 tokens: at most 6."


@pytest.mark.parametrize(("asked", "loaded_for"), [(None, 6), (40, 40)])
def test_a_hybrid_drafts_as_many_tokens_as_it_is_loaded_for(
    zoo: Zoo, asked: int | None, loaded_for: int
) -> None:
    load = LoadCommand(str(zoo["hybrid"]), target_settings=ContextSettings(n_ctx=256))

    engine = start.start_engine(SettingsRequest(load, draft_length=asked))

    with closing(engine):
        assert engine.ready.settings["draft_max"] == loaded_for


def test_threads_of_another_model_of_this_size_are_used(zoo: Zoo) -> None:
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    request = SettingsRequest(LoadCommand(str(zoo["target"])))
    plan = launch.choose_settings(request)
    assert plan is not None
    assert start._find_threads(store, plan) is None
    reads = calibration.summarize_reads(plan.speed)
    assert reads is not None
    other = make_key(replace(plan.load, target=str(zoo["cousin"])))

    not_compared = MeasuredCosts(1.0, {"1": 1.0}, threads=3)
    store.write_costs(other, not_compared, reads)
    assert start._find_threads(store, plan) is None, "not compared with other counts"

    measured = replace(not_compared, threads_batch=2)
    store.write_costs(other, measured, reads)
    assert start._find_threads(store, plan) == (3, 2)

    larger = replace(reads, target=replace(reads.target, read=8 * reads.target.read))
    store.write_costs(other, measured, larger)
    assert start._find_threads(store, plan) is None, "measured on a larger model"


def test_costs_of_an_earlier_run_price_the_next(zoo: Zoo) -> None:
    wish = SettingsRequest(LoadCommand(str(zoo["target"])))
    with closing(start.start_engine(wish)) as engine:
        deque(engine.probe(ProbeCommand(seconds=0.1)), maxlen=0)
        measured = engine.measured
    assert measured is not None

    with closing(start.start_engine(wish)) as engine:
        known = engine.measured

    assert known is not None
    assert known.t1_ms == pytest.approx(measured.t1_ms)


def test_a_load_says_what_it_does_from_its_beginning_to_its_end(zoo: Zoo) -> None:
    events: list[LoadEvent] = []
    load = LoadCommand(str(zoo["target"]), draft=str(zoo["stranger"]))

    start.start_engine(SettingsRequest(load), notify=events.append).close()

    said = [event for event in events if isinstance(event, LoadProgress)]
    phases = [progress.phase for progress in said if progress.phase != "reading"]
    assert phases == ["planning", "checking", "starting", "preparing", "preparing"]
    read = {progress.file for progress in said if progress.share == 1.0}
    assert read == {zoo["target"].name, zoo["stranger"].name}
    assert all(0 <= (progress.share or 0) <= 1 for progress in said)


def test_a_gpu_that_is_gone_is_said(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "llama.cpp is built for vulkan, but finds no such device"
    gone = MachineDevices((), CPU, note=note)
    monkeypatch.setattr(device_detection, "detect_devices", lambda refresh=False: gone)
    for layers, n_notices in ((-1, 1), (0, 0)):
        notices: list[LoadEvent] = []
        wish = SettingsRequest(LoadCommand(str(zoo["target"])), n_gpu_layers=layers)
        start.start_engine(wish, notify=notices.append).close()
        shown = [notice for notice in notices if isinstance(notice, Notice)]
        assert [notice.code for notice in shown] == ["no-gpu"] * n_notices
        for notice in shown:
            assert note in notice.message
            assert "doctor" in notice.hint


def test_an_option_for_a_gpu_that_is_not_here_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a script written for another computer; llama.cpp ignores or refuses it."""
    for settings, n_gpus, words in [
        (ContextSettings(main_gpu=1, split_mode="none"), 0, "--main-gpu names GPU 1"),
        (ContextSettings(tensor_split=(3.0, 1.0)), 1, "there is 1 GPU here"),
        (ContextSettings(tensor_split=(3.0, 0.0)), 1, ""),
        (ContextSettings(main_gpu=1, n_gpu_layers=0), 0, ""),
        (ContextSettings(), 0, ""),
    ]:
        gpus = tuple(
            Device(f"CUDA{i}", free=8 << 30, total=8 << 30) for i in range(n_gpus)
        )
        found = MachineDevices(gpus, CPU)
        monkeypatch.setattr(
            device_detection, "detect_devices", lambda refresh=False, found=found: found
        )
        notice = start._missing_gpu_notice(settings)
        if words:
            assert notice is not None
            assert words in notice.message
        else:
            assert notice is None


# --- projectors


def make_profile(gpu_free: int) -> MachineProfile:
    """A computer with 8 GiB of RAM, and a card with so many bytes free."""
    gpu = Device(
        "CUDA0",
        "a card",
        kind="gpu",
        free=gpu_free,
        total=gpu_free,
        backend="CUDA",
        simulated=True,
    )
    return MachineProfile((gpu,), CPU, from_devices((gpu,), TYPICAL_CPU_SPEED))


@pytest.mark.parametrize(
    ("gpu_free", "on_gpu"), [(8 << 30, True), (2 << 30, False)], ids=["card", "ram"]
)
def test_a_projector_is_loaded_where_the_model_leaves_room(
    zoo: Zoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu_free: int,
    on_gpu: bool,
) -> None:
    profile = make_profile(gpu_free)
    monkeypatch.setattr(machine_profile, "detect", lambda refresh=False: profile)
    tower = ghost_projectors.gemma4()
    path = tower.write(tmp_path / "mmproj.gguf")
    load = LoadCommand(str(zoo["target"]), projector=ProjectorSettings(str(path)))

    plan = launch.choose_settings(SettingsRequest(load, ctx=512))

    assert plan is not None
    assert plan.load.projector == ProjectorSettings(str(path), on_gpu=on_gpu)
    assert plan.projector is not None
    assert plan.projector.on_gpu == on_gpu
    assert plan.load.target_settings.n_gpu_layers == -1, "no layer left the card"
    notice = start._projector_notice(plan)
    assert (notice is None) == on_gpu
    if notice is not None:
        assert "is in RAM: the GPU has no room for it" in notice.message


def test_without_room_for_its_projector_the_model_runs_and_says_so(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = replace(CPU, free=1 << 30, total=1 << 30)
    profile = MachineProfile((), cpu, from_devices((), TYPICAL_CPU_SPEED))
    monkeypatch.setattr(machine_profile, "detect", lambda refresh=False: profile)
    path = ghost_projectors.gemma4().write(tmp_path / "mmproj.gguf")
    load = LoadCommand(str(zoo["target"]), projector=ProjectorSettings(str(path)))
    request = SettingsRequest(load, ctx=512)

    plan = launch.choose_settings(request)

    assert plan is not None
    assert plan.verdict.can_load
    assert plan.load.projector is None
    notice = start._projector_notice(plan)
    assert notice is not None
    assert "it does not see" in notice.message
    anyway = launch.choose_settings(replace(request, skip_memory_check=True))
    assert anyway is not None
    assert anyway.load.projector is not None

"""Resolving model arguments, and choosing settings that fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import launch, paths
from localspec.errors import (
    DoesNotFitError,
    IncompatiblePairError,
    ModelFileError,
    NotFoundError,
    UsageError,
)
from localspec.fit import machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.launch import recent_pairs, start
from localspec.machine import device_detection
from localspec.machine.device import Device
from localspec.machine.device_detection import MachineDevices
from localspec.machine.measurements import MeasurementStore, make_key
from localspec.models.model_lookup import NotDownloadedError
from localspec.paths import package_data_dir
from localspec.protocol.events import Event, Notice
from localspec.protocol.wire import ContextSettings, LoadCommand, MeasuredCosts
from tests.support.zoo import Zoo

DEMO = package_data_dir() / "demo"


def test_what_seems_not_to_fit_can_be_loaded_all_the_same(
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
    advice = launch.choose_settings(replace(wish, skip_memory_check=True))
    assert advice is not None
    assert advice.fit.verdict == "no"


@pytest.mark.parametrize("model", [None, "demo"])
def test_nothing_said_is_the_demo(model: str | None) -> None:
    choice = launch.resolve_pair(model, "auto")
    assert (choice.target, choice.draft) == (DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf")
    assert choice.spec == "model"
    assert choice.spec_reason


def test_no_draft_for_the_demo_takes_its_way_of_speculating_too() -> None:
    choice = launch.resolve_pair("demo", "none")
    assert (choice.draft, choice.spec, choice.spec_reason) == (None, "auto", "")


def test_another_draft_for_the_demo() -> None:
    target = DEMO / "demo-target.gguf"
    choice = launch.resolve_pair("demo", str(target))
    assert (choice.draft, choice.spec, choice.spec_reason) == (target, "auto", "")


def test_the_demos_draft_for_a_file() -> None:
    choice = launch.resolve_pair(str(DEMO / "demo-target.gguf"), "demo")
    assert (choice.target, choice.draft) == (DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf")


def test_a_second_draft_that_was_saved_is_not_used(tmp_path: Path) -> None:
    """Earlier versions could draft with two; a pair of last.json or a saved chat may name both."""
    files = [DEMO / f"demo-{name}.gguf" for name in ("draft", "eagle3")]
    refs = (str(DEMO / "demo-target.gguf"), ",".join(map(str, files)))
    recent_pairs.save_last(*refs)
    assert recent_pairs.resolve_default(None, "auto") == refs
    pair = launch.resolve_pair(*refs)
    assert pair.draft == files[0]
    assert pair.draft_notice == f"A pair has one draft: {files[1]} is not used."
    assert launch.make_portable_refs(*refs) == ("demo-target", "demo-draft") == pair.portable_refs
    with_comma = tmp_path / "a,b.gguf"
    with_comma.write_bytes(files[0].read_bytes())
    pair = launch.resolve_pair("demo", str(with_comma))
    assert (pair.draft, pair.draft_notice) == (with_comma, "")


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_a_file_alone(zoo: Zoo, draft: str) -> None:
    choice = launch.resolve_pair(str(zoo["target"]), draft)
    assert (choice.target, choice.draft, choice.spec) == (zoo["target"], None, "auto")


def test_a_file_in_this_directory_is_named_absolutely(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "plain-name").write_bytes(zoo["target"].read_bytes())
    monkeypatch.chdir(tmp_path)
    assert launch.resolve_pair("plain-name", "none").target == tmp_path / "plain-name"


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_a_path_needs_no_catalogue(zoo: Zoo, draft: str) -> None:
    paths.user_catalog_file().write_text("models: [", encoding="utf-8")
    path = str(zoo["target"])
    assert launch.resolve_pair(path, draft).target == zoo["target"]
    assert launch.make_portable_refs(path, draft) == (path, draft)
    with pytest.raises(UsageError, match="is damaged"):
        launch.resolve_pair("demo", draft)


def test_a_bundled_file_keeps_its_id() -> None:
    refs = launch.make_portable_refs(str(DEMO / "demo-target.gguf"), "none")
    assert refs == ("demo-target", "none")


def test_a_home_directory_is_found(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.gguf").write_bytes(zoo["target"].read_bytes())
    assert launch.resolve_pair("~/mine.gguf", "~/mine.gguf").draft == tmp_path / "mine.gguf"


def test_an_unknown_name_is_told_the_closest() -> None:
    assert launch.resolve_pair("", "auto").spec == "model"
    with pytest.raises(NotFoundError, match="no entry demmo") as failure:
        launch.resolve_pair("demmo", "auto")
    assert "demo" in failure.value.hint


def test_a_name_that_could_write_into_the_terminal() -> None:
    with pytest.raises(NotFoundError) as failure:
        launch.resolve_pair("\x1b[31mred", "auto")
    assert "\x1b" not in failure.value.message + failure.value.hint


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-8b",
        "qwen3-8b+qwen3-0.6b",
        "gpt-oss-20b+gpt-oss-20b-eagle3",
        "qwen3-8b+qwen3-8b-dflash",
        "org/Some-GGUF:Q4_K_M",
    ],
)
def test_what_is_not_here_could_be_downloaded(name: str) -> None:
    with pytest.raises(NotDownloadedError) as missing:
        launch.resolve_pair(name, "auto")
    assert missing.value.pull_reference == name
    assert missing.value.hint == f"Get it: localspec pull {name}"


def test_a_missing_draft_is_named_alone(zoo: Zoo) -> None:
    with pytest.raises(NotDownloadedError) as missing:
        launch.resolve_pair(str(zoo["target"]), "qwen3-0.6b")
    assert missing.value.pull_reference == "qwen3-0.6b"


def test_a_refused_pair_is_told_where_others_are(zoo: Zoo) -> None:
    with pytest.raises(IncompatiblePairError) as refused:
        launch.resolve_pair(str(zoo["target"]), str(zoo["wide"]))
    assert "localspec pair suggest MODEL" in refused.value.hint


@pytest.mark.parametrize(
    ("draft", "words"),
    [("renamed", "token 257 is"), ("wide", "565 tokens")],
)
def test_a_bad_pair_is_refused_by_its_headers(zoo: Zoo, draft: str, words: str) -> None:
    with pytest.raises(IncompatiblePairError, match=words) as refused:
        launch.resolve_pair(str(zoo["target"]), str(zoo[draft]))
    assert "--draft none" in refused.value.hint


def test_a_draft_of_another_vocabulary_is_of_its_own_kind(zoo: Zoo) -> None:
    pair = launch.resolve_pair(str(zoo["target"]), "demo")
    launch.check_drafter(pair, "crossvocab")
    with pytest.raises(UsageError, match="its draft is a model with another vocabulary"):
        launch.check_drafter(pair, "eagle3")


def test_a_padding_tail_and_the_very_same_file_go_together(zoo: Zoo) -> None:
    target = str(zoo["target"])
    assert launch.resolve_pair(target, str(zoo["padded"])).draft == zoo["padded"]
    assert launch.resolve_pair(target, target).draft == zoo["target"]


@pytest.mark.parametrize(
    "name", ["absent.gguf", "./absent", "folder\\absent", "~no-such-person/a.gguf"]
)
def test_a_path_that_is_not_there(name: str) -> None:
    with pytest.raises(NotFoundError, match="There is no file"):
        launch.resolve_pair(name, "auto")


@pytest.mark.parametrize("draft", ["absent.gguf", "absent", ""])
def test_a_draft_that_is_not_there(draft: str) -> None:
    with pytest.raises((NotFoundError, UsageError)):
        launch.resolve_pair("demo", draft)


def test_both_files_are_looked_at_before_anything_is_loaded(tmp_path: Path, zoo: Zoo) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(ModelFileError, match=r"notes\.txt is a text file"):
        launch.resolve_pair(str(text), "auto")
    with pytest.raises(ModelFileError, match=r"notes\.txt is a text file"):
        launch.resolve_pair(str(zoo["target"]), str(text))


def test_threads_of_another_model_of_this_size_are_used(zoo: Zoo) -> None:
    """Only counts that were compared with others, and not those of a model of another size."""
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    request = SettingsRequest(LoadCommand(str(zoo["target"])))
    advice = launch.choose_settings(request)
    assert advice is not None
    assert start._find_threads(store, advice) is None
    load = advice.fit.load
    reads = start._summarize_reads(load)
    other = make_key(replace(load, target=str(zoo["cousin"])))
    store.write_costs(other, MeasuredCosts(1.0, {"1": 1.0}, threads=3), reads)
    assert start._find_threads(store, advice) is None, "not compared with other counts"
    measured = MeasuredCosts(1.0, {"1": 1.0}, threads=3, threads_batch=2)
    store.write_costs(other, measured, reads)
    assert start._find_threads(store, advice) == (3, 2)
    larger = replace(reads, target=replace(reads.target, read=8 * reads.target.read))
    store.write_costs(other, measured, larger)
    assert start._find_threads(store, advice) is None


def test_a_gpu_that_is_gone_is_said_and_the_cpu_computes(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = Device("CPU", kind="cpu", free=8 << 30, total=8 << 30, unified=True)
    note = "llama.cpp is built for vulkan, but finds no such device"
    gone = MachineDevices((), cpu, note=note)
    monkeypatch.setattr(device_detection, "detect_devices", lambda refresh=False: gone)
    for layers, n_notices in ((-1, 1), (0, 0)):
        notices: list[Event] = []
        wish = SettingsRequest(LoadCommand(str(zoo["target"])), n_gpu_layers=layers)
        start.start_engine(wish, notify=notices.append).close()
        told = [notice for notice in notices if isinstance(notice, Notice)]
        assert [notice.code for notice in told] == ["no-gpu"] * n_notices
        assert all(note in notice.message and "doctor" in notice.hint for notice in told)


@pytest.mark.parametrize(
    ("settings", "n_gpus", "words"),
    [
        (ContextSettings(main_gpu=1, split_mode="none"), 0, "--main-gpu names GPU 1"),
        (ContextSettings(tensor_split=(3.0, 1.0)), 0, "there is no GPU here"),
        (ContextSettings(tensor_split=(3.0, 1.0)), 1, "there is 1 GPU here"),
        (ContextSettings(tensor_split=(3.0, 0.0)), 1, ""),
        (ContextSettings(tensor_split=(3.0, 1.0)), 2, ""),
        (ContextSettings(main_gpu=1, split_mode="none"), 1, ""),
        (ContextSettings(main_gpu=1, n_gpu_layers=0), 0, ""),
        (ContextSettings(), 0, ""),
    ],
)
def test_an_option_for_a_gpu_that_is_not_here_is_explained(
    settings: ContextSettings, n_gpus: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a script written for another computer; llama.cpp ignores or refuses it."""
    cpu = Device("CPU", kind="cpu", free=8 << 30, total=8 << 30, unified=True)
    gpus = tuple(Device(f"CUDA{i}", free=8 << 30, total=8 << 30) for i in range(n_gpus))
    found = MachineDevices(gpus, cpu)
    monkeypatch.setattr(device_detection, "detect_devices", lambda refresh=False: found)
    notice = start._missing_gpu_notice(settings)
    told = [notice.message] if notice is not None else []
    assert len(told) == bool(words)
    assert all(words in message for message in told)

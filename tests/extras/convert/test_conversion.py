"""Conversion of models: what is written, refused, and left by an interruption."""

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from localspec import child_process, data_files, paths
from localspec.chat.session import ChatSession
from localspec.errors import EngineError, StorageError, UsageError
from localspec.extras.convert import conversion
from localspec.extras.convert.conversion import ComparisonTrial, ConvertedModel, Source
from localspec.fit.advisor import SettingsRequest
from localspec.launch import ResolvedPair, idle_tasks, start
from localspec.machine import type_speeds
from localspec.machine.type_speeds import TypeSpeed
from localspec.models.gguf import reader
from localspec.models.gguf.parser import FILE_TYPES
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import describe_file
from localspec.protocol.events import Notice
from localspec.protocol.wire import LoadCommand
from tests.support import families, tinygguf
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

DEMO = paths.package_data_dir() / "demo" / "demo-target.gguf"
TEXTS = ("def add(a, b):\n    return", "class Stack:\n    def push(self, item):\n")


def convert(
    source: Source, kind: str, out: Path, n_tokens: int = 0, bound: float = math.inf
) -> ConvertedModel:
    trial = ComparisonTrial(TEXTS, n_tokens, bound) if n_tokens else None
    steps = conversion.convert(source, kind, out, trial)
    try:
        while True:
            _, share = next(steps)
            assert 0 <= share <= 1
    except StopIteration as end:
        result: ConvertedModel = end.value
        return result


def files(folder: Path) -> list[str]:
    """The names of all files but `data`, the data folder of some of these tests."""
    return [entry.name for entry in os.scandir(folder) if entry.name != "data"]


def write_model(folder: Path, name: str) -> Path:
    if name == "experts":
        file = folder / "experts.gguf"
        families.write_ghost(families.FAMILIES["qwen3moe"].small, "Q8_0", file)
        return file
    shape = tinygguf.Shape(n_embd=256, n_ff=512)
    model = tinygguf.llama(shape=shape, tied=name == "tied", kind=Kind.Q8_0)
    if name != "splits":
        return model.write(folder / "whole.gguf")
    model.write(folder / "model.gguf", tensors_per_split=5)
    return min(folder.glob("model-00001-of-*.gguf"))


def test_a_copy_has_its_type_its_source_and_nearly_the_answers(tmp_path: Path) -> None:
    source = conversion.open_source(write_model(tmp_path, "whole"))
    folder = tmp_path / "copies"

    converted = convert(source, "F16", folder / "copy.gguf", n_tokens=64)

    header = reader.read(converted.path)
    assert header.quantization == "F16"
    assert header.keys["localspec.converted_from"] == "whole.gguf"
    assert files(folder) == ["copy.gguf"]
    compared = converted.comparison
    assert compared is not None
    assert compared.tokens >= 60
    assert compared.same >= 0.9
    assert 0 <= compared.divergence < 0.02
    assert compared.source_ms > 0
    assert compared.copy_ms > 0
    assert compared.copy_read_ms > 0


def test_a_copy_that_differs_too_much_is_not_kept(tmp_path: Path) -> None:
    source = conversion.open_source(write_model(tmp_path, "whole"))
    folder = tmp_path / "copies"
    near = convert(source, "F16", folder / "copy.gguf", n_tokens=64)

    worse = convert(source, "Q2_K", folder / "Q2_K", n_tokens=64, bound=1e-6)

    assert near.comparison is not None
    assert worse.comparison is not None
    assert worse.comparison.divergence > 2 * near.comparison.divergence
    assert not worse.is_kept
    assert files(folder) == ["copy.gguf"]


def test_types_that_cannot_be_written_are_refused(zoo: Zoo) -> None:
    source = conversion.open_source(zoo["target"])
    for kind, message in [
        (source.header.quantization, "already"),
        ("IQ1_S", "importance matrix"),
        ("iq2_xxs", "importance matrix"),
        ("NVFP4", "no type"),
        ("MXFP4", "mixtures of experts"),
        ("\x1b[2J", "no type"),
    ]:
        with pytest.raises(UsageError, match=message) as refused:
            conversion.check_type(source, kind)
        assert "\x1b" not in refused.value.message


def test_a_head_is_not_converted() -> None:
    with pytest.raises(UsageError, match="draft head"):
        conversion.open_source(paths.find_bundled("demo-eagle3.gguf"))


@pytest.mark.parametrize("name", ["splits", "experts", "tied"])
def test_models_of_every_form(name: str, tmp_path: Path) -> None:
    source = conversion.open_source(write_model(tmp_path, name))
    assert source.stem == {"tied": "whole", "splits": "model"}.get(name, name)
    n_tokens = 32 if name == "splits" else 0  # to compare costs another process
    converted = convert(source, "Q4_K_M", tmp_path / "copy.gguf", n_tokens)
    header = reader.read(converted.path)
    assert header.quantization == "Q4_K_M"
    assert header.split is None
    assert {t.name for t in header.tensors} == {t.name for t in source.header.tensors}
    assert header.parameters == source.header.parameters
    assert converted.comparison is None or converted.comparison.tokens == n_tokens


@pytest.mark.long
def test_every_type_that_is_offered_can_be_written(tmp_path: Path) -> None:
    model = tinygguf.llama(shape=tinygguf.Shape(n_embd=256, n_layer=8, n_ff=512))
    source = conversion.open_source(model.write(tmp_path / "model.gguf"))
    for kind in FILE_TYPES.values():
        try:
            conversion.check_type(source, kind)
        except UsageError:
            continue
        out = convert(source, kind, tmp_path / "copy.gguf").path
        assert reader.read(out).quantization == kind
        out.unlink()


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "copy.gguf"
    out.write_bytes(b"mine")

    with pytest.raises(UsageError, match="exists"):
        convert(conversion.open_source(DEMO), "F16", out)

    assert out.read_bytes() == b"mine"


def test_a_disk_without_space_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    with pytest.raises(StorageError, match="needs about"):
        convert(conversion.open_source(DEMO), "F16", tmp_path / "copy.gguf")

    assert files(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
@pytest.mark.parametrize(
    ("left", "error", "message"),
    [(0, StorageError, "became full"), (1 << 40, EngineError, "cannot convert")],
)
def test_a_write_that_fails_midway(
    left: int,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails by a limit of the process; the disk counts as full only if it is."""
    import resource  # noqa: PLC0415  Unix only

    usage = shutil.disk_usage(tmp_path)
    free_bytes = iter([1 << 40, left])
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: usage._replace(free=next(free_bytes))
    )
    source = conversion.open_source(DEMO)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(error, match=message):
            convert(source, "F16", tmp_path / "copy.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert files(tmp_path) == []


def test_closing_a_conversion_at_any_step_leaves_nothing(tmp_path: Path) -> None:
    source = conversion.open_source(DEMO)
    trial = ComparisonTrial(TEXTS, 64)
    for last in ("converting", "comparing"):
        steps = conversion.convert(source, "F16", tmp_path / "copy.gguf", trial)
        what = ""
        while not what.startswith(last):
            what, _ = next(steps)

        steps.close()

        assert files(tmp_path) == []


@pytest.mark.skipif(
    sys.platform != "linux", reason="only there has the file no name meanwhile"
)
def test_a_killed_conversion_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "localspec", "convert", str(DEMO), "--type", "F16"]
    out = tmp_path / "copies" / "copy.gguf"
    process = subprocess.Popen(
        [*command, "--out", str(out), "--compare", "90000", "--quiet"]
    )
    wait_for(lambda: out.parent.exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.listdir(out.parent) == []


def speed(name: str, write_ms: float, read_ms: float) -> TypeSpeed:
    pass_ms = dict.fromkeys((1, 2, 4, 8), write_ms)
    return TypeSpeed(name, pass_ms | {256: 256 * read_ms})


def test_auto_chooses_the_fastest_type_that_has_the_bits_of_the_source(
    zoo: Zoo,
) -> None:
    header = conversion.open_source(DEMO).header
    others = [
        speed("Q4_0", write_ms=1, read_ms=0.1),
        speed("F16", write_ms=4, read_ms=0.2),
        speed("BF16", write_ms=5, read_ms=0.2),
    ]
    slow = speed(header.quantization, write_ms=9, read_ms=0.5)
    fast = speed(header.quantization, write_ms=0.5, read_ms=0.01)
    of_experts = speed("MXFP4", write_ms=1, read_ms=0.1)

    assert conversion.rank_types(header, [*others, slow]) == ["F16", "BF16"]
    assert conversion.rank_types(header, [slow, of_experts]) == []
    assert conversion.rank_types(header, [*others, fast]) == []


def test_auto_takes_q4_k_for_q4_1_which_has_more_bits_but_is_no_more_precise(
    tmp_path: Path,
) -> None:
    source = conversion.open_source(DEMO)
    header = reader.read(convert(source, "Q4_1", tmp_path / "copy.gguf").path)
    assert header.main_type == "Q4_1"
    speeds = [
        speed("Q4_0", write_ms=1, read_ms=0.1),
        speed("Q4_K", write_ms=2, read_ms=0.1),
        speed("Q8_0", write_ms=3, read_ms=0.1),
        speed("Q4_1", write_ms=4, read_ms=0.5),
    ]

    assert conversion.rank_types(header, speeds) == ["Q4_K_M", "Q8_0"]


def test_a_gain_is_suggested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = conversion.open_source(DEMO)
    header = source.header
    own = speed(header.main_type, write_ms=4, read_ms=0.4)
    types = {own.name: own}
    monkeypatch.setattr(type_speeds, "read_types", lambda: types)
    assert conversion.suggest_once(DEMO, header) is None, "no other type is timed"
    types["F16"] = speed("F16", write_ms=3.5, read_ms=0.2)

    first = conversion.suggest_once(DEMO, header)
    second = conversion.suggest_once(DEMO, header)

    assert first is not None
    assert first.message == f"F16 reads 2.0 × as fast on this CPU as {own.name}."
    assert f"localspec convert {DEMO}" in first.hint
    assert second is None
    assert conversion.suggest_conversion(header) != ""
    copy = convert(source, "BF16", tmp_path / "copy.gguf")
    assert conversion.suggest_conversion(reader.read(copy.path)) == "", "it is a copy"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "packaged.gguf"
    shutil.copy(DEMO, file)
    model = describe_file(file, {}, "package")
    monkeypatch.setattr(inventory, "find_packaged", {file: model}.get)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_STARTER_TYPE", "F16")
    yield file


def refuse_process(_: object) -> None:
    raise AssertionError("a process was started")


def test_loading_a_packaged_model_waits_for_no_conversion(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a busy program the conversion takes minutes, at its low priority."""
    monkeypatch.setattr(child_process, "start", refuse_process)
    notices = list[Notice]()

    assert conversion.choose_faster_copy(packaged, notices.append) == packaged

    assert notices == []


def test_the_copy_of_a_packaged_model_is_used_once_it_is_made(packaged: Path) -> None:
    conversion.make_faster_copy(packaged, lambda _: None)

    notices = list[Notice]()
    copy = conversion.choose_faster_copy(packaged, notices.append)
    copy_again = conversion.choose_faster_copy(packaged, notices.append)

    assert reader.read(copy).quantization == "F16"
    assert copy_again == copy
    assert [notice.code for notice in notices] == ["converted"], "said once"
    assert conversion.choose_faster_copy(DEMO, notices.append) == DEMO, "not packaged"


def test_a_copy_that_is_there_is_not_made_again(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion.make_faster_copy(packaged, lambda _: None)
    monkeypatch.setattr(child_process, "start", refuse_process)

    conversion.make_faster_copy(packaged, lambda _: None)


def test_two_programs_never_convert_at_once(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "start", refuse_process)
    lock_file = paths.DataFile.CONVERSION_LOCK.path
    lock_file.parent.mkdir(parents=True)
    lock = data_files.lock(lock_file)
    assert lock is not None

    with closing(lock):
        conversion.make_faster_copy(packaged, lambda _: None)

    assert conversion.choose_faster_copy(packaged, None) == packaged


def loaded_file(session: ChatSession) -> Path:
    """What a load for this chat reads."""
    load = LoadCommand(str(session.pair.target))
    request = session.keep_model_file(SettingsRequest(load))
    return Path(start._choose_faster_copy(request, lambda _: None))


def test_a_conversation_goes_on_with_the_file_that_began_it(packaged: Path) -> None:
    pair = ResolvedPair(packaged, None)
    begun = ChatSession(pair)
    begun.conversation.ask("Hello?")
    begun.conversation.set_model(begun.recorded_name)
    assert loaded_file(begun) == packaged

    conversion.make_faster_copy(packaged, lambda _: None)

    copy = conversion.choose_faster_copy(packaged, None)
    assert copy != packaged
    assert loaded_file(begun) == packaged
    assert loaded_file(ChatSession(pair)) == copy


def test_the_copy_is_made_while_nobody_asks(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_tasks, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(type_speeds, "missing_types", list)

    def is_made() -> bool:
        return conversion.choose_faster_copy(packaged, lambda _: None) != packaged

    with idle_tasks.work_while_idle(packaged):
        wait_for(is_made)


def test_a_question_ends_the_conversion_and_leaves_no_file(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process never replies, as one that a busy computer gives no time."""
    processes = list[subprocess.Popen[bytes]]()
    start = partial(child_process.start, [sys.executable, "-c", "input(); input()"])

    def start_stuck(_: object) -> subprocess.Popen[bytes]:
        processes.append(start())
        return processes[-1]

    monkeypatch.setattr(child_process, "start", start_stuck)
    monkeypatch.setattr(idle_tasks, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(type_speeds, "missing_types", list)

    with idle_tasks.work_while_idle(packaged):
        wait_for(lambda: bool(processes))
        (thread,) = [t for t in threading.enumerate() if t.name == "idle-tasks"]
    thread.join(20)

    assert not thread.is_alive()
    assert processes[0].poll() is not None
    assert files(inventory.converted_folder()) == []
    assert conversion.choose_faster_copy(packaged, lambda _: None) == packaged


def test_a_full_disk_makes_no_copy(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(packaged.parent)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    with pytest.raises(StorageError):
        conversion.make_faster_copy(packaged, lambda _: None)

    assert conversion.choose_faster_copy(packaged, lambda _: None) == packaged


def test_a_packaged_model_in_its_own_type(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion.make_faster_copy(packaged, lambda _: None)
    monkeypatch.setenv("LOCALSPEC_STARTER_TYPE", "own")
    notices = list[Notice]()

    assert conversion.choose_faster_copy(packaged, notices.append) == packaged

    assert notices == []

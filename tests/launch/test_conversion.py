"""Conversion of models: what is written, what is refused, and what an interruption leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import paths
from localspec.errors import EngineError, StorageError, UsageError
from localspec.launch import conversion
from localspec.launch.conversion import ConvertedModel, Source
from localspec.machine import conversion_process
from localspec.machine.conversion_process import TypeSpeed
from localspec.models.gguf import reader
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import describe_file
from localspec.protocol.events import Notice
from tests.support.zoo import Zoo

DEMO = paths.package_data_dir() / "demo" / "demo-target.gguf"
TEXTS = ("def add(a, b):\n    return", "class Stack:\n    def push(self, item):\n")


def convert(source: Source, kind: str, out: Path, n_tokens: int = 0) -> ConvertedModel:
    steps = conversion.convert(source, kind, out, TEXTS, n_tokens)
    try:
        while True:
            _, share = next(steps)
            assert 0 <= share <= 1
    except StopIteration as end:
        result: ConvertedModel = end.value
        return result


def files(folder: Path) -> list[str]:
    return [entry.name for entry in os.scandir(folder) if entry.name != "data"]  # the tests' own


def test_a_copy_has_the_type_the_source_in_its_header_and_nearly_its_answers(
    tmp_path: Path,
) -> None:
    converted = convert(conversion.open_source(DEMO), "F16", tmp_path / "copy.gguf", 64)
    header = reader.read(converted.path)
    assert (header.quantization, header.keys["localspec.converted_from"]) == ("F16", DEMO.name)
    assert files(tmp_path) == ["copy.gguf"]
    compared = converted.comparison
    assert compared is not None
    assert compared.tokens >= 60
    assert compared.same >= 0.9
    assert 0 <= compared.divergence < 0.02
    assert min(compared.source_ms, compared.copy_ms, compared.copy_read_ms) > 0


def test_a_worse_copy_is_told_from_a_good_one(tmp_path: Path) -> None:
    source = conversion.open_source(DEMO)
    good, bad = (convert(source, kind, tmp_path / kind, 64).comparison for kind in ("F16", "Q2_K"))
    assert good is not None
    assert bad is not None
    assert bad.divergence > 2 * good.divergence


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("f16", "already"),
        ("IQ1_S", "importance matrix"),
        ("Q9_9", "no type"),
        ("\x1b[2J", "no type"),
    ],
)
def test_types_that_cannot_be_written_are_refused(kind: str, message: str, zoo: Zoo) -> None:
    source = conversion.open_source(zoo["target"])
    if kind == "f16":
        kind = source.header.quantization
    with pytest.raises(UsageError, match=message) as refused:
        conversion.check_type(source, kind)
    assert "\x1b" not in refused.value.message


def test_heads_are_refused(zoo: Zoo) -> None:
    with pytest.raises(UsageError, match="draft head"):
        conversion.open_source(paths.find_bundled("demo-eagle3.gguf"))


def test_an_existing_file_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = conversion.open_source(DEMO), tmp_path / "copy.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        convert(source, "F16", out)
    assert out.read_bytes() == b"mine"
    out.unlink()
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match="needs about"):
        convert(source, "F16", out)
    assert files(tmp_path) == []


def test_a_file_that_llama_cpp_refuses_leaves_nothing(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(DEMO.read_bytes())
    source = conversion.open_source(damaged)
    damaged.write_bytes(DEMO.read_bytes()[:50_000])
    with pytest.raises(EngineError):
        convert(source, "F16", tmp_path / "copy.gguf")
    assert files(tmp_path) == ["damaged.gguf"]


def test_closing_a_conversion_leaves_nothing(tmp_path: Path) -> None:
    steps = conversion.convert(
        conversion.open_source(DEMO), "F16", tmp_path / "copy.gguf", TEXTS, 10_000
    )
    next(steps)
    steps.close()
    assert files(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only there has the file no name meanwhile")
def test_a_killed_conversion_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "localspec", "convert", str(DEMO), "--type", "F16"]
    out = tmp_path / "copies" / "copy.gguf"
    process = subprocess.Popen([*command, "--out", str(out), "--compare", "90000", "--quiet"])
    while not out.parent.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.listdir(out.parent) == []


def speed(name: str, write_ms: float, read_ms: float) -> TypeSpeed:
    return TypeSpeed(name, {1: write_ms, 2: write_ms, 4: write_ms, 8: write_ms, 256: 256 * read_ms})


def test_auto_chooses_the_fastest_type_that_has_the_bits_of_the_source(zoo: Zoo) -> None:
    source = conversion.open_source(DEMO)
    own = source.header.quantization
    speeds = [speed("Q4_0", 1, 0.1), speed("F16", 4, 0.2), speed("BF16", 5, 0.2)]
    ranked = conversion.rank_types(source, [*speeds, speed(own, 9, 0.5)])
    assert ranked == ["F16", "BF16"]
    assert conversion.rank_types(source, [*speeds, speed(own, 0.5, 0.01)]) == []


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "packaged.gguf"
    shutil.copy(DEMO, file)
    model = describe_file(file, {}, "package")
    monkeypatch.setattr(inventory, "find_packaged", lambda path: model if path == file else None)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_STARTER_TYPE", "F16")
    yield file


def test_a_packaged_model_is_converted_once(packaged: Path) -> None:
    notices = list[Notice]()
    copy = conversion.faster_copy(packaged, notices.append)
    assert reader.read(copy).quantization == "F16"
    assert conversion.faster_copy(packaged, notices.append) == copy
    assert [notice.code for notice in notices] == ["converting"]
    assert conversion.faster_copy(DEMO, notices.append) == DEMO


def test_a_packaged_model_is_used_as_it_is_if_asked_for_or_if_the_disk_is_full(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = list[Notice]()
    usage = shutil.disk_usage(packaged.parent)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert conversion.faster_copy(packaged, lambda _: None) == packaged
    monkeypatch.setenv("LOCALSPEC_STARTER_TYPE", "own")
    assert conversion.faster_copy(packaged, notices.append) == packaged
    assert not notices


def test_types_are_timed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(conversion_process, "MAX_OTHER_LOAD", 2.0)
    (timed,) = conversion_process.time_types(("Q4_0",))
    assert timed.bits == 4.5
    assert timed.pass_ms[256] > timed.pass_ms[1] > 0
    assert conversion_process.read_types() == {"Q4_0": timed}
    monkeypatch.setattr(conversion_process, "read_cpu_name", lambda: "another CPU")
    assert conversion_process.read_types() == {}

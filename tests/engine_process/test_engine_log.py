"""The engine's words in a file: whole lines, bounded, private, and never in the way."""

import stat
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest

from localspec.engine_process import engine_log
from localspec.engine_process.engine_log import EngineLog

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "new" / "place"
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(place))
    return place


def heard(words: bytes) -> EngineLog:
    made = EngineLog(4711)
    made.drain(BytesIO(words))
    return made


def test_lines_are_kept_here_and_there_cleaned(folder: Path) -> None:
    made = heard(b"one\x1b[2J\n\xff two\nthree")
    assert list(made.last_lines) == ["one", "\ufffd two", "three"]
    kept = (folder / "engine.log").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 2)[2] for line in kept] == [
        "4711 one",
        "4711 \ufffd two",
        "4711 three",
    ]
    if sys.platform != "win32":  # nobody else may read them
        assert stat.S_IMODE((folder / "engine.log").stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_flood_takes_two_small_files(folder: Path) -> None:
    heard(
        b"x" * 1000 + b"\n" + b"y" * 5_000_000 + b"\n" + (b"z" * 99 + b"\n") * 100_000
    )
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["engine.log", "engine.log.1"]
    for file in files:
        assert file.stat().st_size < 1_200_000 and file.read_bytes().endswith(b"z\n")


@needs_posix
def test_without_a_disk_or_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    (folder / "engine.log").symlink_to("/dev/full")
    assert list(heard(b"one\n").last_lines) == ["one"]
    for place in ("/dev/null", "/proc/nowhere"):
        monkeypatch.setenv("LOCALSPEC_DATA_DIR", place)
        assert list(heard(b"one\n").last_lines) == ["one"]


def test_many_processes_write_whole_lines(folder: Path) -> None:
    program = (
        "import sys\n"
        "from io import BytesIO\n"
        "from localspec.engine_process.engine_log import EngineLog\n"
        "log, line = EngineLog(int(sys.argv[1])), b'0123456789' * 10 + b'\\n'\n"
        "for _ in range(200): log.drain(BytesIO(line))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in range(4)
    ]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    lines = engine_log.log_path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 800 and {line.split(" ", 3)[3] for line in lines} == {
        "0123456789" * 10
    }

"""What is temporary is gone after its process, also after one that was killed."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from localspec import data_files, temporary_files
from localspec.temporary_files import TemporaryFolder

MAKERS = {
    "the headers for the memory probe": """
from localspec.machine import memory_probe
from tests.support import synthetic_header
from tests.support.families import FAMILIES
header = synthetic_header.build(FAMILIES["llama"].small, "Q8_0")
memory_probe._probe.write_header_only_file(header)
pause()
""",
    "the layers of timed types": """
from localspec.errors import EngineError
from localspec.machine import type_speeds
def pause_and_kill(process):
    pause()
    process.kill()
try:
    next(type_speeds.time_types(["Q4_0"], pause_and_kill))
except EngineError:
    pass
""",
    "the sources of the RPC backend": """
from pathlib import Path
from localspec.extras.workers import side_library
def download(version, folder):
    (folder / "sources.tar.gz").write_bytes(b"x")
    pause()
    return folder
side_library._download_sources = download
side_library._compile = lambda compiler, sources, output: output
side_library.find = lambda: None
side_library.find_compiler = lambda: "c++"
side_library.find_or_build(print)
""",
    "the link that doctor tries": """
import os
from pathlib import Path
from localspec.doctor import checks
make = Path.symlink_to
def make_and_pause(link, target):
    make(link, target)
    pause()
Path.symlink_to = make_and_pause
assert list(checks._check_symlinks(Path(os.environ["TMPDIR"]))) == []
""",
    "a file of the data folder": """
from pathlib import Path
from localspec import data_files
replace = Path.replace
def pause_and_replace(new, path):
    pause()
    return replace(new, path)
Path.replace = pause_and_replace
assert data_files.write_json("last.json", {})
""",
    "a copy of a model in progress": """
import os
from pathlib import Path
from localspec import temporary_files
out = Path(os.environ["TMPDIR"]) / "copy.gguf"
with temporary_files.unnamed_file(out) as (path, give_name):
    with open(path, "wb") as file:
        file.write(b"GGUF")
    pause()
""",
}
"""Programs that call `pause` while something temporary of theirs exists."""

PAUSE = """
import sys
def pause():
    print("made", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for what is temporary, of this process and its children."""
    base = tmp_path / "temporary"
    base.mkdir()
    monkeypatch.setenv("TMPDIR", str(base))
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(base / "data"))
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    return base


def start_maker(name: str) -> subprocess.Popen[bytes]:
    """A process that has made something temporary and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSE + MAKERS[name]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != b"made":
        assert process.poll() is None, "it has failed"
    return process


def list_left(base: Path) -> set[str]:
    """What is in the folder, but for what is meant to stay."""
    found = {path.relative_to(base).as_posix() for path in base.rglob("*")}
    return found - {"data", "data/last.json"}


@pytest.mark.skipif(sys.platform == "win32", reason="TMPDIR is not its variable")
@pytest.mark.parametrize("name", MAKERS)
def test_the_next_process_removes_what_a_killed_one_has_left(
    name: str, base: Path
) -> None:
    killed = start_maker(name)
    killed.kill()
    killed.communicate()
    for path in base.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)  # It was long ago.

    again = start_maker(name)
    again.communicate(b"\n")

    assert again.returncode == 0
    assert list_left(base) == set()


@pytest.mark.skipif(sys.platform == "win32", reason="TMPDIR is not its variable")
def test_the_folder_of_a_process_that_lives_stays(base: Path) -> None:
    name = "the headers for the memory probe"
    living = start_maker(name)
    before = list_left(base)

    start_maker(name).communicate(b"\n")

    assert list_left(base) == before != set()
    living.communicate(b"\n")
    assert list_left(base) == set()


def test_folders_of_others_stay(base: Path) -> None:
    theirs = base / "localspec-cases"
    theirs.mkdir()
    (theirs / "case.txt").write_text("", errors="strict")
    link = base / "localspec-link"
    link.symlink_to(theirs)
    for path in (theirs, link):
        os.utime(path, (1, 1))

    with TemporaryFolder("test") as folder:
        assert folder.is_dir()

    assert list_left(base) == {"localspec-cases", "localspec-cases/case.txt", link.name}


def test_a_folder_that_was_killed_before_its_lock_is_removed_later(base: Path) -> None:
    new = base / "localspec-test-new"
    old = base / "localspec-test-old"
    for folder in (new, old):
        folder.mkdir()
    os.utime(old, (1, 1))

    temporary_files.remove_abandoned(base)

    assert list_left(base) == {new.name}


def test_a_folder_that_another_process_takes_for_abandoned_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    """The other one finds it before it is locked, and holds the lock to remove it."""
    taken: list[Path] = []
    lock = data_files.lock

    def take_first(path: Path) -> data_files.FileLock | None:
        if not taken:
            taken.append(path)
            return None
        return lock(path)

    monkeypatch.setattr(data_files, "lock", take_first)

    with TemporaryFolder("test") as folder:
        assert folder.is_dir() and folder != taken[0].parent


def test_a_full_disk_keeps_no_folder(
    monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(data_files, "lock", fail)

    with pytest.raises(OSError, match="No space"):
        TemporaryFolder("test")

    assert list_left(base) == set()


def test_the_last_copied_text_stays_as_in_a_clipboard(base: Path) -> None:
    temporary_files.write_copied_text("one")
    last = temporary_files.write_copied_text("two")
    assert last.read_text(encoding="utf-8") == "two"
    assert list_left(base) == {last.name}

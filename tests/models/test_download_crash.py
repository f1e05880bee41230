"""Killed at any moment, with a full disk, or with any call refused: nothing wrong is ever left."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from localspec.errors import StorageError
from tests.often import often
from tests.support.downloads import DATA, MIB, REPO, Desk, wait_for
from tests.support.fake_hub import BODY, FakeHub, Fault

CHILD = """
import sys
from pathlib import Path
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file

url, store, repo = sys.argv[1:]
hub = HubClient(url, token=False)
listing = hub.list_files(repo)  # imports the library
print("go", flush=True)
download_file(hub, DownloadJob(repo, listing.revision, listing.files[0]), cache_dir=Path(store))
"""

POOR = """
import errno, json, resource, sys
from pathlib import Path
from localspec.errors import LocalspecError
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file

url, store, repo, how = sys.argv[1:]
hub, store = HubClient(url, token=False), Path(store)
listing = hub.list_files(repo)
ballast = store / "ballast"

def fill(state):
    if how == "ballast" and state.done_bytes and not ballast.exists():
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

def attempt():
    try:
        job = DownloadJob(repo, listing.revision, listing.files[0])
        return download_file(hub, job, fill, cache_dir=store).stat().st_size
    except LocalspecError as error:
        return [error.code, error.message, error.hint]

if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
first = attempt()
parts = [path.stat().st_size for path in store.glob("*/blobs/*.part")]
final = [str(path) for path in store.glob("*/snapshots/*/*")]
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if how == "ballast":
    how = ""
    ballast.write_bytes(b"")
print(json.dumps([first, parts, final, attempt()]))
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with FakeHub() as hub:
        yield Desk(hub, tmp_path / "hub")


def start(desk: Desk) -> subprocess.Popen[bytes]:
    """A process that is about to fetch."""
    where = [desk.hub.url, str(desk.store), REPO]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *where], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"go\n"
    return child


def end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Let it run so long, then kill it."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    child.kill()
    child.wait(10)
    assert child.stdout is not None
    child.stdout.close()


def have(desk: Desk) -> int:
    """Bytes that are there; all of them, and all that has a final name, must be right."""
    for path in desk.final():
        assert path.read_bytes() == DATA
    part = desk.part.read_bytes() if desk.part.exists() else b""
    assert part == DATA[: len(part)]
    return len(DATA) if desk.blob.exists() else len(part)


def from_byte(asked: str | None) -> int:
    """The first byte of a Range header."""
    return int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0


@pytest.mark.parametrize("kills", [10, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_killed_at_any_moment(kills: int, desk: Desk) -> None:
    chance = random.Random(kills)
    desk.hub.always[BODY] = Fault("slow", rate=6 * MIB)
    child, began = start(desk), monotonic()
    end(child, 30)
    whole = monotonic() - began
    assert child.returncode == 0
    n_resumed = 0
    shutil.rmtree(desk.store)
    for _ in range(kills):
        before, n_bodies = have(desk), len(desk.hub.bodies())
        child = start(desk)
        if chance.random() < 0.5:  # on a busy machine the others may die before they ask
            wait_for(lambda: len(desk.hub.bodies()) > n_bodies or child.poll() is not None, 30)  # noqa: B023
        end(child, chance.uniform(0, 0.7 * whole))
        asked = desk.ranges()[n_bodies:]
        # More than one where a connection was lost on the way: never for bytes that are here.
        assert all(from_byte(one) >= before for one in asked)
        assert before < len(DATA) or not asked
        n_resumed += bool(before and asked)
        assert have(desk) >= before
        if desk.blob.exists() and chance.random() < 0.5:
            shutil.rmtree(desk.store)
    assert n_resumed >= kills // 10  # how many depends on what else runs
    assert desk.is_whole(desk.fetch())


class Refusing:
    """A call of the system that fails once, after so many in this folder or on open files."""

    def __init__(self, call: str, left: int, folder: str) -> None:
        self.left = left
        self._real = getattr(os, call)
        self._folder = folder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(args[0], int) or any(self._folder in str(arg) for arg in args):
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
        return self._real(*args, **kwargs)


CALLS = ("replace", "fsync", "symlink", "open", "write", "mkdir")


@pytest.mark.parametrize("call", often(CALLS, set(CALLS) - {"write"}))
def test_any_call_refused_once_and_gone_on_with(
    call: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first such call fails, then the second, … until none is left to fail."""
    n_failed = 0
    while True:
        refusing = Refusing(call, n_failed, str(desk.store))
        sent = desk.hub.sent()
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refusing)
            with suppress(StorageError):
                desk.fetch()
        have(desk)
        assert desk.is_whole(desk.fetch())
        if call in ("replace", "symlink"):
            assert desk.hub.sent() - sent == len(DATA)
        if refusing.left >= 0:
            break
        n_failed += 1
        shutil.rmtree(desk.store)
    assert n_failed >= 1


def poor(desk: Desk, how: str, prefix: tuple[str, ...] = ()) -> tuple[object, ...]:
    """What a process that has too little room gets: first, parts, final names, then with room."""
    where = [desk.hub.url, str(desk.store), REPO, how]
    command = [*prefix, sys.executable, "-c", POOR, *where]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
    return tuple(json.loads(done.stdout))


def small_disk(desk: Desk, n_bytes: int) -> tuple[str, ...]:
    """What starts a process that sees a disk of that size at the store."""
    mount = f'mount -t tmpfs -o size={n_bytes} tmpfs {desk.store} && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount, "sh")
    desk.store.mkdir(parents=True)
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no disk can be mounted here")
    return prefix


def test_a_disk_that_is_too_small_is_said_before_a_byte_moves(desk: Desk) -> None:
    first, parts, final, _ = poor(desk, "", small_disk(desk, 2 * MIB))
    assert isinstance(first, list)
    assert first[0] == "storage"
    assert "needs 3.1 MB" in first[1]
    assert (parts, final) == ([], [])
    assert desk.hub.bodies() == []


def test_a_disk_that_fills_on_the_way(desk: Desk) -> None:
    desk.hub.faults[BODY].append(Fault("slow", rate=4 * MIB))
    first, parts, final, then = poor(desk, "ballast", small_disk(desk, 4 * MIB))
    assert isinstance(first, list) and isinstance(parts, list)
    assert first[0] == "storage" and "is full" in first[1] and "resumes" in first[2]
    assert final == []
    assert 0 < parts[0] < len(DATA)
    assert then == len(DATA)
    assert desk.ranges() == [None, f"bytes={parts[0]}-"]


@pytest.mark.skipif(os.name == "nt", reason="no such limits there")
def test_a_file_system_with_a_largest_size(desk: Desk) -> None:
    desk.store.mkdir(parents=True)
    first, parts, final, then = poor(desk, "limit")
    assert isinstance(first, list)
    assert first[0] == "storage" and "cannot hold" in first[1]
    assert (parts, final) == ([MIB], [])
    assert then == len(DATA)
    assert desk.ranges() == [None, f"bytes={MIB}-"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk of"),
        (errno.EDQUOT, "Your quota on the disk of"),
        (errno.EFBIG, "cannot hold a file of that size"),
        (errno.EIO, "Input/output error"),
        (errno.EROFS, "Read-only file system"),
        (errno.ESTALE, "Stale file handle"),
    ],
)
def test_a_disk_that_refuses_says_why_and_where(
    number: int, words: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, pytest.raises(StorageError) as raised:
        patched.setattr(os, "write", refusing)
        desk.fetch()
    assert raised.value.exit_code == 8
    assert words in raised.value.message and str(desk.store) in raised.value.message
    assert raised.value.hint
    assert desk.final() == []
    assert desk.is_whole(desk.fetch())


def test_two_processes_fetch_it_once(desk: Desk) -> None:
    desk.hub.always[BODY] = Fault("slow", rate=6 * MIB)
    both = [start(desk), start(desk)]
    for child in both:
        end(child, 30)
        assert child.returncode == 0
    assert len(desk.hub.bodies()) == 1
    assert desk.is_whole(desk.fetch())


def test_a_killed_process_lets_go_for_the_one_that_waits(desk: Desk) -> None:
    desk.hub.faults[BODY].append(Fault("stall", after=MIB))
    first = start(desk)
    desk.hub.wait_sent(MIB)
    second = start(desk)
    end(first, 0)
    end(second, 30)
    assert second.returncode == 0
    assert [from_byte(one) > 0 for one in desk.ranges()] == [False, True]
    assert desk.is_whole(desk.fetch())

"""The hub's shared cache: its own library agrees about every file, and nothing wrong is
ever left, after a kill at any moment, with a full disk, or with any call refused.
"""

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir
from msgspec.structs import replace

from localspec.errors import ChecksumError, OfflineError, StorageError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import DownloadPhase
from tests.support.downloads import DATA, FILE, MIB, REPO, Desk, wait_for
from tests.support.fake_hub import BODY, COMMIT, Fault
from tests.support.long_cases import often


def by_library(desk: Desk, revision: str = "main", local: bool = False) -> Path:
    where: Any = {"cache_dir": desk.store, "endpoint": desk.hub.url, "token": False}
    return Path(
        hf_hub_download(REPO, FILE, revision=revision, local_files_only=local, **where)
    )


def test_the_library_finds_what_we_fetched(desk: Desk) -> None:
    path = desk.fetch()
    assert (
        by_library(desk, local=True)
        == by_library(desk)
        == by_library(desk, COMMIT)
        == path
    )
    assert len(desk.hub.bodies()) == 1
    found = scan_cache_dir(desk.store)
    assert not found.warnings
    (repo,) = found.repos
    (revision,) = repo.revisions
    (file,) = revision.files
    assert repo.repo_id == REPO and revision.refs == frozenset({"main"})
    assert file.size_on_disk == len(DATA) and (desk.store / "CACHEDIR.TAG").is_file()
    desk.hub.begin_commit("b" * 40)
    new = desk.fetch()
    assert new != path and new.samefile(path), (
        "the same file in a new commit is only a new name"
    )
    assert (
        len(desk.hub.bodies()) == 1
        and (desk.folder / "refs" / "main").read_text() == "b" * 40
    )


@pytest.mark.parametrize("kind", ["corrupt", "swap"])
def test_what_the_library_took_damaged_is_found_out_and_mended(
    kind: str, desk: Desk
) -> None:
    desk.hub.faults[BODY].append(Fault(kind, after=MIB))
    path = by_library(desk)
    # should this ever fail: the library checks by itself now
    assert path.read_bytes() != DATA
    for ref in ("main", None):
        assert desk.fetch(desk.job(ref=ref)) == path and desk.is_whole(path)
    assert len(desk.hub.bodies()) == 2


def partial(content: bytes) -> Callable[[Desk], object]:
    def write(desk: Desk) -> None:
        desk.part.parent.mkdir(parents=True)
        desk.part.write_bytes(content)

    return write


BEFORE: dict[str, tuple[Callable[[Desk], object], list[str | None]]] = {
    # What is in the cache, and the ranges that are asked for.
    "the library's": (by_library, []),
    "cut short": (
        lambda desk: by_library(desk).write_bytes(DATA[:MIB]),
        [f"bytes={MIB}-"],
    ),
    "a pointer to nothing": (lambda desk: desk.fetch().resolve().unlink(), [None]),
    "a whole part": (partial(DATA), []),
    "a part that is too long": (partial(DATA + b"more"), [None]),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_is_in_the_cache_counts_as_far_as_it_is_right(
    name: str, desk: Desk
) -> None:
    prepare, ranges = BEFORE[name]
    prepare(desk)
    n_before = len(desk.ranges())
    assert desk.is_whole(desk.fetch()) and desk.ranges()[n_before:] == ranges
    desk.said.clear()
    desk.fetch()
    assert {state.phase for state in desk.said} == {DownloadPhase.DONE}, (
        "read for its digest once"
    )


def test_what_is_damaged_and_cannot_be_mended_is_not_taken(desk: Desk) -> None:
    desk.fetch()
    job = desk.job()
    with pytest.raises(ChecksumError, match="on the hub"):
        desk.fetch(replace(job, file=replace(job.file, size=len(DATA) - 5)))
    assert desk.blob.read_bytes() == DATA, "longer than the hub says: left alone"
    desk.blob.write_bytes(DATA[:-1] + b"x")
    desk.client = HubClient(desk.hub.url, offline=True)
    with pytest.raises(OfflineError):
        desk.fetch()


def test_without_links_it_is_the_file_itself(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    path = desk.fetch()
    assert desk.is_whole(path) and not path.is_symlink() and not desk.blob.exists()
    assert desk.fetch() == path == by_library(desk, local=True) == by_library(desk)
    desk.hub.begin_commit("b" * 40)
    other = desk.fetch()
    assert other != path and desk.is_whole(other) and len(desk.hub.bodies()) == 1
    desk.hub.begin_commit("c" * 40)
    desk.hub.add(REPO, FILE, changed := b"GGUF" + DATA[:3:-1])
    assert desk.fetch().read_bytes() == changed, (
        "the same length is no reason to take the old one"
    )
    assert path.read_bytes() == DATA


def test_the_library_s_lock_is_ours(desk: Desk) -> None:
    """While we fetch, whoever uses the library waits, and finds the file when we are
    done.
    """
    desk.hub.faults[BODY].append(Fault("slow", rate=8 * MIB))
    fetching = threading.Thread(target=desk.fetch)
    fetching.start()
    desk.hub.wait_sent(MIB)
    path = by_library(desk)
    fetching.join(20)
    assert desk.is_whole(path) and len(desk.hub.bodies()) == 1


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS]
)
def test_a_disk_that_refuses_it(
    number: int, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        errno.ENOSPC: "The disk of",
        errno.EDQUOT: "Your quota on",
        errno.EFBIG: "hold a file",
    }
    write, left = os.write, [MIB]

    def refusing(handle: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(number, os.strerror(number))
        written = write(handle, data[: left[0]])
        left[0] -= written
        return written

    with monkeypatch.context() as patched, pytest.raises(StorageError) as raised:
        patched.setattr(os, "write", refusing)
        desk.fetch()
    assert (raised.value.exit_code, bool(raised.value.hint)) == (8, True)
    assert words.get(number, os.strerror(number)) in raised.value.message
    assert str(desk.store) in raised.value.message and desk.final() == []
    assert desk.is_whole(desk.fetch()) and desk.ranges() == [None, f"bytes={MIB}-"]


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


def start(desk: Desk) -> subprocess.Popen[bytes]:
    """A process that is about to fetch."""
    where = [desk.hub.url, str(desk.store), REPO]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *where], stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"go\n"
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


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.long)])
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
        # on a busy machine the others may die before they ask
        if chance.random() < 0.5:
            wait_for(
                lambda: len(desk.hub.bodies()) > n_bodies or child.poll() is not None,  # noqa: B023
                30,
            )
        end(child, chance.uniform(0, 0.7 * whole))
        asked = desk.ranges()[n_bodies:]
        # More than one where a connection was lost on the way: never for bytes that are
        # here.
        starts = [int(one.strip("bytes=-")) if one else 0 for one in asked]
        assert all(start >= before for start in starts) and (
            before < len(DATA) or not asked
        )
        n_resumed += bool(before and asked)
        assert have(desk) >= before
        if desk.blob.exists() and chance.random() < 0.5:
            shutil.rmtree(desk.store)
    assert n_resumed >= kills // 10  # how many depends on what else runs
    assert desk.is_whole(desk.fetch())


class Refusing:
    """A call of the system that fails once, after so many in this folder or on open
    files.
    """

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
def test_any_call_refused_and_retried(
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

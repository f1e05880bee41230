"""The hub's shared cache, which other programs use too.

The hub's own library agrees about every file, and nothing wrong is ever left: after a
kill at any moment, with a full disk, or with any call of the system refused.
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
from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import ChecksumError, OfflineError, StorageError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import DownloadPhase
from tests.support.downloads import (
    DATA,
    FILE,
    MIB,
    REPO,
    SHA256,
    Downloader,
    wait_for,
)
from tests.support.fake_hub import BODY, COMMIT, Fault
from tests.support.long_cases import bulk, often


def fetch_by_library(
    downloader: Downloader, revision: str = "main", *, is_offline: bool = False
) -> Path:
    path = hf_hub_download(
        REPO,
        FILE,
        revision=revision,
        local_files_only=is_offline,
        cache_dir=downloader.cache,
        endpoint=downloader.hub.url,
        token=False,
    )
    return Path(path)


# --- the same cache as the hub's library


def test_the_library_finds_what_we_fetched(downloader: Downloader) -> None:
    path = downloader.fetch()

    assert fetch_by_library(downloader, is_offline=True) == path
    assert fetch_by_library(downloader) == path
    assert fetch_by_library(downloader, COMMIT) == path
    assert len(downloader.hub.bodies()) == 1


def test_the_library_lists_what_we_fetched(downloader: Downloader) -> None:
    downloader.fetch()

    found = scan_cache_dir(downloader.cache)

    assert not found.warnings
    (repo,) = found.repos
    (revision,) = repo.revisions
    (file,) = revision.files
    assert repo.repo_id == REPO
    assert revision.refs == frozenset({"main"})
    assert file.size_on_disk == len(DATA)
    assert (downloader.cache / "CACHEDIR.TAG").is_file()


def test_names_that_a_killed_process_has_left_are_removed(
    downloader: Downloader,
) -> None:
    path = downloader.fetch()
    expected = downloader.list_files()
    ref = downloader.repo_folder / "refs" / "main"
    new_ref = ref.with_name(".main-killed")
    new_ref.write_bytes(b"")
    os.utime(new_ref, (1, 1))
    path.with_name(f"{SHA256[:16]}.tmp").symlink_to("nowhere")
    path.unlink()

    downloader.fetch()

    assert downloader.list_files() == expected


def test_the_same_file_in_a_new_commit_is_only_a_new_name(
    downloader: Downloader,
) -> None:
    path = downloader.fetch()
    downloader.hub.begin_commit("b" * 40)

    new = downloader.fetch()

    assert new != path
    assert new.samefile(path)
    assert len(downloader.hub.bodies()) == 1
    assert downloader.read_ref() == "b" * 40


@pytest.mark.parametrize("kind", ["corrupt", "swap"])
def test_what_the_library_fetched_damaged_is_found_and_fetched_again(
    kind: str, downloader: Downloader
) -> None:
    downloader.hub.faults[BODY].append(Fault(kind, after=MIB))
    path = fetch_by_library(downloader)
    assert path.read_bytes() != DATA, "or the library checks by itself now"

    for ref in ("main", None):
        assert downloader.fetch(downloader.job(ref=ref)) == path
        assert downloader.is_whole(path)

    assert len(downloader.hub.bodies()) == 2


def test_a_program_that_uses_the_library_waits_for_our_download(
    downloader: Downloader,
) -> None:
    downloader.hub.faults[BODY].append(Fault("slow", rate=8 * MIB))
    fetching = threading.Thread(target=downloader.fetch)
    fetching.start()
    downloader.hub.wait_sent(MIB)

    path = fetch_by_library(downloader)

    fetching.join(20)
    assert downloader.is_whole(path)
    assert len(downloader.hub.bodies()) == 1


def test_without_links_the_final_name_is_the_file_itself(
    downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")

    path = downloader.fetch()

    assert downloader.is_whole(path)
    assert not path.is_symlink()
    assert not downloader.blob.exists()
    assert downloader.fetch() == path
    assert fetch_by_library(downloader, is_offline=True) == path
    assert fetch_by_library(downloader) == path


def test_without_links_a_new_commit_copies_the_same_file_only(
    downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    path = downloader.fetch()

    downloader.hub.begin_commit("b" * 40)
    same = downloader.fetch()
    assert same != path
    assert downloader.is_whole(same)
    assert len(downloader.hub.bodies()) == 1

    downloader.hub.begin_commit("c" * 40)
    other_of_same_size = b"GGUF" + DATA[:3:-1]
    downloader.hub.add(REPO, FILE, other_of_same_size)
    assert downloader.fetch().read_bytes() == other_of_same_size
    assert path.read_bytes() == DATA


# --- what is in the cache already


class CacheState(Struct, frozen=True):
    prepare: Callable[[Downloader], object]
    ranges: list[str | None]
    """The bodies that are requested then."""


def write_partial(content: bytes) -> Callable[[Downloader], object]:
    def write(downloader: Downloader) -> None:
        downloader.partial.parent.mkdir(parents=True)
        downloader.partial.write_bytes(content)

    return write


CACHE_STATES = {
    "the library's file": CacheState(fetch_by_library, ranges=[]),
    "the library's file, cut short": CacheState(
        lambda downloader: fetch_by_library(downloader).write_bytes(DATA[:MIB]),
        ranges=[f"bytes={MIB}-"],
    ),
    "a link to nothing": CacheState(
        lambda downloader: downloader.fetch().resolve().unlink(), ranges=[None]
    ),
    "a complete partial file": CacheState(write_partial(DATA), ranges=[]),
    "a partial file that is too long": CacheState(
        write_partial(DATA + b"more"), ranges=[None]
    ),
}


@pytest.mark.parametrize("name", CACHE_STATES)
def test_what_is_in_the_cache_counts_as_far_as_it_is_right(
    name: str, downloader: Downloader
) -> None:
    state = CACHE_STATES[name]
    state.prepare(downloader)
    n_before = len(downloader.ranges())

    path = downloader.fetch()

    assert downloader.is_whole(path)
    assert downloader.ranges()[n_before:] == state.ranges


def test_a_verified_file_is_not_read_again(downloader: Downloader) -> None:
    downloader.fetch()
    downloader.states.clear()

    downloader.fetch()

    assert {state.phase for state in downloader.states} == {DownloadPhase.DONE}


def test_a_file_that_is_longer_than_the_hub_says_stays(downloader: Downloader) -> None:
    downloader.fetch()
    job = downloader.job()
    shorter = replace(job.file, size=len(DATA) - 5)

    with pytest.raises(ChecksumError, match="on the hub"):
        downloader.fetch(replace(job, file=shorter))

    assert downloader.blob.read_bytes() == DATA


def test_a_damaged_file_is_not_used_offline(downloader: Downloader) -> None:
    downloader.fetch()
    damaged = DATA[:-1] + b"x"
    downloader.blob.write_bytes(damaged)
    downloader.client = HubClient(downloader.hub.url, offline=True)

    with pytest.raises(OfflineError):
        downloader.fetch()

    assert downloader.blob.read_bytes() == damaged, "the only copy stays"


# --- disks that refuse


WORDS_BY_ERROR = {
    errno.ENOSPC: "The disk of",
    errno.EDQUOT: "Your quota on",
    errno.EFBIG: "hold a file",
    errno.EROFS: os.strerror(errno.EROFS),
}


@pytest.mark.parametrize("number", WORDS_BY_ERROR)
def test_what_a_full_disk_has_room_for_is_kept(
    number: int, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    room = MIB

    def refuse_after_room(handle: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(number, os.strerror(number))
        written = write(handle, data[:room])
        room -= written
        return written

    with monkeypatch.context() as patched, pytest.raises(StorageError) as raised:
        patched.setattr(os, "write", refuse_after_room)
        downloader.fetch()

    assert raised.value.exit_code == 8
    assert raised.value.hint
    assert WORDS_BY_ERROR[number] in raised.value.message
    assert str(downloader.cache) in raised.value.message
    assert downloader.list_final_files() == []

    assert downloader.is_whole(downloader.fetch())
    assert downloader.ranges() == [None, f"bytes={MIB}-"]


class RefusedCall:
    """A call of the system that fails once.

    Only calls on open files, or in the cache folder, count.
    """

    def __init__(self, call: str, n_before: int, folder: str) -> None:
        self.n_before = n_before
        """Calls that succeed before; negative once it has failed."""
        self._real = getattr(os, call)
        self._folder = folder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_open_file = isinstance(args[0], int)
        if is_open_file or any(self._folder in str(arg) for arg in args):
            self.n_before -= 1
            if self.n_before == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
        return self._real(*args, **kwargs)


CALLS = ("replace", "fsync", "symlink", "open", "write", "mkdir")


@pytest.mark.parametrize("call", often(CALLS, set(CALLS) - {"write"}))
def test_a_download_survives_any_refused_call(
    call: str, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first such call fails, then the second, … until none is left to fail."""
    n_failed = 0
    while True:
        refused = RefusedCall(call, n_before=n_failed, folder=str(downloader.cache))
        sent_before = downloader.hub.sent()
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refused)
            with suppress(StorageError):
                downloader.fetch()
        count_kept_bytes(downloader)

        assert downloader.is_whole(downloader.fetch())
        if call in ("replace", "symlink"):
            assert downloader.hub.sent() - sent_before == len(DATA)
        if refused.n_before >= 0:
            break
        n_failed += 1
        shutil.rmtree(downloader.cache)
    assert n_failed >= 1


# --- kill -9


CHILD = """
import sys
from pathlib import Path
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file

url, cache, repo = sys.argv[1:]
hub = HubClient(url, token=False)
listing = hub.list_files(repo)  # imports the library
print("go", flush=True)
job = DownloadJob(repo, listing.revision, listing.files[0])
download_file(hub, job, cache_dir=Path(cache))
"""


def start_child(downloader: Downloader) -> subprocess.Popen[bytes]:
    """A process that is about to fetch."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, downloader.hub.url, downloader.cache, REPO],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"go\n"
    return child


def kill_after(child: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    child.kill()
    child.wait(10)
    assert child.stdout is not None
    child.stdout.close()


def count_kept_bytes(downloader: Downloader) -> int:
    """The bytes that are in the cache, all of which are right."""
    for path in downloader.list_final_files():
        assert path.read_bytes() == DATA
    kept = b""
    if downloader.partial.exists():
        kept = downloader.partial.read_bytes()
    assert kept == DATA[: len(kept)]
    return len(DATA) if downloader.blob.exists() else len(kept)


def first_byte(range_header: str | None) -> int:
    """1000 of "bytes=1000-"."""
    return int(range_header.strip("bytes=-")) if range_header else 0


@pytest.mark.parametrize(
    "kills", [4, pytest.param(bulk(16, 40), marks=pytest.mark.long)]
)
@pytest.mark.timeout(900)
def test_a_kill_at_any_moment_loses_nothing(kills: int, downloader: Downloader) -> None:
    chance = random.Random(kills)
    downloader.hub.always[BODY] = Fault("slow", rate=6 * MIB)
    began = monotonic()
    child = start_child(downloader)
    kill_after(child, 30)
    whole_seconds = monotonic() - began
    assert child.returncode == 0
    shutil.rmtree(downloader.cache)

    n_resumed = 0
    for _ in range(kills):
        kept_before = count_kept_bytes(downloader)
        n_bodies = len(downloader.hub.bodies())
        child = start_child(downloader)
        # On a busy machine the other children may be killed before their request.
        if chance.random() < 0.5:
            wait_for(lambda: has_requested(child, downloader, n_bodies), 30)  # noqa: B023
        kill_after(child, chance.uniform(0, 0.7 * whole_seconds))

        # There is more than one request if a connection was lost: never for bytes that
        # are here.
        starts = [first_byte(header) for header in downloader.ranges()[n_bodies:]]
        assert all(start >= kept_before for start in starts)
        if kept_before == len(DATA):
            assert not starts
        if kept_before and starts:
            n_resumed += 1
        assert count_kept_bytes(downloader) >= kept_before
        if downloader.blob.exists() and chance.random() < 0.5:
            shutil.rmtree(downloader.cache)

    assert n_resumed >= kills // 10, "how many depends on what else runs"
    assert downloader.is_whole(downloader.fetch())


def has_requested(
    child: subprocess.Popen[bytes], downloader: Downloader, n_bodies: int
) -> bool:
    """Also true if the child has ended."""
    return len(downloader.hub.bodies()) > n_bodies or child.poll() is not None

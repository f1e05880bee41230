"""The cache is the one that everybody shares: the hub's own library must agree about every file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir

from localspec.errors import ChecksumError, OfflineError, StorageError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import DownloadPhase
from localspec.models.local_files import hub_cache
from tests.support.downloads import DATA, FILE, MIB, REPO, SHA256, Desk
from tests.support.fake_hub import BODY, COMMIT, FakeHub, Fault


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with FakeHub() as hub:
        yield Desk(hub, tmp_path / "hub")


def by_library(desk: Desk, revision: str = "main", local: bool = False) -> Path:
    return Path(
        hf_hub_download(
            REPO,
            FILE,
            revision=revision,
            cache_dir=desk.store,
            endpoint=desk.hub.url,
            token=False,
            local_files_only=local,
        )
    )


def test_the_library_finds_what_we_fetched(desk: Desk) -> None:
    path = desk.fetch()
    assert by_library(desk, local=True) == by_library(desk) == by_library(desk, COMMIT) == path
    assert len(desk.hub.bodies()) == 1
    found = scan_cache_dir(desk.store)
    assert not found.warnings
    (repo,) = found.repos
    (revision,) = repo.revisions
    (file,) = revision.files
    assert (repo.repo_id, revision.refs, file.size_on_disk) == (
        REPO,
        frozenset({"main"}),
        len(DATA),
    )
    assert (desk.store / "CACHEDIR.TAG").is_file()


def test_we_find_what_the_library_fetched(desk: Desk) -> None:
    path = by_library(desk)
    assert desk.fetch() == path
    assert len(desk.hub.bodies()) == 1


@pytest.mark.parametrize("kind", ["corrupt", "swap"])
def test_what_the_library_took_damaged_is_found_out_and_mended(kind: str, desk: Desk) -> None:
    desk.hub.faults[BODY].append(Fault(kind, after=MIB))
    path = by_library(desk)
    assert path.read_bytes() != DATA  # should this ever fail: the library checks by itself now
    for ref in ("main", None):
        assert desk.fetch(desk.job(ref=ref)) == path
        assert desk.is_whole(path)
    assert len(desk.hub.bodies()) == 2


def test_damaged_and_offline_is_not_taken(desk: Desk) -> None:
    path = desk.fetch()
    desk.blob.write_bytes(DATA[:-1] + b"x")
    desk.client = HubClient(desk.hub.url, offline=True)
    with pytest.raises(OfflineError):
        desk.fetch()
    assert path.is_file()


def test_a_file_is_read_for_its_digest_once(desk: Desk) -> None:
    by_library(desk)
    for phases in ({DownloadPhase.VERIFYING, DownloadPhase.DONE}, {DownloadPhase.DONE}):
        desk.said.clear()
        desk.fetch()
        assert {state.phase for state in desk.said} == phases


def test_a_pinned_file_in_the_cache_costs_the_library_nothing(desk: Desk) -> None:
    path = by_library(desk)
    n_asked = len(desk.hub.seen)
    assert by_library(desk, COMMIT) == path
    assert len(desk.hub.seen) == n_asked


def test_a_new_commit_with_the_same_file_is_only_a_new_name(desk: Desk) -> None:
    old = desk.fetch()
    desk.hub.begin_commit("b" * 40)
    new = desk.fetch()
    assert new != old and new.samefile(old)
    assert len(desk.hub.bodies()) == 1
    assert (desk.folder / "refs" / "main").read_text() == "b" * 40


def test_a_file_that_was_cut_short_is_completed(desk: Desk) -> None:
    path = by_library(desk)
    with desk.blob.open("r+b") as file:
        file.truncate(MIB)
    assert desk.fetch() == path
    assert desk.is_whole(path)
    assert desk.ranges()[-1] == f"bytes={MIB}-"


def test_one_that_was_cut_short_and_is_wrong_is_fetched_anew(desk: Desk) -> None:
    path = by_library(desk)
    desk.blob.write_bytes(bytes(1000))
    assert desk.is_whole(desk.fetch())
    assert path.read_bytes() == DATA


def test_one_that_is_longer_than_the_hub_says_is_left_alone(desk: Desk) -> None:
    desk.fetch()
    job = desk.job()
    with pytest.raises(ChecksumError, match="on the hub"):
        desk.fetch(replace(job, file=replace(job.file, size=len(DATA) - 5)))
    assert desk.blob.read_bytes() == DATA


def test_a_part_that_is_longer_than_the_file_begins_anew(desk: Desk) -> None:
    desk.part.parent.mkdir(parents=True)
    desk.part.write_bytes(DATA + b"more")
    assert desk.is_whole(desk.fetch())


def test_a_part_that_is_whole_needs_no_body(desk: Desk) -> None:
    desk.part.parent.mkdir(parents=True)
    desk.part.write_bytes(DATA)
    assert desk.is_whole(desk.fetch())
    assert desk.hub.bodies() == []


def test_a_pointer_to_nothing_is_replaced(desk: Desk) -> None:
    path = desk.fetch()
    desk.blob.unlink()
    assert desk.is_whole(desk.fetch()) and path.is_file()


def test_without_links_the_file_itself_has_the_final_name(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    path = desk.fetch()
    assert desk.is_whole(path) and not path.is_symlink()
    assert not desk.blob.exists()
    assert desk.fetch() == path == by_library(desk, local=True) == by_library(desk)
    desk.hub.begin_commit("b" * 40)
    other = desk.fetch()
    assert other != path and desk.is_whole(other)
    assert len(desk.hub.bodies()) == 1


def test_without_links_an_old_file_of_another_content_is_no_twin(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    old = desk.fetch()
    changed = DATA[::-1]
    changed = b"GGUF" + changed[4:]
    desk.hub.begin_commit("b" * 40)
    desk.hub.add(REPO, FILE, changed)
    assert desk.fetch().read_bytes() == changed
    assert old.read_bytes() == DATA


def test_a_file_too_long_for_the_file_system_is_told_by_its_length(desk: Desk) -> None:
    """5 GiB on a disk that has the room but, as FAT32, not the file size."""
    if os.name == "nt":
        pytest.skip("no such limits there")
    code = f"""
import resource
from pathlib import Path
from localspec.errors import StorageError
from localspec.models.hub.cached_file import CachedFile, DownloadJob, explain_disk_errors
from localspec.models.reference import RepoFile
cache = Path({str(desk.store)!r})
file = RepoFile({FILE!r}, 5 << 30, {SHA256!r})
cached_file = CachedFile(cache, DownloadJob({REPO!r}, {COMMIT!r}, file))
cached_file.create_folders()
try:
    with explain_disk_errors(cache):
        cached_file.check_disk_space()
except StorageError as error:
    assert "free" in error.message, error
    raise SystemExit(7)
assert cached_file.partial_path.stat().st_size == 0
resource.setrlimit(resource.RLIMIT_FSIZE, ((4 << 30) - 1, resource.RLIM_INFINITY))
try:
    with explain_disk_errors(cache):
        cached_file.check_disk_space()
except StorageError as error:
    assert "cannot hold" in error.message, error
else:
    raise SystemExit(1)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    if done.returncode == 7:
        pytest.skip("the disk is too small")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"HF_HUB_CACHE": "~/a"},
        {"HUGGINGFACE_HUB_CACHE": "$HOME/b"},
        {"HF_HOME": "~/c"},
        {"XDG_CACHE_HOME": "/d"},
        {"HF_HUB_CACHE": "/a", "HF_HOME": "/c"},
    ],
)
def test_the_cache_is_where_the_library_looks(
    chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert str(hub_cache.cache_root()) == done.stdout.strip()


def test_a_read_only_cache_is_said(desk: Desk) -> None:
    desk.store.parent.mkdir(exist_ok=True)
    desk.store.write_bytes(b"a file where the folder should be")
    with pytest.raises(StorageError) as raised:
        desk.fetch()
    assert raised.value.hint
    assert desk.hub.bodies() == []


def test_the_library_s_lock_is_ours(desk: Desk) -> None:
    """While we fetch, whoever uses the library waits, and finds the file when we are done."""
    desk.hub.faults[BODY].append(Fault("slow", rate=8 * MIB))
    fetching = threading.Thread(target=desk.fetch)
    fetching.start()
    desk.hub.wait_sent(MIB)
    path = by_library(desk)
    fetching.join(20)
    assert desk.is_whole(path)
    assert len(desk.hub.bodies()) == 1

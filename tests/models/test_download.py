"""Every way in which a network or a hub may fail, against a fake hub."""

import os
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from localspec import errors
from localspec.errors import LocalspecError
from localspec.models.hub.cancellation import CancelToken, RetryableError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file
from tests.support.downloads import DATA, FILE, MIB, QUICK, REPO, Downloader
from tests.support.fake_hub import BODY, COMMIT, LINK, Fault


def test_the_planned_commit_is_fetched_though_the_branch_has_moved(
    downloader: Downloader,
) -> None:
    planned = downloader.job()
    downloader.hub.begin_commit("b" * 40)
    downloader.hub.add(REPO, FILE, DATA[:5000])

    path = downloader.fetch(planned)
    assert downloader.is_whole(path)
    assert COMMIT in path.parts
    assert downloader.read_ref() == COMMIT

    assert downloader.fetch().read_bytes() == DATA[:5000]
    assert downloader.read_ref() == "b" * 40


# --- failures that pass


class PassingFailure(Struct, frozen=True):
    faults: list[Fault]
    """What happens to one body after another."""
    starts: list[int]
    """The byte from which each body is requested."""


PASSING = {
    "drops": PassingFailure(
        [Fault("drop", after=MIB), Fault("drop", after=1000)],
        starts=[0, MIB, MIB + 1000],
    ),
    "drop in the first byte": PassingFailure(
        [Fault("drop", after=1), Fault("drop", after=2)],
        starts=[0, 1, 3],
    ),
    "no range after a drop": PassingFailure(
        [Fault("drop", after=MIB), Fault("norange")],
        starts=[0, MIB],
    ),
    "stall": PassingFailure(
        [Fault("stall", after=MIB)],
        starts=[0, MIB],
    ),
    "stall before the response": PassingFailure(
        [Fault("stall")],
        starts=[0, 0],
    ),
    "503": PassingFailure(
        [Fault("status", status=503)],
        starts=[0, 0],
    ),
    "503 after a drop": PassingFailure(
        [Fault("drop", after=MIB), Fault("status", status=503)],
        starts=[0, MIB, MIB],
    ),
    "429": PassingFailure(
        [Fault("status", status=429, headers={"Retry-After": "0"})],
        starts=[0, 0],
    ),
    "416 after a drop": PassingFailure(
        [Fault("drop", after=MIB), Fault("status", status=416)],
        starts=[0, MIB, MIB],
    ),
    "seven drops, each with progress": PassingFailure(
        [Fault("drop", after=300_000)] * 7,
        starts=[300_000 * n for n in range(8)],
    ),
    "a link that expires": PassingFailure(
        [Fault("drop", after=MIB), Fault("status", status=403)],
        starts=[0, MIB, MIB],
    ),
    "a wrong byte, once": PassingFailure(
        [Fault("corrupt", after=MIB)],
        starts=[0, 0],
    ),
    "another file, once": PassingFailure(
        [Fault("swap")],
        starts=[0, 0],
    ),
    "another file after a drop": PassingFailure(
        [Fault("drop", after=MIB), Fault("swap")],
        starts=[0, MIB, 0],
    ),
    "a short file, once": PassingFailure(
        [Fault("short", after=MIB)],
        starts=[0, 0],
    ),
    "another encoding": PassingFailure(
        [Fault("gzip")],
        starts=[0, 0],
    ),
    "a size of 4,500 digits after a drop": PassingFailure(
        [Fault("drop", after=MIB), Fault("digits")],
        starts=[0, MIB, MIB],
    ),
    "no length": PassingFailure(
        [Fault("chunked")],
        starts=[0],
    ),
    "no end": PassingFailure(
        [Fault("endless")],
        starts=[0],
    ),
    "no end after a drop": PassingFailure(
        [Fault("drop", after=MIB), Fault("endless")],
        starts=[0, MIB],
    ),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_failure_that_passes_costs_only_the_bytes_that_were_lost(
    name: str, downloader: Downloader
) -> None:
    failure = PASSING[name]
    downloader.hub.faults[LINK].append(Fault("status", status=500))
    downloader.hub.faults[BODY].extend(failure.faults)

    path = downloader.fetch()

    assert downloader.is_whole(path)
    expected: list[str | None] = []
    for start in failure.starts:
        expected.append(f"bytes={start}-" if start else None)
    assert downloader.ranges() == expected


def test_a_wait_that_the_hub_asks_for_is_reported(downloader: Downloader) -> None:
    busy = Fault("status", status=429, headers={"Retry-After": "1"})
    downloader.hub.faults[BODY].append(busy)

    path = downloader.fetch()

    assert downloader.is_whole(path)
    notes = [state.note for state in downloader.states]
    assert "The hub is busy and asks to wait 1 s." in notes
    assert notes[-1] == ""


# --- failures that last


class LastingFailure(Struct, frozen=True):
    kind: str
    """The kind of requests that fail."""
    fault: Fault
    error: type[LocalspecError]
    words: str
    """In its message."""


LASTING = {
    "a wrong byte": LastingFailure(
        BODY,
        Fault("corrupt", after=99),
        error=errors.ChecksumError,
        words="damaged in two downloads",
    ),
    "another file": LastingFailure(
        BODY,
        Fault("swap"),
        error=errors.ChecksumError,
        words="damaged in two downloads",
    ),
    "a short file": LastingFailure(
        BODY,
        Fault("short", after=MIB),
        error=RetryableError,
        words="sends 1048576",
    ),
    "stalls": LastingFailure(
        BODY,
        Fault("stall"),
        error=RetryableError,
        words="stopped at 0.0 MB of",
    ),
    "503": LastingFailure(
        BODY,
        Fault("status", status=503),
        error=RetryableError,
        words="503",
    ),
    "a page as the body": LastingFailure(
        BODY,
        Fault("portal"),
        error=RetryableError,
        words="sends",
    ),
    "401": LastingFailure(
        LINK,
        Fault("status", status=401),
        error=errors.AccessDeniedError,
        words="401",
    ),
    "404": LastingFailure(
        LINK,
        Fault("status", status=404),
        error=errors.NotFoundError,
        words="private",
    ),
    "451": LastingFailure(
        LINK,
        Fault("status", status=451),
        error=errors.DownloadError,
        words="451",
    ),
}


@pytest.mark.parametrize("name", LASTING)
def test_a_failure_that_lasts_is_an_error_and_leaves_no_file(
    name: str, downloader: Downloader
) -> None:
    failure = LASTING[name]
    downloader.hub.always[failure.kind] = failure.fault
    if failure.fault.kind == "stall":  # Each attempt waits for the time limit.
        hurried = replace(QUICK, stall_timeout=0.2)
        downloader.client = HubClient(
            downloader.hub.url, token=False, retry_policy=hurried
        )

    with pytest.raises(failure.error, match=failure.words) as raised:
        downloader.fetch()

    assert type(raised.value) is failure.error
    assert raised.value.hint
    assert downloader.list_files() == set()


def test_a_hub_that_cannot_be_reached_is_offline_at_once(
    downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = downloader.fetch()
    delays: list[float] = []
    monkeypatch.setattr(CancelToken, "sleep", lambda _, seconds: delays.append(seconds))
    closed_port = HubClient("http://127.0.0.1:9", token=False)

    with pytest.raises(errors.OfflineError, match="cannot be reached"):
        download_file(
            closed_port, downloader.job("other.gguf"), cache_dir=downloader.cache
        )
    cached = download_file(closed_port, downloader.job(), cache_dir=downloader.cache)

    assert cached == path
    assert not any(delays), "a closed port is not tried again"


# --- what is not accepted


@pytest.mark.parametrize("change", [5, -5])
def test_a_file_of_another_size_than_planned_is_not_accepted(
    change: int, downloader: Downloader
) -> None:
    job = downloader.job()
    planned = replace(job.file, size=len(DATA) + change)

    with pytest.raises(errors.DownloadError, match="sends"):
        downloader.fetch(replace(job, file=planned))

    assert downloader.list_files() == set()


def test_a_file_without_a_checksum_is_not_downloaded(downloader: Downloader) -> None:
    job = downloader.job()

    with pytest.raises(errors.DownloadError, match="no checksum"):
        downloader.fetch(replace(job, file=replace(job.file, digest="")))

    assert downloader.list_files() == set()


def test_a_file_with_another_checksum_than_planned_is_not_accepted(
    downloader: Downloader,
) -> None:
    job = downloader.job()

    with pytest.raises(errors.ChecksumError, match="damaged in two downloads"):
        downloader.fetch(replace(job, file=replace(job.file, digest="0" * 64)))

    assert downloader.list_files() == set()


@pytest.mark.parametrize("downloader", [False], indirect=True)
def test_a_small_file_of_git_is_verified_by_its_sha1(downloader: Downloader) -> None:
    name = "MTP/mtp m (new).gguf"
    downloader.hub.add(REPO, name, DATA[:5000], lfs=False)

    path = downloader.fetch(downloader.job(name))

    assert path.read_bytes() == DATA[:5000]
    assert path.parent.name == "MTP"


@pytest.mark.parametrize("downloader", [False], indirect=True)
def test_a_damaged_file_of_git_is_not_accepted(downloader: Downloader) -> None:
    downloader.hub.add(REPO, "other.gguf", DATA[:6000], lfs=False)
    downloader.hub.always[BODY] = Fault("corrupt", after=9)

    with pytest.raises(errors.ChecksumError):
        downloader.fetch(downloader.job("other.gguf"))


def test_a_file_that_is_no_gguf_is_not_accepted(downloader: Downloader) -> None:
    downloader.hub.add(REPO, "zip.gguf", b"PK\x03\x04" + DATA)
    downloader.hub.add(REPO, "page.gguf", b"<html>" + DATA)

    with pytest.raises(errors.ModelFileError, match="not a GGUF"):
        downloader.fetch(downloader.job("zip.gguf"))
    with pytest.raises(errors.DownloadError, match="web page"):
        downloader.fetch(downloader.job("page.gguf"))

    assert downloader.list_files() == set()


# --- safety


@pytest.mark.parametrize("downloader", [True, False], indirect=True)
def test_only_the_hub_gets_the_token(downloader: Downloader) -> None:
    downloader.client = HubClient(
        downloader.hub.url, token="hf_good", retry_policy=QUICK
    )

    downloader.fetch()

    to_hub, *to_others = downloader.hub.requests
    assert to_hub.token == "Bearer hf_good"
    assert to_hub.agent.startswith("localspec/")
    assert "torch" not in to_hub.agent
    has_other_origin = downloader.hub.cdn
    expected = [None] if has_other_origin else []
    assert [request.token for request in to_others] == expected


HOSTILE_PATHS = (
    "../m.gguf",
    "C:\\m.gguf",
    "a\x1b[31m.gguf",
    "CON.gguf",
    "m.gguf\0",
    "m.bin",
    "",
)


def test_a_hostile_path_is_refused_without_a_request(downloader: Downloader) -> None:
    for path in HOSTILE_PATHS:
        with pytest.raises(errors.ModelFileError) as raised:
            downloader.fetch(downloader.job(path))
        assert (raised.value.message + raised.value.hint).isprintable()

    assert downloader.hub.requests == []
    assert not downloader.cache.exists()


def test_hostile_names_are_refused_without_a_request(downloader: Downloader) -> None:
    job = downloader.job()
    hostile_jobs = (
        replace(job, repo="../x"),
        replace(job, commit="a/../b"),
        replace(job, ref="x\n"),
    )

    for hostile in hostile_jobs:
        with pytest.raises(errors.UsageError):
            downloader.fetch(hostile)
    with pytest.raises(errors.UsageError):
        downloader.client.list_files("a/..")

    assert downloader.hub.requests == []
    assert not downloader.cache.exists()


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_a_link_in_place_of_the_partial_file_is_not_followed(
    downloader: Downloader, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    downloader.partial.parent.mkdir(parents=True)
    downloader.partial.symlink_to(victim)

    with pytest.raises(errors.StorageError, match="link"):
        downloader.fetch()

    assert victim.read_bytes() == b"precious"


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_a_folder_that_leads_out_of_the_cache_is_not_followed(
    downloader: Downloader, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    snapshots = downloader.repo_folder / "snapshots"
    snapshots.parent.mkdir(parents=True)
    snapshots.symlink_to(elsewhere)

    with pytest.raises(errors.StorageError, match="leads out"):
        downloader.fetch()

    assert list(elsewhere.iterdir()) == []
    assert downloader.hub.bodies() == []


def test_what_is_here_is_verified_in_a_cache_that_cannot_be_written(
    downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the cache of all users of a computer, which only one of them may change."""
    downloader.fetch()
    before = sorted(downloader.cache.rglob("*"))
    locks = downloader.cache / ".locks"
    locks.rename(downloader.cache.parent / "moved-locks")
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    path = downloader.fetch()

    assert downloader.is_whole(path)
    assert not locks.exists(), "nothing was written"
    assert len(before) > 0

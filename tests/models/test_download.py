"""Every way in which a network or a hub may fail, against a fake hub."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import errors
from localspec.models.hub.cancellation import CancelToken, RetryableError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file
from tests.support.downloads import DATA, FILE, MIB, QUICK, REPO, Desk
from tests.support.fake_hub import BODY, COMMIT, LINK, Fault


def test_what_was_planned_is_fetched_wherever_the_branch_is_by_then(desk: Desk) -> None:
    planned = desk.job()
    desk.hub.begin_commit("b" * 40)
    desk.hub.add(REPO, FILE, DATA[:5000])
    path = desk.fetch(planned)
    assert desk.is_whole(path) and COMMIT in path.parts
    assert (desk.folder / "refs" / "main").read_text() == COMMIT
    assert desk.fetch().read_bytes() == DATA[:5000]
    assert (desk.folder / "refs" / "main").read_text() == "b" * 40


PASSING: dict[str, tuple[list[Fault], list[int]]] = {
    # What happens to one body after another, and from which byte each is asked for.
    "drops": (
        [Fault("drop", after=MIB), Fault("drop", after=1000)],
        [0, MIB, MIB + 1000],
    ),
    "drop-in-the-first-byte": (
        [Fault("drop", after=1), Fault("drop", after=2)],
        [0, 1, 3],
    ),
    "no-range-after-a-drop": ([Fault("drop", after=MIB), Fault("norange")], [0, MIB]),
    "stall": ([Fault("stall", after=MIB)], [0, MIB]),
    "stall-before-the-answer": ([Fault("stall")], [0, 0]),
    "503": ([Fault("status", status=503)], [0, 0]),
    "503-on-the-way": (
        [Fault("drop", after=MIB), Fault("status", status=503)],
        [0, MIB, MIB],
    ),
    "429": ([Fault("status", status=429, headers={"Retry-After": "0"})], [0, 0]),
    "416-on-the-way": (
        [Fault("drop", after=MIB), Fault("status", status=416)],
        [0, MIB, MIB],
    ),
    "seven drops, each with progress": (
        [Fault("drop", after=300_000)] * 7,
        [300_000 * n for n in range(8)],
    ),
    "a link that expires": (
        [Fault("drop", after=MIB), Fault("status", status=403)],
        [0, MIB, MIB],
    ),
    "corrupt-once": ([Fault("corrupt", after=MIB)], [0, 0]),
    "swapped-once": ([Fault("swap")], [0, 0]),
    "swapped-on-the-way": ([Fault("drop", after=MIB), Fault("swap")], [0, MIB, 0]),
    "short-once": ([Fault("short", after=MIB)], [0, 0]),
    "another-encoding": ([Fault("gzip")], [0, 0]),
    "no-length": ([Fault("chunked")], [0]),
    "no-end": ([Fault("endless")], [0]),
    "no-end-after-a-drop": ([Fault("drop", after=MIB), Fault("endless")], [0, MIB]),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_got_over(name: str, desk: Desk) -> None:
    faults, starts = PASSING[name]
    desk.hub.faults[LINK].append(Fault("status", status=500))
    desk.hub.faults[BODY].extend(faults)
    assert desk.is_whole(desk.fetch())
    assert desk.ranges() == [f"bytes={start}-" if start else None for start in starts]


def test_a_wait_that_the_hub_asks_for_is_reported(desk: Desk) -> None:
    desk.hub.faults[BODY].append(
        Fault("status", status=429, headers={"Retry-After": "1"})
    )
    assert desk.is_whole(desk.fetch())
    assert "The hub is busy and asks to wait 1 s." in [
        state.note for state in desk.said
    ]
    assert desk.said[-1].note == ""


LASTING: dict[str, tuple[str, Fault, type[errors.LocalspecError], str]] = {
    "corrupt": (
        BODY,
        Fault("corrupt", after=99),
        errors.ChecksumError,
        "damaged in two downloads",
    ),
    "swapped": (BODY, Fault("swap"), errors.ChecksumError, "damaged in two downloads"),
    "short": (BODY, Fault("short", after=MIB), RetryableError, "sends 1048576"),
    "stalls": (BODY, Fault("stall"), RetryableError, "stopped at 0.00 of"),
    "503": (BODY, Fault("status", status=503), RetryableError, "503"),
    "a-page-as-body": (BODY, Fault("portal"), RetryableError, "sends"),
    "401": (LINK, Fault("status", status=401), errors.AccessDeniedError, "401"),
    "404": (LINK, Fault("status", status=404), errors.NotFoundError, "private"),
    "451": (LINK, Fault("status", status=451), errors.DownloadError, "451"),
}


@pytest.mark.parametrize("name", LASTING)
def test_what_does_not_pass_is_said_and_leaves_nothing(name: str, desk: Desk) -> None:
    kind, fault, error, words = LASTING[name]
    desk.hub.always[kind] = fault
    if fault.kind == "stall":  # each try waits for it
        hurried = replace(QUICK, stall_timeout=0.2)
        desk.client = HubClient(desk.hub.url, token=False, retry_policy=hurried)
    with pytest.raises(error, match=words) as raised:
        desk.fetch()
    assert type(raised.value) is error and raised.value.hint and desk.files() == set()


def test_what_cannot_be_verified_is_not_fetched(desk: Desk) -> None:
    job = desk.job()
    for change in (5, -5):
        with pytest.raises(errors.DownloadError, match="sends"):
            desk.fetch(replace(job, file=replace(job.file, size=len(DATA) + change)))
    with pytest.raises(errors.DownloadError, match="no checksum"):
        desk.fetch(replace(job, file=replace(job.file, digest="")))
    with pytest.raises(errors.ChecksumError, match="damaged in two downloads"):
        desk.fetch(replace(job, file=replace(job.file, digest="0" * 64)))
    assert desk.files() == set()


@pytest.mark.parametrize("desk", [False], indirect=True)
def test_git_keeps_small_files_under_a_digest_of_its_own(desk: Desk) -> None:
    desk.hub.add(REPO, "MTP/mtp m (new).gguf", DATA[:5000], lfs=False)
    path = desk.fetch(desk.job("MTP/mtp m (new).gguf"))
    assert (path.read_bytes(), path.parent.name) == (DATA[:5000], "MTP")
    desk.hub.always[BODY] = Fault("corrupt", after=9)
    desk.hub.add(REPO, "other.gguf", DATA[:6000], lfs=False)
    with pytest.raises(errors.ChecksumError):
        desk.fetch(desk.job("other.gguf"))


@pytest.mark.parametrize("desk", [True, False], indirect=True)
def test_the_token_is_for_the_hub_only(desk: Desk) -> None:
    desk.client = HubClient(desk.hub.url, token="hf_good", retry_policy=QUICK)
    desk.fetch()
    asked, *elsewhere = desk.hub.seen
    assert asked.token == "Bearer hf_good"
    assert asked.agent.startswith("localspec/") and "torch" not in asked.agent
    assert [seen.token for seen in elsewhere] == ([None] if desk.hub.cdn else [])


def test_a_hostile_name_is_refused_before_anything_happens(desk: Desk) -> None:
    for path in (
        "../m.gguf",
        "C:\\m.gguf",
        "a\x1b[31m.gguf",
        "CON.gguf",
        "m.gguf\0",
        "m.bin",
        "",
    ):
        with pytest.raises(errors.ModelFileError) as raised:
            desk.fetch(desk.job(path))
        assert (raised.value.message + raised.value.hint).isprintable()
    job = desk.job()
    for bad in (
        replace(job, repo="../x"),
        replace(job, commit="a/../b"),
        replace(job, ref="x\n"),
    ):
        with pytest.raises(errors.UsageError):
            desk.fetch(bad)
    with pytest.raises(errors.UsageError):
        desk.client.list_files("a/..")
    assert desk.hub.seen == [] and not desk.store.exists()


def test_what_is_no_gguf_inside_is_not_taken(desk: Desk) -> None:
    desk.hub.add(REPO, "p.gguf", b"PK\x03\x04" + DATA)
    with pytest.raises(errors.ModelFileError, match="not a GGUF"):
        desk.fetch(desk.job("p.gguf"))
    desk.hub.add(REPO, "h.gguf", b"<html>" + DATA)
    with pytest.raises(errors.DownloadError, match="web page"):
        desk.fetch(desk.job("h.gguf"))
    assert desk.files() == set()


def test_a_missing_hub_is_offline_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.fetch()
    patience: list[float] = []
    monkeypatch.setattr(
        CancelToken, "sleep", lambda _, seconds: patience.append(seconds)
    )
    nobody = HubClient("http://127.0.0.1:9", token=False)
    with pytest.raises(errors.OfflineError, match="cannot be reached"):
        download_file(nobody, desk.job("other.gguf"), cache_dir=desk.store)
    assert download_file(nobody, desk.job(), cache_dir=desk.store) == path
    assert not any(patience), "a closed port is not tried again"


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_a_link_in_the_way_is_refused(desk: Desk, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    desk.part.parent.mkdir(parents=True)
    desk.part.symlink_to(victim)
    with pytest.raises(errors.StorageError, match="link"):
        desk.fetch()
    assert victim.read_bytes() == b"precious"


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_a_folder_that_leads_elsewhere_is_refused(desk: Desk, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    snapshots = desk.store / "models--org--m-GGUF" / "snapshots"
    snapshots.parent.mkdir(parents=True)
    snapshots.symlink_to(elsewhere)
    with pytest.raises(errors.StorageError, match="leads out"):
        desk.fetch()
    assert list(elsewhere.iterdir()) == [] and desk.hub.bodies() == []

"""Several downloads at once, which can be paused, cancelled and tried again."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from localspec.errors import NotFoundError
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.cancellation import RetryPolicy
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import DownloadPhase, DownloadState
from localspec.models.hub.download_queue import DownloadQueue
from tests.support.downloads import DATA, FILE, MIB, REPO, Downloader, wait_for
from tests.support.fake_hub import BODY, LINK, FakeHub, Fault

RUNNING = {DownloadPhase.CHECKING, DownloadPhase.LOADING, DownloadPhase.VERIFYING}


@pytest.fixture
def downloader(tmp_path: Path) -> Iterator[Downloader]:
    """The hub has four more files: 0.gguf to 3.gguf."""
    with FakeHub() as hub:
        for i in range(4):
            hub.add(REPO, f"{i}.gguf", DATA[: MIB + i])
        yield Downloader(hub, tmp_path / "hub")


@pytest.fixture
def queue(downloader: Downloader) -> Iterator[DownloadQueue]:
    queue = DownloadQueue(downloader.client, downloader.cache)
    yield queue
    queue.close()


def find_state(queue: DownloadQueue, job: DownloadJob) -> DownloadState:
    return next(state for state in queue.states() if state.job == job)


def list_phases(queue: DownloadQueue) -> set[DownloadPhase]:
    return {state.phase for state in queue.states()}


def wait_for_bytes(queue: DownloadQueue, job: DownloadJob) -> None:
    def has_bytes() -> bool:
        state = find_state(queue, job)
        return state.phase is DownloadPhase.LOADING and state.done_bytes > 0

    wait_for(has_bytes)


def make_slow(downloader: Downloader) -> None:
    """From now on each body takes seconds."""
    downloader.hub.always[BODY] = Fault("slow", rate=MIB)


def test_jobs_run_in_the_order_in_which_they_were_added(downloader: Downloader) -> None:
    queue = DownloadQueue(downloader.client, downloader.cache, max_parallel=1)
    jobs = [downloader.job(f"{i}.gguf") for i in range(4)]

    for job in jobs:
        queue.add(job)
    assert queue.wait(20)

    states = queue.states()
    assert [state.job for state in states] == jobs
    assert list_phases(queue) == {DownloadPhase.DONE}
    for i, state in enumerate(states):
        assert state.path is not None
        assert state.path.read_bytes() == DATA[: MIB + i]
        assert state.done_bytes == MIB + i
    links = [request for request in downloader.hub.requests if request.kind == LINK]
    requested = [request.path.rsplit("/")[-1] for request in links]
    assert requested == [job.file.path for job in jobs]


def test_no_more_jobs_run_at_once_than_allowed(
    downloader: Downloader, queue: DownloadQueue
) -> None:
    make_slow(downloader)
    for i in range(4):
        queue.add(downloader.job(f"{i}.gguf"))

    most = 0
    while not queue.wait(0.02):
        running = [state for state in queue.states() if state.phase in RUNNING]
        most = max(most, len(running))

    assert most == 2
    assert list_phases(queue) == {DownloadPhase.DONE}


def test_a_paused_download_resumes_at_the_same_byte(
    downloader: Downloader, queue: DownloadQueue
) -> None:
    job = downloader.job()
    make_slow(downloader)
    queue.add(job)
    wait_for_bytes(queue, job)

    queue.pause(job)

    paused = find_state(queue, job)
    assert paused.phase is DownloadPhase.PAUSED
    assert paused.rate is None
    assert queue.wait(20)

    downloader.hub.always.clear()
    queue.retry(job)

    assert queue.wait(20)
    assert find_state(queue, job).phase is DownloadPhase.DONE
    assert downloader.is_whole(downloader.fetch())
    first, second = downloader.ranges()
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").rstrip("-")) >= paused.done_bytes


@pytest.mark.parametrize("kind", [LINK, BODY])
def test_a_stalled_download_is_cancelled_at_once(
    kind: str, downloader: Downloader
) -> None:
    patient = RetryPolicy(stall_timeout=60, connect_timeout=60)
    client = HubClient(downloader.hub.url, token=False, retry_policy=patient)
    queue = DownloadQueue(client, downloader.cache, max_parallel=1)
    stalled = downloader.job()
    following = downloader.job("1.gguf")
    downloader.hub.always[kind] = Fault("stall")
    queue.add(stalled)
    wait_for(lambda: any(request.kind == kind for request in downloader.hub.requests))
    downloader.hub.always.clear()
    queue.add(following)

    queue.cancel(stalled)

    assert find_state(queue, stalled).phase is DownloadPhase.CANCELLED
    # The thread is free again too, which a stall would hold for 60 s: it takes the next.
    wait_for(
        lambda: find_state(queue, following).phase is not DownloadPhase.WAITING, 50
    )
    assert queue.wait(20)

    queue.retry(stalled)

    assert queue.wait(20)
    assert list_phases(queue) == {DownloadPhase.DONE}


def test_a_failed_job_has_its_error_and_delays_no_other(
    downloader: Downloader, queue: DownloadQueue
) -> None:
    job = downloader.job("0.gguf")
    lost = downloader.hub.repos[REPO].pop("0.gguf")
    queue.add(job)
    queue.add(downloader.job("1.gguf"))

    assert queue.wait(20)

    failed, done = queue.states()
    assert failed.phase is DownloadPhase.FAILED
    assert isinstance(failed.error, NotFoundError)
    assert done.phase is DownloadPhase.DONE

    downloader.hub.repos[REPO]["0.gguf"] = lost
    queue.add(job)

    assert queue.wait(20)
    repeated = find_state(queue, job)
    assert repeated.phase is DownloadPhase.DONE
    assert repeated.error is None


def test_the_rate_limit_is_for_all_downloads_together(downloader: Downloader) -> None:
    queue = DownloadQueue(downloader.client, downloader.cache, limit_bytes_s=2 * MIB)
    began = monotonic()

    queue.add(downloader.job("1.gguf"))
    queue.add(downloader.job("2.gguf"))

    assert queue.wait(20)
    assert monotonic() - began >= 0.8, "2 MiB take a second"


def test_the_rate_limit_can_be_removed(
    downloader: Downloader, queue: DownloadQueue
) -> None:
    queue.set_rate_limit(10_000)
    queue.set_rate_limit(None)

    queue.add(downloader.job())

    assert queue.wait(20), "with the limit it would take minutes"


def test_closing_stops_everything_and_keeps_the_received_part(
    downloader: Downloader, queue: DownloadQueue
) -> None:
    job = downloader.job()
    make_slow(downloader)
    queue.add(job)
    downloader.hub.wait_sent(MIB)
    wait_for_bytes(queue, job)

    queue.close()
    n_bodies = len(downloader.hub.bodies())
    added_later = downloader.job("1.gguf")
    queue.add(added_later)

    downloader.hub.always.clear()
    assert downloader.is_whole(downloader.fetch())
    assert downloader.ranges()[n_bodies] is not None, "it resumes"
    assert find_state(queue, added_later).phase is DownloadPhase.WAITING
    assert FILE in {Path(name).name for name in downloader.list_files()}

"""Several downloads at once, each of which can be paused, resumed, cancelled and tried
again.
"""

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
from tests.support.downloads import DATA, FILE, MIB, REPO, Desk, wait_for
from tests.support.fake_hub import BODY, LINK, FakeHub, Fault


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with FakeHub() as hub:
        for i in range(4):
            hub.add(REPO, f"{i}.gguf", DATA[: MIB + i])
        yield Desk(hub, tmp_path / "hub")


@pytest.fixture
def queue(desk: Desk) -> Iterator[DownloadQueue]:
    queue = DownloadQueue(desk.client, desk.store)
    yield queue
    queue.close()


def state(queue: DownloadQueue, job: DownloadJob) -> DownloadState:
    return next(state for state in queue.states() if state.job == job)


def loading(queue: DownloadQueue, job: DownloadJob) -> bool:
    found = state(queue, job)
    return found.phase is DownloadPhase.LOADING and found.done_bytes > 0


def slowly(desk: Desk) -> None:
    desk.hub.always[BODY] = Fault("slow", rate=MIB)


def test_all_are_fetched_in_their_order(desk: Desk) -> None:
    queue = DownloadQueue(desk.client, desk.store, max_parallel=1)
    jobs = [desk.job(f"{i}.gguf") for i in range(4)]
    for job in jobs:
        queue.add(job)
    assert queue.wait(20)
    states = queue.states()
    assert [state.job for state in states] == jobs
    assert {state.phase for state in states} == {DownloadPhase.DONE}
    for i, done in enumerate(states):
        assert done.path is not None and done.path.read_bytes() == DATA[: MIB + i]
        assert done.done_bytes == MIB + i
    links = [seen.path.rsplit("/")[-1] for seen in desk.hub.seen if seen.kind == LINK]
    assert links == [job.file.path for job in jobs]


def test_no_more_at_once_than_allowed(desk: Desk, queue: DownloadQueue) -> None:
    slowly(desk)
    for i in range(4):
        queue.add(desk.job(f"{i}.gguf"))
    most = 0
    while not queue.wait(0.02):
        busy = {DownloadPhase.CHECKING, DownloadPhase.LOADING, DownloadPhase.VERIFYING}
        most = max(most, sum(state.phase in busy for state in queue.states()))
    assert most == 2 and {state.phase for state in queue.states()} == {
        DownloadPhase.DONE
    }


def test_pause_and_resume_go_on_at_the_same_byte(
    desk: Desk, queue: DownloadQueue
) -> None:
    slowly(desk)
    queue.add(desk.job())
    wait_for(lambda: loading(queue, desk.job()))
    queue.pause(desk.job())
    paused = state(queue, desk.job())
    assert (
        paused.phase is DownloadPhase.PAUSED and paused.rate is None and queue.wait(20)
    )
    desk.hub.always.clear()
    queue.retry(desk.job())
    assert queue.wait(20) and state(queue, desk.job()).phase is DownloadPhase.DONE
    assert desk.is_whole(desk.fetch())
    first, second = desk.ranges()
    assert first is None and second is not None
    assert int(second.removeprefix("bytes=").rstrip("-")) >= paused.done_bytes


@pytest.mark.parametrize("kind", [LINK, BODY])
def test_cancelling_is_quick_even_in_a_stall(kind: str, desk: Desk) -> None:
    desk.hub.always[kind] = Fault("stall")
    client = HubClient(
        desk.hub.url,
        token=False,
        retry_policy=RetryPolicy(stall_timeout=60, connect_timeout=60),
    )
    queue = DownloadQueue(client, desk.store, max_parallel=1)
    queue.add(desk.job())
    wait_for(lambda: any(seen.kind == kind for seen in desk.hub.seen))
    desk.hub.always.clear()
    queue.add(desk.job("1.gguf"))
    queue.cancel(desk.job())
    assert state(queue, desk.job()).phase is DownloadPhase.CANCELLED
    # The thread itself is free again too, which a stall would hold for 60 s: it takes
    # the next.
    wait_for(
        lambda: state(queue, desk.job("1.gguf")).phase is not DownloadPhase.WAITING
    )
    assert queue.wait(20)
    queue.retry(desk.job())
    assert queue.wait(20) and {state.phase for state in queue.states()} == {
        DownloadPhase.DONE
    }


def test_one_that_fails_says_why_and_holds_up_nobody(
    desk: Desk, queue: DownloadQueue
) -> None:
    bad = desk.job("0.gguf")
    lost = desk.hub.repos[REPO].pop("0.gguf")
    queue.add(bad)
    queue.add(desk.job("1.gguf"))
    assert queue.wait(20)
    failed, done = queue.states()
    assert failed.phase is DownloadPhase.FAILED and isinstance(
        failed.error, NotFoundError
    )
    assert done.phase is DownloadPhase.DONE
    desk.hub.repos[REPO]["0.gguf"] = lost
    queue.add(bad)
    assert queue.wait(20)
    assert (
        state(queue, bad).phase is DownloadPhase.DONE
        and state(queue, bad).error is None
    )


def test_the_limit_is_for_all_together_and_may_change(desk: Desk) -> None:
    queue = DownloadQueue(desk.client, desk.store, limit_bytes_s=2 * MIB)
    began = monotonic()
    queue.add(desk.job("1.gguf"))
    queue.add(desk.job("2.gguf"))
    assert queue.wait(20) and monotonic() - began >= 0.8
    queue.set_rate_limit(10_000)
    queue.set_rate_limit(None)
    queue.add(desk.job())
    assert queue.wait(20), "with the limit it would take minutes"


def test_closing_stops_everything_and_keeps_what_came(
    desk: Desk, queue: DownloadQueue
) -> None:
    slowly(desk)
    queue.add(desk.job())
    desk.hub.wait_sent(MIB)
    wait_for(lambda: loading(queue, desk.job()))
    queue.close()
    n_bodies = len(desk.hub.bodies())
    queue.add(desk.job("1.gguf"))
    desk.hub.always.clear()
    assert desk.is_whole(desk.fetch()) and desk.ranges()[n_bodies] is not None
    assert state(queue, desk.job("1.gguf")).phase is DownloadPhase.WAITING
    assert FILE in {Path(name).name for name in desk.files()}

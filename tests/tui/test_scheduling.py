"""The reliable timer fires even if the event loop is late; a worker skips old jobs."""

import threading
import time
from functools import partial

import pytest
from textual.app import App
from textual.events import Resize
from textual.geometry import Size
from textual.timer import Timer

from localspec.errors import LocalspecError
from localspec.tui.scheduling import LatestOnlyWorker, set_reliable_timer
from tests.support import scenes
from tests.support.scripted_engine import wait_until


async def test_no_timer_is_lost_while_the_loop_is_busy() -> None:
    """Textual's own timers lose some of these, because their tick is late."""
    app = App[None]()
    fired: list[int] = []
    async with app.run_test() as pilot:
        for number in range(300):
            set_reliable_timer(app, 1e-9, partial(fired.append, number))
        time.sleep(0.05)  # The loop is busy meanwhile.
        await wait_until(pilot, lambda: len(fired) >= 300)
    assert sorted(fired) == list(range(300))


async def test_a_timer_that_is_cancelled_does_not_fire() -> None:
    app = App[None]()
    fired: list[str] = []
    async with app.run_test() as pilot:
        set_reliable_timer(app, 0.0, partial(fired.append, "cancelled")).cancel()
        set_reliable_timer(app, 0.01, partial(fired.append, "later"))
        await wait_until(pilot, lambda: fired)
    assert fired == ["later"]


async def test_a_resize_is_not_lost_with_the_only_tick_of_textuals_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = scenes.home()
    async with app.run_test(size=(80, 24)) as pilot:
        await scenes.surveyed(pilot)
        # Textual's timer never starts.
        monkeypatch.setattr(app, "set_timer", lambda *_: Timer(app, 1000.0))
        app.post_message(Resize(Size(100, 30), Size(100, 30)))
        await wait_until(pilot, lambda: app.screen._compositor.size == (100, 30))


async def test_a_worker_does_the_running_job_and_then_only_the_latest() -> None:
    done: list[str] = []
    began = threading.Event()
    gate = threading.Event()
    ended = threading.Event()

    def first() -> None:
        began.set()
        gate.wait(60)
        done.append("first")

    def last() -> None:
        done.append("last")
        ended.set()

    worker = LatestOnlyWorker(App[None](), "test")
    failures: list[LocalspecError] = []
    submit = partial(worker.submit, failed=failures.append)
    submit(first)
    assert began.wait(60)
    submit(lambda: done.append("second"))
    submit(lambda: done.append("third"))
    submit(last)
    gate.set()
    assert ended.wait(60)
    assert done == ["first", "last"]
    assert failures == []

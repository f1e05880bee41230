"""The reliable timer fires even if the event loop is late; a worker does only the
latest job.
"""

import threading
import time

import pytest
from textual.app import App
from textual.events import Resize
from textual.geometry import Size
from textual.timer import Timer

from localspec.tui.scheduling import LatestOnlyWorker, set_reliable_timer
from tests.support import scenes
from tests.support.scripted_engine import wait_until


async def test_no_wait_is_too_short_to_be_heard_of_and_it_can_be_taken_back() -> None:
    """Textual's own timers lose some of these, because their tick is late."""
    app = App[None]()
    heard: list[int] = []
    async with app.run_test() as pilot:
        set_reliable_timer(app, 0.0, lambda: heard.append(-1)).cancel()
        for number in range(300):
            set_reliable_timer(app, 1e-9, lambda number=number: heard.append(number))  # type: ignore[misc]
        time.sleep(0.05)  # the loop is busy meanwhile
        await wait_until(pilot, lambda: len(heard) >= 300)
    assert sorted(heard) == list(range(300))


async def test_a_resize_is_not_lost_with_the_only_tick_of_textuals_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = scenes.home()
    async with app.run_test(size=(80, 24)) as pilot:
        await scenes.surveyed(pilot)
        # it never starts
        monkeypatch.setattr(app, "set_timer", lambda *_: Timer(app, 1000.0))
        app.post_message(Resize(Size(100, 30), Size(100, 30)))
        await wait_until(pilot, lambda: app.screen._compositor.size == (100, 30))


def test_only_the_latest_is_done() -> None:
    latest, done, gate = LatestOnlyWorker("test"), [], threading.Event()
    began, ended = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        gate.wait(60)
        done.append(0)

    latest.submit(first)
    assert began.wait(60)
    for n in (1, 2):
        latest.submit(lambda n=n: done.append(n))  # type: ignore[misc]

    def last() -> None:
        done.append(3)
        ended.set()

    latest.submit(last)
    gate.set()
    assert ended.wait(60)
    assert done == [0, 3]

"""A one-shot timer that cannot be lost.

Textual 8 skips a tick that is late, also the only tick of a one-shot timer: if the event loop is
busy between two lines of `Timer._run`, the callback never runs, and a streaming answer would stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.message_pump import MessagePump


def set_reliable_timer(
    pump: MessagePump, seconds: float, callback: Callable[[], Any]
) -> asyncio.TimerHandle:
    """Calls `callback` between two messages of `pump`, after `seconds` or soon after that.

    Call it in the app's event loop; the handle cancels it.  Does nothing if the pump has closed.
    """

    def on_due() -> None:
        if pump.is_running and pump.is_attached:
            pump.call_next(run_if_attached)

    def run_if_attached() -> object:
        return callback() if pump.is_attached else None

    return asyncio.get_running_loop().call_later(seconds, on_due)

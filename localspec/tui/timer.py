"""Once, after a while, for certain.

Textual's own one-shot timers are never heard of again where the event loop comes to them too late:
between two lines of `Timer._run` more than their time may pass, and a tick that is late is skipped,
the only one too (Textual 8).  An answer would stand still for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.message_pump import MessagePump


def set_reliable_timer(
    pump: MessagePump, seconds: float, callback: Callable[[], Any]
) -> asyncio.TimerHandle:
    """Have `call` made between two of the pump's messages, in so many seconds or soon after.

    To be called in the app's loop; the handle takes it back.  Not where the pump is gone by then.
    """

    def on_due() -> None:
        if pump.is_running and pump.is_attached:
            pump.call_next(run_if_attached)

    def run_if_attached() -> object:
        return callback() if pump.is_attached else None

    return asyncio.get_running_loop().call_later(seconds, on_due)

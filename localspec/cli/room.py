"""What to do when the context is full, asked at the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from localspec.chat.context import Full
from localspec.chat.fields import Overflow

_WORDS: dict[Overflow, str] = {
    "drop": "leave out the oldest turns",
    "summarise": "have the model summarise them",
    "stop": "stop here",
}
_SENT_NOT = "do not send it"


def ask(full: Full, say: Callable[[str], None], read: Callable[[], str] | None = None) -> Overflow:
    """The choice; `stop` at Ctrl+C, at Ctrl+D and where nothing is chosen."""
    read = read or sys.stdin.readline
    what = "The context is full" if full.writing else "This does not fit well into the context"
    say(f"{what}: {full.used:,} of {full.n_ctx:,} tokens. The older turns stay in the chat.")
    for choice in full.choices:
        words = _SENT_NOT if choice == "stop" and not full.writing else _WORDS[choice]
        say(f"  {choice[0] if choice != 'summarise' else 'm'}: {words}")
    say("Type a letter and Enter (/set overflow NAME chooses for good):")
    with _interruptible():
        try:
            return _meant(read().strip().lower(), full)
        except KeyboardInterrupt:
            return "stop"


def _meant(text: str, full: Full) -> Overflow:
    found: dict[str, Overflow] = {"d": "drop", "m": "summarise", "s": "stop"}
    found |= {choice: choice for choice in full.choices}
    choice = found.get(text, "stop")
    return choice if choice in full.choices else "stop"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl+C ends the question, whatever it does around it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

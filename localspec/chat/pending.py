"""What of an answer is not on the disk while it comes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from localspec.chat.turn import Turn
from localspec.protocol.events import Dead, Event, Finished, Ready, Round


class Pending:
    """One answer as it comes, and what of it is not on the disk."""

    def __init__(self, turn: Turn, *, whole: bool) -> None:
        self.turn = turn
        self.whole = whole
        """Whether it replaces another text of the same turn."""
        self.tokens = 0
        self.over = False
        self.saved_at = time.monotonic()
        self._heard: list[Event] = []
        self._saved = 0

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Round):
                self.tokens += len(event.tokens)
            self.over = self.over or isinstance(event, Finished | Dead)
            if not isinstance(event, Ready):
                self._heard.append(event)

    @property
    def unsaved(self) -> list[Event]:
        return self._heard[self._saved :]

    @property
    def now(self) -> Turn:
        return self.turn.heard(self._heard)

    def saved(self) -> None:
        self.whole = False
        self._saved, self.tokens, self.saved_at = len(self._heard), 0, time.monotonic()

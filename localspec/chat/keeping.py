"""A chat is kept while it is had: what was sent at once, what is answered as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from localspec.chat.conversation import Conversation
from localspec.chat.history import About, History, Kept, Pair, Place
from localspec.chat.history.locks import Hold
from localspec.chat.pending import Pending
from localspec.chat.settings import Settings
from localspec.chat.turn import Turn
from localspec.errors import InUseError, LocalspecError, NotFoundError
from localspec.protocol.events import Event, Notice

TOKENS = 64
SECONDS = 1.0
"""Of an answer, at most one of these is lost whatever happens."""
_PAUSE = 5.0
"""Seconds until a save is tried again in the middle of an answer."""
_LONGEST = 200
"""Characters of a title."""


class Keeper:
    """Joins a conversation with the history; where there is none, nothing is kept.

    `sent`, `ended` and the like belong to the thread that asks, `heard` to the one that listens.
    No failure to save is raised: it is said once, and tried again with whatever comes next.
    """

    def __init__(
        self,
        conversation: Conversation,
        history: History | None,
        pair: Pair,
        *,
        kept: Kept | None = None,
        say: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        """`kept`: go on with a chat that is in the history."""
        self.conversation, self.pair, self.say = conversation, pair, say
        self.settings = kept.settings if kept else Settings()
        self.refusal: InUseError | None = None
        """Set where another window has the chat: it can be read only."""
        self._history = history if history is None or history.refusal is None else None
        self._place: Place | None = None
        self._hold: Hold | None = None
        self._lock = threading.RLock()
        self._failed = False
        self._retry_at = 0.0
        self._lengths: dict[int, int] = {}
        """Characters of the answers that are on the disk, by turn."""
        self._stale: dict[int, Turn] = {}
        """Turns to be written whole with the next save."""
        self._written: About | None = None
        self._answer: Pending | None = None
        if kept is not None and self._history is not None:
            self._resume(self._history, kept)

    def _resume(self, history: History, kept: Kept) -> None:
        self._place = kept.place
        self._lengths = {turn.id: len(turn.answer) for turn in kept.conversation.all}
        self._written = self._about()
        try:
            self._take(history)
        except InUseError as error:
            self.refusal = error

    @property
    def chat(self) -> int | None:
        """Its id in the history; None before the first message, and where nothing is kept."""
        return self._place.chat if self._place else None

    @property
    def on(self) -> bool:
        """Whether chats are kept at all."""
        return self._history is not None

    def another(self, conversation: Conversation) -> Keeper:
        """For a new chat in the place of this one, which is closed."""
        self.close()
        new = Keeper(conversation, self._history, self.pair, say=self.say)
        new.settings = self.settings
        return new

    # --- a turn -----------------------------------------------------------------------------

    def sent(self, turn: Turn) -> None:
        """Before the engine sees it, and before it is shown as sent.

        Raises InUseError where another window has the chat.
        """
        if self.refusal is not None:
            raise self.refusal
        if not turn.answer:
            turn = self.conversation.signed(self.pair.name)
        with self._lock:
            self._flush()
            again = turn.id in self._lengths and not turn.answer
            self._answer = Pending(turn, whole=again)
            if not again and not (turn.id in self._lengths and turn.answer):
                self._stale[turn.id] = turn
            self._save()

    def heard(self, events: Sequence[Event]) -> None:
        """What came from the engine, as it comes; at most a checkpoint's worth is not on disk."""
        with self._lock:
            answer = self._answer
            if answer is None or self._history is None:
                return
            answer.take(events)
            due = answer.tokens >= TOKENS or time.monotonic() - answer.saved_at >= SECONDS
            if answer.over or (due and time.monotonic() >= self._retry_at):
                self._checkpoint(answer, force=answer.over)

    def ended(self) -> None:
        """The answer is over, however it came to that."""
        with self._lock:
            self._flush(force=True)
            self.moved()

    def withdrawn(self, turn: Turn) -> None:
        """It was refused: the conversation is as it was before."""
        with self._lock:
            self._answer = None
            known = {one.id for one in self.conversation.all}
            if turn.id in known:
                return
            self._stale.pop(turn.id, None)
            self._lengths.pop(turn.id, None)
            if self._place is None or self._history is None:
                return
            history, place = self._history, self._place
            if known:
                about = self._about()
                self._tried(lambda: history.take_out(place, about, turn.id))
            else:
                self._let_go()
                if self._tried(lambda: history.remove([place.chat])):
                    self._place = self._written = None

    def moved(self) -> None:
        """Another branch is shown, perhaps, or the system prompt or settings are others."""
        with self._lock:
            if self._stale or (self._place is not None and self._about() != self._written):
                self._save()

    def close(self) -> None:
        """Nothing more comes; another window may have the chat."""
        with self._lock:
            self._flush()
            hold, self._hold = self._hold, None
            if hold is not None:
                hold.close()

    # --- saving -----------------------------------------------------------------------------

    def _flush(self, *, force: bool = False) -> None:
        """What is left of an answer that nobody waits for any more."""
        answer = self._answer
        if answer is not None and self._history is not None:
            self._checkpoint(answer, force=force)
            if answer.unsaved and (force or not answer.whole):
                self._stale[answer.turn.id] = answer.now
        self._answer = None

    def _checkpoint(self, answer: Pending, *, force: bool) -> None:
        history, place, turn = self._history, self._place, answer.turn
        events = answer.unsaved
        if history is None or not events:
            return
        if answer.whole or place is None or turn.id in self._stale:
            now = answer.now
            if force or len(now.answer) >= self._lengths.get(turn.id, 0):
                self._stale[turn.id] = now  # until then what was there before is more
                if self._save():
                    answer.saved()
        elif self._tried(lambda: history.go_on(place, turn.id, events)):
            self._lengths[turn.id] = len(answer.now.answer)
            answer.saved()

    def _save(self) -> bool:
        """The chat and its stale turns; whether that was possible."""
        history, place = self._history, self._place
        if history is None or self.refusal is not None or not (place or self._stale):
            return False
        about, turns = self._about(), list(self._stale.values())

        def work() -> None:
            self._place = history.keep(place, about, turns)

        if not self._tried(work):
            return False
        self._written = about
        self._stale.clear()
        self._lengths |= {turn.id: len(turn.answer) for turn in turns}
        if place is None:
            self._let_go()
            self._tried(lambda: self._take(history))
        return True

    def _tried(self, work: Callable[[], object]) -> bool:
        """Whether it could be done; else it is told, once."""
        assert self._history is not None
        try:
            work()
        except NotFoundError:  # removed, or the file is another one
            return self._begin_anew()
        except LocalspecError as error:
            self._retry_at = time.monotonic() + _PAUSE
            if not self._failed:
                self._failed = True
                hint = f"{error.hint} It is tried again with all that comes."
                what = f"This chat is not saved: {error.message}"
                self.say(Notice("warning", "not-saved", what, hint.strip()))
            return False
        finally:
            for notice in self._history.notices():
                self.say(notice)
        if self._failed:
            self._failed = False
            self.say(Notice("info", "saved-again", "This chat is saved again."))
        return True

    def _begin_anew(self) -> bool:
        """All that is in memory, as another chat."""
        if self._place is None:
            return False
        self._place = self._written = None
        self._let_go()
        self._stale = {turn.id: turn for turn in self.conversation.all}
        if self._answer is not None:
            self._stale[self._answer.turn.id] = self._answer.now
        return self._save()

    def _take(self, history: History) -> None:
        """So that another window only reads it.  Raises InUseError."""
        assert self._place is not None
        self._hold = history.hold(self._place.chat)
        if not self._hold.sure:
            what = "This disk knows no locks: open a chat in one window only."
            self.say(Notice("warning", "no-locks", what))

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _about(self) -> About:
        chat = self.conversation
        return About(
            title(chat),
            chat.seed,
            chat.system,
            self.settings,
            self.pair,
            chat.head,
            chat.cut,
            len(chat.turns),
        )


def title(conversation: Conversation) -> str:
    """The first thing that was asked, on one line."""
    for turn in conversation.turns or conversation.all:
        words = turn.question or ", ".join(file.name for file in turn.attached)
        if words.strip():
            return " ".join(words[: 4 * _LONGEST].split())[:_LONGEST]
    return ""

"""A chat is kept while it is had: what was sent at once, what is answered as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import ChatHistory, ChatLocation, ChatMetadata, ChatPair, SavedChat
from localspec.chat.history.file_lock import FileLock
from localspec.chat.settings import ChatSettings
from localspec.errors import InUseError, LocalspecError, NotFoundError
from localspec.protocol.events import (
    EngineExit,
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    Round,
)

CHECKPOINT_TOKENS = 64
CHECKPOINT_SECONDS = 1.0
"""Of an answer, at most one of these is lost whatever happens."""
_RETRY_SECONDS = 5.0
"""Seconds until a save is tried again in the middle of an answer."""
_MAX_TITLE_LENGTH = 200
"""Characters of a title."""


class ChatRecorder:
    """Joins a conversation with the history; where there is none, nothing is kept.

    `sent`, `ended` and the like belong to the thread that asks, `heard` to the one that listens.
    No failure to save is raised: it is said once, and tried again with whatever comes next.
    """

    def __init__(
        self,
        conversation: Conversation,
        history: ChatHistory | None,
        pair: ChatPair,
        *,
        saved_chat: SavedChat | None = None,
        notify: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        """`kept`: go on with a chat that is in the history."""
        self.conversation, self.pair, self.notify = conversation, pair, notify
        self.settings = saved_chat.settings if saved_chat else ChatSettings()
        self.lock_error: InUseError | None = None
        """Set where another window has the chat: it can be read only."""
        self._history = history if history is None or history.write_error is None else None
        self._location: ChatLocation | None = None
        self._chat_lock: FileLock | None = None
        self._lock = threading.RLock()
        self._save_failed = False
        self._retry_at = 0.0
        self._saved_lengths: dict[int, int] = {}
        """Characters of the answers that are on the disk, by turn."""
        self._unsaved_turns: dict[int, Turn] = {}
        """Turns to be written whole with the next save."""
        self._saved_metadata: ChatMetadata | None = None
        self._pending: PendingAnswer | None = None
        if saved_chat is not None and self._history is not None:
            self._attach(self._history, saved_chat)

    def _attach(self, history: ChatHistory, saved_chat: SavedChat) -> None:
        self._location = saved_chat.location
        self._saved_lengths = {
            turn.id: len(turn.answer) for turn in saved_chat.conversation.all_turns
        }
        self._saved_metadata = self._build_metadata()
        try:
            self._acquire_lock(history)
        except InUseError as error:
            self.lock_error = error

    @property
    def chat_id(self) -> int | None:
        """Its id in the history; None before the first message, and where nothing is kept."""
        return self._location.chat_id if self._location else None

    @property
    def is_saving(self) -> bool:
        """Whether chats are kept at all."""
        return self._history is not None

    def start_new_chat(self, conversation: Conversation) -> ChatRecorder:
        """For a new chat in the place of this one, which is closed."""
        self.close()
        new = ChatRecorder(conversation, self._history, self.pair, notify=self.notify)
        new.settings = self.settings
        return new

    # --- a turn -----------------------------------------------------------------------------

    def record_question(self, turn: Turn) -> None:
        """Before the engine sees it, and before it is shown as sent.

        Raises InUseError where another window has the chat.
        """
        if self.lock_error is not None:
            raise self.lock_error
        if not turn.answer:
            turn = self.conversation.set_model(self.pair.name)
        with self._lock:
            self._flush()
            again = turn.id in self._saved_lengths and not turn.answer
            self._pending = PendingAnswer(turn, replaces_answer=again)
            if not again and not (turn.id in self._saved_lengths and turn.answer):
                self._unsaved_turns[turn.id] = turn
            self._save()

    def record_events(self, events: Sequence[Event]) -> None:
        """What came from the engine, as it comes; at most a checkpoint's worth is not on disk."""
        with self._lock:
            answer = self._pending
            if answer is None or self._history is None:
                return
            answer.add_events(events)
            due = (
                answer.unsaved_tokens >= CHECKPOINT_TOKENS
                or time.monotonic() - answer.saved_at >= CHECKPOINT_SECONDS
            )
            if answer.is_finished or (due and time.monotonic() >= self._retry_at):
                self._save_checkpoint(answer, force=answer.is_finished)

    def finish_answer(self) -> None:
        """The answer is over, however it came to that."""
        with self._lock:
            self._flush(force=True)
            self.save_metadata()

    def discard_turn(self, turn: Turn) -> None:
        """It was refused: the conversation is as it was before."""
        with self._lock:
            self._pending = None
            known = {one.id for one in self.conversation.all_turns}
            if turn.id in known:
                return
            self._unsaved_turns.pop(turn.id, None)
            self._saved_lengths.pop(turn.id, None)
            if self._location is None or self._history is None:
                return
            history, place = self._history, self._location
            if known:
                about = self._build_metadata()
                self._try_save(lambda: history.remove_turn(place, about, turn.id))
            else:
                self._release_lock()
                if self._try_save(lambda: history.remove_chats([place.chat_id])):
                    self._location = self._saved_metadata = None

    def save_metadata(self) -> None:
        """Another branch is shown, perhaps, or the system prompt or settings are others."""
        with self._lock:
            if self._unsaved_turns or (
                self._location is not None and self._build_metadata() != self._saved_metadata
            ):
                self._save()

    def close(self) -> None:
        """Nothing more comes; another window may have the chat."""
        with self._lock:
            self._flush()
            hold, self._chat_lock = self._chat_lock, None
            if hold is not None:
                hold.close()

    # --- saving -----------------------------------------------------------------------------

    def _flush(self, *, force: bool = False) -> None:
        """What is left of an answer that nobody waits for any more."""
        answer = self._pending
        if answer is not None and self._history is not None:
            self._save_checkpoint(answer, force=force)
            if answer.unsaved_events and (force or not answer.replaces_answer):
                self._unsaved_turns[answer.turn.id] = answer.current_turn
        self._pending = None

    def _save_checkpoint(self, answer: PendingAnswer, *, force: bool) -> None:
        history, place, turn = self._history, self._location, answer.turn
        events = answer.unsaved_events
        if history is None or not events:
            return
        if answer.replaces_answer or place is None or turn.id in self._unsaved_turns:
            now = answer.current_turn
            if force or len(now.answer) >= self._saved_lengths.get(turn.id, 0):
                self._unsaved_turns[turn.id] = now  # until then what was there before is more
                if self._save():
                    answer.mark_saved()
        elif self._try_save(lambda: history.append_events(place, turn.id, events)):
            self._saved_lengths[turn.id] = len(answer.current_turn.answer)
            answer.mark_saved()

    def _save(self) -> bool:
        """The chat and its stale turns; whether that was possible."""
        history, place = self._history, self._location
        if history is None or self.lock_error is not None or not (place or self._unsaved_turns):
            return False
        about, turns = self._build_metadata(), list(self._unsaved_turns.values())

        def work() -> None:
            self._location = history.save_chat(place, about, turns)

        if not self._try_save(work):
            return False
        self._saved_metadata = about
        self._unsaved_turns.clear()
        self._saved_lengths |= {turn.id: len(turn.answer) for turn in turns}
        if place is None:
            self._release_lock()
            self._try_save(lambda: self._acquire_lock(history))
        return True

    def _try_save(self, save: Callable[[], object]) -> bool:
        """Whether it could be done; else it is told, once."""
        assert self._history is not None
        try:
            save()
        except NotFoundError:  # removed, or the file is another one
            return self._save_as_new_chat()
        except LocalspecError as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if not self._save_failed:
                self._save_failed = True
                hint = f"{error.hint} It is tried again with all that comes."
                what = f"This chat is not saved: {error.message}"
                self.notify(Notice("warning", "not-saved", what, hint.strip()))
            return False
        finally:
            for notice in self._history.take_notices():
                self.notify(notice)
        if self._save_failed:
            self._save_failed = False
            self.notify(Notice("info", "saved-again", "This chat is saved again."))
        return True

    def _save_as_new_chat(self) -> bool:
        """All that is in memory, as another chat."""
        if self._location is None:
            return False
        self._location = self._saved_metadata = None
        self._release_lock()
        self._unsaved_turns = {turn.id: turn for turn in self.conversation.all_turns}
        if self._pending is not None:
            self._unsaved_turns[self._pending.turn.id] = self._pending.current_turn
        return self._save()

    def _acquire_lock(self, history: ChatHistory) -> None:
        """So that another window only reads it.  Raises InUseError."""
        assert self._location is not None
        self._chat_lock = history.acquire_lock(self._location.chat_id)
        if not self._chat_lock.is_exclusive:
            what = "This disk knows no locks: open a chat in one window only."
            self.notify(Notice("warning", "no-locks", what))

    def _release_lock(self) -> None:
        if self._chat_lock is not None:
            self._chat_lock.close()
            self._chat_lock = None

    def _build_metadata(self) -> ChatMetadata:
        chat = self.conversation
        return ChatMetadata(
            make_title(chat),
            chat.seed,
            chat.system,
            self.settings,
            self.pair,
            chat.head,
            chat.dropped,
            len(chat.turns),
        )


def make_title(conversation: Conversation) -> str:
    """The first thing that was asked, on one line."""
    for turn in conversation.turns or conversation.all_turns:
        words = turn.question or ", ".join(file.name for file in turn.attachments)
        if words.strip():
            return " ".join(words[: 4 * _MAX_TITLE_LENGTH].split())[:_MAX_TITLE_LENGTH]
    return ""


# --- What of an answer is not on the disk while it comes.


class PendingAnswer:
    """One answer as it comes, and what of it is not on the disk."""

    def __init__(self, turn: Turn, *, replaces_answer: bool) -> None:
        self.turn = turn
        self.replaces_answer = replaces_answer
        """Whether it replaces another text of the same turn."""
        self.unsaved_tokens = 0
        self.is_finished = False
        self.saved_at = time.monotonic()
        self._events: list[Event] = []
        self._saved_count = 0

    def add_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Round):
                self.unsaved_tokens += len(event.tokens)
            self.is_finished = self.is_finished or isinstance(
                event, GenerationFinished | EngineExit
            )
            if not isinstance(event, EngineReady):
                self._events.append(event)

    @property
    def unsaved_events(self) -> list[Event]:
        return self._events[self._saved_count :]

    @property
    def current_turn(self) -> Turn:
        return self.turn.with_events(self._events)

    def mark_saved(self) -> None:
        self.replaces_answer = False
        self._saved_count, self.unsaved_tokens, self.saved_at = (
            len(self._events),
            0,
            time.monotonic(),
        )

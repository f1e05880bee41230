"""Saving a running chat: questions at once, answers in checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import (
    ChatHistory,
    ChatLocation,
    ChatMetadata,
    ChatPair,
    SavedChat,
)
from localspec.chat.pictures import PictureReader, no_pictures
from localspec.chat.settings import ChatSettings
from localspec.chat.titles import clean_title, make_title
from localspec.data_files import FileLock
from localspec.errors import InUseError, LocalspecError, NotFoundError, UsageError
from localspec.protocol.events import Notice

CHECKPOINT_TOKENS = 64
# A crash loses at most this many tokens, or seconds, of an answer.
CHECKPOINT_SECONDS = 1.0
_RETRY_SECONDS = 5.0  # Seconds between two failed saves during an answer.


class ChatRecorder:
    """Saves a conversation to the history; without a history it saves nothing.

    The thread that runs the answer calls `record_progress`; another may call everything
    else. A failed save is not raised: a notice reports it once, and the next save tries
    again.
    """

    def __init__(
        self,
        conversation: Conversation,
        history: ChatHistory | None,
        pair: ChatPair,
        *,
        saved_chat: SavedChat | None = None,
        read_picture: PictureReader = no_pictures,
        notify: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        """`saved_chat`: continue this chat of the history.

        `read_picture` gives the bytes of pictures that are not saved yet.
        """
        self.conversation = conversation
        self.pair = pair
        self.notify = notify
        self._read_picture = read_picture
        self.settings = ChatSettings()
        self.title = ""  # As saved, also after a rename.
        if saved_chat is not None:
            self.settings = saved_chat.settings
            self.title = saved_chat.list_entry.title
        self.lock_error: InUseError | None = None
        """Set if the chat is open in another window: then it is read-only here."""
        self._history: ChatHistory | None = None
        if history is not None and history.write_error is None:
            self._history = history
        self._location: ChatLocation | None = None
        self._chat_lock: FileLock | None = None
        self._lock = threading.RLock()
        self._save_failed = False
        self._retry_at = 0.0
        # Saved characters of each answer, by turn id.
        self._saved_lengths: dict[int, int] = {}
        # Turns that the next save writes in full.
        self._unsaved_turns: dict[int, Turn] = {}
        self._saved_metadata: ChatMetadata | None = None
        # The answer being recorded, and what of it is saved.
        self._answer: GeneratedAnswer | None = None
        self._replaces_answer = False  # A saved answer of the same turn.
        self._n_saved_events = 0
        self._n_saved_tokens = 0
        self._saved_at = 0.0  # As `time.monotonic`.
        if saved_chat is not None and self._history is not None:
            self._location = saved_chat.location
            self._saved_lengths = {
                turn.id: len(turn.answer) for turn in conversation.all_turns
            }
            self._saved_metadata = self._build_metadata()
            try:
                self._acquire_lock(self._history)
            except InUseError as error:
                self.lock_error = error

    @property
    def chat_id(self) -> int | None:
        """The id in the history; None before the first message, or without a history."""
        return self._location.chat_id if self._location else None

    @property
    def is_saving(self) -> bool:
        return self._history is not None

    def record_question(
        self, thinking_markers: tuple[str, str] | None = None
    ) -> GeneratedAnswer:
        """Save the last turn before it is sent and shown; returns its empty answer.

        Raises InUseError if the chat is open in another window.
        """
        if self.lock_error is not None:
            raise self.lock_error
        turn = self.conversation.set_model(self.pair.name)
        with self._lock:
            self._flush()
            is_saved = turn.id in self._saved_lengths
            answer = GeneratedAnswer(turn, thinking_markers)
            self._answer = answer
            self._replaces_answer = is_saved
            self._mark_saved(answer)
            if not is_saved:
                self._unsaved_turns[turn.id] = turn
            self._save()
        return answer

    def record_progress(self) -> None:
        """Save the answer so far if a checkpoint is due, also to the conversation."""
        with self._lock:
            answer = self._answer
            if answer is None:
                return
            now = time.monotonic()
            n_tokens = answer.totals.tokens - self._n_saved_tokens
            seconds = now - self._saved_at
            is_due = n_tokens >= CHECKPOINT_TOKENS or seconds >= CHECKPOINT_SECONDS
            if answer.has_ended or (is_due and now >= self._retry_at):
                self._save_checkpoint(answer, force=answer.has_ended)

    def finish_answer(self) -> None:
        """Save the rest of an answer that has ended, failed or been stopped."""
        with self._lock:
            self._flush(force=True)
            self.save_metadata()

    def discard_turn(self, turn: Turn) -> None:
        """Delete a turn that was refused, after the conversation was restored."""
        with self._lock:
            self._answer = None
            ids = {remaining.id for remaining in self.conversation.all_turns}
            if turn.id in ids:
                return
            self._unsaved_turns.pop(turn.id, None)
            self._saved_lengths.pop(turn.id, None)
            history = self._history
            location = self._location
            if location is None or history is None:
                return
            if ids:
                metadata = self._build_metadata()
                self._try_save(lambda: history.remove_turn(location, metadata, turn.id))
            else:
                self._release_lock()
                if self._try_save(lambda: history.remove_chats([location.chat_id])):
                    self._forget_saved_chat()

    def save_metadata(self) -> None:
        with self._lock:
            is_changed = (
                self._location is not None
                and self._build_metadata() != self._saved_metadata
            )
            if self._unsaved_turns or is_changed:
                self._save()

    def rename(self, title: str) -> None:
        """Raises UsageError if nothing is saved yet, and as `ChatHistory.rename_chat`."""
        if self._history is None or self._location is None:
            raise UsageError("This chat is not saved yet.", "Send a message first.")
        self._history.rename_chat(self._location.chat_id, title)
        self.title = clean_title(title)

    def close(self) -> None:
        """Save the rest and release the chat, so that another window can open it."""
        with self._lock:
            self._flush()
            self._release_lock()

    def _flush(self, *, force: bool = False) -> None:
        """Save the rest of the current answer and stop recording it."""
        answer = self._answer
        if answer is not None:
            self._save_checkpoint(answer, force=force)
            is_unsaved = len(answer.turn.events) > self._n_saved_events
            if is_unsaved and (force or not self._replaces_answer):
                self._unsaved_turns[answer.turn.id] = answer.turn
        self._answer = None

    def _mark_saved(self, answer: GeneratedAnswer) -> None:
        self._n_saved_events = len(answer.turn.events)
        self._n_saved_tokens = answer.totals.tokens
        self._saved_at = time.monotonic()

    def _save_checkpoint(self, answer: GeneratedAnswer, *, force: bool) -> None:
        """Save what is new in an answer: append its events, or write the whole turn."""
        turn = answer.turn
        new_events = turn.events[self._n_saved_events :]
        self.conversation.update_turn(turn)
        history = self._history
        location = self._location
        if not new_events or history is None:
            self._mark_saved(answer)
            return
        can_append = not self._replaces_answer and turn.id not in self._unsaved_turns
        if turn.calls:
            # They are no events, and come with the end of the answer.
            can_append = False
        if location is not None and can_append:
            if self._try_save(
                lambda: history.append_events(location, turn.id, new_events)
            ):
                self._saved_lengths[turn.id] = len(turn.answer)
                self._mark_saved(answer)
            return
        # A restarted answer replaces the saved one only when it is as long.
        if force or len(turn.answer) >= self._saved_lengths.get(turn.id, 0):
            self._unsaved_turns[turn.id] = turn
            if self._save():
                self._replaces_answer = False
                self._mark_saved(answer)

    def _save(self) -> bool:
        """Write the metadata and all unsaved turns. Returns whether that succeeded."""
        history = self._history
        location = self._location
        if history is None or self.lock_error is not None:
            return False
        if location is None and not self._unsaved_turns:
            return False
        metadata = self._build_metadata()
        turns = list(self._unsaved_turns.values())

        def work() -> None:
            self._location = history.save_chat(
                location, metadata, turns, self._read_picture
            )

        if not self._try_save(work):
            return False
        self._saved_metadata = metadata
        self.title = self.title or metadata.title
        self._unsaved_turns.clear()
        self._saved_lengths |= {turn.id: len(turn.answer) for turn in turns}
        if location is None:
            self._release_lock()
            self._try_save(lambda: self._acquire_lock(history))
        return True

    def _try_save(self, save: Callable[[], object]) -> bool:
        """Return whether the save succeeded; the first failure sends a notice."""
        assert self._history is not None
        try:
            save()
        except NotFoundError:  # the chat was deleted, or the file was replaced
            return self._save_as_new_chat()
        except LocalspecError as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if not self._save_failed:
                self._save_failed = True
                hint = f"{error.hint} Saving is retried with every message.".strip()
                message = f"This chat is not saved: {error.message}"
                self.notify(Notice("warning", "not-saved", message, hint))
            return False
        finally:
            for notice in self._history.take_notices():
                self.notify(notice)
        if self._save_failed:
            self._save_failed = False
            self.notify(Notice("info", "saved-again", "This chat is saved again."))
        return True

    def _save_as_new_chat(self) -> bool:
        if self._location is None:
            return False
        self._forget_saved_chat()
        self._release_lock()
        self._unsaved_turns = {turn.id: turn for turn in self.conversation.all_turns}
        if self._answer is not None:
            self._unsaved_turns[self._answer.turn.id] = self._answer.turn
        return self._save()

    def _forget_saved_chat(self) -> None:
        self._location = None
        self._saved_metadata = None
        self.title = ""

    def _acquire_lock(self, history: ChatHistory) -> None:
        """Keep other windows from writing the chat. Raises InUseError."""
        assert self._location is not None
        self._chat_lock = history.acquire_lock(self._location.chat_id)
        if not self._chat_lock.is_exclusive:
            message = "This disk does not support file locks: open each chat in one window only."
            self.notify(Notice("warning", "no-locks", message))

    def _release_lock(self) -> None:
        if self._chat_lock is not None:
            self._chat_lock.close()
            self._chat_lock = None

    def _build_metadata(self) -> ChatMetadata:
        chat = self.conversation
        return ChatMetadata(
            title=make_title(chat),
            seed=chat.seed,
            system=chat.system,
            settings=self.settings,
            pair=self.pair,
            head=chat.head,
            dropped=chat.dropped,
            turn_count=len(chat.questions),
            system_since=chat.system_since,
        )

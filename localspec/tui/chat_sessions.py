"""The open chats of the app."""

from __future__ import annotations

from dataclasses import replace

from localspec import launch
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.chat.settings import ChatSettings
from localspec.launch import ResolvedPair
from localspec.tui.app_options import AppOptions

_MAX_TURNS_WITH_TOKENS = 40
"""Above this number of turns, a chat is opened without its tokens: they take seconds to load."""


class ChatSessions:
    """A chat stays open when its screen closes. A pair opens the chat that used it last."""

    def __init__(self, options: AppOptions) -> None:
        self._options = options
        self._sessions: list[ChatSession] = []
        """The last opened first; the pair of a session may change."""
        self._drafts: dict[int, str] = {}
        """Of saved chats that another chat of their pair has replaced, by chat id."""

    @property
    def history(self) -> ChatHistory | None:
        return self._options.chats.history if self._options.chats else None

    def for_pair(self, pair: ResolvedPair) -> ChatSession:
        session = self._find(pair) or ChatSession(
            pair, self._options.seed, self.history, settings=self._new_settings(pair)
        )
        self._put_first(session)
        return session

    def _find(self, pair: ResolvedPair) -> ChatSession | None:
        return next((session for session in self._sessions if session.pair == pair), None)

    def _put_first(self, session: ChatSession) -> None:
        self._sessions = [session, *(other for other in self._sessions if other is not session)]

    def _new_settings(self, pair: ResolvedPair) -> ChatSettings:
        """The settings of a new chat: the pair's, with the user's preferences."""
        options, settings = self._options, ChatSettings.from_catalog(pair.suggested_settings)
        sampling = settings.sampling
        if options.temperature is not None:
            sampling = replace(sampling, temperature=options.temperature)
        return replace(
            settings,
            sampling=sampling,
            overflow=options.overflow,
            show_thinking=options.show_thinking,
            spec=launch.preferred_drafter(pair, options.spec),
            exact=options.exact,
        )

    def count_turns(self, pair: ResolvedPair) -> int:
        session = self._find(pair)
        return len(session.conversation.turns) if session else 0

    def resume_chat(self, chat_id: int) -> ChatSession:
        """Opens a saved chat, or returns its session if it is open.

        Raises NotFoundError if the chat or a file of its pair is missing, and whatever
        `launch.resolve_pair` raises.
        """
        assert self.history is not None, "a saved chat comes from the history"
        entry = self.history.find_entry(chat_id)
        for session in self._sessions:
            if session.recorder.chat_id == chat_id:
                session.recorder.title = entry.title  # it may have been renamed
                self._put_first(session)
                return session
        with_events = entry.turn_count <= _MAX_TURNS_WITH_TOKENS
        saved = self.history.load_chat(chat_id, with_events=with_events)
        pair = saved.list_entry.pair
        resolved = launch.resolve_pair(pair.model, pair.draft)
        refs = launch.make_portable_refs(pair.model, pair.draft)
        resolved = replace(resolved, requested_refs=refs)
        session = ChatSession(
            resolved, history=self.history, saved_chat=saved, settings=self._new_settings(resolved)
        )
        session.draft = self._drafts.pop(chat_id, "")
        if (previous := self._find(resolved)) is not None:
            previous.close()
            self._sessions.remove(previous)
            if previous.recorder.chat_id is not None:
                self._drafts[previous.recorder.chat_id] = previous.draft
            elif previous.draft:  # a new chat: nothing else leads back to it
                session.typed_texts.append(previous.draft)
        self._put_first(session)
        return session

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Raises NotFoundError."""
        for session in self._sessions:
            if session.recorder.chat_id == chat_id:
                session.recorder.rename(title)
                return
        if self.history is not None:
            self.history.rename_chat(chat_id, title)

    def delete_chat(self, chat_id: int) -> None:
        """Raises InUseError if another window has the chat open."""
        for session in list(self._sessions):
            if session.recorder.chat_id == chat_id:
                session.close()
                self._sessions.remove(session)
        if self.history is not None:
            self.history.remove_chats([chat_id])

    def close_all(self) -> None:
        for session in self._sessions:
            session.close()
        if self._options.chats is not None:
            self._options.chats.close()

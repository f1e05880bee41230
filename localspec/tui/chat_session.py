"""Chat sessions: conversation, settings and statistics of each open chat, without widgets."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from localspec import launch
from localspec.chat.context_window import (
    AnswerGenerator,
    ChatEngine,
    OverflowChooser,
    RequestOptions,
)
from localspec.chat.conversation import Attachment, Conversation, Turn
from localspec.chat.history import ChatHistory, ChatPair, SavedChat
from localspec.chat.recorder import ChatRecorder
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.errors import LocalspecError
from localspec.launch import SETTINGS_NOTICE, Engine, ResolvedPair
from localspec.protocol.events import Event, FinishReason, Notice
from localspec.protocol.wire import GenerateCommand, InspectCommand
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.speculation_stats import SpeculationStats

_END_REASONS: dict[FinishReason, str] = {
    "length": "stopped at the max-token limit: f4 settings",
    "context": "the context is full: ctrl+n starts a new chat",
    "error": "stopped by an error",
}
_ENDED_WHILE_THINKING = "before the thinking ended: /set think_budget N, or /think off"


class ChatSession:
    def __init__(
        self,
        choice: ResolvedPair,
        seed: int | None = None,
        history: ChatHistory | None = None,
        saved_chat: SavedChat | None = None,
    ) -> None:
        self.choice = choice
        self.settings = (
            saved_chat.settings
            if saved_chat
            else ChatSettings.from_catalog(choice.suggested_settings)
        )
        self.conversation = (
            saved_chat.conversation
            if saved_chat
            else Conversation(secrets.randbits(31) if seed is None else seed)
        )
        self._save_notices: deque[Notice] = deque()
        self.recorder = ChatRecorder(
            self.conversation,
            history,
            self._build_pair(saved_chat),
            saved_chat=saved_chat,
            notify=self._save_notices.append,
        )
        self.pending_attachments: tuple[Attachment, ...] = ()
        """Files to send with the next question."""
        self.stats = SpeculationStats()
        self.loaded: LoadedModel | None = None
        self.thinking_markers = self.recorder.pair.thinking
        """The start and end markers of the thinking; None: unknown, or the model has none."""
        self.settings_summary = ""
        """The settings the pair was loaded with, and the reasons."""
        self._last_request: GenerateCommand | None = None

    def _build_pair(self, saved_chat: SavedChat | None) -> ChatPair:
        if saved_chat is not None:
            pair = saved_chat.list_entry.pair
            model, draft = launch.make_portable_refs(pair.model, pair.draft)
            return replace(pair, model=model, draft=draft)
        return ChatPair(*self.choice.portable_refs, self.model_name)

    @property
    def model_name(self) -> str:
        return _model_stem(self.choice.target.name)

    @property
    def pair_name(self) -> str:
        """`model + draft`, for a title."""
        draft = self.choice.draft
        if draft == self.choice.target:
            return f"{self.model_name} + built-in MTP layer"
        return f"{self.model_name} + {_model_stem(draft.name)}" if draft else self.model_name

    @property
    def title(self) -> str:
        """The first question."""
        first = next((t.question for t in self.conversation.turns if t.question.strip()), "")
        return " ".join(sanitize(first).split())[:200]

    def changed(self, name: str, value: str) -> ChatSettings:
        """The settings with one changed.  Raises UsageError, also if the pair lacks it."""
        settings = self.settings.with_value(name, value)
        if self.loaded is not None:
            self.loaded.check(name, settings)
        return settings

    def attach_engine(self, engine: Engine) -> None:
        """Called after each load."""
        self.loaded = LoadedModel.from_ready(
            engine.ready, self.choice.spec, self.choice.spec_reason
        )
        self.thinking_markers = self.loaded.thinking_markers
        self.recorder.pair = replace(
            self.recorder.pair, name=self.model_name, thinking=self.thinking_markers
        )
        summary = [n.message for n in engine.ready.notices if n.code == SETTINGS_NOTICE]
        self.settings_summary = sanitize("\n".join(summary))
        self.update_plain_speed(engine)

    def update_plain_speed(self, engine: Engine) -> None:
        costs = engine.measured
        if costs is not None and costs.t1_ms > 0:
            self.stats.plain_speed = 1e3 / costs.t1_ms

    def start_new_chat(self, *, private: bool = False) -> None:
        """Keeps the system prompt and settings.  `private`: the new chat is not saved."""
        plain_speed = self.stats.plain_speed
        self.conversation = Conversation(secrets.randbits(31), self.conversation.system)
        self.recorder = self.recorder.start_new_chat(self.conversation)
        if private:
            self.recorder = ChatRecorder(self.conversation, None, self.recorder.pair)
        self.pending_attachments = ()
        self.stats = SpeculationStats(plain_speed=plain_speed)

    # --- turns ----------------------------------------------------------------------------

    def ask(self, question: str) -> None:
        """Starts a turn with the pending files.  Raises InUseError and rolls back."""
        self._start_turn(lambda: self.conversation.ask(question, self.pending_attachments))
        self.pending_attachments = ()

    def regenerate(self) -> None:
        """Starts another answer to the last question.  Raises InUseError and rolls back."""
        self._start_turn(self.conversation.retry)

    def restart_answer(self) -> None:
        """Starts the interrupted answer again.  Raises InUseError and rolls back."""
        self._start_turn(self.conversation.restart_answer)

    def _start_turn(self, start: Callable[[], Turn]) -> None:
        """Saves the question before it is shown as sent."""
        before = self.conversation.take_snapshot()
        self.recorder.settings = self.settings
        try:
            self.recorder.record_question(start())
        except LocalspecError:
            self.conversation.restore(before)
            raise

    def undo_turn(self, turn_id: int | None = None) -> str:
        """Goes back to before a turn, by default the last, and returns its question for editing.

        Its files become pending again.
        """
        conversation = self.conversation
        turn = conversation.undo() if turn_id is None else conversation.undo_to(turn_id)
        self.pending_attachments = turn.attachments
        self.save_metadata()
        return turn.question

    def save_metadata(self) -> None:
        """Saves the settings and which branch is shown."""
        self.recorder.settings = self.settings
        self.recorder.save_metadata()

    def take_save_notices(self) -> list[Notice]:
        """Notices about saving since the last call."""
        notices = list(self._save_notices)
        for _ in notices:
            self._save_notices.popleft()
        return notices

    def close(self) -> None:
        """Releases the lock: another window can open the chat."""
        self.recorder.close()

    # --- answers --------------------------------------------------------------------------

    def stream_answer(
        self,
        engine: ChatEngine,
        choose_policy: OverflowChooser,
        is_stopped: Callable[[], bool],
        *,
        probabilities: bool,
    ) -> Iterator[Event]:
        """The events of the answer to the last question; blocks the calling thread."""
        assert self.loaded is not None
        options = RequestOptions(self.settings, self.loaded, probabilities)
        generator = AnswerGenerator(engine, self.conversation, options, choose_policy, is_stopped)
        for event in generator.stream_events():
            self._last_request = generator.request
            yield event

    @property
    def n_omitted_turns(self) -> int:
        """Number of oldest turns that are no longer sent to the model."""
        dropped = self.conversation.dropped
        return dropped.turns if dropped.is_prefix_of(self.conversation.turns) else 0

    def build_inspect_request(self) -> InspectCommand | None:
        """The request for the last answer's probabilities; None if its tokens have them."""
        request, turns = self._last_request, self.conversation.turns
        tokens = [t for r in turns[-1].rounds for t in r.tokens] if turns else []
        if request is None or request.probabilities or not tokens:
            return None
        ids = tuple(token.id for token in tokens)
        return InspectCommand(
            ids, request.text, request.messages, request.template, request.think, request.said
        )

    def apply_events(self, events: Sequence[Event]) -> Turn:
        self.stats.add_events(events)
        return self.conversation.add_events(events)

    def change_settings(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)  # type: ignore[arg-type]


def format_branch(conversation: Conversation, turn: Turn) -> str:
    """`2 of 3` for a turn that has siblings; empty for one without."""
    ids = [sibling.id for sibling in conversation.branches(turn.id)]
    return f"{ids.index(turn.id) + 1} of {len(ids)}" if len(ids) > 1 else ""


def format_end_reason(turn: Turn, stopped_ms: float | None) -> str:
    """Why an answer ended; empty for an ordinary end."""
    why = _END_REASONS.get(turn.finish_reason, "") if turn.finish_reason else ""
    if turn.finish_reason == "cancelled":
        why = "stopped" if stopped_ms is None else f"stopped in {stopped_ms:.0f} ms"
    if turn.ends_in_thinking:
        return f"{why.partition(':')[0] or 'stopped'}, {_ENDED_WHILE_THINKING}"
    return why


def _model_stem(name: str) -> str:
    return sanitize(name.removesuffix(".gguf"), multiline=False)


_MAX_TURNS_WITH_TOKENS = 40
"""Above this number of turns, a chat is opened without its tokens: they take seconds to load."""


class ChatSessions:
    """The open chats, one per pair; a chat stays open when its screen closes."""

    def __init__(self, options: AppOptions) -> None:
        self._options = options
        self._by_pair: dict[ResolvedPair, ChatSession] = {}

    @property
    def history(self) -> ChatHistory | None:
        return self._options.chats.history if self._options.chats else None

    def for_pair(self, choice: ResolvedPair) -> ChatSession:
        if choice not in self._by_pair:
            new = ChatSession(choice, self._options.seed, self.history)
            self._apply_defaults(new)
            self._by_pair[choice] = new
        return self._by_pair[choice]

    def _apply_defaults(self, session: ChatSession) -> None:
        """Applies the user's preferences for new chats."""
        options = self._options
        spec = launch.preferred_drafter(session.choice, options.spec)
        session.change_settings(
            overflow=options.overflow, show_thinking=options.show_thinking, spec=spec
        )
        if options.temperature is not None:
            sampling = replace(session.settings.sampling, temperature=options.temperature)
            session.change_settings(sampling=sampling)

    def count_turns(self, choice: ResolvedPair) -> int:
        session = self._by_pair.get(choice)
        return len(session.conversation.turns) if session else 0

    def resume_chat(self, chat_id: int) -> ChatSession:
        """Opens a saved chat, or returns its session if it is open.

        Raises NotFoundError if the chat or a file of its pair is missing, and whatever
        `launch.resolve_pair` raises.
        """
        for session in self._by_pair.values():
            if session.recorder.chat_id == chat_id:
                return session
        assert self.history is not None, "a saved chat comes from the history"
        with_events = self.history.find_entry(chat_id).turn_count <= _MAX_TURNS_WITH_TOKENS
        saved = self.history.load_chat(chat_id, with_events=with_events)
        choice = launch.resolve_pair(saved.list_entry.pair.model, saved.list_entry.pair.draft)
        if (previous := self._by_pair.get(choice)) is not None:
            previous.close()
        self._by_pair[choice] = ChatSession(choice, history=self.history, saved_chat=saved)
        return self._by_pair[choice]

    def delete_chat(self, chat_id: int) -> None:
        """Raises InUseError if another window has the chat open."""
        for choice, session in list(self._by_pair.items()):
            if session.recorder.chat_id == chat_id:
                self._by_pair.pop(choice).close()
        if self.history is not None:
            self.history.remove_chats([chat_id])

    def close_all(self) -> None:
        for session in self._by_pair.values():
            session.close()
        if self._options.chats is not None:
            self._options.chats.close()

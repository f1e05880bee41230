"""One chat as the screen holds it: what was said, how it is asked, and the figures of it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from localspec import launch
from localspec.chat.context_window import AnswerGenerator, OverflowChooser, RequestOptions
from localspec.chat.context_window import ChatEngine as Writing
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
    "length": "cut at the longest answer allowed: f4 settings",
    "context": "the context is full: ctrl+n begins a new chat",
    "error": "ended by an error",
}
_ENDED_WHILE_THINKING = "before it had thought enough to answer: /set think_budget N, or /think off"


class ChatSession:
    """No widgets here: a screen may come and go."""

    def __init__(
        self,
        choice: ResolvedPair,
        seed: int | None = None,
        history: ChatHistory | None = None,
        saved_chat: SavedChat | None = None,
    ) -> None:
        """`kept`: a chat of the history, to go on with."""
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
        """Files to go with the next question."""
        self.stats = SpeculationStats()
        self.loaded: LoadedModel | None = None
        self.thinking_markers = self.recorder.pair.thinking
        """The markers around what the model thinks, as far as they are known."""
        self.settings_summary = ""
        """With what settings it was loaded, and why."""
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
            return f"{self.model_name} + its own layer (MTP)"
        return f"{self.model_name} + {_model_stem(draft.name)}" if draft else self.model_name

    @property
    def title(self) -> str:
        """The first thing that was asked."""
        first = next((t.question for t in self.conversation.turns if t.question.strip()), "")
        return " ".join(sanitize(first).split())[:200]

    def changed(self, name: str, value: str) -> ChatSettings:
        """The settings with one as typed.  Raises UsageError, also where the pair lacks it."""
        settings = self.settings.with_value(name, value)
        if self.loaded is not None:
            self.loaded.check(name, settings)
        return settings

    def attach_engine(self, engine: Engine) -> None:
        """A pair is loaded, perhaps not for the first time."""
        self.loaded = LoadedModel.from_ready(
            engine.ready, self.choice.spec, self.choice.spec_reason
        )
        self.thinking_markers = self.loaded.thinking_markers
        self.recorder.pair = replace(
            self.recorder.pair, name=self.model_name, thinking=self.thinking_markers
        )
        told = [one.message for one in engine.ready.notices if one.code == SETTINGS_NOTICE]
        self.settings_summary = sanitize("\n".join(told))
        self.update_plain_speed(engine)

    def update_plain_speed(self, engine: Engine) -> None:
        """How fast plain decoding is here, as far as it was measured."""
        known = engine.measured
        if known is not None and known.t1_ms > 0:
            self.stats.plain_speed = 1e3 / known.t1_ms

    def start_new_chat(self, *, private: bool = False) -> None:
        """Another chat, with the same system prompt and settings; perhaps one not to be kept."""
        plain = self.stats.plain_speed
        self.conversation = Conversation(secrets.randbits(31), self.conversation.system)
        self.recorder = self.recorder.start_new_chat(self.conversation)
        if private:
            self.recorder = ChatRecorder(self.conversation, None, self.recorder.pair)
        self.pending_attachments = ()
        self.stats = SpeculationStats(plain_speed=plain)

    # --- turns ----------------------------------------------------------------------------

    def ask(self, question: str) -> None:
        """Begin a turn, with the files that wait.  Raises InUseError, and is as before."""
        self._start_turn(lambda: self.conversation.ask(question, self.pending_attachments))
        self.pending_attachments = ()

    def regenerate(self) -> None:
        """Answer the last question anew.  Raises InUseError, and is as before."""
        self._start_turn(self.conversation.retry)

    def restart_answer(self) -> None:
        """Write the answer that was cut off.  Raises InUseError, and is as before."""
        self._start_turn(self.conversation.restart_answer)

    def _start_turn(self, start: Callable[[], Turn]) -> None:
        """It is on the disk before it is shown as sent."""
        before = self.conversation.take_snapshot()
        self.recorder.settings = self.settings
        try:
            self.recorder.record_question(start())
        except LocalspecError:
            self.conversation.restore(before)
            raise

    def undo_turn(self, turn_id: int | None = None) -> str:
        """Leave a turn, the last unless said which; its question, to be edited.

        Its files wait.
        """
        conversation = self.conversation
        turn = conversation.undo() if turn_id is None else conversation.undo_to(turn_id)
        self.pending_attachments = turn.attachments
        self.save_metadata()
        return turn.question

    def save_metadata(self) -> None:
        """Another branch is shown, or other settings hold: that is kept too."""
        self.recorder.settings = self.settings
        self.recorder.save_metadata()

    def take_save_notices(self) -> list[Notice]:
        """What became of saving it, once."""
        found = list(self._save_notices)
        for _ in found:
            self._save_notices.popleft()
        return found

    def close(self) -> None:
        """Another window may have the chat."""
        self.recorder.close()

    # --- answers --------------------------------------------------------------------------

    def stream_answer(
        self,
        engine: Writing,
        choose_policy: OverflowChooser,
        is_stopped: Callable[[], bool],
        *,
        probabilities: bool,
    ) -> Iterator[Event]:
        """The answer to the last turn, on the thread that calls it."""
        assert self.loaded is not None
        how = RequestOptions(self.settings, self.loaded, probabilities)
        writer = AnswerGenerator(engine, self.conversation, how, choose_policy, is_stopped)
        for event in writer.stream_events():
            self._last_request = writer.request
            yield event

    @property
    def n_omitted_turns(self) -> int:
        """Turns that the model is not sent any more."""
        cut = self.conversation.dropped
        return cut.turns if cut.is_prefix_of(self.conversation.turns) else 0

    def build_inspect_request(self) -> InspectCommand | None:
        """What to ask about the last answer; None where its tokens came with their chances."""
        asked, turns = self._last_request, self.conversation.turns
        tokens = [t for r in turns[-1].rounds for t in r.tokens] if turns else []
        if asked is None or asked.probabilities or not tokens:
            return None
        ids = tuple(token.id for token in tokens)
        return InspectCommand(
            ids, asked.text, asked.messages, asked.template, asked.think, asked.said
        )

    def apply_events(self, events: Sequence[Event]) -> Turn:
        self.stats.add_events(events)
        return self.conversation.add_events(events)

    def change_settings(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)  # type: ignore[arg-type]


def format_branch(conversation: Conversation, turn: Turn) -> str:
    """`2 of 3` where something else was said in a turn's place too."""
    ids = [one.id for one in conversation.branches(turn.id)]
    return f"{ids.index(turn.id) + 1} of {len(ids)}" if len(ids) > 1 else ""


def format_end_reason(turn: Turn, stopped_ms: float | None) -> str:
    """Why an answer ended, where that is worth a line."""
    why = _END_REASONS.get(turn.finish_reason, "") if turn.finish_reason else ""
    if turn.finish_reason == "cancelled":
        why = "stopped" if stopped_ms is None else f"stopped in {stopped_ms:.0f} ms"
    return f"{why or 'ended'}, {_ENDED_WHILE_THINKING}" if turn.ends_in_thinking else why


def _model_stem(name: str) -> str:
    return sanitize(name.removesuffix(".gguf"), multiline=False)


# --- The chats of this session, by their pairs, and those that are kept.

_MAX_TURNS_WITH_TOKENS = 40
"""Turns of a chat whose tokens are read with it; of longer ones that would take seconds."""


class ChatSessions:
    """One chat of a pair at a time; leaving it does not lose it, and the others are kept."""

    def __init__(self, options: AppOptions) -> None:
        self._options = options
        self._by_pair: dict[ResolvedPair, ChatSession] = {}

    @property
    def history(self) -> ChatHistory | None:
        return self._options.chats.history if self._options.chats else None

    def for_pair(self, choice: ResolvedPair) -> ChatSession:
        """That of a pair, or a new one."""
        if choice not in self._by_pair:
            new = ChatSession(choice, self._options.seed, self.history)
            self._apply_defaults(new)
            self._by_pair[choice] = new
        return self._by_pair[choice]

    def _apply_defaults(self, session: ChatSession) -> None:
        """As a person wants every new chat."""
        wanted = self._options
        spec = launch.preferred_drafter(session.choice, wanted.spec)
        session.change_settings(
            overflow=wanted.overflow, show_thinking=wanted.show_thinking, spec=spec
        )
        if wanted.temperature is not None:
            warmth = replace(session.settings.sampling, temperature=wanted.temperature)
            session.change_settings(sampling=warmth)

    def count_turns(self, choice: ResolvedPair) -> int:
        """How many it has."""
        known = self._by_pair.get(choice)
        return len(known.conversation.turns) if known else 0

    def resume_chat(self, chat_id: int) -> ChatSession:
        """A chat that was kept; one of this session as it stands.

        Raises NotFoundError where it, or a file of its pair, is gone; whatever `launch.choose`
        raises.
        """
        for dialogue in self._by_pair.values():
            if dialogue.recorder.chat_id == chat_id:
                return dialogue
        assert self.history is not None, "it was listed by somebody"
        few = self.history.find_entry(chat_id).turn_count <= _MAX_TURNS_WITH_TOKENS
        kept = self.history.load_chat(chat_id, with_events=few)
        choice = launch.resolve_pair(kept.list_entry.pair.model, kept.list_entry.pair.draft)
        if (before := self._by_pair.get(choice)) is not None:
            before.close()
        self._by_pair[choice] = ChatSession(choice, history=self.history, saved_chat=kept)
        return self._by_pair[choice]

    def delete_chat(self, chat_id: int) -> None:
        """For good.  Raises InUseError where another window has it."""
        for choice, dialogue in list(self._by_pair.items()):
            if dialogue.recorder.chat_id == chat_id:
                self._by_pair.pop(choice).close()
        if self.history is not None:
            self.history.remove_chats([chat_id])

    def close_all(self) -> None:
        """Other windows may have them all."""
        for dialogue in self._by_pair.values():
            dialogue.close()
        if self._options.chats is not None:
            self._options.chats.close()

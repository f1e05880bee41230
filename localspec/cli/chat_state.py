"""State of a linear chat, without its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from localspec import launch
from localspec.chat.conversation import Attachment, Conversation
from localspec.chat.recorder import ChatRecorder
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.cli.answer_printer import ChatOutputStyle
from localspec.cli.speculation_text import AnswerStats
from localspec.errors import UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.protocol.events import EngineReady, Event
from localspec.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class ChatLaunchOptions:
    """What is needed to load the pair, at the start and after a crash."""

    load_request: SettingsRequest
    choice: launch.ResolvedPair
    raw: bool = False
    template: str | None = None
    show_stats: bool = False
    probabilities: bool = False
    on_event: Callable[[Event], None] = lambda _: None
    events_file: TextIO | None = None
    """Receives every event as a JSON line."""


@dataclass
class ChatState:
    """State that the chat loop shares with the slash commands."""

    conversation: Conversation
    settings: ChatSettings
    style: ChatOutputStyle
    recorder: ChatRecorder
    initial_system_prompt: str = ""
    """The system prompt of a new chat."""
    mark_tokens: bool = False
    ready: EngineReady | None = None
    loaded: LoadedModel = field(default_factory=lambda: LoadedModel(0))
    last_answer: AnswerStats | None = None
    attachments: tuple[Attachment, ...] = ()
    """Files to attach to the next message."""
    initial_text: str = ""
    """Text inserted at the next prompt, to be edited."""
    engine_died: bool = False
    """Whether the engine crashed during the last answer."""
    initial_settings: ChatSettings = field(default_factory=ChatSettings)
    recap: tuple[str, ...] = ()
    """Lines to show when a saved chat is continued."""
    saved_paths: set[Path] = field(default_factory=set)

    def start_chat(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.recorder = self.recorder.start_new_chat(conversation)
        self.attachments, self.last_answer, self.engine_died = (), None, False

    def update_recorder(self) -> ChatRecorder:
        """The recorder, with the current settings."""
        self.recorder.settings = self.settings
        return self.recorder

    def require_turns(self) -> None:
        """Raises UsageError if the chat is empty."""
        if not self.conversation.turns:
            raise UsageError("The chat is empty.", "Type a message.")

    @property
    def model_name(self) -> str:
        model = self.ready.model if self.ready else "model"
        return sanitize(model.removesuffix(".gguf"), multiline=False)

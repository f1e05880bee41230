"""How a linear chat is opened, and all of it but its engine."""

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
    """How the pair is loaded, now and after a death."""

    load_request: SettingsRequest
    choice: launch.ResolvedPair
    raw: bool = False
    template: str | None = None
    show_stats: bool = False
    """Whether the numbers of each answer are shown."""
    probabilities: bool = False
    on_event: Callable[[Event], None] = lambda _: None
    events_file: TextIO | None = None
    """Where every event goes."""


@dataclass
class ChatState:
    """What the loop and its commands share."""

    conversation: Conversation
    settings: ChatSettings
    style: ChatOutputStyle
    recorder: ChatRecorder
    initial_system_prompt: str = ""
    """The system prompt at the start, for a new chat."""
    mark_tokens: bool = False
    """Whether tokens are marked."""
    ready: EngineReady | None = None
    loaded: LoadedModel = field(default_factory=lambda: LoadedModel(0))
    last_answer: AnswerStats | None = None
    attachments: tuple[Attachment, ...] = ()
    """Files to go before the next message."""
    initial_text: str = ""
    """What stands at the next prompt already, to be changed."""
    engine_died: bool = False
    """Whether the engine ended in the middle of the last answer."""
    initial_settings: ChatSettings = field(default_factory=ChatSettings)
    recap: tuple[str, ...] = ()
    """Lines of what was said in an earlier run."""
    saved_paths: set[Path] = field(default_factory=set)

    def start_chat(self, conversation: Conversation) -> None:
        """Another chat."""
        self.conversation = conversation
        self.recorder = self.recorder.start_new_chat(conversation)
        self.attachments, self.last_answer, self.engine_died = (), None, False

    def update_recorder(self) -> ChatRecorder:
        """Who keeps this chat, with the settings as they are now."""
        self.recorder.settings = self.settings
        return self.recorder

    def require_turns(self) -> None:
        """Raises UsageError where nothing was said."""
        if not self.conversation.turns:
            raise UsageError("Nothing was said yet.", "Type a message.")

    @property
    def model_name(self) -> str:
        """The model's, for a person."""
        model = self.ready.model if self.ready else "model"
        return sanitize(model.removesuffix(".gguf"), multiline=False)

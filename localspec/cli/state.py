"""All of a linear chat but its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from localspec.chat.conversation import Conversation
from localspec.chat.settings import Loaded, Settings
from localspec.clean import clean
from localspec.cli.status import Answered
from localspec.cli.teller import Look
from localspec.protocol.events import Ready


@dataclass
class State:
    """What the loop and its commands share."""

    conversation: Conversation
    settings: Settings
    look: Look
    system: str = ""
    """The system prompt at the start, for a new chat."""
    tokens: bool = False
    """Whether tokens are marked."""
    ready: Ready | None = None
    loaded: Loaded = field(default_factory=lambda: Loaded(0))
    last: Answered | None = None
    attached: str = ""
    """A file's text, to go before the next message."""
    begun: str = ""
    """What stands at the next prompt already, to be changed."""
    died: bool = False
    """Whether the engine ended in the middle of the last answer."""
    initial: Settings = field(default_factory=Settings)
    saved: set[Path] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The model's, for a person."""
        model = self.ready.model if self.ready else "model"
        return clean(model.removesuffix(".gguf"), multiline=False)

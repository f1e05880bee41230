"""How a linear chat is opened, and all of it but its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from localspec import launch
from localspec.chat.conversation import Conversation
from localspec.chat.keeping import Keeper
from localspec.chat.settings import Loaded, Settings
from localspec.chat.turn import Attachment
from localspec.clean import clean
from localspec.cli.status import Answered
from localspec.cli.teller import Look
from localspec.errors import UsageError
from localspec.fit.advisor import Wish
from localspec.protocol.events import Event, Ready


@dataclass(frozen=True, slots=True)
class Opening:
    """How the pair is loaded, now and after a death."""

    wish: Wish
    choice: launch.Choice
    raw: bool = False
    template: str | None = None
    stats: bool = False
    """Whether the numbers of each answer are shown."""
    probabilities: bool = False
    say: Callable[[Event], None] = lambda _: None
    log: TextIO | None = None
    """Where every event goes."""


@dataclass
class State:
    """What the loop and its commands share."""

    conversation: Conversation
    settings: Settings
    look: Look
    keeper: Keeper
    system: str = ""
    """The system prompt at the start, for a new chat."""
    tokens: bool = False
    """Whether tokens are marked."""
    ready: Ready | None = None
    loaded: Loaded = field(default_factory=lambda: Loaded(0))
    last: Answered | None = None
    attached: tuple[Attachment, ...] = ()
    """Files to go before the next message."""
    begun: str = ""
    """What stands at the next prompt already, to be changed."""
    died: bool = False
    """Whether the engine ended in the middle of the last answer."""
    initial: Settings = field(default_factory=Settings)
    shown: tuple[str, ...] = ()
    """Lines of what was said in an earlier run."""
    saved: set[Path] = field(default_factory=set)

    def begin(self, conversation: Conversation) -> None:
        """Another chat."""
        self.conversation = conversation
        self.keeper = self.keeper.another(conversation)
        self.attached, self.last, self.died = (), None, False

    def keep(self) -> Keeper:
        """Who keeps this chat, with the settings as they are now."""
        self.keeper.settings = self.settings
        return self.keeper

    def must_have_turns(self) -> None:
        """Raises UsageError where nothing was said."""
        if not self.conversation.turns:
            raise UsageError("Nothing was said yet.", "Type a message.")

    @property
    def name(self) -> str:
        """The model's, for a person."""
        model = self.ready.model if self.ready else "model"
        return clean(model.removesuffix(".gguf"), multiline=False)

"""The messages between the app and its screens.

Screens do not import each other: a screen posts a `Show…` message to the app, which makes
the destination with its own engine runner and options (`app.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from textual.message import Message

if TYPE_CHECKING:
    from localspec.chat.history import SearchHit
    from localspec.chat.session import ChatSession
    from localspec.launch import ResolvedPair
    from localspec.protocol.events import Round
    from localspec.serve.http_server import ServerThread
    from localspec.tui.downloads import DownloadManager
    from localspec.tui.home_rows import MachineSurvey
    from localspec.tui.wizard.shortlist import WizardResult, WizardServices

HelpSection = Literal["keys", "commands", "glossary"]
MeasurementCommand = Literal["bench", "verify"]
FirstChoice = Literal["chat", "wizard"]


@dataclass(eq=False)
class ShowWelcome(Message):
    load_survey: Callable[[], MachineSurvey]
    on_choice: Callable[[FirstChoice | None], None]


@dataclass(eq=False)
class ShowChat(Message):
    session: ChatSession
    on_leave: Callable[[], None]
    found: SearchHit | None = None  # A search match to show first.


class ShowChatList(Message):
    """All saved chats; the one that is chosen takes the place of an open chat."""


@dataclass(eq=False)
class ShowChatSettings(Message):
    session: ChatSession
    on_leave: Callable[[], None]
    first_field: str = ""  # The setting that has the focus; the first one if empty.


@dataclass(eq=False)
class ShowWizard(Message):
    downloads: DownloadManager
    services: WizardServices
    on_result: Callable[[WizardResult | None], None]


@dataclass(eq=False)
class ShowMeasurement(Message):
    command: MeasurementCommand
    pair_name: str
    pair: ResolvedPair
    on_leave: Callable[[], None]


@dataclass(eq=False)
class ShowSharedServer(Message):
    """The board of the server that shares the engine of a chat."""

    server: ServerThread
    on_leave: Callable[[], None]


@dataclass(eq=False)
class ShowReplay(Message):
    """The fields are the arguments of `ReplayScreen`."""

    prompt: str
    rounds: Sequence[Round]
    plain_speed: float | None


@dataclass(eq=False)
class ShowHelp(Message):
    first: HelpSection = "keys"


class ShowLog(Message):
    """The engine log and the app's own."""


class PreferencesChanged(Message, bubble=False):
    """The app posts it to each open screen after it has changed its options."""

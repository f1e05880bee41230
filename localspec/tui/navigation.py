"""What screens ask the app to show: screens do not import each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from textual.message import Message

from localspec.chat.history import SearchHit
from localspec.chat.session import ChatSession
from localspec.launch import ResolvedPair
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import Round
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.wizard.shortlist import WizardServices

WelcomeChoice = Literal["chat", "wizard"]


@runtime_checkable
class SurveyListener(Protocol):
    """A screen over Home that shows what Home finds out about this computer."""

    def show_survey(self, survey: MachineSurvey) -> None: ...


@dataclass(frozen=True, slots=True)
class ChatView:
    session: ChatSession
    found: SearchHit | None = None  # A search match to show first.


@dataclass(frozen=True, slots=True)
class ChatSettingsView:
    session: ChatSession
    field: str  # The name of the setting that gets the focus.


@dataclass(frozen=True, slots=True)
class MeasurementView:
    command: Literal["bench", "verify"]
    pair_name: str
    pair: ResolvedPair


@dataclass(frozen=True, slots=True)
class ReplayView:
    prompt: str
    rounds: Sequence[Round]


@dataclass(frozen=True, slots=True)
class ServerBoardView:
    """Of the server that shares the engine."""


@dataclass(frozen=True, slots=True)
class WelcomeView:
    load_survey: Callable[[], MachineSurvey]  # Returns what is known when the screen opens.


@dataclass(frozen=True, slots=True)
class WizardView:
    downloads: DownloadManager
    services: WizardServices


ScreenView = (
    ChatView
    | ChatSettingsView
    | MeasurementView
    | ReplayView
    | ServerBoardView
    | WelcomeView
    | WizardView
)


@dataclass(eq=False)
class OpenScreen(Message):
    """`then` receives the screen's result when it is left."""

    view: ScreenView
    then: Callable[[Any], None] = lambda _: None

"""Messages that ask the app for a screen: screens do not import each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from textual.message import Message

from localspec.chat.history import SearchHit
from localspec.chat.session import ChatSession
from localspec.launch import ResolvedPair
from localspec.protocol.events import Round
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.wizard.services import WizardResult, WizardServices

WelcomeChoice = Literal["chat", "wizard"]
WhenClosed = Callable[[object], None]
"""Called when the screen is left."""


@runtime_checkable
class SurveyListener(Protocol):
    """A screen over Home that shows what Home finds out about this computer."""

    def show_survey(self, survey: MachineSurvey) -> None: ...


class OpenChat(Message):
    def __init__(self, session: ChatSession, found: SearchHit | None, then: WhenClosed) -> None:
        """`found`: a search match to show first."""
        super().__init__()
        self.session, self.found, self.then = session, found, then


class OpenChatSettings(Message):
    def __init__(self, session: ChatSession, field: str, then: WhenClosed) -> None:
        """`field`: the name of the setting that gets the focus."""
        super().__init__()
        self.session, self.field, self.then = session, field, then


class OpenMeasurement(Message):
    def __init__(
        self,
        command: Literal["bench", "verify"],
        pair_name: str,
        pair: ResolvedPair,
        then: WhenClosed,
    ) -> None:
        super().__init__()
        self.command, self.pair_name, self.pair, self.then = command, pair_name, pair, then


class OpenReplay(Message):
    def __init__(self, prompt: str, rounds: Sequence[Round]) -> None:
        super().__init__()
        self.prompt, self.rounds = prompt, rounds


class OpenServerBoard(Message):
    """Of the server that shares the engine."""

    def __init__(self, then: WhenClosed) -> None:
        super().__init__()
        self.then = then


class OpenWelcome(Message):
    def __init__(
        self,
        load_survey: Callable[[], MachineSurvey],
        then: Callable[[WelcomeChoice | None], None],
    ) -> None:
        """`load_survey` returns what is known when the screen opens."""
        super().__init__()
        self.load_survey, self.then = load_survey, then


class OpenWizard(Message):
    def __init__(
        self,
        downloads: DownloadManager,
        services: WizardServices,
        then: Callable[[WizardResult | None], None],
    ) -> None:
        super().__init__()
        self.downloads, self.services, self.then = downloads, services, then

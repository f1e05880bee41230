"""Drives the app by its pilot: keys go in, the text of the screen comes out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from textual.pilot import Pilot
from textual.screen import Screen

from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair, StartEngine
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.notices import BACKGROUND_JOBS
from localspec.tui.saved_chats import SavedChats
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from tests.support.scenes import MACHINE, PAIR, home, settled
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    painted,
    wait_until,
)

AnyScreen = TypeVar("AnyScreen", bound=Screen[Any])


def said() -> Script:
    return answer(["Well", ", ", "hello", "."])


def other() -> Script:
    return answer(["Other", "wise", "."])


def long() -> Script:
    return answer([f"line {n}\n\n" for n in range(200)])


class AppDriver:
    """A running app, and the screen on top."""

    def __init__(self, pilot: Pilot[Any]) -> None:
        self.pilot = pilot

    @property
    def app(self) -> LocalspecApp:
        assert isinstance(self.pilot.app, LocalspecApp)
        return self.pilot.app

    @property
    def shown(self) -> str:
        """The text of the top screen, with notifications."""
        return painted(self.app.screen)

    def top(self, kind: type[AnyScreen]) -> AnyScreen:
        """The top screen, which is of this kind."""
        assert isinstance(self.app.screen, kind)
        return self.app.screen

    def is_on(self, kind: type[Screen[Any]]) -> bool:
        return isinstance(self.app.screen, kind)

    async def press(self, *keys: str) -> None:
        """Returns when the keys, and what they do in the background, are done."""
        await self.pilot.press(*keys)
        await self.pilot.pause()
        await self.wait(lambda: BACKGROUND_JOBS.is_idle and not self._is_reading)

    @property
    def _is_reading(self) -> bool:
        """Whether a chat reads a document."""
        screens = self.app.screen_stack
        chats = [screen for screen in screens if isinstance(screen, ChatScreen)]
        return any(chat.documents.names for chat in chats)

    async def sees(self, *words: str) -> None:
        try:
            await wait_until(
                self.pilot, lambda: all(word in self.shown for word in words)
            )
        except AssertionError:
            missing = [word for word in words if word not in self.shown]
            raise AssertionError(f"not seen: {missing}; {self.shown}") from None

    async def wait(self, condition: Callable[[], object]) -> None:
        await wait_until(self.pilot, condition)

    async def reaches(self, kind: type[Screen[Any]]) -> None:
        await self.wait(lambda: self.is_on(kind))

    @property
    def screen(self) -> ChatScreen:
        return self.top(ChatScreen)

    async def until(self, *phases: str) -> None:
        await self.wait(lambda: self.is_on(ChatScreen) and self.screen.phase in phases)

    async def begin(self, text: str) -> None:
        self.screen.composer.replace_text(text)
        await self.press("enter")
        await self.until("answering")

    async def send(self, text: str) -> None:
        self.screen.composer.replace_text(text)
        await self.press("enter")
        await self.until("ready", "failed")

    @property
    def typed(self) -> str:
        return self.screen.composer.text

    @property
    def questions(self) -> list[str]:
        return [turn.question for turn in self.screen.session.conversation.turns]


class Chat(AppDriver):
    """The app with one chat; use with `async with`."""

    def __init__(self, *engines: ScriptedEngine | LocalspecError, **how: Any) -> None:
        """`gate`, `pair`, `session`, `start`, or options of the app.

        `session` has a pair of its own. `start` is used instead of the engines.
        """
        self.gate: Gate | None = how.pop("gate", None)
        pair: ResolvedPair = how.pop("pair", PAIR)
        session: ChatSession = how.pop("session", None) or ChatSession(pair, 1)
        self.opening = Opening(engines or [ScriptedEngine(said)], gate=self.gate)
        start: StartEngine = how.pop("start", self.opening)
        self.options = AppOptions(seed=1, **how)
        self.runner = EngineRunner(start)
        self.chat_screen = ChatScreen(session, self.runner, self.options)
        app = LocalspecApp(self.options, self.runner, lambda: self.chat_screen)
        self._run = app.run_test(size=(100, 30), notifications=True)

    async def __aenter__(self) -> Chat:
        super().__init__(await self._run.__aenter__())
        if self.gate is None:
            await self.until("ready", "failed")
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._run.__aexit__(*error)

    @property
    def screen(self) -> ChatScreen:
        """Also below another screen."""
        return self.chat_screen

    async def until(self, *phases: str) -> None:
        await self.wait(lambda: self.screen.phase in phases)

    @property
    def on_top(self) -> bool:
        return self.app.screen is self.screen


class HomeDriver(AppDriver):
    """The whole app with a history; Home is on top."""

    @property
    def home(self) -> HomeScreen:
        return self.top(HomeScreen)

    @property
    def history(self) -> ChatHistory:
        chats = self.app.options.chats
        assert chats is not None
        assert chats.history is not None
        return chats.history

    async def open(self, *keys: str) -> None:
        """Opens a chat: a new one with the demo, or with `down` the last saved one."""
        await self.press(*keys, "enter")
        await self.until("ready")


@asynccontextmanager
async def home_app(*scripts: Any, private: bool = False) -> AsyncIterator[HomeDriver]:
    options = AppOptions(seed=1, chats=SavedChats(private=private))
    engines = [ScriptedEngine(*(scripts or (said,))) for _ in range(9)]
    running = home(options, opening=Opening(engines))
    async with running.run_test(size=(100, 30), notifications=True) as pilot:
        driver = HomeDriver(pilot)
        await driver.sees("Ready to run", MACHINE)
        await settled(pilot)
        yield driver


@asynccontextmanager
async def demo_chat(*scripts: Any, private: bool = False) -> AsyncIterator[HomeDriver]:
    async with home_app(*scripts, private=private) as driver:
        await driver.open()
        yield driver

"""The Textual app: start-up, keys, preferences, signals and crash reports."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rich.text import Text
from textual import events, on
from textual.actions import ActionParseResult
from textual.app import ActionError, App
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter, NoColor
from textual.keys import key_to_character
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, TextArea

from localspec import config
from localspec.chat.answer import PLAIN_SPEED, read_timing
from localspec.config import EffectiveConfig, key_table
from localspec.protocol.events import Event, GenerationFinished, Round
from localspec.tui import app_options, key_bindings, themes
from localspec.tui.app_options import AppOptions
from localspec.tui.crash_log import write_crash_log
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.key_bindings import bindings_for
from localspec.tui.key_parser import PlacedKey
from localspec.tui.navigation import (
    HelpSection,
    PreferencesChanged,
    ShowChat,
    ShowChatList,
    ShowChatSettings,
    ShowHelp,
    ShowLog,
    ShowMeasurement,
    ShowReplay,
    ShowSharedServer,
    ShowWelcome,
    ShowWizard,
)
from localspec.tui.notices import copy_text
from localspec.tui.palette import ActionProvider
from localspec.tui.saved_chats import SavedChats
from localspec.tui.scheduling import set_reliable_timer
from localspec.tui.screens import welcome
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.screens.preferences import PreferencesScreen
from localspec.tui.screens.replay import ReplayScreen
from localspec.tui.terminal import (
    AsciiFilter,
    ControlCharacterFilter,
    driver_class,
    watch_terminal,
)
from localspec.tui.widgets.screen_frame import PAGE_WIDTH, KeyLine, StatusBar
from localspec.tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from localspec.tui.screens.chat_list import ChatChoice

_QUIT_WINDOW_SECONDS = 1.0  # A second ctrl+c within this time quits.
_MAX_LINE_CHARACTERS = 2_000
"""Of a paste into a field of one line, such as a search; a path has no more."""
_MAX_NOTICE_CHARACTERS = 1_000
_EXIT_GRACE_SECONDS = 1.5
"""Time for a clean exit: writing to a closed terminal may block for ever."""
_MAX_KEY_SECONDS = 0.5
"""A key that takes longer does not hold back the next one: ctrl+q must always work."""

_FIELD_KEYS = {
    "alt+b": "ctrl+left",
    "alt+f": "ctrl+right",
    "alt+backspace": "ctrl+w",
    "ctrl+shift+minus": "ctrl+underscore",
}
"""Keys as terminals send them, and the app's or Textual's key for each.

The first three are sent for Option with an arrow or backspace: they move a word back,
a word on, and delete a word. The last is ctrl+_ in terminals with a part of the kitty
protocol.
"""


@dataclass(eq=False)
class KeyProbe(Message):
    """Reaches the app when the widgets have handled a key: see `LocalspecApp.on_event`.

    It waits in a widget's queue behind the key, and then bubbles up to the app.
    """

    number: int  # Of the key that it follows.
    is_last: bool


@runtime_checkable
class StoppableScreen(Protocol):
    """A screen with work that ctrl+c stops."""

    @property
    def busy(self) -> bool: ...

    def action_stop(self) -> None: ...


@runtime_checkable
class TypingScreen(Protocol):
    """A screen with one field, to which all goes that is typed, whatever has the focus."""

    def focus_typing_field(self) -> None:
        """Must focus it at once."""


class LocalspecApp(App[None]):
    """Owns the engine runner and the options; passes them to the screens."""

    CSS_PATH = "localspec.tcss"
    TITLE = "localspec"
    BINDINGS = bindings_for("app")
    COMMANDS = {ActionProvider}  # noqa: RUF012
    # The key table has its own entry for the palette: Textual's gets a key nobody types.
    COMMAND_PALETTE_BINDING = "ctrl+f12"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-normal"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        options: AppOptions | None = None,
        runner: EngineRunner | None = None,
        first_screen: Callable[[], Screen[None]] | None = None,
    ) -> None:
        self.options = options or AppOptions()
        self._output_filters = _build_output_filters(self.options)
        super().__init__()
        self.runner = runner or EngineRunner()
        self._first_screen = first_screen
        self._last_interrupt = 0.0
        self._waiting_keys: deque[events.Key | events.Paste] = deque()
        self._key_in_progress: events.Key | events.Paste | None = None
        self._key_number = 0
        self._key_timer: asyncio.TimerHandle | None = None
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.use_theme(self.options.theme)

    def get_default_screen(self) -> Screen[None]:
        if self._first_screen is not None:
            return self._first_screen()
        return HomeScreen(self.runner, self.options)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"page-width": str(PAGE_WIDTH)}

    def get_driver_class(self) -> type[Driver]:
        return driver_class(super().get_driver_class())

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._output_filters]

    def on_mount(self) -> None:
        self.set_keymap(key_table.full_keymap(self.options.keymap))
        self._install_signal_handlers()
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            watch_terminal(lambda: self._exit_without_terminal(loop))

    def on_unmount(self) -> None:
        self.runner.stop_answer()

    def on_resize(self) -> None:
        """Textual's own timer may lose its only tick: see `scheduling`."""
        set_reliable_timer(self, 0.05, self._check_resize)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Shows a message, of which nobody reads more than some lines."""
        if len(message) > _MAX_NOTICE_CHARACTERS:
            message = f"{message[:_MAX_NOTICE_CHARACTERS]} …"
        super().notify(
            message, title=title, severity=severity, timeout=timeout, markup=markup
        )

    # --- keys
    # -----------------------------------------------------------------------------

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """An action of the focused widget does nothing if there is none.

        The terminal's window may have lost the focus, and with it the widget.
        """
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except ActionError:
            return False

    async def on_event(self, event: events.Event) -> None:
        """Delivers one key or paste at a time.

        Textual gives each key to the widget that has the focus when the key arrives,
        but a widget handles it later. A letter typed right after the key that opens or
        closes a sheet would go to the wrong screen. So the app waits for each key.
        For `/` and then `a`, where `/` moves the focus from a list to a search field:

        1. `/` goes to the list, and a `KeyProbe` behind it.
        2. The list handles `/`. The probe bubbles to the app, and so does `/` if no
           widget used it.
        3. Whichever comes first: a last `KeyProbe` goes to the widget that now has the
           focus, the field. It waits behind the messages that `/` has caused.
        4. The last probe bubbles to the app: `a` goes to the field.

        If no probe comes back within `_MAX_KEY_SECONDS`, `a` is delivered anyway.
        """
        if not isinstance(event, events.Key | events.Paste):
            await super().on_event(event)
        elif not event.is_forwarded:  # It comes from the terminal.
            self._waiting_keys.append(_as_text(event))
            if self._key_in_progress is None:
                await self._deliver_key()
        else:  # It has bubbled up: no widget used it.
            await super().on_event(event)
            if event is self._key_in_progress:
                self._probe_focus(self._key_number)

    def _translate_key(
        self, event: events.Key | events.Paste, target: Widget
    ) -> events.Key | events.Paste:
        """A key as the widgets know it, unless the user has bound it as it is.

        With a Russian keyboard, ctrl and the key of c is ctrl+c. So is `и` the key b
        of Home, but not in a text field.
        """
        if isinstance(event, events.Paste):
            # A field of one line draws all of its text at each key.
            if isinstance(target, Input):
                return events.Paste(event.text[:_MAX_LINE_CHARACTERS])
            return event
        key = event.key
        character = event.character
        if self._is_bound_by_user(key):
            return events.Key(key, character)
        if isinstance(event, PlacedKey):
            is_text = event.is_printable and isinstance(target, Input | TextArea)
            if not is_text:
                key = event.us_key
                character = key_to_character(key)
        return events.Key(_FIELD_KEYS.get(key, key), character)

    def _is_bound_by_user(self, key: str) -> bool:
        return any(key in keys.split(",") for keys in self.options.keymap.values())

    async def _deliver_key(self) -> None:
        if self._key_timer is not None:
            self._key_timer.cancel()
        if not self._waiting_keys:
            self._key_in_progress = None
            return
        self._key_number += 1
        number = self._key_number
        event = self._waiting_keys.popleft()
        is_text = isinstance(event, events.Paste) or event.is_printable
        if is_text and isinstance(self.screen, TypingScreen):
            self.screen.focus_typing_field()
        target: Widget = self.focused or self.screen
        event = self._translate_key(event, target)
        self._key_in_progress = event
        self._key_timer = set_reliable_timer(
            self, _MAX_KEY_SECONDS, partial(self._stop_waiting_for, number)
        )
        await super().on_event(event)
        is_posted = target.post_message(KeyProbe(number, is_last=False))
        if not is_posted:  # The target has closed.
            self._probe_focus(number)

    def _probe_focus(self, number: int) -> None:
        """Waits for what the key has caused, such as a new screen or `Submitted`."""
        target: Widget = self.focused or self.screen
        target.post_message(KeyProbe(number, is_last=True))

    @on(KeyProbe)
    async def _key_handled(self, probe: KeyProbe) -> None:
        if probe.number != self._key_number:
            return
        if probe.is_last:
            await self._deliver_key()
        else:
            self._probe_focus(probe.number)

    async def _stop_waiting_for(self, number: int) -> None:
        if number == self._key_number and self._key_in_progress is not None:
            await self._deliver_key()

    def on_click(self, event: events.Click) -> None:
        """A click on a key hint presses that key."""
        widget = event.widget
        if widget is None:
            return
        if isinstance(widget, KeyLine | StatusBar) or widget.has_class("hint"):
            line = widget.render_line(event.y).text
            name = key_bindings.find_key_hint(line, event.x)
            if name:
                self.post_message(events.Key(name, key_to_character(name)))

    # --- screens
    # --------------------------------------------------------------------------
    # Those that Home does not need at once are imported late: Home is drawn before.

    @on(ShowWelcome)
    def _show_welcome(self, message: ShowWelcome) -> None:
        screen = welcome.WelcomeScreen(self.options, message.load_survey)
        self.push_screen(screen, message.on_choice)

    @on(ShowChat)
    def _show_chat(self, message: ShowChat) -> None:
        from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415

        if isinstance(self.screen, ChatScreen):  # Another chat takes its place.
            self.pop_screen()
        screen = ChatScreen(message.session, self.runner, self.options, message.found)
        self.push_screen(screen, lambda _: message.on_leave())

    @on(ShowChatList)
    def _show_chat_list(self) -> None:
        from localspec.tui.screens.chat_list import ChatListScreen  # noqa: PLC0415

        home = self._find_home()
        if home is None:
            self.notify("Only the app that begins with Home lists chats.", markup=False)
            return
        screen = ChatListScreen(home.sessions, self.options)
        self.push_screen(screen, partial(self._open_listed, home))

    def _find_home(self) -> HomeScreen | None:
        for screen in self.screen_stack:
            if isinstance(screen, HomeScreen):
                return screen
        return None

    def _open_listed(self, home: HomeScreen, choice: ChatChoice | None) -> None:
        from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415

        open_chat = self.screen
        if choice is None:
            home.fill_list()
            if isinstance(open_chat, ChatScreen):
                open_chat.draw()  # It may have another title.
        elif not isinstance(open_chat, ChatScreen):
            home.resume_chat(choice.chat_id, choice.found)
        elif open_chat.session.recorder.chat_id != choice.chat_id:
            open_chat.keep_draft()
            home.resume_chat(choice.chat_id, choice.found)
        elif choice.found is not None:
            open_chat.show_found(choice.found)

    @on(ShowChatSettings)
    def _show_chat_settings(self, message: ShowChatSettings) -> None:
        from localspec.tui.screens.chat_settings import (  # noqa: PLC0415
            ChatSettingsScreen,
        )

        screen = ChatSettingsScreen(message.session, message.first_field)
        self.push_screen(screen, lambda _: message.on_leave())

    @on(ShowWizard)
    def _show_wizard(self, message: ShowWizard) -> None:
        from localspec.tui.screens.wizard import WizardScreen  # noqa: PLC0415

        screen = WizardScreen(
            self.runner, self.options, message.downloads, message.services
        )
        self.push_screen(screen, message.on_result)

    @on(ShowMeasurement)
    def _show_measurement(self, message: ShowMeasurement) -> None:
        from localspec.tui.screens import measurement  # noqa: PLC0415

        screen = measurement.MeasurementScreen(
            measurement.make_measurement(
                message.command, message.pair_name, message.pair
            ),
            pair_name=message.pair_name,
            pair=message.pair,
            runner=self.runner,
            options=self.options,
        )
        self.push_screen(screen, lambda _: message.on_leave())

    @on(ShowSharedServer)
    def _show_shared_server(self, message: ShowSharedServer) -> None:
        from localspec.tui.screens.serve import SharedServeScreen  # noqa: PLC0415

        screen = SharedServeScreen(
            message.server, self.options, self.runner.stop_server
        )
        self.push_screen(screen, lambda _: message.on_leave())

    @on(ShowReplay)
    def _show_replay(self, message: ShowReplay) -> None:
        screen = ReplayScreen(
            message.prompt, message.rounds, self.options, message.plain_speed
        )
        self.push_screen(screen)

    @on(ShowHelp)
    def _show_help(self, message: ShowHelp) -> None:
        self.action_help(message.first)

    def action_help(self, first: HelpSection = "keys") -> None:
        usable = {key.binding.id or "" for key in self.screen.active_bindings.values()}
        self.push_screen(HelpScreen(self.options.keymap, first, usable))

    @on(ShowLog)
    def action_log(self) -> None:
        if not isinstance(self.screen, LogScreen):
            self.push_screen(LogScreen(self.options))

    def action_doctor(self) -> None:
        from localspec.tui.screens.doctor import DoctorScreen  # noqa: PLC0415

        if not isinstance(self.screen, DoctorScreen):
            self.push_screen(DoctorScreen(self.runner, self.options))

    def action_preferences(self) -> None:
        open_kinds = {type(screen) for screen in self.screen_stack}
        if PreferencesScreen not in open_kinds:
            self.push_screen(PreferencesScreen(self.options, self.apply_preferences))

    # --- preferences
    # --------------------------------------------------------------------------

    def apply_preferences(self, view: EffectiveConfig) -> None:
        """Applies changed preferences at once, also to the screens that are open."""
        options = self.options
        app_options.apply_preferences(options, view)
        self.use_theme(options.theme)
        self.set_keymap(key_table.full_keymap(options.keymap))
        self._output_filters = _build_output_filters(options)
        for screen in self.screen_stack:
            screen.post_message(PreferencesChanged())
        self.refresh(layout=True)

    def use_theme(self, name: str) -> None:
        """Changes the colours until the app ends, or until the preferences change."""
        self.options.theme = name
        self.theme = name
        self.set_class(self.options.reverse_marked_rows, "-mono")

    def action_interrupt(self) -> None:
        """ctrl+c copies the selection or stops the answer; twice in a second it quits."""
        select = self._find_selected_text()
        if select is not None:
            copy_text(self, select)
            self.screen.clear_selection()
            return
        if time.monotonic() - self._last_interrupt < _QUIT_WINDOW_SECONDS:
            self.exit(return_code=130)
            return
        self._last_interrupt = time.monotonic()
        if isinstance(self.screen, StoppableScreen) and self.screen.busy:
            self.screen.action_stop()
        else:
            text = "Press ctrl+c again, or ctrl+q, to quit."
            self.notify(text, markup=False, timeout=2)

    def _find_selected_text(self) -> Callable[[], str] | None:
        """A function, for any thread, that gives the marked text; None without any."""
        in_field = getattr(self.focused, "selected_text", "")
        if in_field:
            return lambda: str(in_field)
        selections = self.screen.selections
        if len(selections) == 1:
            ((widget, selection),) = selections.items()
            if isinstance(widget, TextView) and widget.marks_unseen(selection):
                return widget.select_source(selection)
        on_screen = self.screen.get_selected_text()
        if on_screen:
            return lambda: on_screen
        return None

    # --- exit
    # -----------------------------------------------------------------------------

    def _install_signal_handlers(self) -> None:
        """Restores the terminal on SIGTERM and SIGHUP, which Textual does not do."""
        loop = asyncio.get_running_loop()
        for name, code in (("SIGTERM", 143), ("SIGHUP", 129)):
            number = getattr(signal, name, None)
            if number is None:
                continue
            # Windows has no handlers, and threads other than the main one neither.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.exit_on_signal, code)

    def _exit_without_terminal(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called on a thread: the event loop may wait for the terminal for ever."""
        loop.call_soon_threadsafe(self.exit, None, 129)
        time.sleep(_EXIT_GRACE_SECONDS)
        os._exit(129)

    def exit_on_signal(self, code: int) -> None:
        """Exits cleanly; after `_EXIT_GRACE_SECONDS`, at once."""

        def force_exit() -> None:
            time.sleep(_EXIT_GRACE_SECONDS)
            os._exit(code)

        threading.Thread(target=force_exit, daemon=True).start()
        self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """Prints two lines and writes the traceback to crash.log."""
        if os.environ.get("LOCALSPEC_DEBUG"):
            super()._fatal_error()
            return
        error = self._exception
        summary = f"{type(error).__name__}: {error}" if error else "unknown"
        hint = write_crash_log(error)
        self._exit_renderables.append(
            Text(f"localspec: Internal error: {summary}\n  This is a bug. {hint}\n")
        )
        self._close_messages_no_wait()


def _as_text(event: events.Key | events.Paste) -> events.Key | events.Paste:
    """Turns some characters into pastes, because no Textual field takes them as keys.

    They are text but not printable, such as a joiner or a direction mark.
    """
    if not isinstance(event, events.Key):
        return event
    character = event.character
    if not character or len(character) > 1 or character.isprintable():
        return event
    is_text = unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
    return events.Paste(character) if is_text else event


def _build_output_filters(options: AppOptions) -> list[LineFilter]:
    filters: list[LineFilter] = [ControlCharacterFilter()]
    if options.ascii_only:
        filters.append(AsciiFilter())
    if not options.colour:
        filters.append(NoColor())
    return filters


def run(
    first_screen: Callable[[AppOptions], Screen[None]] | None = None,
    flags: Mapping[str, str] | None = None,
) -> int:
    """Runs the app and returns its exit code.

    `first_screen` makes the first screen in place of Home. `flags`: see
    `config.resolve`.
    """
    # If they are exported, they hold the size of another window.
    os.environ.pop("COLUMNS", None)
    os.environ.pop("LINES", None)
    options = load_options(flags)
    runner = EngineRunner()
    reduce_gc_pauses()
    make_first = partial(first_screen, options) if first_screen is not None else None
    app = LocalspecApp(options, runner, make_first)
    try:
        app.run()
    finally:
        runner.close(wait=3.0)
    return app.return_code or 0


def replay(events: Sequence[Event]) -> int:
    """Runs the app on the replay screen, with the rounds of an events file."""
    rounds = [event for event in events if isinstance(event, Round)]
    plain_speed = None
    for event in events:
        if isinstance(event, GenerationFinished):
            plain_speed = read_timing(event, PLAIN_SPEED)
    return run(lambda options: ReplayScreen("", rounds, options, plain_speed))


def reduce_gc_pauses() -> None:
    """Excludes the start-up objects from garbage collection, and collects less often.

    With Python's defaults, a full collection runs twice a second while an answer
    streams, and each one blocks the screen for 40 to 80 ms.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def load_options(flags: Mapping[str, str] | None = None) -> AppOptions:
    """The options from the user's configuration and the terminal.  Never raises."""
    view = config.resolve(flags=flags, key_ids=key_table.BINDINGS_BY_ID)
    options = AppOptions(
        colour=not os.environ.get("NO_COLOR"),
        chats=SavedChats(),
        flags=flags or {},
        first_run=welcome.is_first_run(),
    )
    app_options.apply_preferences(options, view)
    return options

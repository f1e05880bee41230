"""The Textual app: start-up, keys, preferences, signals and crash reports."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from rich.text import Text
from textual.app import App, SystemCommand
from textual.filter import LineFilter, NoColor
from textual.screen import Screen

from localspec import config, paths
from localspec.config import EffectiveConfig
from localspec.protocol.events import Event, Round
from localspec.tui import app_options, clipboard, key_bindings, themes
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.key_bindings import KEY_BINDINGS, KeyContext, bindings_for
from localspec.tui.output_filters import AsciiFilter, ControlCharacterFilter
from localspec.tui.saved_chats import SavedChats
from localspec.tui.screens import welcome
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.key_editor import KeyCaptureScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.screens.preferences import PreferencesScreen
from localspec.tui.screens.replay import ReplayScreen

_QUIT_WINDOW_SECONDS = 1.0
"""A second ctrl+c within this time quits."""
_EXIT_GRACE_SECONDS = 1.5
"""Time for a clean exit after a signal; writing to a closed terminal may block for ever."""


@runtime_checkable
class _StoppableScreen(Protocol):
    @property
    def busy(self) -> bool: ...

    def action_stop(self) -> None: ...


@runtime_checkable
class _PreferencesListener(Protocol):
    def apply_preferences(self) -> None: ...


class LocalspecApp(App[None]):
    """Owns the engine runner and the options; passes them to the screens."""

    CSS_PATH = "localspec.tcss"
    TITLE = "localspec"
    BINDINGS = bindings_for("app")
    COMMAND_PALETTE_BINDING = "ctrl+f12"  # the key table has its own entry for the palette
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
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.theme = self.options.theme
        self.set_class(self.options.show_token_marks, "-mono")

    def get_default_screen(self) -> Screen[None]:
        if self._first_screen is not None:
            return self._first_screen()
        return HomeScreen(self.runner, self.options)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._output_filters]

    def on_mount(self) -> None:
        self.set_keymap(dict(self.options.keymap))
        self._install_signal_handlers()

    def on_unmount(self) -> None:
        self.runner.stop_answer()

    # --- keys -----------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: the actions of the current screen, and the themes."""
        contexts: tuple[KeyContext, ...] = getattr(screen, "KEY_CONTEXTS", ("home",))
        for key in KEY_BINDINGS:
            if key.context in ("app", *contexts) and key.id != "app.palette":
                node = self if key.context == "app" else screen
                run = partial(self.run_action, key.action, default_namespace=node)
                yield SystemCommand(key.description, key.keys.split(",", maxsplit=1)[0], run)
        for name in themes.THEME_NAMES:
            yield SystemCommand(
                f"Theme: {name}", "Change the colours", partial(self._switch_theme, name)
            )

    def _switch_theme(self, name: str) -> None:
        self.theme = name

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.options.keymap))

    def action_log(self) -> None:
        if not isinstance(self.screen, LogScreen):
            self.push_screen(LogScreen(self.options))

    def action_doctor(self) -> None:
        from localspec.tui.screens.doctor import DoctorScreen  # noqa: PLC0415  many imports

        if not isinstance(self.screen, DoctorScreen):
            self.push_screen(DoctorScreen(self.runner, self.options))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables all bindings while the key editor waits for a new key."""
        return not isinstance(self.screen, KeyCaptureScreen)

    def action_preferences(self) -> None:
        if not any(isinstance(screen, PreferencesScreen) for screen in self.screen_stack):
            self.push_screen(PreferencesScreen(self.options, self.apply_preferences))

    def apply_preferences(self, view: EffectiveConfig) -> None:
        """Applies changed preferences at once, also to the screens that are open."""
        options = self.options
        app_options.apply_preferences(options, view)
        self.theme = options.theme
        self.set_class(options.show_token_marks, "-mono")
        self.set_keymap(dict(options.keymap))
        self._output_filters = _build_output_filters(options)
        for screen in self.screen_stack:
            if isinstance(screen, _PreferencesListener):
                screen.apply_preferences()
        self.refresh(layout=True)

    def action_interrupt(self) -> None:
        """ctrl+c: copies the selection, else stops the answer; twice within a second: quits."""
        selected = getattr(self.focused, "selected_text", "") or self.screen.get_selected_text()
        if selected:
            self.notify(clipboard.copy(self, selected), markup=False)
            self.screen.clear_selection()
            return
        if time.monotonic() - self._last_interrupt < _QUIT_WINDOW_SECONDS:
            self.exit(return_code=130)
            return
        self._last_interrupt = time.monotonic()
        screen = self.screen
        if isinstance(screen, _StoppableScreen) and screen.busy:
            screen.action_stop()
        else:
            self.notify("Press ctrl+c again, or ctrl+q, to quit.", markup=False, timeout=2)

    # --- exit -----------------------------------------------------------------------------

    def _install_signal_handlers(self) -> None:
        """Restores the terminal on SIGTERM and SIGHUP, which Textual does not do."""
        loop = asyncio.get_running_loop()
        for name, code in (("SIGTERM", 143), ("SIGHUP", 129)):
            number = getattr(signal, name, None)
            if number is None:
                continue
            try:
                loop.add_signal_handler(number, self.exit_on_signal, code)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or another thread
                continue

    def exit_on_signal(self, code: int) -> None:
        """Exits cleanly; after `_EXIT_GRACE_SECONDS`, at once."""

        def force_exit() -> None:
            time.sleep(_EXIT_GRACE_SECONDS)
            os._exit(code)

        threading.Thread(target=force_exit, daemon=True).start()
        self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """Prints two lines and writes the traceback to crash.log; neither holds chat text."""
        if os.environ.get("LOCALSPEC_DEBUG"):
            super()._fatal_error()
            return
        error = self._exception
        summary = f"{type(error).__name__}: {error}" if error else "unknown"
        log = paths.data_dir() / "crash.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as file:
                traceback.print_exception(error, file=file)
            hint = f"Details: {log}"
        except OSError:
            hint = "Set LOCALSPEC_DEBUG=1 to see the traceback."
        self._exit_renderables.append(
            Text(f"localspec: Internal error: {summary}\n  This is a bug. {hint}\n")
        )
        self._close_messages_no_wait()


def _build_output_filters(options: AppOptions) -> list[LineFilter]:
    filters: list[LineFilter] = [ControlCharacterFilter()]
    if options.glyphs.ascii_only:
        filters.append(AsciiFilter())
    if not options.colour:
        filters.append(NoColor())
    return filters


def run(
    first_screen: Callable[[AppOptions], Screen[None]] | None = None,
    flags: Mapping[str, str] | None = None,
) -> int:
    """Runs the app and returns its exit code.  `flags`: see `config.resolve`."""
    options = load_options(flags)
    runner = EngineRunner()
    reduce_gc_pauses()
    app = LocalspecApp(options, runner, (lambda: first_screen(options)) if first_screen else None)
    try:
        app.run()
    finally:
        runner.close(wait=3.0)
    return app.return_code or 0


def replay(events: Sequence[Event]) -> int:
    """Runs the app on the replay screen, with the rounds of an events file."""
    rounds = [event for event in events if isinstance(event, Round)]
    return run(lambda options: ReplayScreen("", rounds, options))


def reduce_gc_pauses() -> None:
    """Excludes the start-up objects from garbage collection, and collects less often.

    With Python's defaults, a full collection runs twice a second while an answer streams, and
    each one blocks the screen for 40 to 80 ms.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def load_options(flags: Mapping[str, str] | None = None) -> AppOptions:
    """The options from the user's configuration and the terminal.  Never raises."""
    view = config.resolve(flags=flags, key_ids=frozenset(key_bindings.BINDINGS_BY_ID))
    options = AppOptions(
        colour=not os.environ.get("NO_COLOR"),
        chats=SavedChats(),
        flags=flags or {},
        first_run=welcome.is_first_run(),
    )
    app_options.apply_preferences(options, view)
    return options

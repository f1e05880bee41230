"""The app: its screens, its keys, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from rich.text import Text
from textual.app import App, SystemCommand
from textual.filter import LineFilter, NoColor
from textual.screen import Screen

from localspec import paths
from localspec.config import View
from localspec.tui import clipping, preferring, themes
from localspec.tui.barrier import Barrier
from localspec.tui.keys import KEYS, Where, bindings
from localspec.tui.lettering import Lettering
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.keyboard import KeyScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.screens.preferences import PreferencesScreen

_TWICE = 1.0
"""Seconds within which a second ctrl+c quits."""
_GRACE = 1.5
"""Seconds to leave in good order after a signal; a terminal that is gone would hold us."""


@runtime_checkable
class _Stoppable(Protocol):
    """A screen on which the engine may be at work."""

    @property
    def busy(self) -> bool: ...

    def action_stop(self) -> None: ...


@runtime_checkable
class _Preferring(Protocol):
    """A screen that shows what the preferences say."""

    def preferred(self) -> None: ...


class LocalspecApp(App[None]):
    """Owns the engine's runner; a screen is given what it needs."""

    CSS_PATH = "localspec.tcss"
    TITLE = "localspec"
    BINDINGS = bindings("app")
    COMMAND_PALETTE_BINDING = "ctrl+f12"  # the key table has its own
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-normal"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        options: Options | None = None,
        runner: Runner | None = None,
        first: Callable[[], Screen[None]] | None = None,
    ) -> None:
        self.options = options or Options()
        self._ours = _filters(self.options)
        super().__init__()
        self.runner = runner or Runner()
        self._first = first
        self._interrupted = 0.0
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.theme = self.options.theme
        self.set_class(self.options.marks, "-mono")

    def get_default_screen(self) -> Screen[None]:
        if self._first is not None:
            return self._first()
        return HomeScreen(self.runner, self.options)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ours]

    def on_mount(self) -> None:
        self.set_keymap(dict(self.options.keymap))
        self._heed_signals()

    def on_unmount(self) -> None:
        self.runner.stop()

    # --- keys -----------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The key table by name, and the themes."""
        places: tuple[Where, ...] = getattr(screen, "PLACES", ("home",))
        where = {"app", *places}
        for key in KEYS:
            if key.where in where and key.id != "app.palette":
                node = self if key.where == "app" else screen
                run = partial(self.run_action, key.action, default_namespace=node)
                yield SystemCommand(key.words, key.keys.split(",", maxsplit=1)[0], run)
        for name in themes.NAMES:
            yield SystemCommand(f"Theme: {name}", "Colours", partial(self._use_theme, name))

    def _use_theme(self, name: str) -> None:
        self.theme = name

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.options.keymap))

    def action_log(self) -> None:
        if not isinstance(self.screen, LogScreen):
            self.push_screen(LogScreen(self.options))

    def action_doctor(self) -> None:
        from localspec.tui.screens.doctor import DoctorScreen  # noqa: PLC0415  looks at much

        if not isinstance(self.screen, DoctorScreen):
            self.push_screen(DoctorScreen(self.runner, self.options))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a new key is waited for, none of ours does anything."""
        return not isinstance(self.screen, KeyScreen)

    def action_preferences(self) -> None:
        if not any(isinstance(one, PreferencesScreen) for one in self.screen_stack):
            self.push_screen(PreferencesScreen(self.options, self.prefer))

    def prefer(self, view: View) -> None:
        """What was changed in the preferences holds at once, wherever that can be."""
        options = self.options
        preferring.take_over(options, view)
        self.theme = options.theme
        self.set_class(options.marks, "-mono")
        self.set_keymap(dict(options.keymap))
        self._ours = _filters(options)
        for screen in self.screen_stack:
            if isinstance(screen, _Preferring):
                screen.preferred()
        self.refresh(layout=True)

    def action_interrupt(self) -> None:
        """Copy what is selected; else stop the answer; else ask for a second time, and quit."""
        selected = getattr(self.focused, "selected_text", "") or self.screen.get_selected_text()
        if selected:
            self.notify(clipping.copy(self, selected), markup=False)
            self.screen.clear_selection()
            return
        if time.monotonic() - self._interrupted < _TWICE:
            self.exit(return_code=130)
            return
        self._interrupted = time.monotonic()
        screen = self.screen
        if isinstance(screen, _Stoppable) and screen.busy:
            screen.action_stop()
        else:
            self.notify("Once more, or ctrl+q, to quit.", markup=False, timeout=2)

    # --- ends -----------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        """SIGTERM and SIGHUP restore the terminal; Textual alone would leave it as it is."""
        loop = asyncio.get_running_loop()
        for name, code in (("SIGTERM", 143), ("SIGHUP", 129)):
            number = getattr(signal, name, None)
            if number is None:
                continue
            try:
                loop.add_signal_handler(number, self.leave, code)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or another thread
                continue

    def leave(self, code: int) -> None:
        """End in good order, or at least end."""

        def give_up() -> None:
            time.sleep(_GRACE)
            os._exit(code)

        threading.Thread(target=give_up, daemon=True).start()
        self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """A bug of ours: two lines for a person, the rest in a file; the chat's text in neither."""
        if os.environ.get("LOCALSPEC_DEBUG"):
            super()._fatal_error()
            return
        error = self._exception
        said = f"{type(error).__name__}: {error}" if error else "an error"
        log = paths.state() / "crash.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as file:
                traceback.print_exception(error, file=file)
            hint = f"Where it is stands in {log}"
        except OSError:
            hint = "LOCALSPEC_DEBUG=1 shows where it is."
        self._exit_renderables.append(
            Text(f"localspec: Something went wrong inside: {said}\n  This is a bug. {hint}\n")
        )
        self._close_messages_no_wait()


def _filters(options: Options) -> list[LineFilter]:
    """Through which every line goes to the terminal."""
    found: list[LineFilter] = [Barrier()]
    if options.glyphs.ascii_only:
        found.append(Lettering())
    if not options.colour:
        found.append(NoColor())
    return found

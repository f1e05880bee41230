"""The dialog that chooses a model or a preset for a chat by name."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat import presets
from localspec.chat.slash_commands import CommandCall
from localspec.models import model_lookup
from localspec.sanitize import sanitize
from localspec.tui import slash_handlers
from localspec.tui.home_rows import PickerChoices

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


_MODELS = PickerChoices(
    "Answer with another model", "a name, or the path of a .gguf file", model_lookup.list_installed
)
_PRESETS = PickerChoices(
    "Use a preset: system prompt and settings",
    "a name; save NAME makes one of this chat",
    lambda: [(preset.name, preset.summary) for preset in presets.load().values()],
)
_SEPARATORS = str.maketrans("", "", " ,-_")
_CHOICES = {"model": _MODELS, "preset": _PRESETS}


def show(screen: ChatScreen, command: str) -> None:
    """Opens the dialog over a chat; what is chosen means the same as `/command CHOICE`."""

    async def on_dismiss(choice: str | None) -> None:
        if choice:
            await slash_handlers.execute(screen, CommandCall(command, choice))

    screen.app.push_screen(PickerScreen(_CHOICES[command], screen.session.pair_name), on_dismiss)


class PickerScreen(ModalScreen[str | None]):
    """Enter takes the marked row, or what was typed if no row matches it."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,f12", "dismiss", "Back"),
        Binding("down", "go(1)", "Next", priority=True),
        Binding("up", "go(-1)", "Previous", priority=True),
        Binding("pagedown", "go(10)", "Page down", priority=True),
        Binding("pageup", "go(-10)", "Page up", priority=True),
    ]
    AUTO_FOCUS = "#picked-name"

    def __init__(self, choices: PickerChoices, current: str, initial: str = "") -> None:
        """`current`: what is to be replaced; `initial`: text to edit."""
        super().__init__()
        self._choices, self._current, self._initial = choices, current, initial
        self._rows: Sequence[tuple[str, str]] = ()
        self._names: list[str] = []
        """Those listed now."""

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(self._choices.heading, classes="heading", markup=False)
            yield Static(f"now: {self._current}", id="now", markup=False)
            yield Input(self._initial, placeholder=self._choices.placeholder, id="picked-name")
            yield OptionList(id="picker-list", compact=True, markup=False)
            yield Static("enter use   esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(OptionList).can_focus = False

        def work() -> None:
            self.call_later(self._show_rows, self._choices.load())

        threading.Thread(target=work, daemon=True, name="picker").start()

    def _show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        self._rows = rows
        self._fill_list()

    @on(Input.Changed)
    def _fill_list(self) -> None:
        """The names that contain every typed word."""
        words = self.query_one(Input).value.lower().split()
        rows = [row for row in self._rows if _contains(row[0], words)]
        self._names = [name for name, _ in rows]
        option_list = self.query_one(OptionList)
        option_list.clear_options()
        for name, description in rows:
            shown = sanitize(name, multiline=False)
            line = Content.assemble(f" {shown}", (f"  {description}", "$muted"))
            option_list.add_option(Option(line))
        is_listed = self._current in self._names and not words
        first = self._names.index(self._current) if is_listed else 0
        option_list.highlighted = first if rows else None
        self.call_after_refresh(option_list.scroll_to_highlight)

    def action_go(self, by: int) -> None:
        option_list = self.query_one(OptionList)
        if option_list.highlighted is not None:
            last = len(self._names) - 1
            option_list.highlighted = max(0, min(last, option_list.highlighted + by))

    @on(OptionList.OptionSelected)
    def _take_clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._names[event.option_index])

    @on(Input.Submitted)
    def _take_highlighted(self, event: Input.Submitted) -> None:
        index = self.query_one(OptionList).highlighted
        if index is not None:
            self.dismiss(self._names[index])
        elif self._choices.takes_text:
            self.dismiss(event.value.strip())


def _contains(name: str, words: Sequence[str]) -> bool:
    compact = name.lower().translate(_SEPARATORS)
    return all(word.translate(_SEPARATORS) in compact for word in words)

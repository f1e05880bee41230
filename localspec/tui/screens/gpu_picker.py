"""Which card, if not this computer's: found by a part of its name."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.machine.gpu_catalog import GpuSpec
from localspec.tui.wizard.what_if import gpu_name, list_gpus

_SEPARATORS = str.maketrans("", "", " ,-_")


class GpuPickerScreen(ModalScreen[tuple[GpuSpec | None] | None]):
    """Type to find; the arrows choose, whatever has the keyboard."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "cancel", "Back"),
        Binding("down", "go(1)", "Next", priority=True),
        Binding("up", "go(-1)", "Previous", priority=True),
        Binding("pagedown", "go(10)", "Further", priority=True),
        Binding("pageup", "go(-10)", "Back", priority=True),
    ]
    AUTO_FOCUS = "#card-name"

    def __init__(self, current: GpuSpec | None) -> None:
        super().__init__()
        self._current_gpu = current
        self._listed_gpus: list[GpuSpec | None] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("What if it were another card", classes="heading", markup=False)
            yield Input(placeholder="4060, 7900 xtx, M4 Pro", id="card-name")
            yield OptionList(id="card-list", compact=True, markup=False)
            yield Static("enter take   esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(OptionList).can_focus = False
        self._fill_list()

    @on(Input.Changed)
    def _fill_list(self) -> None:
        """Cards whose names hold all that was typed; a number finds names with that number."""
        words = self.query_one(Input).value.lower().split()
        choices = (None, *list_gpus())
        self._listed_gpus = [card for card in choices if _name_contains(card, words)]
        found = self.query_one(OptionList)
        found.clear_options()
        found.add_options([Option(Content(gpu_name(card))) for card in self._listed_gpus])
        if self._listed_gpus:
            at = (
                self._listed_gpus.index(self._current_gpu)
                if self._current_gpu in self._listed_gpus and not words
                else 0
            )
            found.highlighted = at
            self.call_after_refresh(found.scroll_to_highlight)

    def action_go(self, by: int) -> None:
        found = self.query_one(OptionList)
        if found.highlighted is not None:
            found.highlighted = max(0, min(len(self._listed_gpus) - 1, found.highlighted + by))

    @on(Input.Submitted)
    def _choose_highlighted(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss((self._listed_gpus[at],))

    def action_cancel(self) -> None:
        self.dismiss(None)


def _name_contains(card: GpuSpec | None, words: list[str]) -> bool:
    name = gpu_name(card).lower()
    close = name.translate(_SEPARATORS)
    return all(word.translate(_SEPARATORS) in close for word in words)

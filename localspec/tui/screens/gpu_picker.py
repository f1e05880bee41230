"""The dialog that picks another GPU for the wizard's estimates."""

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
    """The arrow keys work while the search field has the focus."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "cancel", "Back"),
        Binding("down", "go(1)", "Next", priority=True),
        Binding("up", "go(-1)", "Previous", priority=True),
        Binding("pagedown", "go(10)", "Page down", priority=True),
        Binding("pageup", "go(-10)", "Page up", priority=True),
    ]
    AUTO_FOCUS = "#card-name"

    def __init__(self, current: GpuSpec | None) -> None:
        super().__init__()
        self._current_gpu = current
        self._listed_gpus: list[GpuSpec | None] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Estimate for another GPU", classes="heading", markup=False)
            yield Input(placeholder="4060, 7900 xtx, M4 Pro", id="card-name")
            yield OptionList(id="card-list", compact=True, markup=False)
            yield Static("enter select   esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(OptionList).can_focus = False
        self._fill_list()

    @on(Input.Changed)
    def _fill_list(self) -> None:
        """GPUs whose names contain every typed word."""
        words = self.query_one(Input).value.lower().split()
        choices = (None, *list_gpus())
        self._listed_gpus = [gpu for gpu in choices if _name_contains(gpu, words)]
        option_list = self.query_one(OptionList)
        option_list.clear_options()
        option_list.add_options([Option(Content(gpu_name(gpu))) for gpu in self._listed_gpus])
        if self._listed_gpus:
            index = (
                self._listed_gpus.index(self._current_gpu)
                if self._current_gpu in self._listed_gpus and not words
                else 0
            )
            option_list.highlighted = index
            self.call_after_refresh(option_list.scroll_to_highlight)

    def action_go(self, by: int) -> None:
        option_list = self.query_one(OptionList)
        if option_list.highlighted is not None:
            option_list.highlighted = max(
                0, min(len(self._listed_gpus) - 1, option_list.highlighted + by)
            )

    @on(Input.Submitted)
    def _choose_highlighted(self) -> None:
        index = self.query_one(OptionList).highlighted
        if index is not None:
            self.dismiss((self._listed_gpus[index],))

    def action_cancel(self) -> None:
        self.dismiss(None)


def _name_contains(gpu: GpuSpec | None, words: list[str]) -> bool:
    name = gpu_name(gpu).lower()
    compact = name.translate(_SEPARATORS)
    return all(word.translate(_SEPARATORS) in compact for word in words)

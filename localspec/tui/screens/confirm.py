"""A confirmation dialog for actions that cannot be undone."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class ConfirmScreen(ModalScreen[bool]):
    """Only `y` confirms: enter is too easily pressed by accident."""

    BINDINGS = [  # noqa: RUF012
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str, yes_label: str) -> None:
        """`yes_label` names the action in a word or two."""
        super().__init__()
        self._question, self._yes_label = question, yes_label

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            with VerticalScroll(id="question"):
                yield Static(Content(self._question), markup=False)
            yield Static(f"y {self._yes_label}   esc cancel", classes="hint", markup=False)

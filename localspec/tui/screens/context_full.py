"""The dialog that asks what to do when the context is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.context_window import ContextOverflow
from localspec.chat.settings import OverflowPolicy
from localspec.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from localspec.tui.engine_runner import OverflowRequest
    from localspec.tui.screens.chat import ChatScreen

_CHOICE_LABELS: dict[OverflowPolicy, tuple[str, str]] = {
    "drop": ("Leave out the oldest turns", "They stay in the chat; the model no longer sees them"),
    "summarise": ("Summarise the oldest turns", "The model sees its own summary in their place"),
    "stop": ("Stop here", "Nothing is left out; the answer ends"),
}
_NOT_SENT_LABEL = ("Do not send", "Nothing is left out; your message stays in the box")


@dataclass(frozen=True, slots=True)
class OverflowChoice:
    """The chosen policy; `always` applies it to the rest of the chat."""

    overflow: OverflowPolicy
    always: bool = False


def show(screen: ChatScreen, request: OverflowRequest) -> None:
    """Asks over a chat; the answer's thread waits."""

    def on_dismiss(choice: OverflowChoice | None) -> None:
        choice = choice or OverflowChoice("stop")
        if choice.always:
            screen.session.change_settings(overflow=choice.overflow)
        request.answer(choice.overflow)

    screen.app.push_screen(ContextFullScreen(request.full), on_dismiss)


class ContextFullScreen(ModalScreen[OverflowChoice]):
    """Escape stops, which leaves nothing out."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "stop", "Stop"),
        Binding("a", "always", "Always"),
    ]
    AUTO_FOCUS = "#choices"

    def __init__(self, full: ContextOverflow) -> None:
        super().__init__()
        self._full = full

    def compose(self) -> ComposeResult:
        full = self._full
        heading = (
            "The context is full" if full.mid_answer else "The conversation exceeds the context"
        )
        turns = f"{full.droppable_turns} older turn{'s' * (full.droppable_turns != 1)}"
        with Vertical(id="sheet"):
            yield Static(heading, classes="heading", markup=False)
            yield Static(
                f"{full.used:,} of {full.n_ctx:,} tokens, including {turns}.", markup=False
            )
            yield OptionList(
                *(Option(self._choice_line(choice), id=choice) for choice in full.choices),
                id="choices",
                markup=False,
            )
            yield Static(
                "enter this time   a always in this chat   esc stop", classes="hint", markup=False
            )

    def _choice_line(self, choice: OverflowPolicy) -> Content:
        not_sent = choice == "stop" and not self._full.mid_answer
        label, description = _NOT_SENT_LABEL if not_sent else _CHOICE_LABELS[choice]
        return Content.assemble(f" {label}\n", (f"   {description}", "$muted"))

    @property
    def _highlighted_overflow(self) -> OverflowPolicy:
        return self._full.choices[self.query_one("#choices", OptionList).highlighted or 0]

    @on(OptionList.OptionSelected)
    def _choose_once(self) -> None:
        self.dismiss(OverflowChoice(self._highlighted_overflow))

    def action_always(self) -> None:
        self.dismiss(OverflowChoice(self._highlighted_overflow, always=True))

    def action_stop(self) -> None:
        self.dismiss(OverflowChoice("stop"))

"""The sheet of turns: back to an earlier question, or to what else was said in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.conversation import Conversation, Turn
from localspec.chat.thinking import strip_thinking
from localspec.sanitize import sanitize
from localspec.tui.chat_session import format_branch
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.wrapping import fit_to_width

_KEY_HINTS = "enter edit   ← → branch   r again   esc done"


@dataclass(frozen=True, slots=True)
class TurnChoice:
    """What is to be done with a turn of the path."""

    action: Literal["edit", "again"]
    turn_id: int


class TurnsScreen(ModalScreen[TurnChoice | None]):
    """A line for each turn of the path; what was taken back waits below the last.

    The path is changed at once by the arrows: whoever opened the sheet shows it anew.
    """

    BINDINGS = [  # noqa: RUF012
        Binding("escape,f8", "close", "Done"),
        Binding("left", "branch(-1)", "Branch before"),
        Binding("right", "branch(1)", "Branch after"),
        Binding("e", "edit", "Edit"),
        Binding("r", "again", "Answer again"),
    ]
    AUTO_FOCUS = "#turns"

    def __init__(
        self, conversation: Conversation, glyphs: Glyphs, markers: tuple[str, str] | None
    ) -> None:
        super().__init__()
        self._conversation = conversation
        self._glyphs = glyphs
        self._markers = markers

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Turns", classes="heading", markup=False)
            yield OptionList(id="turns", compact=True, markup=False)
            yield Static("", id="answer", markup=False)
            yield Static(_KEY_HINTS, classes="hint", markup=False)

    def on_mount(self) -> None:
        self._fill_list(len(self._conversation.turns) - 1)

    def on_resize(self) -> None:
        self._fill_list(self._highlighted_index)

    # --- what there is --------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#turns", OptionList)

    @property
    def _highlighted_index(self) -> int:
        return self._list.highlighted or 0

    def _listed_turns(self) -> tuple[Turn, ...]:
        """The path, and one that may follow it."""
        return (*self._conversation.turns, *self._conversation.undone_turns()[-1:])

    def _fill_list(self, index: int) -> None:
        rows = self._listed_turns()
        self._list.clear_options()
        self._list.add_options(
            [Option(self._turn_line(number, turn)) for number, turn in enumerate(rows)]
        )
        if rows:
            self._list.highlighted = max(0, min(index, len(rows) - 1))

    def _turn_line(self, number: int, turn: Turn) -> Content:
        place = format_branch(self._conversation, turn)
        shown = number < len(self._conversation.turns)
        question = " ".join(sanitize(turn.question).split()) or "(more)"
        if not shown:
            place, question = "→ go on", f"taken back: {question}"
        room = max(10, self._list.size.width - 16)
        return Content.assemble(
            (f"{number + 1:>3}  ", "$muted"),
            (
                f"{fit_to_width(question, room, self._glyphs.ellipsis):<{room}}",
                "" if shown else "$muted",
            ),
            (f"{place:>10}", "$accent"),
        )

    @on(OptionList.OptionHighlighted)
    def _show_answer(self) -> None:
        """The beginning of the answer."""
        rows = self._listed_turns()
        answer = ""
        if rows:
            turn = rows[min(self._highlighted_index, len(rows) - 1)]
            answer = " ".join(
                sanitize(
                    strip_thinking(turn.answer, self._markers, turn.starts_in_thinking)
                ).split()
            )
        room = max(10, 3 * (self._list.size.width - 2))
        self.query_one("#answer", Static).update(
            Content(fit_to_width(answer, room, self._glyphs.ellipsis))
        )

    # --- what can be done -----------------------------------------------------------------

    def action_branch(self, by: int) -> None:
        rows, at = self._listed_turns(), self._highlighted_index
        if not rows:
            return
        turn = rows[at]
        if at >= len(self._conversation.turns):  # taken back: it comes again
            if by > 0:
                self._conversation.switch_branch(turn.id)
                self._fill_list(at)
            return
        ids = [one.id for one in self._conversation.branches(turn.id)]
        place = ids.index(turn.id) + by
        if 0 <= place < len(ids):
            self._conversation.switch_branch(ids[place])
            self._fill_list(at)

    @on(OptionList.OptionSelected)
    def action_edit(self) -> None:
        self._dismiss_with("edit")

    def action_again(self) -> None:
        self._dismiss_with("again")

    def _dismiss_with(self, action: Literal["edit", "again"]) -> None:
        rows, at = self._listed_turns(), self._highlighted_index
        if not rows:
            return
        if at >= len(self._conversation.turns):
            self._conversation.switch_branch(rows[at].id)
        self.dismiss(TurnChoice(action, rows[at].id))

    def action_close(self) -> None:
        self.dismiss(None)

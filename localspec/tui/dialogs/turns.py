"""The sheet of turns: go back to an earlier question, or switch between branches."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.conversation import Conversation, Turn
from localspec.chat.slash_commands import describe_step
from localspec.tui.notices import copy_text
from localspec.tui.text.wrapping import fit_to_width, one_line
from localspec.tui.widgets.pointer_list import MarkedList

_KEY_HINTS = "enter edit   ← → branch   r regenerate   c copy   esc done"


class TurnChoice(Struct, frozen=True):
    action: Literal["edit", "again"]
    turn_id: int


class TurnsScreen(ModalScreen[TurnChoice | None]):
    """One row per question of the current branch; an undone one is listed last.

    An answer that came after calls of tools has a row if it was regenerated: the other
    answers to the same results are its branches.

    The arrows switch branches in the conversation at once. The caller redraws the
    transcript.
    """

    BINDINGS = [  # noqa: RUF012
        Binding("escape,f8", "dismiss", "Done"),
        Binding("left", "branch(-1)", "Previous branch"),
        Binding("right", "branch(1)", "Next branch"),
        Binding("e", "choose('edit')", "Edit"),
        Binding("r", "choose('again')", "Regenerate"),
        Binding("c", "copy", "Copy the answer"),
    ]
    AUTO_FOCUS = "#turns"

    def __init__(
        self, conversation: Conversation, markers: tuple[str, str] | None
    ) -> None:
        """`markers`: those of thinking, which is not shown."""
        super().__init__()
        self._conversation = conversation
        self._markers = markers

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Turns", classes="heading", markup=False)
            yield MarkedList(id_="turns")
            yield Static("", id="answer", markup=False)
            yield Static(_KEY_HINTS, classes="hint", markup=False)

    def on_mount(self) -> None:
        self._fill_list(len(self._path_rows()) - 1)

    def on_resize(self) -> None:
        self._fill_list(self._highlighted_index)

    @property
    def _list(self) -> OptionList:
        return self.query_one("#turns", OptionList)

    @property
    def _highlighted_index(self) -> int:
        return self._list.highlighted or 0

    def _path_rows(self) -> list[Turn]:
        """The turns of the current branch that have a row."""
        conversation = self._conversation
        return [
            turn
            for turn in conversation.turns
            if not turn.is_tool_step or len(conversation.branches(turn.id)) > 1
        ]

    def _listed_turns(self) -> tuple[Turn, ...]:
        """The current branch, and the last undone turn after it."""
        return (*self._path_rows(), *self._conversation.undone_turns()[-1:])

    def _fill_list(self, index: int) -> None:
        rows = self._listed_turns()
        self._list.clear_options()
        self._list.add_options(
            [Option(self._turn_line(n, turn)) for n, turn in enumerate(rows)]
        )
        if rows:
            self._list.highlighted = max(0, min(index, len(rows) - 1))

    def _turn_line(self, number: int, turn: Turn) -> Content:
        branch = self._conversation.format_branch(turn.id)
        is_current = number < len(self._path_rows())
        question = " ".join(one_line(turn.question).split()) or "(continued)"
        number_text = f"{self._question_number(number):>2}  "
        if turn.is_tool_step:
            question = describe_step(turn)
            number_text = "    "
        if not is_current:
            branch = "→ redo"
            question = f"undone: {question}"
        width = max(10, self._list.size.width - 17)
        question = fit_to_width(question, width)
        style = "" if is_current else "$muted"
        return Content.assemble(
            (number_text, "$muted"), (question, style), (f"{branch:>10}", "$accent")
        )

    def _question_number(self, index: int) -> int:
        """The number of a row among the questions, as `/turns N` counts them."""
        rows = self._listed_turns()[: index + 1]
        return len([turn for turn in rows if not turn.is_tool_step])

    def _read_answer(self, turn: Turn) -> str:
        """The answer of a row: to a question, that of its last tool step."""
        if turn in self._conversation.turns and not turn.is_tool_step:
            turn = self._conversation.list_steps(turn.id)[-1]
        return turn.visible_answer(self._markers)

    @on(OptionList.OptionHighlighted)
    def _show_answer(self) -> None:
        rows = self._listed_turns()
        answer = ""
        if rows:
            turn = rows[min(self._highlighted_index, len(rows) - 1)]
            answer = " ".join(one_line(self._read_answer(turn)).split())
        width = max(10, 3 * (self._list.size.width - 2))
        answer = fit_to_width(answer, width)
        self.query_one("#answer", Static).update(Content(answer))

    def action_branch(self, by: int) -> None:
        rows = self._listed_turns()
        index = self._highlighted_index
        if not rows:
            return
        turn = rows[index]
        if index >= len(self._path_rows()):  # undone: redo it
            if by > 0:
                self._conversation.switch_branch(turn.id)
                self._fill_list(index)
            return
        ids = [branch.id for branch in self._conversation.branches(turn.id)]
        new_index = ids.index(turn.id) + by
        if 0 <= new_index < len(ids):
            self._conversation.switch_branch(ids[new_index])
            self._fill_list(index)

    @on(OptionList.OptionSelected)
    def _edit_selected(self) -> None:
        self.action_choose("edit")

    def action_copy(self) -> None:
        rows = self._listed_turns()
        index = self._highlighted_index
        answer = ""
        if index < len(rows):
            answer = self._read_answer(rows[index])
        if answer:
            copy_text(self.app, lambda: answer)
        else:
            self.notify("No answer.", markup=False)

    def action_choose(self, action: Literal["edit", "again"]) -> None:
        rows = self._listed_turns()
        index = self._highlighted_index
        if not rows:
            return
        if index >= len(self._path_rows()):
            self._conversation.switch_branch(rows[index].id)
        self.dismiss(TurnChoice(action, rows[index].id))

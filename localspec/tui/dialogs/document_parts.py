"""The dialog in which parts of a long document are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.document_attachment import (
    DocumentPart,
    PartChoice,
    count_short,
)
from localspec.documents.document import (
    PartSelection,
    format_numbers,
    parse_ranges,
)
from localspec.errors import UsageError
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.pointer_list import MarkedList
from localspec.units import count, short_count

_MAX_LISTED = 1000
_CHOSEN = "•"


class PartNumbersField(Input):
    """Numbers as in a print dialog, which need no spaces: one is for the list."""

    class SpaceTyped(Message):
        """The marked part is to be added or removed."""

    def __init__(self, numbers: str) -> None:
        super().__init__(numbers, placeholder="3-10, 12", id="part-numbers")

    async def _on_key(self, event: events.Key) -> None:
        if event.key != "space":
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()
        self.post_message(self.SpaceTyped())


class DocumentPartsScreen(ModalScreen[PartSelection | None]):
    """The numbers are typed, or parts are added and removed in the list."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "dismiss", "Back"),
        Binding("down", "go(1)", "Next", priority=True),
        Binding("up", "go(-1)", "Previous", priority=True),
        Binding("pagedown", "go(10)", "Page down", priority=True),
        Binding("pageup", "go(-10)", "Page up", priority=True),
    ]
    AUTO_FOCUS = "#part-numbers"

    def __init__(self, choice: PartChoice) -> None:
        super().__init__()
        self._choice = choice
        self._listed: Sequence[DocumentPart] = ()
        if choice.unit != "line":  # Lines are too many to be chosen one by one.
            self._listed = choice.parts[:_MAX_LISTED]
        self._drawn: frozenset[int] = frozenset()
        """The numbers that the list shows as chosen."""
        self._initial = ""
        fitting = choice.find_fitting()
        if fitting is not None:
            self._initial = format_numbers(choice.resolve(fitting))

    def compose(self) -> ComposeResult:
        choice = self._choice
        n_parts = count_short(choice.n_parts, choice.unit)
        keys = "enter attach   esc back"
        if self._listed:
            keys = "enter attach   ↑↓ space add or remove   esc back"
        with Vertical(id="sheet", classes="-listed" if self._listed else ""):
            yield Static(
                Content(f"Which {choice.unit}s of {one_line(choice.name)}?"),
                classes="heading",
                markup=False,
            )
            yield Static(f"{n_parts}, {choice.size.text}", id="now", markup=False)
            yield PartNumbersField(self._initial)
            yield Static(id="chosen-parts", markup=False)
            yield MarkedList(id_="part-list")
            yield Static(keys, classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        part_list = self.query_one(OptionList)
        part_list.can_focus = False
        part_list.display = bool(self._listed)
        self._drawn = frozenset(self._chosen() or ())
        part_list.add_options([Option(self._draw_row(part)) for part in self._listed])
        if self._listed:
            part_list.highlighted = 0
        self._show_chosen()

    def _selection(self) -> PartSelection | None:
        """What is typed; None if it is no list of numbers."""
        ranges = parse_ranges(self.query_one(Input).value)
        return None if ranges is None else PartSelection(None, ranges)

    def _chosen(self) -> tuple[int, ...] | None:
        """The numbers of the chosen parts; None if none of them exists."""
        selection = self._selection()
        if selection is None:
            return None
        try:
            return self._choice.resolve(selection)
        except UsageError:
            return None

    def _draw_row(self, part: DocumentPart) -> Content:
        mark = _CHOSEN if part.number in self._drawn else " "
        tokens = f"{short_count(part.n_tokens):>5}"
        return Content.assemble(
            f"{mark} {part.number:>4}",
            (f"  {tokens}  ", "$muted"),
            one_line(part.title),
        )

    @on(Input.Changed)
    def _show_chosen(self) -> None:
        numbers = self._chosen()
        self._draw_list(frozenset(numbers or ()))
        line = self.query_one("#chosen-parts", Static)
        choice = self._choice
        problem = self._find_problem(numbers)
        if numbers is None or problem:
            line.update(Content.styled(problem, "$warning"))
            return
        chosen = set(numbers)
        n_tokens = sum(part.n_tokens for part in choice.parts if part.number in chosen)
        tokens = count_short(n_tokens, "token")
        text = f"{count(len(numbers), choice.unit)}, about {tokens}"
        left = choice.size.n_left
        style = "$warning" if left is not None and n_tokens > left else "$muted"
        line.update(Content.styled(text, style))

    def _find_problem(self, numbers: tuple[int, ...] | None) -> str:
        """Why these numbers cannot be taken; empty if they can."""
        unit = self._choice.unit
        if numbers is None:
            if self.query_one(Input).value.strip():
                return f"No {unit} has these numbers."
            return f"No {unit} is chosen."
        max_chosen = self._choice.max_chosen
        if max_chosen is not None and len(numbers) > max_chosen:
            n_chosen = count(len(numbers), unit)
            return f"{n_chosen}; the message takes {count(max_chosen, 'picture')}."
        return ""

    def _draw_list(self, chosen: frozenset[int]) -> None:
        """Draw again the rows whose mark has changed."""
        changed = self._drawn ^ chosen
        self._drawn = chosen
        part_list = self.query_one(OptionList)
        if not changed or not part_list.option_count:
            return
        for index, part in enumerate(self._listed):
            if part.number in changed:
                part_list.replace_option_prompt_at_index(index, self._draw_row(part))

    def action_go(self, by: int) -> None:
        part_list = self.query_one(OptionList)
        if part_list.highlighted is not None:
            last = len(self._listed) - 1
            part_list.highlighted = max(0, min(last, part_list.highlighted + by))

    @on(PartNumbersField.SpaceTyped)
    def _toggle_marked(self) -> None:
        part_list = self.query_one(OptionList)
        if part_list.highlighted is not None:
            self._toggle(part_list.highlighted)

    @on(OptionList.OptionSelected)
    def _toggle_clicked(self, event: OptionList.OptionSelected) -> None:
        self._toggle(event.option_index)

    def _toggle(self, index: int) -> None:
        numbers = set(self._chosen() or ()) ^ {self._listed[index].number}
        field = self.query_one(Input)
        field.value = format_numbers(sorted(numbers))
        field.cursor_position = len(field.value)

    @on(Input.Submitted)
    def _take_chosen(self) -> None:
        if not self._find_problem(self._chosen()):
            self.dismiss(self._selection())

"""The small dialogs: a confirmation, a name, and what to do with a full context."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.context_window import ContextOverflow
from localspec.chat.front_end import PickerChoices, PickerRow
from localspec.chat.settings import OverflowPolicy
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair
from localspec.report.overflow import describe_choice, describe_overflow, describe_usage
from localspec.tui.notices import problem_text
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.pointer_list import MarkedList

_NO_MATCH = "No name in the list has these letters."
_NO_CHOICE = "Nothing is listed here yet."


class ConfirmScreen(ModalScreen[bool]):
    """Only `y` confirms: enter is too easily pressed by accident."""

    BINDINGS = [  # noqa: RUF012
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str, yes_label: str) -> None:
        super().__init__()
        self._question = question
        self._yes_label = yes_label

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            with VerticalScroll(id="question"):
                yield Static(Content(self._question), markup=False)
            yield Static(
                f"y {self._yes_label}   esc cancel", classes="hint", markup=False
            )


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

    def __init__(
        self,
        choices: PickerChoices,
        current: str,
        initial: str = "",
        pair: ResolvedPair | None = None,
    ) -> None:
        """`current`: what is to be replaced; `initial`: text to edit.

        `pair`: that of the chat, whose row is marked.
        """
        super().__init__()
        self._choices = choices
        self._current = current
        self._pair = pair
        self._initial = initial
        self._rows: Sequence[PickerRow] = ()
        self._words: list[str] = []  # Of those listed now.
        self._marked = ""  # The word of the chat's pair.

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(self._choices.heading, classes="heading", markup=False)
            yield Static(f"now: {self._current}", id="now", markup=False)
            yield Input(
                self._initial, placeholder=self._choices.placeholder, id="picked-name"
            )
            yield MarkedList(id_="picker-list")
            yield Static("enter use   esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(OptionList).can_focus = False

        def work() -> None:
            self._rows = self._choices.load()
            if self._pair is not None:
                self._marked = self._choices.find_current(self._pair)
            self.call_later(self._fill_list)

        run_on_thread(self, "picker", work, failed=self._show_failure)

    def _show_failure(self, error: LocalspecError) -> None:
        """Without a list a name can still be typed."""
        self.notify(problem_text(error), severity="error", markup=False)

    @on(Input.Changed)
    def _fill_list(self) -> None:
        words = self.query_one(Input).value.lower().split()
        rows = [row for row in self._rows if _contains_words(row.text, words)]
        self._words = [row.word for row in rows]
        option_list = self.query_one(OptionList)
        option_list.clear_options()
        for row in rows:
            shown = row.name or row.word
            parts = [row.about] if shown == row.word else [row.about, row.word]
            about = " · ".join(part for part in parts if part)
            line = Content.assemble(one_line(shown), (f"  {one_line(about)}", "$muted"))
            option_list.add_option(Option(line))
        if not rows:
            text = _NO_MATCH if words else _NO_CHOICE
            option_list.add_option(Option(text, disabled=True))
        option_list.highlighted = self._index_to_mark(is_searching=bool(words))
        self.call_after_refresh(option_list.scroll_to_highlight)

    def _index_to_mark(self, *, is_searching: bool) -> int | None:
        """The current choice, until something is typed; then the first match."""
        if not self._words:
            return None
        for current in (self._marked, self._current):
            if not is_searching and current in self._words:
                return self._words.index(current)
        return 0

    def action_go(self, by: int) -> None:
        option_list = self.query_one(OptionList)
        if option_list.highlighted is not None:
            last = len(self._words) - 1
            option_list.highlighted = max(0, min(last, option_list.highlighted + by))

    @on(OptionList.OptionSelected)
    def _take_clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._words[event.option_index])

    @on(Input.Submitted)
    def _take_highlighted(self, event: Input.Submitted) -> None:
        index = self.query_one(OptionList).highlighted
        if index is not None:
            self.dismiss(self._words[index])
        elif self._choices.takes_text:
            self.dismiss(event.value.strip())


def _contains_words(name: str, words: Sequence[str]) -> bool:
    separators = str.maketrans("", "", " ,-_")
    compact = name.lower().translate(separators)
    return all(word.translate(separators) in compact for word in words)


class ContextFullScreen(ModalScreen[tuple[OverflowPolicy, bool]]):
    """The policy, and whether it is for the rest of the chat.

    Escape leaves nothing out.
    """

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
        choices = [
            Option(self._choice_line(choice), id=choice) for choice in full.choices
        ]
        keys = "enter this time   a always in this chat   esc stop"
        with Vertical(id="sheet"):
            yield Static(describe_overflow(full), classes="heading", markup=False)
            yield Static(describe_usage(full), markup=False)
            yield MarkedList(*choices, id_="choices")
            yield Static(keys, classes="hint", markup=False)

    def _choice_line(self, choice: OverflowPolicy) -> Content:
        text = describe_choice(choice, self._full)
        return Content.assemble(f"{text.label}\n", (f"  {text.consequence}", "$muted"))

    @property
    def _highlighted_overflow(self) -> OverflowPolicy:
        index = self.query_one("#choices", OptionList).highlighted
        if index is None:
            index = 0
        return self._full.choices[index]

    @on(OptionList.OptionSelected)
    def _choose_once(self) -> None:
        self.dismiss((self._highlighted_overflow, False))

    def action_always(self) -> None:
        self.dismiss((self._highlighted_overflow, True))

    def action_stop(self) -> None:
        self.dismiss(("stop", False))

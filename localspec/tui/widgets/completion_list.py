"""The list of completions above the message field, while a command is typed."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.chat import completion
from localspec.sanitize import sanitize

_MAX_LISTED = 200


class CompletionList(OptionList, can_focus=False):
    """Hidden while there is nothing to complete. The message field passes its keys on."""

    def __init__(self, take: Callable[[str], None]) -> None:
        """`take` receives the chosen line."""
        super().__init__(id="completions", compact=True, markup=False)
        self.display = False
        self._take_line = take
        self._choices: list[str] = []
        self._completed_text = ""
        self._is_chosen = False
        """Whether the user has moved the highlight."""

    def show_for(self, typed: str) -> None:
        """Lists what the typed text can become."""
        if typed == self._completed_text:
            return
        self._completed_text, self._is_chosen = typed, False
        lines = completion.complete(typed)[:_MAX_LISTED]
        self._choices = [] if lines == [typed] else lines
        self.display = bool(self._choices)
        self.clear_options()
        for line in self._choices:
            about = completion.usage(line) if " " not in line else ""
            shown = sanitize(line, multiline=False)
            self.add_option(Option(Content.assemble(shown, (f"  {about}", "$muted"))))
        self.highlighted = 0 if self._choices else None

    def close(self) -> None:
        """Until the text changes."""
        self.display = False

    def take_key(self, key: str, typed: str) -> bool:
        """Whether the key was for the list. `typed`: the text before the key."""
        self.show_for(typed)
        if not self.display:
            return False
        if key == "escape":
            self.close()
        elif key in ("up", "down"):
            self._is_chosen = True
            (self.action_cursor_up if key == "up" else self.action_cursor_down)()
        elif key == "tab" or (key == "enter" and not self._sends_typed_text()):
            self._take(self.highlighted or 0)
        else:
            return False
        return True

    def _sends_typed_text(self) -> bool:
        """Whether enter sends the text as it is."""
        typed = self._completed_text
        is_whole = typed in self._choices or f"{typed}/" in self._choices  # a folder
        return not self._is_chosen and (is_whole or completion.is_final(typed))

    @on(OptionList.OptionSelected)
    def _take_clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(event.option_index)

    def _take(self, index: int) -> None:
        line = self._choices[index]
        self._take_line(f"{line} " if completion.takes_argument(line) else line)

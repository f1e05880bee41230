"""What the keys of a list of saved chats do: rename, pin, export, delete.

Home and the list of all chats have the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from textual.screen import Screen

from localspec.chat.front_end import PickerChoices
from localspec.errors import LocalspecError
from localspec.tui import saved_chats
from localspec.tui.dialogs.choices import ConfirmScreen, PickerScreen
from localspec.tui.home_rows import HomeRow
from localspec.tui.notices import problem_text, run_in_background
from localspec.tui.saved_chats import ChatSessions
from localspec.tui.text.wrapping import one_line

ChatAction = Literal["rename", "export", "pin", "delete"]


class SavedChatActions:
    """Acts on the selected row of a screen, if that is a saved chat."""

    def __init__(
        self,
        screen: Screen[Any],
        sessions: ChatSessions,
        *,
        find_selected: Callable[[], HomeRow | None],
        on_change: Callable[[], object],
    ) -> None:
        """`on_change` is called when the list has to be drawn again."""
        self._screen = screen
        self._sessions = sessions
        self._find_selected = find_selected
        self._on_change = on_change

    def run(self, action: ChatAction) -> None:
        row = self._find_selected()
        if row is None or row.chat_id is None:
            return
        if action == "delete":
            self._confirm_delete(row.name, row.chat_id)
        elif action == "pin":
            error = saved_chats.pin_or_unpin(row.chat_id)
            if error:
                self._screen.notify(error, severity="error", markup=False)
            self._on_change()
        elif action == "rename":
            self._ask(
                PickerChoices("Rename the chat", "a title"),
                current=row.name,
                initial=row.name,
                use=partial(self._sessions.rename_chat, row.chat_id),
            )
        else:
            file_stem = "-".join(re.findall(r"[\w-]+", row.name.lower()))[:40]
            self._ask(
                PickerChoices(
                    "Export the chat: .md, .html, .json or .txt",
                    "the path of a new file",
                ),
                current=row.name,
                initial=f"{file_stem or 'chat'}.md",
                use=partial(self._export, row.chat_id),
            )

    def _confirm_delete(self, name: str, chat_id: int) -> None:
        def on_dismiss(confirmed: bool | None) -> None:
            if confirmed:
                try:
                    self._sessions.delete_chat(chat_id)
                except LocalspecError as error:
                    self._show_error(error)
                self._on_change()

        question = f"Delete “{name[:60]}”? This cannot be undone."
        self._screen.app.push_screen(ConfirmScreen(question, "delete"), on_dismiss)

    def _ask(
        self,
        choices: PickerChoices,
        *,
        current: str,
        initial: str,
        use: Callable[[str], None],
    ) -> None:
        """Asks for a text and uses it."""

        def on_dismiss(text: str | None) -> None:
            if text:
                try:
                    use(text)
                except LocalspecError as error:
                    self._show_error(error)
                self._on_change()

        self._screen.app.push_screen(
            PickerScreen(choices, current, initial), on_dismiss
        )

    def _export(self, chat_id: int, name: str) -> None:
        history = self._sessions.history
        if history is None:
            return

        def work() -> str:
            path = saved_chats.export_chat(history, chat_id, name)
            return f"Saved: {one_line(str(path))}"

        run_in_background(self._screen.app, work)

    def _show_error(self, error: LocalspecError) -> None:
        self._screen.notify(problem_text(error), severity="error", markup=False)

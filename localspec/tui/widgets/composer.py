"""The message field: several lines, sent with enter."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from localspec.sanitize import sanitize
from localspec.tui.key_bindings import keys_for

_MAX_WRAPPED_CHARACTERS = 50_000
"""Longer text is not wrapped: wrapping a megabyte takes seconds."""


class MessageComposer(TextArea):
    """A multi-line editor with a history; pasted line ends never send."""

    class Submitted(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__(id="composer", compact=True, highlight_cursor_line=False)
        self._keymap = keymap
        self.cursor_blink = False
        self._sent_texts: list[str] = []
        self._recall_index = 0
        """Position in `_sent_texts`; its length: the message being written."""

    async def _on_key(self, event: events.Key) -> None:
        """Not bindings, because those would run before letters that were typed earlier."""
        if event.key in keys_for("chat.send", self._keymap):
            self._submit()
        elif event.key in keys_for("chat.newline", self._keymap):
            self.insert("\n")
        else:
            return
        event.prevent_default()
        event.stop()

    def _submit(self) -> None:
        """Clears the field at once: the next letters may follow before the screen reacts."""
        text = self.text
        if text.strip() and self._sent_texts[-1:] != [text]:
            self._sent_texts.append(text)
        self._recall_index = len(self._sent_texts)
        self.text = ""
        self.soft_wrap = True
        self.post_message(self.Submitted(text))

    def restore_text(self, text: str) -> None:
        """Puts a message that was not sent before the text typed since then."""
        self.replace_text(text + self.text)

    def replace_text(self, text: str) -> None:
        """Replaces all text and moves the cursor to the end."""
        self._update_soft_wrap(len(text))
        self.text = text
        self.move_cursor(self.document.end)

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self._can_recall and self.cursor_at_first_line and self._recall_index > 0:
            self._recall(self._recall_index - 1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if (
            not select
            and self._can_recall
            and self.cursor_at_last_line
            and self._recall_index < len(self._sent_texts)
        ):
            self._recall(self._recall_index + 1)
        else:
            super().action_cursor_down(select)

    @property
    def _can_recall(self) -> bool:
        """Whether up and down go through the history: only if no typed text would be lost."""
        return (
            not self.text
            or self.text in self._sent_texts[self._recall_index : self._recall_index + 1]
        )

    def _recall(self, index: int) -> None:
        self._recall_index = index
        self.replace_text(self._sent_texts[index] if index < len(self._sent_texts) else "")

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        pasted = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self._update_soft_wrap(len(self.text) + len(pasted))
        result = self.replace(pasted, *self.selection)
        self.move_cursor(result.end_location)

    def _update_soft_wrap(self, length: int) -> None:
        """Called before the text reaches `length` characters."""
        self.soft_wrap = length <= _MAX_WRAPPED_CHARACTERS

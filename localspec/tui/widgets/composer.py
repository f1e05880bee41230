"""Where a person types: several lines, sent with enter."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from localspec.clean import clean
from localspec.tui.keys import keys_of

_LONG = 50_000
"""Characters from which lines are not wrapped: to wrap a megabyte takes seconds."""


class Composer(TextArea):
    """A multi-line editor with a history; what is pasted never sends."""

    class Sent(Message):
        """Enter was pressed."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__(id="composer", compact=True, highlight_cursor_line=False)
        self._keymap = keymap
        self.cursor_blink = False
        self._past: list[str] = []
        self._place = 0
        """In the history; its length: what is being written now."""

    async def _on_key(self, event: events.Key) -> None:
        """Here and not as bindings: those would overtake letters that were typed before."""
        if event.key in keys_of("chat.send", self._keymap):
            self._send_off()
        elif event.key in keys_of("chat.newline", self._keymap):
            self.insert("\n")
        else:
            return
        event.prevent_default()
        event.stop()

    def _send_off(self) -> None:
        """At once, not when the screen gets to it: letters may follow close behind."""
        text = self.text
        if text.strip() and self._past[-1:] != [text]:
            self._past.append(text)
        self._place = len(self._past)
        self.text = ""
        self.soft_wrap = True
        self.post_message(self.Sent(text))

    def give_back(self, text: str) -> None:
        """It could not be sent; what was typed since comes after it."""
        self.put(text + self.text)

    def put(self, text: str) -> None:
        """Replace everything; the cursor stands at the end."""
        self._make_room(len(text))
        self.text = text
        self.move_cursor(self.document.end)

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self._browsing and self.cursor_at_first_line and self._place > 0:
            self._recall(self._place - 1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if (
            not select
            and self._browsing
            and self.cursor_at_last_line
            and self._place < len(self._past)
        ):
            self._recall(self._place + 1)
        else:
            super().action_cursor_down(select)

    @property
    def _browsing(self) -> bool:
        """Whether up and down go through the history: nothing of one's own is there to lose."""
        return not self.text or self.text in self._past[self._place : self._place + 1]

    def _recall(self, place: int) -> None:
        self._place = place
        self.put(self._past[place] if place < len(self._past) else "")

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        pasted = clean(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self._make_room(len(self.text) + len(pasted))
        result = self.replace(pasted, *self.selection)
        self.move_cursor(result.end_location)

    def _make_room(self, length: int) -> None:
        """Before so many characters are put in."""
        self.soft_wrap = length <= _LONG

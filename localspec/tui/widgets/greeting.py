"""An empty chat says what to do with it."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.chat.settings import Loaded

_LOADING = "Loading. You may type already."
_CHAT = (
    "Say something, and press enter.\n\n"
    "f2 shows how every token of the answer came, f4 has the settings and the system prompt."
)
_TEXT = (
    "This model goes on with a text: type how it begins, such as\n\n"
    "    def fibonacci(n):\n\n"
    "and press enter. An empty line goes on. f2 shows how every token came."
)


class Greeting(Static):
    """In the place of the transcript."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def draw(self, loaded: Loaded | None, chosen: str = "") -> None:
        """`chosen`: with what settings it was loaded, and why."""
        if self.display:
            words = _LOADING if loaded is None else _CHAT if loaded.chats else _TEXT
            self.update(Content("\n\n".join(filter(None, (words, chosen)))))

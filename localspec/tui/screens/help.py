"""Every key and slash command, from their tables."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.slash_commands import COMMANDS
from localspec.tui.key_bindings import KEY_BINDINGS, KeyContext, format_key

KEY_CONTEXT_HEADINGS: dict[KeyContext, str] = {
    "app": "Everywhere",
    "home": "Home",
    "wizard": "Wizard",
    "composer": "Where you type",
    "chat": "Chat",
    "tokens": "Token view",
    "replay": "Replay",
    "doctor": "Doctor",
    "log": "Logs",
    "measuring": "Bench and Verify",
    "bench": "Bench",
    "verify": "Verify",
    "preferences": "Preferences",
}


class HelpScreen(ModalScreen[None]):
    """Scrolls; any of the closing keys leaves."""

    BINDINGS = [Binding("escape,q,f1,question_mark", "close", "Close")]  # noqa: RUF012

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet"):
            yield Static(markup=False)

    def on_resize(self) -> None:
        self.query_one(Static).update(self._help_text(26 if self.size.width >= 90 else 16))

    def _help_text(self, width: int) -> Content:
        parts: list[tuple[str, str] | str] = []
        for place, words in KEY_CONTEXT_HEADINGS.items():
            parts.append((f"{words}\n", "bold $accent"))
            for key in KEY_BINDINGS:
                if key.context == place:
                    keys = self._keymap.get(key.id, key.keys).split(",")
                    shown = ", ".join(format_key(one) for one in keys[: 1 + (width > 20) * 3])
                    parts += [(f"  {shown:<{width}} ", "bold"), f"{key.description}\n"]
            parts.append("\n")
        parts.append(("Slash commands\n", "bold $accent"))
        for command in COMMANDS:
            parts += [(f"  {command.usage:<{width}} ", "bold"), f"{command.help}\n"]
        return Content.assemble(*parts)

    def action_close(self) -> None:
        self.dismiss()

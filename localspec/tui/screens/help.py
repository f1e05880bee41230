"""The help screen: all keys, slash commands, and the glossary."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.slash_commands import COMMANDS
from localspec.tui.glossary import GLOSSARY
from localspec.tui.key_bindings import KEY_BINDINGS, KeyContext, format_key

KEY_CONTEXT_HEADINGS: dict[KeyContext, str] = {
    "app": "Everywhere",
    "home": "Home",
    "wizard": "Wizard",
    "composer": "Message box",
    "chat": "Chat",
    "tokens": "Token view",
    "replay": "Replay",
    "doctor": "Diagnostics",
    "log": "Logs",
    "measuring": "Benchmark and Verify",
    "bench": "Benchmark",
    "verify": "Verify",
    "preferences": "Preferences",
}


class HelpScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,q,f1,question_mark", "close", "Close")]  # noqa: RUF012

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet"):
            yield Static(markup=False)

    def on_resize(self) -> None:
        self.query_one(Static).update(self._help_text(26 if self.size.width >= 90 else 16))

    def _help_text(self, key_width: int) -> Content:
        parts: list[tuple[str, str] | str] = []
        for context, heading in KEY_CONTEXT_HEADINGS.items():
            parts.append((f"{heading}\n", "bold $accent"))
            for key in KEY_BINDINGS:
                if key.context == context:
                    keys = self._keymap.get(key.id, key.keys).split(",")
                    shown = ", ".join(format_key(k) for k in keys[: 1 + (key_width > 20) * 3])
                    parts += [(f"  {shown:<{key_width}} ", "bold"), f"{key.description}\n"]
            parts.append("\n")
        parts.append(("Slash commands\n", "bold $accent"))
        for command in COMMANDS:
            parts += [(f"  {command.usage:<{key_width}} ", "bold"), f"{command.help}\n"]
        parts.append(("\nGlossary\n", "bold $accent"))
        for term, meaning in GLOSSARY.items():
            parts += [(term, "bold"), f": {meaning}\n"]
        return Content.assemble(*parts)

    def action_close(self) -> None:
        self.dismiss()

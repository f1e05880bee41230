"""The help screen: all keys, slash commands, and the glossary."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.slash_commands import COMMANDS
from localspec.config.key_table import KEY_BINDINGS, KeyContext, format_key
from localspec.tui.navigation import HelpSection

KEY_CONTEXT_HEADINGS: dict[KeyContext, str] = {
    "app": "Everywhere",
    "home": "Home",
    "wizard": "Wizard",
    "composer": "Message box",
    "chat": "Chat",
    "tokens": "Token view",
    "replay": "Replay",
    "serve": "Server (`localspec serve`)",
    "shared_server": "Server of a chat",
    "doctor": "Diagnostics",
    "log": "Logs",
    "measuring": "Benchmark and Verify",
    "preferences": "Preferences",
}

GLOSSARY: dict[str, str] = {
    "Target": "the model you chat with. It decides every token of the answer.",
    "Draft model": (
        "a small model that proposes the next tokens for the target, the draft tokens. It "
        "usually has the same vocabulary."
    ),
    "Head": (
        "a very small draft model for one target. It reads the target's hidden states instead "
        "of the text (EAGLE-3, MTP, DFlash, DSpark)."
    ),
    "Prompt lookup": (
        "draft tokens without a draft model. What followed the same words earlier in the text "
        "is proposed again."
    ),
    "Acceptance rate": (
        "accepted draft tokens divided by all draft tokens. A rejected token costs time and "
        "never changes the text."
    ),
    "Tokens per pass": (
        "how many tokens one pass of the target gives on average. Plain decoding gives 1."
    ),
    "Verification method": (
        "the rule by which draft tokens are accepted or rejected (coupled, rejection, block, "
        "match)."
    ),
    "Lossless": (
        "speculation does not change what the target writes. The probabilities are the same, "
        "and at temperature 0 the tokens, up to rounding."
    ),
    "Context": (
        "the tokens that the model can read at once: system prompt, earlier turns, and the answer."
    ),
    "KV cache": (
        "the model's memory of the tokens it has read. It grows with the context and takes "
        "GPU memory."
    ),
}
"""The same ten terms as in docs/glossary.md."""


_HelpPart = str | tuple[str, str]
"""Text, or text and its style."""


class HelpScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,q,f1,question_mark", "dismiss", "Close")]  # noqa: RUF012

    def __init__(
        self,
        keymap: Mapping[str, str],
        first: HelpSection = "keys",
        usable: Collection[str] = (),
    ) -> None:
        """`usable`: ids of the keys of the screen below; its contexts come first."""
        super().__init__()
        self._keymap = keymap
        self._first = first
        here = {id_.partition(".")[0] for id_ in usable} - {"app"}
        if "chat" in here:
            here.add("composer")  # It reads its keys itself: they are not in `usable`.
        self._contexts = sorted(
            KEY_CONTEXT_HEADINGS, key=lambda context: context not in here
        )

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet"):
            yield Static(markup=False)

    def on_resize(self) -> None:
        self.query_one(Static).update(self._help_text())

    def _help_text(self) -> Content:
        key_width = 16
        max_keys = 1  # Of one action.
        if self.size.width >= 90:
            key_width = 26
            max_keys = 4
        key_lines = self._key_lines(key_width, max_keys=max_keys)
        command_lines = _command_lines(key_width)
        parts = [*key_lines, *command_lines]
        if self._first == "commands":
            parts = [*command_lines, *key_lines]
        parts.append(("Glossary\n", "bold $accent"))
        for term, meaning in GLOSSARY.items():
            parts += [(term, "bold"), f": {meaning}\n"]
        return Content.assemble(*parts)

    def _key_lines(self, key_width: int, *, max_keys: int) -> list[_HelpPart]:
        parts: list[_HelpPart] = []
        for context in self._contexts:
            parts.append((f"{KEY_CONTEXT_HEADINGS[context]}\n", "bold $accent"))
            for key in KEY_BINDINGS:
                if key.context == context:
                    keys = self._keymap.get(key.id, key.keys).split(",")
                    shown = ", ".join(format_key(each) for each in keys[:max_keys])
                    parts.append((f"  {shown:<{key_width}} ", "bold"))
                    parts.append(f"{key.description}\n")
            parts.append("\n")
        return parts


def _command_lines(key_width: int) -> list[_HelpPart]:
    parts: list[_HelpPart] = [("Slash commands\n", "bold $accent")]
    for command in COMMANDS:
        parts.append((f"  {command.usage:<{key_width}} ", "bold"))
        parts.append(f"{command.help}\n")
    parts.append("\n")
    return parts

"""The help screen: all keys, slash commands, and the glossary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.slash_commands import COMMANDS
from localspec.config.key_table import (
    BINDINGS_BY_ID,
    KEY_BINDINGS,
    KeyBinding,
    KeyContext,
    format_key,
)
from localspec.tui.navigation import HelpSection
from localspec.tui.text.wrapping import wrap_words

KEY_CONTEXT_HEADINGS: dict[KeyContext, str] = {
    "app": "Everywhere",
    "home": "Home",
    "chats": "List of all chats",
    "wizard": "Wizard",
    "composer": "Message box",
    "chat": "Chat",
    "tokens": "Walking over tokens (tab)",
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
        "never changes the text. The screen says guesses right and thrown away."
    ),
    "Tokens per pass": (
        "how many tokens one pass of the target gives on average. Plain decoding gives 1. The "
        "screen calls a pass a step, and plain decoding without."
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


_FIRST_IDS = (
    "chat.send", "chat.newline", "chat.stop", "chat.again", "chat.edit", "chat.settings",
    "chat.model", "chat.new", "chat.chats", "chat.copy", "chat.panel", "chat.tokens", "home.filter",
    "home.wizard",
)  # fmt: skip
"""What one needs first; within a context the other keys follow in the table's order."""

_SHEET_WIDTH = 90
_SHEET_MARGINS = 5  # Both sides, and the scroll bar.

_HelpPart = str | tuple[str, str]
"""Text, or text and its style."""


class HelpScreen(ModalScreen[None]):
    """The keys that work here, the slash commands, the glossary, then all other keys."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,q,f1,question_mark", "dismiss", "Close"),
        Binding("k", "go('keys')", "Keys"),
        Binding("c", "go('commands')", "Slash commands"),
        Binding("g", "go('glossary')", "Glossary"),
    ]

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
        self._width = 0  # Cells of a line.
        here = {id_.partition(".")[0] for id_ in usable} - {"app"}
        if "chat" in here:
            here.add("composer")  # It reads its keys itself: they are not in `usable`.
        contexts = list(KEY_CONTEXT_HEADINGS)
        self._here = [context for context in contexts if context in here]
        # The keys of every screen follow those of this one.
        self._here.append("app")
        if "chat" in here:
            self._here = [one for one in _CHAT_CONTEXTS if one in self._here]
        self._elsewhere = [context for context in contexts if context not in self._here]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet"):
            yield Static(id="contents", markup=False)
            yield Static(id="keys", markup=False)
            yield Static(id="commands", markup=False)
            yield Static(id="glossary", markup=False)
            yield Static(id="other-keys", markup=False)

    def on_mount(self) -> None:
        if self._first == "commands":
            self.call_after_refresh(self.action_go, "commands")

    def action_go(self, section: HelpSection) -> None:
        sheet = self.query_one("#sheet", VerticalScroll)
        sheet.scroll_to_widget(
            self.query_one(f"#{section}"), top=True, animate=False, force=True
        )

    def on_resize(self) -> None:
        key_width = 16
        max_keys = 1  # Of one action.
        if self.size.width >= 90:
            key_width = 30
            max_keys = 4
        self._width = min(self.size.width, _SHEET_WIDTH) - _SHEET_MARGINS
        texts: dict[str, list[_HelpPart]] = {
            "contents": [_contents()],
            "keys": self._key_lines(self._here, key_width, max_keys=max_keys),
            "commands": self._command_lines(key_width),
            "glossary": _glossary_lines(),
            "other-keys": self._key_lines(
                self._elsewhere, key_width, max_keys=max_keys
            ),
        }
        for id_, parts in texts.items():
            self.query_one(f"#{id_}", Static).update(Content.assemble(*parts))

    def _key_lines(
        self, contexts: Iterable[KeyContext], key_width: int, *, max_keys: int
    ) -> list[_HelpPart]:
        parts: list[_HelpPart] = []
        for context in contexts:
            parts.append((f"{KEY_CONTEXT_HEADINGS[context]}\n", "bold $accent"))
            for shown, description in _help_rows(
                context, self._keymap, max_keys=max_keys
            ):
                parts += self._row(shown, description, key_width)
            parts.append("\n")
        return parts

    def _command_lines(self, key_width: int) -> list[_HelpPart]:
        parts: list[_HelpPart] = [("Slash commands\n", "bold $accent")]
        for command in COMMANDS:
            parts += self._row(command.usage, command.help, key_width)
        parts.append("\n")
        return parts

    def _row(self, left: str, text: str, left_width: int) -> Iterator[_HelpPart]:
        """Two columns; the left one has a line of its own where it is too long."""
        indent = " " * (left_width + len("   "))
        lines = wrap_words(text, self._width - len(indent))
        if len(left) > left_width:
            yield f"  {left}\n", "bold"
        else:
            yield f"  {left:<{left_width}} ", "bold"
            yield f"{lines.pop(0)}\n"
        for line in lines:
            yield f"{indent}{line}\n"


_CHAT_CONTEXTS: tuple[KeyContext, ...] = ("composer", "chat", "app", "tokens")


def _help_rows(
    context: KeyContext, keymap: Mapping[str, str], *, max_keys: int
) -> list[tuple[str, str]]:
    """Keys and description of each action.

    The same key with the digits 1 to 9 is one row: `alt+1 … alt+9`. If the user has
    changed one of the nine, each has its own row.
    """
    bindings = [key for key in KEY_BINDINGS if key.context == context]
    bindings.sort(key=_help_rank)
    rows: list[tuple[str, str]] = []
    for key in bindings:
        series = key.id.rstrip("123456789")
        ids = [other.id for other in bindings if other.id.startswith(series)]
        is_numbered = key.id != series and not any(id_ in keymap for id_ in ids)
        if is_numbered and key.id != ids[0]:
            continue
        if is_numbered:
            first, last = (
                format_key(BINDINGS_BY_ID[id_].keys) for id_ in (ids[0], ids[-1])
            )
            rows.append((f"{first} … {last}", f"{key.description} to {len(ids)}"))
            continue
        keys = keymap.get(key.id, key.keys).split(",")
        shown = ", ".join(format_key(each) for each in keys[:max_keys])
        rows.append((shown, key.description))
    return rows


def _help_rank(binding: KeyBinding) -> int:
    """The sort is stable: other keys stay in the table's order."""
    if binding.id in _FIRST_IDS:
        return _FIRST_IDS.index(binding.id)
    return len(_FIRST_IDS)


def _contents() -> _HelpPart:
    return ("k keys   c slash commands   g glossary   esc close\n", "$muted")


def _glossary_lines() -> list[_HelpPart]:
    parts: list[_HelpPart] = [("Glossary\n", "bold $accent")]
    for term, meaning in GLOSSARY.items():
        parts += [(term, "bold"), f": {meaning}\n"]
    parts.append("\n")
    return parts

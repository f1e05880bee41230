"""The table of key bindings, from which Textual's bindings, help and footers are built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character

KeyContext = Literal[
    "app",
    "home",
    "wizard",
    "composer",
    "chat",
    "tokens",
    "replay",
    "measuring",
    "bench",
    "verify",
    "doctor",
    "log",
    "first",
    "preferences",
]


@dataclass(frozen=True, slots=True)
class KeyBinding:
    """One action in one context.  Without a footer label, only the help shows it."""

    id: str
    keys: str
    """Separated by commas; the footer shows the first."""
    action: str
    description: str
    context: KeyContext
    footer_label: str = ""
    priority: bool = False
    """Handled before the focused widget: for keys that a text editor would take."""


KEY_BINDINGS = (
    KeyBinding(
        "app.help",
        "f1,question_mark",
        "help",
        "Help: keys, slash commands, glossary",
        "app",
        "keys",
    ),
    KeyBinding("app.palette", "ctrl+p", "command_palette", "Command palette", "app"),
    KeyBinding("app.quit", "ctrl+q", "quit", "Quit", "app", "quit", priority=True),
    KeyBinding(
        "app.interrupt",
        "ctrl+c",
        "interrupt",
        "Copy the selection, or stop the answer; twice: quit",
        "app",
        priority=True,
    ),
    KeyBinding(
        "app.suspend",
        "ctrl+z",
        "suspend_process",
        "Suspend to the shell; `fg` returns",
        "app",
        priority=True,
    ),
    KeyBinding("app.log", "ctrl+l", "log", "Engine log", "app"),
    KeyBinding("app.doctor", "f9", "doctor", "Diagnostics", "app"),
    KeyBinding("home.bench", "b", "bench", "Benchmark the pair, plain and speculative", "home"),
    KeyBinding(
        "home.verify", "v", "verify", "Verify that speculation does not change the output", "home"
    ),
    KeyBinding(
        "app.preferences", "f10", "preferences", "Preferences: theme, keys, privacy, …", "app"
    ),
    KeyBinding("home.wizard", "w", "wizard", "Find a pair for this computer", "home", "wizard"),
    KeyBinding("home.open", "o", "open_files", "Open model files by path", "home", "open files"),
    KeyBinding(
        "home.filter",
        "slash",
        "filter",
        "Search pairs and chats; enter searches the hub",
        "home",
        "find",
        priority=True,
    ),
    KeyBinding("home.unfilter", "escape", "unfilter", "Clear search", "home"),
    KeyBinding("home.pause", "p", "pause", "Pause or resume the download", "home"),
    KeyBinding(
        "home.cancel", "x", "cancel", "Cancel the download; the part so far is kept", "home"
    ),
    KeyBinding("home.remove", "delete,d", "remove", "Delete the chat", "home"),
    KeyBinding("home.replay", "r", "open_recording", "Replay an events file", "home"),
    KeyBinding("wizard.take", "enter", "take", "Download if needed, then chat", "wizard"),
    *(
        KeyBinding(f"wizard.{use}", str(n), f"use('{use}')", f"Use: {use}", "wizard")
        for n, use in enumerate(("chat", "code", "writing", "documents"), 1)
    ),
    KeyBinding(
        "wizard.less",
        "left",
        "turn(-1)",
        "What if: lower value",
        "wizard",
        "what if",
        priority=True,
    ),
    KeyBinding(
        "wizard.more",
        "right",
        "turn(1)",
        "What if: higher value",
        "wizard",
        "what if",
        priority=True,
    ),
    KeyBinding(
        "wizard.dial",
        "tab",
        "dial",
        "What if: next of GPU, context, KV cache type",
        "wizard",
        "next",
        priority=True,
    ),
    KeyBinding("wizard.card", "g", "card", "What if: choose a GPU by name", "wizard", "GPU"),
    KeyBinding(
        "wizard.draft", "d", "other_draft", "Next draft for this target", "wizard", "other draft"
    ),
    KeyBinding(
        "wizard.target", "t", "other_target", "Choose another target", "wizard", "other target"
    ),
    KeyBinding(
        "wizard.settings",
        "s",
        "settings",
        "Load settings: context, KV cache type",
        "wizard",
        "settings",
    ),
    KeyBinding("wizard.open", "o", "open_files", "Use your own model files", "wizard", "own files"),
    KeyBinding("wizard.back", "escape", "back", "Previous step", "wizard", "back"),
    KeyBinding("chat.send", "enter", "send", "Send", "composer", "send"),
    KeyBinding(
        "chat.newline",
        "ctrl+j,shift+enter,alt+enter",
        "newline",
        "New line",
        "composer",
        "newline",
        priority=True,
    ),
    KeyBinding("chat.walk", "tab", "walk", "Token view: go to the tokens", "chat"),
    KeyBinding("chat.stop", "escape", "stop", "Stop the answer; when idle: back", "chat", "stop"),
    KeyBinding(
        "chat.tokens",
        "f2",
        "tokens",
        "Token view: show the class of each token",
        "chat",
        "tokens",
        priority=True,
    ),
    KeyBinding(
        "chat.panel",
        "f3",
        "panel",
        "Show or hide the speculation panel",
        "chat",
        "panel",
        priority=True,
    ),
    KeyBinding(
        "chat.settings",
        "f4",
        "settings",
        "Sampling, speculation, system prompt",
        "chat",
        "settings",
        priority=True,
    ),
    KeyBinding(
        "chat.again",
        "f5",
        "again",
        "Regenerate the last answer",
        "chat",
        "regenerate",
        priority=True,
    ),
    KeyBinding("chat.edit", "f6", "edit", "Edit the last message", "chat", priority=True),
    KeyBinding(
        "chat.replay",
        "f7",
        "replay",
        "Replay the last answer round by round",
        "chat",
        priority=True,
    ),
    KeyBinding(
        "chat.turns",
        "f8",
        "turns",
        "Earlier turns: edit one, switch branches",
        "chat",
        priority=True,
    ),
    KeyBinding("chat.copy", "ctrl+o", "copy", "Copy the last answer", "chat", priority=True),
    KeyBinding(
        "chat.thinking", "ctrl+t", "thinking", "Show or hide the thinking", "chat", priority=True
    ),
    KeyBinding("chat.new", "ctrl+n", "new", "New chat", "chat", priority=True),
    KeyBinding("chat.up", "pageup", "page_up", "Scroll up", "chat", priority=True),
    KeyBinding("chat.down", "pagedown", "page_down", "Scroll down", "chat", priority=True),
    KeyBinding("chat.top", "ctrl+home", "top", "Go to the beginning", "chat", priority=True),
    KeyBinding(
        "chat.end", "ctrl+end", "end", "Go to the end and follow the answer", "chat", priority=True
    ),
    KeyBinding("tokens.left", "left", "walk(-1)", "Previous token", "tokens", "token"),
    KeyBinding("tokens.right", "right", "walk(1)", "Next token", "tokens", "token"),
    KeyBinding("tokens.up", "up", "leap(-1)", "Previous round", "tokens", "round"),
    KeyBinding("tokens.down", "down", "leap(1)", "Next round", "tokens", "round"),
    KeyBinding("tokens.replay", "r", "replay", "Replay from the beginning", "tokens", "replay"),
    KeyBinding(
        "tokens.glyphs", "g", "glyphs", "Show or hide marks beside the colours", "tokens", "marks"
    ),
    KeyBinding("tokens.back", "escape,tab", "leave", "Back to the message", "tokens", "back"),
    KeyBinding("replay.next", "right,l", "step(1)", "Next round", "replay", "next"),
    KeyBinding("replay.previous", "left,h", "step(-1)", "Previous round", "replay", "previous"),
    KeyBinding("replay.play", "space", "play", "Play or pause", "replay", "play"),
    KeyBinding("replay.first", "home,g", "first", "First round", "replay"),
    KeyBinding("replay.last", "end,G", "last", "Last round", "replay"),
    KeyBinding("replay.back", "escape,q", "back", "Back", "replay", "back"),
    KeyBinding("doctor.mend", "enter", "mend", "Fix the selected problem (asks first)", "doctor"),
    KeyBinding(
        "doctor.copy", "c", "copy", "Copy the report as text, for an issue", "doctor", "copy"
    ),
    KeyBinding("doctor.again", "r", "again", "Check again", "doctor", "again"),
    KeyBinding("doctor.log", "l", "log", "Show the logs", "doctor", "logs"),
    KeyBinding("doctor.back", "escape,q", "back", "Back", "doctor", "back"),
    KeyBinding(
        "log.other", "tab", "other", "Switch to the other log", "log", "other log", priority=True
    ),
    KeyBinding("log.find", "slash", "find", "Find", "log", "find"),
    KeyBinding("log.next", "n", "leap(1)", "Next match", "log"),
    KeyBinding("log.previous", "N", "leap(-1)", "Previous match", "log"),
    KeyBinding("log.end", "end,G", "end", "Go to the end and follow the log", "log", "follow"),
    KeyBinding("log.copy", "c", "copy", "Copy the log", "log", "copy"),
    KeyBinding("log.back", "escape,q,ctrl+l", "back", "Back", "log", "back"),
    KeyBinding("first.demo", "enter", "demo", "Open the demo", "first"),
    KeyBinding("first.wizard", "w", "wizard", "Find a pair for this computer", "first"),
    KeyBinding("first.skip", "escape", "skip", "Skip to the list of pairs", "first"),
    KeyBinding("measuring.start", "enter", "start", "Start, or run again", "measuring", "start"),
    KeyBinding("bench.toggle", "space", "choose", "Select or deselect the workload", "bench"),
    KeyBinding("bench.save", "s", "save", "Save the result to a file", "bench"),
    KeyBinding("verify.less", "left", "turn(-1)", "Fewer prompts", "verify"),
    KeyBinding("verify.more", "right", "turn(1)", "More prompts", "verify"),
    KeyBinding("verify.document", "j", "document", "Copy all results as JSON", "verify"),
    KeyBinding("measuring.copy", "c", "copy", "Copy the result", "measuring"),
    KeyBinding("measuring.up", "up", "move(-1)", "Scroll up", "measuring"),
    KeyBinding("measuring.down", "down", "move(1)", "Scroll down", "measuring"),
    KeyBinding("measuring.page_up", "pageup", "move(-8)", "Page up", "measuring"),
    KeyBinding("measuring.page_down", "pagedown", "move(8)", "Page down", "measuring"),
    KeyBinding(
        "measuring.back",
        "escape",
        "back",
        "Stop and keep the results so far; when idle: back",
        "measuring",
        "back",
    ),
    KeyBinding(
        "preferences.reset",
        "f5",
        "reset",
        "Reset to the default",
        "preferences",
        "default",
    ),
    KeyBinding(
        "preferences.edit",
        "f6",
        "edit",
        "Edit config.toml in your editor",
        "preferences",
        "edit file",
    ),
    KeyBinding("preferences.back", "escape", "back", "Back", "preferences", "back"),
)


BINDINGS_BY_ID: Mapping[str, KeyBinding] = {key.id: key for key in KEY_BINDINGS}

TextualBindings = list[Binding | tuple[str, str] | tuple[str, str, str]]
"""The type of Textual's `BINDINGS`."""


def bindings_for(*contexts: KeyContext) -> TextualBindings:
    """Bindings for these contexts, with ids so that user keys can replace theirs."""
    return [
        Binding(key.keys, key.action, key.description, id=key.id, show=False, priority=key.priority)
        for key in KEY_BINDINGS
        if key.context in contexts
    ]


def format_footer(
    user_keys: Mapping[str, str],
    *contexts: KeyContext,
    label_overrides: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The keys with a footer label, such as `enter send  ctrl+j newline`.

    `label_overrides`: labels by binding id, for keys that do something else at the moment.
    """
    keys_by_label: dict[str, list[str]] = {}
    for context in contexts:
        for key in KEY_BINDINGS:
            if key.context == context and (label := label_overrides.get(key.id, key.footer_label)):
                shown_key = format_key(user_keys.get(key.id, key.keys))
                keys_by_label.setdefault(label, []).append(shown_key)
    return "  ".join(f"{''.join(keys)} {label}" for label, keys in keys_by_label.items())


def fit_footer(hints: str, width: int) -> str:
    """As many whole hints of a footer as fit into `width`."""
    while len(hints) > width and "  " in hints:
        hints = hints.rpartition("  ")[0]
    return hints if len(hints) <= width else ""


def keys_for(binding_id: str, user_keys: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(user_keys.get(binding_id, BINDINGS_BY_ID[binding_id].keys).split(","))


def format_key(keys: str) -> str:
    """The first of `keys` as the screen shows it."""
    first = keys.split(",", maxsplit=1)[0]
    arrows = {"left": "←", "right": "→", "up": "↑", "down": "↓"}
    names = {
        "slash": "/",
        "escape": "esc",
        "question_mark": "?",
        "delete": "del",
        "pageup": "pgup",
        "pagedown": "pgdn",
    }
    return arrows.get(first) or names.get(first, first)


# --- user keys ---------------------------------------------------------------------------

_MODIFIERS = re.compile(r"^(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*")
_KEY_NAMES = frozenset(key.value for key in Keys)
_TYPING_CONTEXTS: tuple[KeyContext, ...] = ("app", "composer", "chat")
"""Contexts with a text field: letters and editing keys cannot be bound."""
_LIST_CONTEXTS: tuple[KeyContext, ...] = ("home",)
_LIST_KEYS = frozenset({"enter", "up", "down"})
_EDITING_KEYS = frozenset(
    {"left", "right", "up", "down", "home", "end", "backspace", "delete", "space"}
)


def check_keys(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    """Why `keys` cannot be bound to an action; empty if they can.

    An action can always get its default keys back, unless another action has taken them.
    """
    binding = BINDINGS_BY_ID[binding_id]
    if error := _check_allowed(binding, keys):
        return error
    for key in keys.split(","):
        if (other := _find_conflict(binding, key, user_keys)) is not None:
            return f"{format_key(key)} is already in use: {other.description}."
    return ""


def validate_user_keys(user_keys: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The valid entries of [keys], and errors for the invalid ones; unknown ids are ignored.

    A key from the file has priority over the same key as another action's default.
    """
    known = {id_: keys for id_, keys in user_keys.items() if id_ in BINDINGS_BY_ID}
    errors = {
        id_: error
        for id_, keys in known.items()
        if (
            error := _check_allowed(BINDINGS_BY_ID[id_], keys) or _check_duplicate(id_, keys, known)
        )
    }
    valid = {id_: keys for id_, keys in known.items() if id_ not in errors}
    return valid, tuple(f"keys.{id_}: {error}" for id_, error in errors.items())


def _check_allowed(binding: KeyBinding, keys: str) -> str:
    default_keys = binding.keys.split(",")
    for key in keys.split(","):
        if not _is_key_name(key):
            return f"There is no key called {key!r}. Examples: ctrl+s, f9, question_mark."
        if key not in default_keys and (reason := _explain_reserved(binding.context, key)):
            return f"{format_key(key)} {reason}."
    return ""


def _check_duplicate(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    for other in concurrent_bindings(BINDINGS_BY_ID[binding_id]):
        if other.id in user_keys and (
            shared := {*keys.split(",")} & {*user_keys[other.id].split(",")}
        ):
            return f"{format_key(min(shared))} is also bound to keys.{other.id}."
    return ""


def _is_key_name(key: str) -> bool:
    base = _MODIFIERS.sub("", key)
    return base in _KEY_NAMES or _is_character_key(base)


def _is_character_key(key: str) -> bool:
    """Whether the key types a character: `a`, `slash`, `question_mark`."""
    named = key in KEY_NAME_REPLACEMENTS.values()
    return len(key) == 1 or named or key_to_character(key) is not None


def _explain_reserved(context: KeyContext, key: str) -> str:
    """Why a key cannot be bound in a context; empty if it can."""
    if context in _TYPING_CONTEXTS and (_is_character_key(key) or key in _EDITING_KEYS):
        return "is needed for typing"
    if context in _LIST_CONTEXTS and key in _LIST_KEYS:
        return "is needed for the list"
    return ""


def _find_conflict(
    binding: KeyBinding, key: str, user_keys: Mapping[str, str]
) -> KeyBinding | None:
    """Another action that has the key at the same time."""
    for other in concurrent_bindings(binding):
        other_keys = user_keys.get(other.id, other.keys).split(",")
        is_default_of_both = key in binding.keys.split(",") and key in other.keys.split(",")
        if key in other_keys and not is_default_of_both:
            return other
    return None


def concurrent_bindings(binding: KeyBinding) -> Iterator[KeyBinding]:
    """The other bindings that are active at the same time."""
    for other in KEY_BINDINGS:
        if other.id != binding.id and _is_active_with(binding.context, other.context):
            yield other


def _is_active_with(a: KeyContext, b: KeyContext) -> bool:
    chat = {"chat", "composer", "tokens"}
    return a == b or "app" in (a, b) or ({a, b} <= chat)

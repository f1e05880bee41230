"""The table of keys: every action of the app, its default keys, and its `keys.ID`.

The app makes Textual's bindings, its help and its footers of this table
(`tui/key_bindings.py`). `localspec config` lists and checks the user's own keys, which
are the table [keys] of config.toml. This file does not import Textual, which takes
300 ms: a test compares the names of keys with Textual's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

KeyContext = Literal[
    "app", "home", "chats", "wizard", "composer", "chat", "tokens", "replay",
    "measuring", "doctor", "log", "welcome", "preferences", "serve", "shared_server",
]  # fmt: skip


class KeyBinding(Struct, frozen=True):
    """One action in one context.  Without a footer label, only the help shows it."""

    id: str
    keys: str  # Separated by commas; the footer shows the first.
    action: str
    description: str
    context: KeyContext
    footer_label: str = ""
    priority: bool = False
    """Handled before the focused widget: for keys that a text editor would take."""


_ROWS: Mapping[KeyContext, tuple[tuple[str, ...], ...]] = {
    "app": (
        (
            "app.help",
            "f1,question_mark",
            "help",
            "Help: keys, slash commands, glossary",
            "keys",
        ),
        ("app.palette", "ctrl+p", "command_palette", "Command palette"),
        ("app.quit", "ctrl+q", "quit", "Quit", "quit"),
        (
            "app.interrupt",
            "ctrl+c",
            "interrupt",
            "Copy a selection, or stop; twice: quit",
        ),
        (
            "app.suspend",
            "ctrl+z",
            "suspend_process",
            "Suspend to the shell; `fg` returns",
        ),
        ("app.log", "ctrl+l", "log", "Engine log"),
        ("app.doctor", "f9", "doctor", "Diagnostics"),
        (
            "app.preferences",
            "f10",
            "preferences",
            "Preferences: theme, keys, privacy, …",
        ),
    ),
    "home": (
        (
            "home.bench",
            "b",
            "measure('bench')",
            "Benchmark the pair, plain and speculative",
        ),
        (
            "home.verify",
            "v",
            "measure('verify')",
            "Verify: speculation does not change the output",
        ),
        ("home.wizard", "w", "wizard", "Find a pair for this computer", "wizard"),
        ("home.open", "o", "open_files", "Open model files by path", "open files"),
        ("home.filter", "slash", "filter", "Search pairs, chats and the hub", "find"),
        ("home.unfilter", "escape", "unfilter", "Clear search"),
        ("home.chats", "c", "chats", "All chats"),
        ("home.pause", "p", "pause", "Pause or resume the download"),
        ("home.cancel", "x", "cancel", "Cancel the download; the part so far is kept"),
        ("home.remove", "delete,d", "remove", "Delete the chat"),
        ("home.rename", "f2", "chat('rename')", "Rename the chat"),
        ("home.export", "e", "chat('export')", "Export the chat to a file"),
        ("home.pin", "s", "chat('pin')", "Pin the chat at the top, or unpin it"),
        ("home.replay", "r", "open_recording", "Replay an events file"),
    ),
    "chats": (
        ("chats.find", "slash", "find", "Search titles and words", "find"),
        ("chats.remove", "delete,d", "act('delete')", "Delete the chat", "delete"),
        ("chats.rename", "f2", "act('rename')", "Rename the chat", "rename"),
        ("chats.pin", "s", "act('pin')", "Pin the chat at the top, or unpin it", "pin"),
        ("chats.export", "e", "act('export')", "Export the chat to a file", "export"),
        ("chats.back", "escape", "back", "Clear the search; then back", "back"),
    ),
    "wizard": (
        ("wizard.take", "enter", "take", "Download if needed, then chat"),
        *(
            (f"wizard.{use}", str(n), f"use('{use}')", f"Use: {use}")
            for n, use in enumerate(("chat", "code", "writing", "documents"), 1)
        ),
        ("wizard.less", "left", "turn(-1)", "What if: lower value", "what if"),
        ("wizard.more", "right", "turn(1)", "What if: higher value", "what if"),
        (
            "wizard.dial",
            "tab",
            "dial",
            "What if: next of GPU, context, KV cache type",
            "next",
        ),
        ("wizard.card", "g", "card", "What if: choose a GPU by name", "GPU"),
        (
            "wizard.draft",
            "d",
            "other_draft",
            "Next draft for this target",
            "other draft",
        ),
        ("wizard.target", "t", "other_target", "Choose another target", "other target"),
        (
            "wizard.settings",
            "s",
            "settings",
            "Load settings: context, KV cache type",
            "settings",
        ),
        ("wizard.open", "o", "open_files", "Use your own model files", "own files"),
        ("wizard.back", "escape", "back", "Previous step", "back"),
    ),
    "composer": (
        ("chat.send", "enter", "send", "Send", "send"),
        (
            "chat.newline",
            "ctrl+j,shift+enter,alt+enter",
            "newline",
            "New line",
            "newline",
        ),
    ),
    "chat": (
        (
            "chat.walk",
            "tab",
            "walk",
            "Walk over the tokens of the last answer; if a tool call waits: its choices",
        ),
        ("chat.stop", "escape", "stop", "Stop the answer; when idle: back", "stop"),
        (
            "chat.replay",
            "f7",
            "replay",
            "Slow motion while an answer streams; then replay it",
        ),
        (
            "chat.tokens",
            "f2",
            "tokens",
            "Show or hide what was guessed, by colour",
            "colours",
        ),
        (
            "chat.panel",
            "f3",
            "panel",
            "Speculation panel: show it, its details, hide it",
            "panel",
        ),
        (
            "chat.speculation",
            "ctrl+s",
            "speculation",
            "Speculation: on in every step, off, automatic",
        ),
        (
            "chat.settings",
            "f4",
            "settings",
            "Sampling, speculation, system prompt",
            "settings",
        ),
        ("chat.again", "f5", "again", "Regenerate the last answer", "regenerate"),
        ("chat.edit", "f6", "edit", "Edit the last message"),
        ("chat.turns", "f8", "turns", "Earlier turns: edit one, switch branches"),
        ("chat.model", "f12", "pick('model')", "Switch to another model"),
        ("chat.copy", "ctrl+o", "copy", "Copy the last answer"),
        *(
            (
                f"chat.copy_code{n}",
                f"alt+{n}",
                f"copy('code {n}')",
                f"Copy code block {n}",
            )
            for n in range(1, 10)
        ),
        ("chat.thinking", "ctrl+t", "thinking", "Show or hide the thinking"),
        ("chat.editor", "ctrl+g", "focused.editor", "Write the message in your editor"),
        ("chat.undo", "ctrl+underscore,alt+z", "focused.undo", "Undo typing"),
        ("chat.redo", "alt+shift+z,ctrl+y", "focused.redo", "Redo typing"),
        ("chat.calls", "alt+t", "calls", "Calls of tools: arguments and results"),
        ("chat.new", "ctrl+n", "new", "New chat"),
        ("chat.chats", "alt+c", "chats", "All chats: open another one"),
        (
            "chat.serve",
            "ctrl+r",
            "serve",
            "Serve this model to editors, agents and scripts",
        ),
        ("chat.up", "pageup", "page(-1)", "Scroll up"),
        ("chat.down", "pagedown", "page(1)", "Scroll down"),
        ("chat.top", "ctrl+home", "top", "Go to the beginning"),
        ("chat.end", "ctrl+end", "end", "Go to the end and follow the answer"),
    ),
    "tokens": (
        ("tokens.left", "left", "walk(-1)", "Previous token", "token"),
        ("tokens.right", "right", "walk(1)", "Next token", "token"),
        ("tokens.up", "up", "leap(-1)", "Previous round", "round"),
        ("tokens.down", "down", "leap(1)", "Next round", "round"),
        ("tokens.back", "escape,tab", "leave", "Back to the message", "back"),
    ),
    "replay": (
        ("replay.next", "right,l", "step(1)", "Next round", "next"),
        ("replay.previous", "left,h", "step(-1)", "Previous round", "previous"),
        ("replay.play", "space", "play", "Play or pause", "play"),
        ("replay.faster", "plus,equals_sign", "speed(2)", "Faster", "speed"),
        ("replay.slower", "minus", "speed(0.5)", "Slower", "speed"),
        ("replay.first", "home,g", "first", "First round"),
        ("replay.last", "end,G", "last", "Last round"),
        ("replay.back", "escape,q", "back", "Back", "back"),
    ),
    "serve": (("serve.end", "q", "end", "End the server", "end the server"),),
    "shared_server": (
        (
            "shared_server.back",
            "escape",
            "back",
            "Back to the chat; the server goes on",
            "back",
        ),
    ),
    "doctor": (
        ("doctor.repair", "enter", "repair", "Fix the selected problem (asks first)"),
        ("doctor.copy", "c", "copy", "Copy the report as text, for an issue", "copy"),
        ("doctor.again", "r", "again", "Check again", "again"),
        ("doctor.log", "l", "log", "Show the logs", "logs"),
        ("doctor.back", "escape,q", "back", "Back", "back"),
    ),
    "log": (
        ("log.other", "tab", "other", "Switch to the other log", "other log"),
        ("log.find", "slash", "find", "Find", "find"),
        ("log.next", "n", "leap(1)", "Next match"),
        ("log.previous", "N", "leap(-1)", "Previous match"),
        ("log.end", "end,G", "end", "Go to the end and follow the log", "follow"),
        ("log.copy", "c", "copy", "Copy the log", "copy"),
        ("log.back", "escape,q,ctrl+l", "back", "Back", "back"),
    ),
    "welcome": (
        ("welcome.demo", "enter", "open", "Open the model that is here"),
        ("welcome.wizard", "w", "wizard", "Find a pair for this computer"),
        ("welcome.skip", "escape", "skip", "Skip to the list of pairs"),
    ),
    "measuring": (
        ("measuring.start", "enter", "start", "Start, or run again", "start"),
        ("measuring.copy", "c", "copy", "Copy the report"),
        ("measuring.document", "j", "copy_json", "Copy all results as JSON"),
        ("measuring.up", "up", "move(-1)", "Scroll up"),
        ("measuring.down", "down", "move(1)", "Scroll down"),
        ("measuring.page_up", "pageup", "move(-8)", "Page up"),
        ("measuring.page_down", "pagedown", "move(8)", "Page down"),
        (
            "measuring.back",
            "escape",
            "back",
            "Stop, keep the results; when idle: back",
            "back",
        ),
    ),
    "preferences": (
        ("preferences.reset", "f5", "reset", "Reset to the default", "default"),
        (
            "preferences.edit",
            "f6",
            "edit",
            "Edit config.toml in your editor",
            "edit file",
        ),
        ("preferences.back", "escape", "back", "Back", "back"),
    ),
}
"""A row is id, keys, action, description, and a footer label if the footer shows it."""
_PRIORITY_IDS = {
    "app.quit", "app.interrupt", "app.suspend", "home.filter", "wizard.less", "wizard.more",
    "wizard.dial", "chat.newline", "chat.tokens", "chat.panel", "chat.speculation",
    "chat.settings", "chat.again", "chat.edit", "chat.replay", "chat.turns", "chat.model",
    "chat.copy", "chat.thinking", "chat.calls", "chat.new", "chat.chats", "chat.serve", "chat.up", "chat.down", "chat.top",
    "chat.end", "log.other",
}  # fmt: skip


def _make_bindings() -> Iterator[KeyBinding]:
    for context, rows in _ROWS.items():
        for id_, keys, action, description, *footer_label in rows:
            yield KeyBinding(
                id=id_,
                keys=keys,
                action=action,
                description=description,
                context=context,
                footer_label="".join(footer_label),
                priority=id_ in _PRIORITY_IDS,
            )


KEY_BINDINGS = tuple(_make_bindings())
BINDINGS_BY_ID: Mapping[str, KeyBinding] = {
    binding.id: binding for binding in KEY_BINDINGS
}


# --- the keys of an action
# ----------------------------------------------------------------------


def keys_for(binding_id: str, user_keys: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of an action: the user's, else the default ones."""
    keys = user_keys.get(binding_id, BINDINGS_BY_ID[binding_id].keys)
    return tuple(keys.split(","))


ARROWS = {"left": "←", "right": "→", "up": "↑", "down": "↓"}
KEY_SYMBOLS = ARROWS | {
    "plus": "+",
    "minus": "-",
    "slash": "/",
    "escape": "esc",
    "question_mark": "?",
    "delete": "del",
    "pageup": "pgup",
    "pagedown": "pgdn",
}
"""How the screen shows a key, if not by its name."""


def format_key(keys: str) -> str:
    """The first of `keys` as the screen shows it."""
    first = keys.split(",", maxsplit=1)[0]
    return KEY_SYMBOLS.get(first, first)


def concurrent_bindings(binding: KeyBinding) -> Iterator[KeyBinding]:
    """The other bindings that are active at the same time."""
    for other in KEY_BINDINGS:
        if other.id != binding.id and _are_concurrent(binding.context, other.context):
            yield other


def _are_concurrent(one: KeyContext, other: KeyContext) -> bool:
    """Whether one screen has the keys of both contexts."""
    if one == other or "app" in (one, other):
        return True
    both = {one, other}
    return both <= {"chat", "composer", "tokens"} or both <= {"serve", "shared_server"}


# --- the user's keys
# ----------------------------------------------------------------------


def check_keys(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    """Why `keys` cannot be bound to an action; empty if they can.

    An action can always get its default keys back, unless another action has taken
    them.
    """
    binding = BINDINGS_BY_ID[binding_id]
    error = _check_allowed(binding, keys)
    if error:
        return error
    wanted = {*keys.split(",")}
    for other in concurrent_bindings(binding):
        in_use = wanted & {*keys_for(other.id, user_keys)}
        # Escape, for example, stops an answer and leaves the token view.
        taken = in_use - _shared_defaults(binding, other)
        if taken:
            return f"{format_key(min(taken))} is already in use: {other.description}."
    return ""


def validate_user_keys(
    user_keys: Mapping[str, str],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The valid entries of [keys], and errors for the invalid ones.

    Unknown ids are ignored. A key from the file has priority over the same key as
    another action's default.
    """
    known = {id_: keys for id_, keys in user_keys.items() if id_ in BINDINGS_BY_ID}
    valid: dict[str, str] = {}
    errors: list[str] = []
    for id_, keys in known.items():
        error = _check_allowed(BINDINGS_BY_ID[id_], keys)
        error = error or _check_duplicate(id_, keys, known)
        if error:
            errors.append(f"keys.{id_}: {error}")
        else:
            valid[id_] = keys
    return valid, tuple(errors)


def full_keymap(user_keys: Mapping[str, str]) -> dict[str, str]:
    """The keys of all actions that are not bound to their defaults.

    A user's key is taken from the other actions that have it by default. If `chat.send`
    gets f2, for example, `chat.tokens` has no key any more: f2 was its only one.
    """
    keymap = dict(user_keys)
    for id_, keys in user_keys.items():
        binding = BINDINGS_BY_ID[id_]
        for other in concurrent_bindings(binding):
            if other.id in user_keys:
                continue
            before = keymap.get(other.id, other.keys).split(",")
            left = [key for key in before if key not in keys.split(",")]
            has_lost_keys = left != before
            if has_lost_keys and not {*before} & {*binding.keys.split(",")}:
                # Textual ignores an empty name
                keymap[other.id] = ",".join(left) or "no_key"
    return keymap


_TYPING_CONTEXTS = ("app", "composer", "chat")
_EDITING_KEYS = {*ARROWS, "home", "end", "backspace", "delete", "space"}
"""Like letters, they cannot be bound in contexts with a text field."""


def _check_allowed(binding: KeyBinding, keys: str) -> str:
    default_keys = binding.keys.split(",")
    for key in keys.split(","):
        if not is_key_name(key):
            return (
                f"There is no key called {key!r}. Examples: alt+s, f9, question_mark."
            )
        if key in default_keys:
            continue
        is_typed = is_character_key(key) or key in _EDITING_KEYS
        if binding.context in _TYPING_CONTEXTS and is_typed:
            return f"{format_key(key)} is needed for typing."
        # What is typed while a person walks over tokens goes to the message.
        if binding.context == "tokens" and is_character_key(key):
            return f"{format_key(key)} is needed for typing."
        has_list = binding.context in ("home", "chats")
        if has_list and key in ("enter", "up", "down"):
            return f"{format_key(key)} is needed for the list."
    return ""


def _check_duplicate(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    wanted = {*keys.split(",")}
    for other in concurrent_bindings(BINDINGS_BY_ID[binding_id]):
        shared = wanted & {*user_keys.get(other.id, "").split(",")}
        if shared:
            return f"{format_key(min(shared))} is also bound to keys.{other.id}."
    return ""


def _shared_defaults(one: KeyBinding, other: KeyBinding) -> set[str]:
    return {*one.keys.split(",")} & {*other.keys.split(",")}


# --- names of keys, as Textual has them
# ----------------------------------------------------------------------

_MODIFIERS = re.compile(r"^(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*")
_NAMED_KEYS = {
    *(f"f{number}" for number in range(1, 25)),
    *("escape", "enter", "return", "tab", "space", "backspace", "insert", "delete"),
    *("left", "right", "up", "down", "home", "end", "pageup", "pagedown"),
}
_NAMED_CHARACTERS = {
    *("slash", "backslash", "at", "minus", "plus", "underscore"),
    *("hyphen_minus", "less_than_sign", "greater_than_sign"),
}
"""Characters whose name is not their Unicode name, in lower case with underscores."""


def is_key_name(key: str) -> bool:
    base = _MODIFIERS.sub("", key)
    return base in _NAMED_KEYS or is_character_key(base)


def is_character_key(key: str) -> bool:
    """Whether the key types a character: `a`, `slash`, `question_mark`."""
    if len(key) == 1 or key in _NAMED_CHARACTERS:
        return True
    try:
        unicodedata.lookup(key.replace("_", " ").upper())
    except KeyError:
        return False
    return True

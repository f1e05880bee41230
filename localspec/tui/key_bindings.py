"""The table of key bindings, from which Textual's bindings, help and footers are built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character

KeyContext = Literal[
    "app", "home", "wizard", "composer", "chat", "tokens", "replay",
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
        ("home.pause", "p", "pause", "Pause or resume the download"),
        ("home.cancel", "x", "cancel", "Cancel the download; the part so far is kept"),
        ("home.remove", "delete,d", "remove", "Delete the chat"),
        ("home.rename", "f2", "chat('rename')", "Rename the chat"),
        ("home.export", "e", "chat('export')", "Export the chat to a file"),
        ("home.pin", "s", "chat('pin')", "Pin the chat at the top, or unpin it"),
        ("home.replay", "r", "open_recording", "Replay an events file"),
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
        ("chat.walk", "tab", "walk", "Token view: go to the tokens"),
        ("chat.stop", "escape", "stop", "Stop the answer; when idle: back", "stop"),
        (
            "chat.tokens",
            "f2",
            "tokens",
            "Token view: show the class of each token",
            "tokens",
        ),
        ("chat.panel", "f3", "panel", "Show or hide the speculation panel", "panel"),
        ("chat.speculation", "ctrl+s", "speculation", "Turn speculation on or off"),
        (
            "chat.settings",
            "f4",
            "settings",
            "Sampling, speculation, system prompt",
            "settings",
        ),
        ("chat.again", "f5", "again", "Regenerate the last answer", "regenerate"),
        ("chat.edit", "f6", "edit", "Edit the last message"),
        ("chat.replay", "f7", "replay", "Replay the last answer round by round"),
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
        ("chat.new", "ctrl+n", "new", "New chat"),
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
        ("tokens.replay", "r", "replay", "Replay from the beginning", "replay"),
        (
            "tokens.glyphs",
            "g",
            "glyphs",
            "Show or hide marks beside the colours",
            "marks",
        ),
        ("tokens.back", "escape,tab", "leave", "Back to the message", "back"),
    ),
    "replay": (
        ("replay.next", "right,l", "step(1)", "Next round", "next"),
        ("replay.previous", "left,h", "step(-1)", "Previous round", "previous"),
        ("replay.play", "space", "play", "Play or pause", "play"),
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
"""By context: id, keys, action, description, and a footer label if the footer shows it.
"""
_PRIORITY_IDS = {
    "app.quit", "app.interrupt", "app.suspend", "home.filter", "wizard.less", "wizard.more",
    "wizard.dial", "chat.newline", "chat.tokens", "chat.panel", "chat.speculation",
    "chat.settings", "chat.again", "chat.edit", "chat.replay", "chat.turns", "chat.model",
    "chat.copy", "chat.thinking", "chat.new", "chat.serve", "chat.up", "chat.down", "chat.top",
    "chat.end", "log.other",
}  # fmt: skip
KEY_BINDINGS = tuple(
    KeyBinding(
        id_, keys, action, description, context, "".join(label), id_ in _PRIORITY_IDS
    )
    for context, rows in _ROWS.items()
    for id_, keys, action, description, *label in rows
)
BINDINGS_BY_ID: Mapping[str, KeyBinding] = {key.id: key for key in KEY_BINDINGS}

TextualBindings = list[Binding | tuple[str, str] | tuple[str, str, str]]
"""The type of Textual's `BINDINGS`."""


def bindings_for(*contexts: KeyContext) -> TextualBindings:
    """Bindings for these contexts, with ids so that user keys can replace theirs."""
    return [
        Binding(
            key.keys,
            key.action,
            key.description,
            id=key.id,
            show=False,
            priority=key.priority,
        )
        for key in KEY_BINDINGS
        if key.context in contexts
    ]


def format_footer(
    user_keys: Mapping[str, str],
    *contexts: KeyContext,
    label_overrides: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The keys with a footer label, such as `enter send  ctrl+j newline`.

    `label_overrides`: labels by binding id, for keys that do something else at the
    moment.
    """
    keys_by_label: dict[str, list[str]] = {}
    for context in contexts:
        for key in KEY_BINDINGS:
            if key.context == context and (
                label := label_overrides.get(key.id, key.footer_label)
            ):
                shown_key = format_key(user_keys.get(key.id, key.keys))
                keys_by_label.setdefault(label, []).append(shown_key)
    return "  ".join(
        f"{''.join(keys)} {label}" for label, keys in keys_by_label.items()
    )


def fit_footer(hints: str, width: int) -> str:
    """As many whole hints of a footer as fit into `width`; the way back or out goes
    last.
    """
    shown = hints.split("  ")
    while shown and len("  ".join(shown)) > width:
        others = [hint for hint in shown if not hint.endswith((" back", " stop"))]
        shown.remove((others or shown)[-1])
    return "  ".join(shown)


def keys_for(binding_id: str, user_keys: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(user_keys.get(binding_id, BINDINGS_BY_ID[binding_id].keys).split(","))


_ARROWS = {"left": "←", "right": "→", "up": "↑", "down": "↓"}
_SHORT_NAMES = {
    "slash": "/",
    "escape": "esc",
    "question_mark": "?",
    "delete": "del",
    "pageup": "pgup",
    "pagedown": "pgdn",
}


def format_key(keys: str) -> str:
    """The first of `keys` as the screen shows it."""
    first = keys.split(",", maxsplit=1)[0]
    return _ARROWS.get(first) or _SHORT_NAMES.get(first, first)


def key_label(binding_id: str, user_keys: Mapping[str, str]) -> str:
    """The first key of an action, as the screen shows it."""
    return format_key(keys_for(binding_id, user_keys)[0])


def find_key_hint(line: str, x: int) -> str:
    """The name of the key that the hint at column `x` of a key line shows; empty if
    none does.
    """
    for hint in re.finditer(r"\S+(?: \S+)*", line):
        if hint.start() <= x < hint.end():
            shown = hint[0].split(" ")[0].rstrip(",")
            # such as ←→
            if shown and all(symbol in _ARROWS.values() for symbol in shown):
                shown = shown[min(x - hint.start(), len(shown) - 1)]
            names = {symbol: name for name, symbol in (_ARROWS | _SHORT_NAMES).items()}
            name = names.get(shown, shown)
            return name if _is_key_name(name) else ""
    return ""


_MODIFIERS = re.compile(r"^(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*")
_KEY_NAMES = frozenset(key.value for key in Keys)
_EDITING_KEYS = {*_ARROWS, "home", "end", "backspace", "delete", "space"}
"""As letters, they cannot be bound in contexts with a text field."""


def check_keys(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    """Why `keys` cannot be bound to an action; empty if they can.

    An action can always get its default keys back, unless another action has taken
    them.
    """
    binding = BINDINGS_BY_ID[binding_id]
    if error := _check_allowed(binding, keys):
        return error
    for other in concurrent_bindings(binding):
        in_use = {*user_keys.get(other.id, other.keys).split(",")} & {*keys.split(",")}
        defaults_of_both = {*binding.keys.split(",")} & {*other.keys.split(",")}
        if taken := in_use - defaults_of_both:
            return f"{format_key(min(taken))} is already in use: {other.description}."
    return ""


def validate_user_keys(
    user_keys: Mapping[str, str],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The valid entries of [keys], and errors for the invalid ones; unknown ids are
    ignored.

    A key from the file has priority over the same key as another action's default.
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
    """`user_keys`, and the default keys of other actions without those that the user's
    take.
    """
    keymap = dict(user_keys)
    for id_, keys in user_keys.items():
        for other in concurrent_bindings(BINDINGS_BY_ID[id_]):
            own = keymap.get(other.id, other.keys).split(",")
            left = [key for key in own if key not in keys.split(",")]
            is_default_of_both = {*own} & {*BINDINGS_BY_ID[id_].keys.split(",")}
            if other.id not in user_keys and left != own and not is_default_of_both:
                # Textual ignores an empty name
                keymap[other.id] = ",".join(left) or "no_key"
    return keymap


def _check_allowed(binding: KeyBinding, keys: str) -> str:
    default_keys = binding.keys.split(",")
    for key in keys.split(","):
        if not _is_key_name(key):
            return (
                f"There is no key called {key!r}. Examples: alt+s, f9, question_mark."
            )
        if key in default_keys:
            continue
        is_typed = _is_character_key(key) or key in _EDITING_KEYS
        if binding.context in ("app", "composer", "chat") and is_typed:
            return f"{format_key(key)} is needed for typing."
        if binding.context == "home" and key in ("enter", "up", "down"):
            return f"{format_key(key)} is needed for the list."
    return ""


def _check_duplicate(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    for other in concurrent_bindings(BINDINGS_BY_ID[binding_id]):
        if shared := {*keys.split(",")} & {*user_keys.get(other.id, "").split(",")}:
            return f"{format_key(min(shared))} is also bound to keys.{other.id}."
    return ""


def _is_key_name(key: str) -> bool:
    base = _MODIFIERS.sub("", key)
    return base in _KEY_NAMES or _is_character_key(base)


def _is_character_key(key: str) -> bool:
    """Whether the key types a character: `a`, `slash`, `question_mark`."""
    is_named = key in KEY_NAME_REPLACEMENTS.values()
    return len(key) == 1 or is_named or key_to_character(key) is not None


def concurrent_bindings(binding: KeyBinding) -> Iterator[KeyBinding]:
    """The other bindings that are active at the same time."""
    for other in KEY_BINDINGS:
        both = {binding.context, other.context}
        together = ({"chat", "composer", "tokens"}, {"serve", "shared_server"})
        is_active = (
            len(both) == 1 or "app" in both or any(both <= each for each in together)
        )
        if other.id != binding.id and is_active:
            yield other

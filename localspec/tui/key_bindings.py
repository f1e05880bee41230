"""The one table of keys: bindings, help and footers are made from it."""

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
    """What a key does somewhere.  `short` is for the footer; none: it is only in the help."""

    id: str
    keys: str
    """Several, with commas between: the first is the one that is shown."""
    action: str
    description: str
    context: KeyContext
    footer_label: str = ""
    priority: bool = False
    """Before the focused widget sees it: for keys that an editor would take."""


KEY_BINDINGS = (
    KeyBinding("app.help", "f1,question_mark", "help", "Show the keys", "app", "keys"),
    KeyBinding(
        "app.palette", "ctrl+p", "command_palette", "Everything that can be done, by name", "app"
    ),
    KeyBinding("app.quit", "ctrl+q", "quit", "Quit", "app", "quit", priority=True),
    KeyBinding(
        "app.interrupt",
        "ctrl+c",
        "interrupt",
        "Copy what is selected; stop; twice: quit",
        "app",
        priority=True,
    ),
    KeyBinding(
        "app.suspend",
        "ctrl+z",
        "suspend_process",
        "Back to the shell; `fg` returns",
        "app",
        priority=True,
    ),
    KeyBinding("app.log", "ctrl+l", "log", "What the engine said", "app"),
    KeyBinding("app.doctor", "f9", "doctor", "What is wrong here, and how to mend it", "app"),
    KeyBinding("home.bench", "b", "bench", "Measure the pair here, plain and with guesses", "home"),
    KeyBinding("home.verify", "v", "verify", "Check that guessing changes nothing here", "home"),
    KeyBinding(
        "app.preferences", "f10", "preferences", "Preferences: colours, keys, privacy, …", "app"
    ),
    KeyBinding("home.wizard", "w", "wizard", "Find a pair for this computer", "home", "wizard"),
    KeyBinding("home.open", "o", "open_files", "Open models by their paths", "home", "open files"),
    KeyBinding(
        "home.filter",
        "slash",
        "filter",
        "Look through the catalogue; enter: the hub",
        "home",
        "find",
        priority=True,
    ),
    KeyBinding("home.unfilter", "escape", "unfilter", "Show the few again", "home"),
    KeyBinding("home.pause", "p", "pause", "Pause or resume the download", "home"),
    KeyBinding("home.cancel", "x", "cancel", "Cancel the download; what has come is kept", "home"),
    KeyBinding("home.remove", "delete,d", "remove", "Delete the chat for good", "home"),
    KeyBinding("home.replay", "r", "open_recording", "Replay a recording", "home"),
    KeyBinding("wizard.take", "enter", "take", "Download both, if need be, and chat", "wizard"),
    *(
        KeyBinding(f"wizard.{use}", str(n), f"use('{use}')", f"What for: {use}", "wizard")
        for n, use in enumerate(("chat", "code", "writing", "documents"), 1)
    ),
    KeyBinding(
        "wizard.less", "left", "turn(-1)", "What if: less", "wizard", "what if", priority=True
    ),
    KeyBinding(
        "wizard.more", "right", "turn(1)", "What if: more", "wizard", "what if", priority=True
    ),
    KeyBinding(
        "wizard.dial",
        "tab",
        "dial",
        "What if: from the card to the context to keys and values",
        "wizard",
        "next",
        priority=True,
    ),
    KeyBinding("wizard.card", "g", "card", "What if: a card by its name", "wizard", "card"),
    KeyBinding("wizard.draft", "d", "other_draft", "Another draft for it", "wizard", "other draft"),
    KeyBinding("wizard.target", "t", "other_target", "Another target", "wizard", "other target"),
    KeyBinding(
        "wizard.settings",
        "s",
        "settings",
        "To load with: context, type of keys and values",
        "wizard",
        "settings",
    ),
    KeyBinding("wizard.open", "o", "open_files", "Use files that are here", "wizard", "own files"),
    KeyBinding("wizard.back", "escape", "back", "A step back", "wizard", "back"),
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
    KeyBinding("chat.walk", "tab", "walk", "In the token view: from typing to the tokens", "chat"),
    KeyBinding("chat.stop", "escape", "stop", "Stop the answer; then: back", "chat", "stop"),
    KeyBinding(
        "chat.tokens", "f2", "tokens", "Show how every token came", "chat", "tokens", priority=True
    ),
    KeyBinding(
        "chat.panel", "f3", "panel", "Show or hide the panel", "chat", "panel", priority=True
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
        "chat.again", "f5", "again", "Write the last answer again", "chat", "again", priority=True
    ),
    KeyBinding("chat.edit", "f6", "edit", "Edit the last question", "chat", priority=True),
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
        "Earlier turns: edit one, see another branch",
        "chat",
        priority=True,
    ),
    KeyBinding("chat.copy", "ctrl+o", "copy", "Copy the last answer", "chat", priority=True),
    KeyBinding(
        "chat.thinking", "ctrl+t", "thinking", "Unfold or fold the thinking", "chat", priority=True
    ),
    KeyBinding("chat.new", "ctrl+n", "new", "New chat", "chat", priority=True),
    KeyBinding("chat.up", "pageup", "page_up", "Back in the transcript", "chat", priority=True),
    KeyBinding(
        "chat.down", "pagedown", "page_down", "Forward in the transcript", "chat", priority=True
    ),
    KeyBinding("chat.top", "ctrl+home", "top", "To the beginning", "chat", priority=True),
    KeyBinding("chat.end", "ctrl+end", "end", "To the end, and follow it", "chat", priority=True),
    KeyBinding("tokens.left", "left", "walk(-1)", "The token before", "tokens", "token"),
    KeyBinding("tokens.right", "right", "walk(1)", "The token after", "tokens", "token"),
    KeyBinding("tokens.up", "up", "leap(-1)", "The round before", "tokens", "round"),
    KeyBinding("tokens.down", "down", "leap(1)", "The round after", "tokens", "round"),
    KeyBinding("tokens.replay", "r", "replay", "Replay from the beginning", "tokens", "replay"),
    KeyBinding("tokens.glyphs", "g", "glyphs", "Marks beside the colours", "tokens", "marks"),
    KeyBinding("tokens.back", "escape,tab", "leave", "Back to typing", "tokens", "back"),
    KeyBinding("replay.next", "right,l", "step(1)", "Next round", "replay", "next"),
    KeyBinding("replay.previous", "left,h", "step(-1)", "Previous round", "replay", "previous"),
    KeyBinding("replay.play", "space", "play", "Play or pause", "replay", "play"),
    KeyBinding("replay.first", "home,g", "first", "First round", "replay"),
    KeyBinding("replay.last", "end,G", "last", "Last round", "replay"),
    KeyBinding("replay.back", "escape,q", "back", "Back", "replay", "back"),
    KeyBinding(
        "doctor.mend", "enter", "mend", "Mend what is pointed at, after a question", "doctor"
    ),
    KeyBinding(
        "doctor.copy", "c", "copy", "Copy all as text, to be pasted into an issue", "doctor", "copy"
    ),
    KeyBinding("doctor.again", "r", "again", "Look again", "doctor", "again"),
    KeyBinding("doctor.log", "l", "log", "The logs", "doctor", "logs"),
    KeyBinding("doctor.back", "escape,q", "back", "Back", "doctor", "back"),
    KeyBinding("log.other", "tab", "other", "The other log", "log", "other log", priority=True),
    KeyBinding("log.find", "slash", "find", "Find", "log", "find"),
    KeyBinding("log.next", "n", "leap(1)", "The next place that was found", "log"),
    KeyBinding("log.previous", "N", "leap(-1)", "The place before", "log"),
    KeyBinding("log.end", "end,G", "end", "To the end, and follow it", "log", "follow"),
    KeyBinding("log.copy", "c", "copy", "Copy what is shown", "log", "copy"),
    KeyBinding("log.back", "escape,q,ctrl+l", "back", "Back", "log", "back"),
    KeyBinding("first.demo", "enter", "demo", "Open the demo", "first"),
    KeyBinding("first.wizard", "w", "wizard", "Find a pair for this computer", "first"),
    KeyBinding("first.skip", "escape", "skip", "To the list of pairs", "first"),
    KeyBinding(
        "measuring.start", "enter", "start", "Start; when it is done, again", "measuring", "start"
    ),
    KeyBinding("bench.toggle", "space", "choose", "With or without what one stands on", "bench"),
    KeyBinding("bench.save", "s", "save", "Save the card to a file", "bench"),
    KeyBinding("verify.less", "left", "turn(-1)", "A quicker look", "verify"),
    KeyBinding("verify.more", "right", "turn(1)", "A longer look", "verify"),
    KeyBinding("verify.document", "j", "document", "Copy everything as JSON", "verify"),
    KeyBinding("measuring.copy", "c", "copy", "Copy what was found, to share it", "measuring"),
    KeyBinding("measuring.up", "up", "move(-1)", "Up", "measuring"),
    KeyBinding("measuring.down", "down", "move(1)", "Down", "measuring"),
    KeyBinding("measuring.page_up", "pageup", "move(-8)", "A page up", "measuring"),
    KeyBinding("measuring.page_down", "pagedown", "move(8)", "A page down", "measuring"),
    KeyBinding(
        "measuring.back",
        "escape",
        "back",
        "Stop, and keep what there is; then: back",
        "measuring",
        "back",
    ),
    KeyBinding(
        "preferences.reset",
        "f5",
        "reset",
        "As it comes: take it out of the file",
        "preferences",
        "as it comes",
    ),
    KeyBinding(
        "preferences.edit",
        "f6",
        "edit",
        "Open config.toml in your editor",
        "preferences",
        "edit the file",
    ),
    KeyBinding("preferences.back", "escape", "back", "Back", "preferences", "back"),
)


TextualBindings = list[Binding | tuple[str, str] | tuple[str, str, str]]
"""Textual's own type of BINDINGS."""


def bindings_for(*contexts: KeyContext) -> TextualBindings:
    """Textual's bindings for these places; ids let a person's own keys take their place."""
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
    """The few keys worth a line: `enter send  ctrl+j newline …`.

    `now`: what keys do at the moment, by their ids, where that is not what they mostly do.
    """
    shown: dict[str, list[str]] = {}
    for place in contexts:
        for key in KEY_BINDINGS:
            if key.context == place and (short := label_overrides.get(key.id, key.footer_label)):
                shown.setdefault(short, []).append(format_key(user_keys.get(key.id, key.keys)))
    return "  ".join(f"{''.join(keys)} {short}" for short, keys in shown.items())


def fit_footer(hints: str, width: int) -> str:
    """As many whole hints of a footer as there is room for."""
    while len(hints) > width and "  " in hints:
        hints = hints.rpartition("  ")[0]
    return hints if len(hints) <= width else ""


def keys_for(binding_id: str, user_keys: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of one entry, for whoever must look at them itself."""
    return tuple(
        user_keys.get(binding_id, next(k.keys for k in KEY_BINDINGS if k.id == binding_id)).split(
            ","
        )
    )


def format_key(keys: str) -> str:
    """How a key is written on the screen."""
    first = keys.split(",", maxsplit=1)[0]
    arrows = {"left": "←", "right": "→", "up": "↑", "down": "↓"}
    words = {
        "slash": "/",
        "escape": "esc",
        "question_mark": "?",
        "delete": "del",
        "pageup": "pgup",
        "pagedown": "pgdn",
    }
    return arrows.get(first) or words.get(first, first)


# --- Keys of a person's own: which can be taken, and what keeps one from being.

_MODIFIERS = re.compile(r"^(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*")
_KEY_NAMES = frozenset(key.value for key in Keys)
_TYPING_CONTEXTS: tuple[KeyContext, ...] = ("app", "composer", "chat")
"""Where somebody types, so that letters must stay letters."""
_LIST_CONTEXTS: tuple[KeyContext, ...] = ("home",)
_LIST_KEYS = frozenset({"enter", "up", "down"})
_EDITING_KEYS = frozenset(
    {"left", "right", "up", "down", "home", "end", "backspace", "delete", "space"}
)
BINDINGS_BY_ID: Mapping[str, KeyBinding] = {key.id: key for key in KEY_BINDINGS}


def check_keys(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    """Why these keys cannot be had for an action, in words; empty where they can.

    `own`: what is changed already.  The keys that an action comes with can always be had back,
    unless another has taken them.
    """
    about = BINDINGS_BY_ID[binding_id]
    if wrong := _check_allowed(about, keys):
        return wrong
    for key in keys.split(","):
        if (other := _find_conflict(about, key, user_keys)) is not None:
            return f"{format_key(key)} is another's already: {other.description}."
    return ""


def validate_user_keys(user_keys: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What of [keys] can be had, and why the rest cannot; names that nobody knows are left out.

    What somebody wrote by hand goes before a key that another action merely comes with.
    """
    found = {id_: keys for id_, keys in user_keys.items() if id_ in BINDINGS_BY_ID}
    faults = {
        id_: why
        for id_, keys in found.items()
        if (why := _check_allowed(BINDINGS_BY_ID[id_], keys) or _check_duplicate(id_, keys, found))
    }
    kept = {id_: keys for id_, keys in found.items() if id_ not in faults}
    return kept, tuple(f"keys.{id_}: {why}" for id_, why in faults.items())


def _check_allowed(binding: KeyBinding, keys: str) -> str:
    """Why these keys are none, or none for such an action."""
    usual = binding.keys.split(",")
    for key in keys.split(","):
        if not _is_key_name(key):
            return f"There is no key called {key!r}; one is like ctrl+s, f9 or question_mark."
        if key not in usual and (why := _explain_reserved(binding.context, key)):
            return f"{format_key(key)} {why}."
    return ""


def _check_duplicate(binding_id: str, keys: str, user_keys: Mapping[str, str]) -> str:
    """Where one key was given to two."""
    for other in concurrent_bindings(BINDINGS_BY_ID[binding_id]):
        if other.id in user_keys and (
            both := {*keys.split(",")} & {*user_keys[other.id].split(",")}
        ):
            return f"{format_key(min(both))} was given to keys.{other.id}, too."
    return ""


def _is_key_name(key: str) -> bool:
    base = _MODIFIERS.sub("", key)
    return base in _KEY_NAMES or _is_character_key(base)


def _is_character_key(key: str) -> bool:
    """Or another character that one types: `a`, `slash`, `question_mark`."""
    named = key in KEY_NAME_REPLACEMENTS.values()
    return len(key) == 1 or named or key_to_character(key) is not None


def _explain_reserved(context: KeyContext, key: str) -> str:
    """To what a key is needed for, if it is."""
    if context in _TYPING_CONTEXTS and (_is_character_key(key) or key in _EDITING_KEYS):
        return "is needed for typing"
    if context in _LIST_CONTEXTS and key in _LIST_KEYS:
        return "is needed for the list"
    return ""


def _find_conflict(
    binding: KeyBinding, key: str, user_keys: Mapping[str, str]
) -> KeyBinding | None:
    """The action that has the key where this one is heard, too."""
    usual = binding.keys.split(",")
    for other in concurrent_bindings(binding):
        theirs = user_keys.get(other.id, other.keys).split(",")
        both_come_with_it = key in usual and key in other.keys.split(",")
        if key in theirs and not both_come_with_it:
            return other
    return None


def concurrent_bindings(binding: KeyBinding) -> Iterator[KeyBinding]:
    """The other keys that are heard at the same time."""
    for other in KEY_BINDINGS:
        if other.id != binding.id and _is_active_with(binding.context, other.context):
            yield other


def _is_active_with(one: KeyContext, other: KeyContext) -> bool:
    chat = {"chat", "composer", "tokens"}
    return one == other or "app" in (one, other) or ({one, other} <= chat)

"""The one table of keys: bindings, help and footers are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from textual.binding import Binding

Where = Literal[
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
class Key:
    """What a key does somewhere.  `short` is for the footer; none: it is only in the help."""

    id: str
    keys: str
    """Several, with commas between: the first is the one that is shown."""
    action: str
    words: str
    where: Where
    short: str = ""
    priority: bool = False
    """Before the focused widget sees it: for keys that an editor would take."""


KEYS = (
    Key("app.help", "f1,question_mark", "help", "Show the keys", "app", "keys"),
    Key("app.palette", "ctrl+p", "command_palette", "Everything that can be done, by name", "app"),
    Key("app.quit", "ctrl+q", "quit", "Quit", "app", "quit", priority=True),
    Key(
        "app.interrupt",
        "ctrl+c",
        "interrupt",
        "Copy what is selected; stop; twice: quit",
        "app",
        priority=True,
    ),
    Key(
        "app.suspend",
        "ctrl+z",
        "suspend_process",
        "Back to the shell; `fg` returns",
        "app",
        priority=True,
    ),
    Key("app.log", "ctrl+l", "log", "What the engine said", "app"),
    Key("app.doctor", "f9", "doctor", "What is wrong here, and how to mend it", "app"),
    Key("home.bench", "b", "bench", "Measure the pair here, plain and with guesses", "home"),
    Key("home.verify", "v", "verify", "Check that guessing changes nothing here", "home"),
    Key("app.preferences", "f10", "preferences", "Preferences: colours, keys, privacy, …", "app"),
    Key("home.wizard", "w", "wizard", "Find a pair for this computer", "home", "wizard"),
    Key("home.open", "o", "open_files", "Open models by their paths", "home", "open files"),
    Key(
        "home.filter",
        "slash",
        "filter",
        "Look through the catalogue; enter: the hub",
        "home",
        "find",
        priority=True,
    ),
    Key("home.unfilter", "escape", "unfilter", "Show the few again", "home"),
    Key("home.pause", "p", "pause", "Pause or resume the download", "home"),
    Key("home.cancel", "x", "cancel", "Cancel the download; what has come is kept", "home"),
    Key("home.remove", "delete,d", "remove", "Delete the chat for good", "home"),
    Key("home.replay", "r", "open_recording", "Replay a recording", "home"),
    Key("wizard.take", "enter", "take", "Download both, if need be, and chat", "wizard"),
    *(
        Key(f"wizard.{use}", str(n), f"use('{use}')", f"What for: {use}", "wizard")
        for n, use in enumerate(("chat", "code", "writing", "documents"), 1)
    ),
    Key("wizard.less", "left", "turn(-1)", "What if: less", "wizard", "what if", priority=True),
    Key("wizard.more", "right", "turn(1)", "What if: more", "wizard", "what if", priority=True),
    Key(
        "wizard.dial",
        "tab",
        "dial",
        "What if: from the card to the context to keys and values",
        "wizard",
        "next",
        priority=True,
    ),
    Key("wizard.card", "g", "card", "What if: a card by its name", "wizard", "card"),
    Key("wizard.draft", "d", "other_draft", "Another draft for it", "wizard", "other draft"),
    Key("wizard.target", "t", "other_target", "Another target", "wizard", "other target"),
    Key(
        "wizard.settings",
        "s",
        "settings",
        "To load with: context, type of keys and values",
        "wizard",
        "settings",
    ),
    Key("wizard.open", "o", "open_files", "Use files that are here", "wizard", "own files"),
    Key("wizard.back", "escape", "back", "A step back", "wizard", "back"),
    Key("chat.send", "enter", "send", "Send", "composer", "send"),
    Key(
        "chat.newline",
        "ctrl+j,shift+enter,alt+enter",
        "newline",
        "New line",
        "composer",
        "newline",
        priority=True,
    ),
    Key("chat.walk", "tab", "walk", "In the token view: from typing to the tokens", "chat"),
    Key("chat.stop", "escape", "stop", "Stop the answer; then: back", "chat", "stop"),
    Key(
        "chat.tokens", "f2", "tokens", "Show how every token came", "chat", "tokens", priority=True
    ),
    Key("chat.panel", "f3", "panel", "Show or hide the panel", "chat", "panel", priority=True),
    Key(
        "chat.settings",
        "f4",
        "settings",
        "Sampling, speculation, system prompt",
        "chat",
        "settings",
        priority=True,
    ),
    Key("chat.again", "f5", "again", "Write the last answer again", "chat", "again", priority=True),
    Key("chat.edit", "f6", "edit", "Edit the last question", "chat", priority=True),
    Key(
        "chat.replay",
        "f7",
        "replay",
        "Replay the last answer round by round",
        "chat",
        priority=True,
    ),
    Key(
        "chat.turns",
        "f8",
        "turns",
        "Earlier turns: edit one, see another branch",
        "chat",
        priority=True,
    ),
    Key("chat.copy", "ctrl+o", "copy", "Copy the last answer", "chat", priority=True),
    Key(
        "chat.thinking", "ctrl+t", "thinking", "Unfold or fold the thinking", "chat", priority=True
    ),
    Key("chat.new", "ctrl+n", "new", "New chat", "chat", priority=True),
    Key("chat.up", "pageup", "page_up", "Back in the transcript", "chat", priority=True),
    Key("chat.down", "pagedown", "page_down", "Forward in the transcript", "chat", priority=True),
    Key("chat.top", "ctrl+home", "top", "To the beginning", "chat", priority=True),
    Key("chat.end", "ctrl+end", "end", "To the end, and follow it", "chat", priority=True),
    Key("tokens.left", "left", "walk(-1)", "The token before", "tokens", "token"),
    Key("tokens.right", "right", "walk(1)", "The token after", "tokens", "token"),
    Key("tokens.up", "up", "leap(-1)", "The round before", "tokens", "round"),
    Key("tokens.down", "down", "leap(1)", "The round after", "tokens", "round"),
    Key("tokens.replay", "r", "replay", "Replay from the beginning", "tokens", "replay"),
    Key("tokens.glyphs", "g", "glyphs", "Marks beside the colours", "tokens", "marks"),
    Key("tokens.back", "escape,tab", "leave", "Back to typing", "tokens", "back"),
    Key("replay.next", "right,l", "step(1)", "Next round", "replay", "next"),
    Key("replay.previous", "left,h", "step(-1)", "Previous round", "replay", "previous"),
    Key("replay.play", "space", "play", "Play or pause", "replay", "play"),
    Key("replay.first", "home,g", "first", "First round", "replay"),
    Key("replay.last", "end,G", "last", "Last round", "replay"),
    Key("replay.back", "escape,q", "back", "Back", "replay", "back"),
    Key("doctor.mend", "enter", "mend", "Mend what is pointed at, after a question", "doctor"),
    Key(
        "doctor.copy", "c", "copy", "Copy all as text, to be pasted into an issue", "doctor", "copy"
    ),
    Key("doctor.again", "r", "again", "Look again", "doctor", "again"),
    Key("doctor.log", "l", "log", "The logs", "doctor", "logs"),
    Key("doctor.back", "escape,q", "back", "Back", "doctor", "back"),
    Key("log.other", "tab", "other", "The other log", "log", "other log", priority=True),
    Key("log.find", "slash", "find", "Find", "log", "find"),
    Key("log.next", "n", "leap(1)", "The next place that was found", "log"),
    Key("log.previous", "N", "leap(-1)", "The place before", "log"),
    Key("log.end", "end,G", "end", "To the end, and follow it", "log", "follow"),
    Key("log.copy", "c", "copy", "Copy what is shown", "log", "copy"),
    Key("log.back", "escape,q,ctrl+l", "back", "Back", "log", "back"),
    Key("first.demo", "enter", "demo", "Open the demo", "first"),
    Key("first.wizard", "w", "wizard", "Find a pair for this computer", "first"),
    Key("first.skip", "escape", "skip", "To the list of pairs", "first"),
    Key("measuring.start", "enter", "start", "Start; when it is done, again", "measuring", "start"),
    Key("bench.toggle", "space", "choose", "With or without what one stands on", "bench"),
    Key("bench.save", "s", "save", "Save the card to a file", "bench"),
    Key("verify.less", "left", "turn(-1)", "A quicker look", "verify"),
    Key("verify.more", "right", "turn(1)", "A longer look", "verify"),
    Key("verify.document", "j", "document", "Copy everything as JSON", "verify"),
    Key("measuring.copy", "c", "copy", "Copy what was found, to share it", "measuring"),
    Key("measuring.up", "up", "move(-1)", "Up", "measuring"),
    Key("measuring.down", "down", "move(1)", "Down", "measuring"),
    Key("measuring.page_up", "pageup", "move(-8)", "A page up", "measuring"),
    Key("measuring.page_down", "pagedown", "move(8)", "A page down", "measuring"),
    Key(
        "measuring.back",
        "escape",
        "back",
        "Stop, and keep what there is; then: back",
        "measuring",
        "back",
    ),
    Key(
        "preferences.reset",
        "f5",
        "reset",
        "As it comes: take it out of the file",
        "preferences",
        "as it comes",
    ),
    Key(
        "preferences.edit",
        "f6",
        "edit",
        "Open config.toml in your editor",
        "preferences",
        "edit the file",
    ),
    Key("preferences.back", "escape", "back", "Back", "preferences", "back"),
)


Bindings = list[Binding | tuple[str, str] | tuple[str, str, str]]
"""Textual's own type of BINDINGS."""


def bindings(*places: Where) -> Bindings:
    """Textual's bindings for these places; ids let a person's own keys take their place."""
    return [
        Binding(key.keys, key.action, key.words, id=key.id, show=False, priority=key.priority)
        for key in KEYS
        if key.where in places
    ]


def footer(
    own: Mapping[str, str], *places: Where, now: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The few keys worth a line: `enter send  ctrl+j newline …`.

    `now`: what keys do at the moment, by their ids, where that is not what they mostly do.
    """
    shown: dict[str, list[str]] = {}
    for place in places:
        for key in KEYS:
            if key.where == place and (short := now.get(key.id, key.short)):
                shown.setdefault(short, []).append(name(own.get(key.id, key.keys)))
    return "  ".join(f"{''.join(keys)} {short}" for short, keys in shown.items())


def fitting(keys: str, room: int) -> str:
    """As many whole hints of a footer as there is room for."""
    while len(keys) > room and "  " in keys:
        keys = keys.rpartition("  ")[0]
    return keys if len(keys) <= room else ""


def keys_of(identity: str, own: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of one entry, for whoever must look at them itself."""
    return tuple(own.get(identity, next(k.keys for k in KEYS if k.id == identity)).split(","))


def name(keys: str) -> str:
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

"""Keys of a person's own: which can be taken, and what keeps one from being."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character

from localspec.tui.keys import KEYS, Key, Where, name

_MODIFIERS = re.compile(r"^(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*")
_NAMED = frozenset(key.value for key in Keys)
_WITH_TYPING: tuple[Where, ...] = ("app", "composer", "chat")
"""Where somebody types, so that letters must stay letters."""
_LISTS: tuple[Where, ...] = ("home",)
_OF_LISTS = frozenset({"enter", "up", "down"})
_OF_TEXT = frozenset({"left", "right", "up", "down", "home", "end", "backspace", "delete", "space"})
BY_ID: Mapping[str, Key] = {key.id: key for key in KEYS}


def fault(id_: str, keys: str, own: Mapping[str, str]) -> str:
    """Why these keys cannot be had for an action, in words; empty where they can.

    `own`: what is changed already.  The keys that an action comes with can always be had back,
    unless another has taken them.
    """
    about = BY_ID[id_]
    if wrong := _unfit(about, keys):
        return wrong
    for key in keys.split(","):
        if (other := _taken(about, key, own)) is not None:
            return f"{name(key)} is another's already: {other.words}."
    return ""


def sound(own: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What of [keys] can be had, and why the rest cannot; names that nobody knows are left out.

    What somebody wrote by hand goes before a key that another action merely comes with.
    """
    found = {id_: keys for id_, keys in own.items() if id_ in BY_ID}
    faults = {
        id_: why
        for id_, keys in found.items()
        if (why := _unfit(BY_ID[id_], keys) or _twice(id_, keys, found))
    }
    kept = {id_: keys for id_, keys in found.items() if id_ not in faults}
    return kept, tuple(f"keys.{id_}: {why}" for id_, why in faults.items())


def _unfit(about: Key, keys: str) -> str:
    """Why these keys are none, or none for such an action."""
    usual = about.keys.split(",")
    for key in keys.split(","):
        if not _is_key(key):
            return f"There is no key called {key!r}; one is like ctrl+s, f9 or question_mark."
        if key not in usual and (why := _belongs(about.where, key)):
            return f"{name(key)} {why}."
    return ""


def _twice(id_: str, keys: str, own: Mapping[str, str]) -> str:
    """Where one key was given to two."""
    for other in beside(BY_ID[id_]):
        if other.id in own and (both := {*keys.split(",")} & {*own[other.id].split(",")}):
            return f"{name(min(both))} was given to keys.{other.id}, too."
    return ""


def _is_key(key: str) -> bool:
    base = _MODIFIERS.sub("", key)
    return base in _NAMED or _is_letter(base)


def _is_letter(key: str) -> bool:
    """Or another character that one types: `a`, `slash`, `question_mark`."""
    named = key in KEY_NAME_REPLACEMENTS.values()
    return len(key) == 1 or named or key_to_character(key) is not None


def _belongs(where: Where, key: str) -> str:
    """To what a key is needed for, if it is."""
    if where in _WITH_TYPING and (_is_letter(key) or key in _OF_TEXT):
        return "is needed for typing"
    if where in _LISTS and key in _OF_LISTS:
        return "is needed for the list"
    return ""


def _taken(about: Key, key: str, own: Mapping[str, str]) -> Key | None:
    """The action that has the key where this one is heard, too."""
    usual = about.keys.split(",")
    for other in beside(about):
        theirs = own.get(other.id, other.keys).split(",")
        both_come_with_it = key in usual and key in other.keys.split(",")
        if key in theirs and not both_come_with_it:
            return other
    return None


def beside(about: Key) -> Iterator[Key]:
    """The other keys that are heard at the same time."""
    for other in KEYS:
        if other.id != about.id and _together(about.where, other.where):
            yield other


def _together(one: Where, other: Where) -> bool:
    chat = {"chat", "composer", "tokens"}
    return one == other or "app" in (one, other) or ({one, other} <= chat)

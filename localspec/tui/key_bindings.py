"""Textual's bindings, and the footers, of the table of keys (`config/key_table.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from textual.binding import Binding

from localspec.config.key_table import (
    ARROWS,
    KEY_BINDINGS,
    KEY_SYMBOLS,
    KeyContext,
    format_key,
    is_key_name,
    keys_for,
)

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
    only: str = "",
) -> str:
    """The keys with a footer label, such as `enter send  ctrl+j newline`.

    Actions with one label share a hint: `←→ token`. `label_overrides` has labels by
    binding id, for keys that do something else at the moment. `only`: the binding id of
    the one key to show.
    """
    keys_by_label: dict[str, list[str]] = {}
    for context in contexts:
        for key in KEY_BINDINGS:
            if key.context != context or (only and key.id != only):
                continue
            label = label_overrides.get(key.id, key.footer_label)
            if label:
                shown_keys = keys_by_label.setdefault(label, [])
                shown_keys.append(key_label(key.id, user_keys))
    hints = [f"{''.join(keys)} {label}" for label, keys in keys_by_label.items()]
    return "  ".join(hints)


def fit_footer(hints: str, width: int) -> str:
    """As many whole hints of a footer as fit into `width`.

    The way back or out goes last.
    """
    shown = hints.split("  ")
    while shown and len("  ".join(shown)) > width:
        others = [hint for hint in shown if not hint.endswith((" back", " stop"))]
        shown.remove((others or shown)[-1])
    return "  ".join(shown)


def key_label(binding_id: str, user_keys: Mapping[str, str]) -> str:
    """The first key of an action, as the screen shows it."""
    return format_key(keys_for(binding_id, user_keys)[0])


_HINT = re.compile(r"\S+(?: \S+)*")
_NAME_OF_SYMBOL = {symbol: name for name, symbol in KEY_SYMBOLS.items()}


def find_key_hint(line: str, x: int) -> str:
    """The name of the key that the hint at column `x` of a key line shows.

    Empty if there is no hint at that column. In `←→ change  esc back`, column 1 is
    `right`, and each of the columns 11 to 18 is `escape`.
    """
    for hint in _HINT.finditer(line):
        if not hint.start() <= x < hint.end():
            continue
        shown = hint[0].split(" ")[0].rstrip(",")
        if shown and all(symbol in ARROWS.values() for symbol in shown):
            # Each arrow is a key. The rest of the hint counts as the last one.
            shown = shown[min(x - hint.start(), len(shown) - 1)]
        name = _NAME_OF_SYMBOL.get(shown, shown)
        return name if is_key_name(name) else ""
    return ""

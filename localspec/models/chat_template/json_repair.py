"""JSON that a model writes, given back as valid JSON while it comes."""

from __future__ import annotations

import json
import re
from functools import partial
from math import isfinite

from localspec.models.chat_template.text_scanner import TextScanner

_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
_HEX = re.compile(r"\\u[0-9a-fA-F]*")
_HIGH_SURROGATES = range(0xD800, 0xDC00)
_LOW_SURROGATES = range(0xDC00, 0xE000)
_LOW_BEGUN = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]{0,2})?)?)?)?")
"""The beginning of the escape of a low surrogate."""
_SPACES = re.compile(r"\s+")
_OTHER_SPACE = re.compile(r"[^ \t\r\n]")
"""A character of `_SPACES` that is no space in JSON."""
_WORD = re.compile(r'[^\s,:{}\[\]"]+')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_CONSTANTS |= dict.fromkeys(("NaN", "Infinity", "-Infinity"), "null")
_CONSTANTS |= {word: word for word in ("true", "false", "null")}
_MAX_WORD = 4000
"""Python reads no number of more digits."""
_REPLACEMENT = "\\ufffd"
"""Stands for a lone surrogate."""


class JsonRepairer:
    """Reads one object or array as it comes.

    The result is as written, but for mistakes.

    Repaired are line feeds, wrong escapes and lone surrogates in strings, words that
    are no JSON, and commas, colons, values and brackets that are missing or
    superfluous.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._closers: list[str] = []
        self._n_closers = {"}": 0, "]": 0}  # How many of each are in `_closers`.
        self._next = "value"  # What comes next: a key, a colon, a value or a comma.
        self._held: list[str] = []  # Space, perhaps with a comma, before the next item.
        self._scanner = TextScanner()  # A word or an escape that may go on waits in it.
        self._in_string = False

    def feed(self, text: str) -> tuple[str, str]:
        """Further JSON, and the text after the whole."""
        parts: list[str] = []
        self._scanner.feed(text, partial(self._read, parts))
        if self.is_complete:
            return "".join(parts), self._scanner.take_unread()
        return "".join(parts), ""

    def close(self) -> str:
        """What is missing to the whole."""
        text = self._scanner.take_unread()
        if self._in_string:
            text = json.dumps(text)[1:]
            self._end_item()
        elif text:
            text = self._add_word(text)
        while self._closers:
            text += self._close()
        return text

    def _read(self, parts: list[str], text: str, start: int) -> int:
        if self.is_complete:
            return start
        read = self._read_string if self._in_string else self._read_item
        part, end = read(text, start)
        if part:
            parts.append(part)
        return end

    # --- in a string: each returns JSON, and the index after what it stands for

    def _read_string(self, text: str, i: int) -> tuple[str, int]:
        if plain := _PLAIN.match(text, i):
            return plain[0], plain.end()
        character = text[i]
        if character == "\\":
            return self._read_escape(text, i)
        if character == '"':
            self._end_item()
            return '"', i + 1
        if character >= "\ud800":  # A lone surrogate.
            return _REPLACEMENT, i + 1
        escaped = json.dumps(character)[1:-1]
        return escaped, i + 1

    def _read_escape(self, text: str, i: int) -> tuple[str, int]:
        escape = text[i : i + 6]
        if escape[1:2] in tuple('"\\/bfnrt'):
            return escape[:2], i + 2
        if len(escape) == 6 and _HEX.fullmatch(escape):
            return self._read_code(int(escape[2:], 16), text, i)
        is_at_end = i + len(escape) == len(text)
        if is_at_end and (escape == "\\" or _HEX.fullmatch(escape)):
            return "", i
        return "\\\\", i + 1  # It is a backslash.

    def _read_code(self, code: int, text: str, i: int) -> tuple[str, int]:
        """An escape of four digits; with its low surrogate, if it is a high one."""
        escape = text[i : i + 6]
        if code in _LOW_SURROGATES:
            return _REPLACEMENT, i + 6
        if code not in _HIGH_SURROGATES:
            return escape, i + 6

        low = text[i + 6 : i + 12]
        if _is_low_surrogate(low):
            return escape + low, i + 12
        is_at_end = i + 6 + len(low) == len(text)
        if is_at_end and _LOW_BEGUN.fullmatch(low):
            return "", i
        return _REPLACEMENT, i + 6

    # --- outside of strings: the same

    def _read_item(self, text: str, i: int) -> tuple[str, int]:
        if word := _WORD.match(text, i):
            if word.end() == len(text) and len(word[0]) < _MAX_WORD:
                return "", i
            return self._add_word(word[0]), word.end()
        character = text[i]
        added = ""
        if character in '{["':
            added = self._begin_item(is_text=character == '"') + character
            self._in_string = character == '"'
            if not self._in_string:
                self._open(character)
        elif character in "}]":
            while self._n_closers[character] and not added.endswith(character):
                added += self._close()
        elif spaces := _SPACES.match(text, i):
            self._held.append(_OTHER_SPACE.sub(" ", spaces[0]))
            return "", spaces.end()
        else:
            added = self._separate(character)
        return added, i + 1

    def _open(self, bracket: str) -> None:
        closer = "}" if bracket == "{" else "]"
        self._closers.append(closer)
        self._n_closers[closer] += 1
        self._next = "key" if bracket == "{" else "value"

    def _separate(self, character: str) -> str:
        """At a colon or a comma."""
        added = ""
        if character == ":" and self._next == "colon":
            added = f"{self._take_held()}:"
            self._next = "value"
        elif character == ",":
            added = self._end_pair()
            if self._next == "comma":
                self._held.append(",")
                self._next = "key" if self._closers[-1] == "}" else "value"
        return added

    def _take_held(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        return text

    def _add_word(self, word: str) -> str:
        text = self._begin_item(is_text=True)
        as_json = None
        if self._next != "key":
            as_json = word if _is_number(word) else _CONSTANTS.get(word)
        if as_json is None:
            as_json = json.dumps(word.encode("utf-8", "replace").decode())
        self._end_item()
        return f"{text}{as_json}"

    def _begin_item(self, *, is_text: bool) -> str:
        """What separates it from the item before."""
        text = self._take_held()
        if self._next == "comma":
            text = f",{text}"
            self._next = "key" if self._closers[-1] == "}" else "value"
        if self._next == "colon":
            text = f":{text}"
            self._next = "value"
        elif self._next == "key" and not is_text:
            text = f'{text}"":'
            self._next = "value"
        return text

    def _end_item(self) -> None:
        self._in_string = False
        self._next = "colon" if self._next == "key" else "comma"
        self.is_complete = not self._closers

    def _end_pair(self) -> str:
        """The value of a key that has none."""
        missing = {"colon": ":null", "value": "null"}.get(self._next, "")
        if not missing or self._closers[-1] != "}":
            return ""
        self._next = "comma"
        return missing

    def _close(self) -> str:
        text = self._end_pair() + self._take_held().replace(",", "")
        closer = self._closers.pop()
        self._n_closers[closer] -= 1
        self._next = "value"
        self._end_item()
        return text + closer


def _is_low_surrogate(escape: str) -> bool:
    if len(escape) < 6 or not _HEX.fullmatch(escape):
        return False
    return int(escape[2:], 16) in _LOW_SURROGATES


def _is_number(word: str) -> bool:
    """Whether JSON has it as a finite number, and Python reads it."""
    if len(word) >= _MAX_WORD or not _NUMBER.fullmatch(word):
        return False
    has_exponent = "e" in word.lower()
    return not has_exponent or isfinite(float(word))

"""JSON that a model writes, given back as valid JSON while it comes."""

from __future__ import annotations

import json
import re
from math import isfinite

_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
_HEX = re.compile(r"\\u[0-9a-fA-F]*")
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)  # Surrogates.
_LOW_BEGUN = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]{0,2})?)?)?)?")
_SPACES = re.compile(r"\s+")
# Of `_SPACES`: what JSON does not know as space.
_OTHER_SPACE = re.compile(r"[^ \t\r\n]")
_WORD = re.compile(r'[^\s,:{}\[\]"]+')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_CONSTANTS |= dict.fromkeys(("NaN", "Infinity", "-Infinity"), "null")
_CONSTANTS |= {word: word for word in ("true", "false", "null")}
_MAX_WORD = 4000  # Python reads no number of more digits.


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
        self._pending = ""  # A word or an escape that may go on.
        self._in_string = False

    def feed(self, text: str) -> tuple[str, str]:
        """Further JSON, and the text after the whole."""
        text = self._pending + text
        i = 0
        parts = []
        while i < len(text) and not self.is_complete:
            part, end = (
                self._read_string(text, i) if self._in_string else self._read(text, i)
            )
            if end == i:  # more text decides
                break
            parts.append(part)
            i = end
        self._pending = "" if self.is_complete else text[i:]
        return "".join(parts), text[i:] if self.is_complete else ""

    def close(self) -> str:
        """What is missing to the whole."""
        text = self._pending
        self._pending = ""
        if self._in_string:
            text = json.dumps(text)[1:]
            self._end_item()
        elif text:
            text = self._add_word(text)
        while self._closers:
            text += self._close()
        return text

    # --- in a string: JSON, and the index after what it stands for
    # ------------------------------

    def _read_string(self, text: str, i: int) -> tuple[str, int]:
        if plain := _PLAIN.match(text, i):
            return plain[0], plain.end()
        if text[i] == "\\":
            return self._read_escape(text, i)
        if text[i] != '"':
            return "\\ufffd" if text[i] >= "\ud800" else json.dumps(text[i])[
                1:-1
            ], i + 1
        self._end_item()
        return '"', i + 1

    def _read_escape(self, text: str, i: int) -> tuple[str, int]:
        escape = text[i : i + 6]
        digits = _HEX.match(escape)
        if escape[1:2] in tuple('"\\/bfnrt'):
            return escape[:2], i + 2
        is_begun = escape in ("\\", "\\u") or (
            digits and digits.end() == len(escape) < 6
        )
        if is_begun and i + len(escape) == len(text):
            return "", i
        if not digits or digits.end() < 6:
            return "\\\\", i + 1  # it is a backslash
        return self._read_code(int(escape[2:], 16), text, i)

    def _read_code(self, code: int, text: str, i: int) -> tuple[str, int]:
        escape = text[i : i + 6]
        low = text[i + 6 : i + 12]
        if (
            code in _HIGH
            and _HEX.fullmatch(low)
            and len(low) == 6
            and int(low[2:], 16) in _LOW
        ):
            return escape + low, i + 12
        if (
            code in _HIGH
            and i + 6 + len(low) == len(text)
            and _LOW_BEGUN.fullmatch(low)
        ):
            return "", i
        return "\\ufffd" if code in _HIGH or code in _LOW else escape, i + 6

    # --- outside of strings
    # ---------------------------------------------------------------------

    def _read(self, text: str, i: int) -> tuple[str, int]:
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
        is_key = self._next == "key"
        is_number = len(word) < _MAX_WORD and _NUMBER.fullmatch(word) is not None
        is_number = is_number and ("e" not in word.lower() or isfinite(float(word)))
        known = None if is_key else word if is_number else _CONSTANTS.get(word)
        self._end_item()
        return text + (known or json.dumps(word.encode("utf-8", "replace").decode()))

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

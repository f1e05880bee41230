"""Keys and pastes of the characters that a terminal sends.

Keys are read in every form in which terminals send them. A key of a keyboard with
another script has the name of the key at its place, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Literal

from textual import events
from textual._xterm_parser import (
    BRACKETED_PASTE_END,
    BRACKETED_PASTE_START,
    XTermParser,
)
from textual.message import Message

# --- keys by their place
# ------------------------------------------------------------------------

_US_KEYS = "qwertyuiopasdfghjklzxcvbnm"
_NO_LETTER = "·"
_LETTERS_BY_SCRIPT = (
    "йцукенгшщзфывапролдячсмить",
    "·ςερτυθιοπασδφγηξκλζχψωβνμ",
    "··קראטוןםפשדגכעיחלךזסבהנמצ",
    "ضصثقفغعهخحشسيبلاتنمئءؤر·ىة",
    "ㅂㅈㄷㄱㅅㅛㅕㅑㅐㅔㅁㄴㅇㄹㅎㅗㅓㅏㅣㅋㅌㅊㅍㅠㅜㅡ",
)
"""What `_US_KEYS` type on Russian, Greek, Hebrew, Arabic and Korean keyboards."""


def _find_places() -> Iterator[tuple[str, str]]:
    for letters in _LETTERS_BY_SCRIPT:
        for letter, us_key in zip(letters, _US_KEYS, strict=True):
            if letter != _NO_LETTER:
                yield letter, us_key
    yield "і", "s"  # Ukrainian has it where Russian has ы.


_US_KEY_BY_LETTER = dict(_find_places())


class PlacedKey(events.Key):
    """A key that types no ASCII, and the name of the key at its place in the US.

    On a Russian keyboard, ctrl and the key of c is `ctrl+cyrillic_small_letter_es`
    with the US key `ctrl+c`.
    """

    def __init__(self, key: str, character: str | None, us_key: str) -> None:
        super().__init__(key, character)
        self.us_key = us_key

    def copy(self) -> PlacedKey:
        return PlacedKey(self.key, self.character, self.us_key)


def _find_place(key: events.Key, letter: str, us_letter: str = "") -> events.Key:
    """The key with the name of its place, if it has another than its letter.

    `us_letter` is what the terminal reports; few terminals do.
    """
    if letter.isascii() or isinstance(key, PlacedKey):
        return key
    if not us_letter:
        us_letter = _US_KEY_BY_LETTER.get(letter.lower(), "")
    if not (us_letter.isascii() and us_letter.isalnum()):
        return key
    if key.character is not None and key.character.isupper():
        us_letter = us_letter.upper()
    *modifiers, _ = key.key.split("+")
    return PlacedKey(key.key, key.character, "+".join([*modifiers, us_letter]))


# --- keys in every form
# -------------------------------------------------------------------------

_ESCAPE = "\x1b"
_BEGINNINGS = ("\x1b[", "\x1bO")
"""How the sequences of other keys begin.  If nothing follows, they are alt+[ and alt+O."""
_MODIFY_OTHER_KEYS = re.compile(r"\x1b\[27;(?P<modifiers>\d+);(?P<codepoint>\d+)~")
_CSI_U = re.compile(r"\x1b\[(?P<codepoint>\d+);(?P<modifiers>\d+)(?:;(?P<text>\d+))?u")
_ALTERNATES = re.compile(
    r"\x1b\[(?P<codepoint>\d+):(?P<shifted>\d*)(?::(?P<us_key>\d*))?(?P<rest>\D.*)"
)
"""A key, what it types with shift, and the key at its place in the US: `1089::99`."""
_CODEPOINT = re.compile(r"\x1b\[(\d+)")
_SHIFT_BIT = 1  # Modifiers are sent as the sum of their bits, plus one.
_ALT_BIT = 2
_LOCK_BITS = 64 + 128  # Caps lock and num lock.


def _as_kitty_sequence(sequence: str, shifted: str = "") -> str:
    """Returns the sequence that the kitty protocol has for the same key.

    `shifted` is what the key types with shift, if the terminal has reported that. It
    is the name of a shortcut that needs shift: ctrl+_ is `CSI 45:95;6u` in the US.

    xterm's modifyOtherKeys names the character that the key types, the kitty protocol
    the key without shift: alt+shift+z is `CSI 27;4;90~` or `CSI 90;4u` in xterm, and
    `CSI 122;4u` in kitty. Other sequences are returned unchanged.
    """
    xterm_match = _MODIFY_OTHER_KEYS.fullmatch(sequence)
    if xterm_match is not None:
        codepoint = int(xterm_match["codepoint"])
        bits = int(xterm_match["modifiers"]) - 1
        if bits & ~_SHIFT_BIT:
            return _kitty_shortcut(codepoint, bits, is_shifted_character=True)
        return _kitty_text(codepoint, bits)
    match = _CSI_U.fullmatch(sequence)
    if match is None:
        return sequence
    codepoint = int(match["codepoint"])
    bits = int(match["modifiers"]) - 1
    if match["text"] is not None:
        text = chr(int(match["text"]))
        if text != shifted and not _is_own_text(text, codepoint):
            # The modifiers were used for typing, such as Option on a Mac.
            return sequence
    if bits & ~(_SHIFT_BIT | _LOCK_BITS):
        if shifted and bits & _SHIFT_BIT:
            return _kitty_shortcut(ord(shifted), bits, is_shifted_character=True)
        return _kitty_shortcut(codepoint, bits)
    # xterm: in kitty it is lower case
    if match["text"] is None and chr(codepoint).isupper():
        return _kitty_text(codepoint, bits)
    return sequence


def _is_own_text(text: str, codepoint: int) -> bool:
    """Whether a key types this character without alt.

    Some terminals report the character with alt, too.
    """
    return text in (chr(codepoint), chr(codepoint).upper())


def _kitty_shortcut(
    codepoint: int, bits: int, *, is_shifted_character: bool = False
) -> str:
    """A key with modifiers that types nothing.

    `is_shifted_character`: shift is part of the character. It still counts for a
    letter, which has a lower case: `Z` is shift+z. It does not for others: `!` needs
    shift on some keyboards only.
    """
    character = chr(codepoint)
    lower = character.lower()
    is_letter = lower != character.upper()
    if (
        is_shifted_character
        and not is_letter
        and character.isprintable()
        and character != " "
    ):
        bits &= ~_SHIFT_BIT
    if len(lower) == 1:
        codepoint = ord(lower)
    return f"\x1b[{codepoint};{bits + 1}u"


def _kitty_text(codepoint: int, bits: int) -> str:
    """A key that types its character; enter, tab and the like have none."""
    if chr(codepoint).isprintable():
        return f"\x1b[{codepoint};{bits + 1};{codepoint}u"
    return f"\x1b[{codepoint};{bits + 1}u"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


class KeyParser(XTermParser):
    """Reads keys with modifiers in every form in which terminals send them.

    alt+1 arrives as ESC `1`, as `CSI 27;3;49~` or as `CSI 49;3u`. Textual reads only
    the last one: it takes the first for `¡`, which Option types on a Mac and which
    arrives as `¡` from there, and the second for `1`. Here the first two are translated
    to the last one.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._is_after_escape = False

    def _parse_extended_key(  # type: ignore[override]  # Textual's is cached
        self, sequence: str
    ) -> list[events.Key] | None:
        """Returns no key for a number that is no character: Textual's method raises."""
        try:
            return self._read_extended_key(sequence)
        except (ValueError, OverflowError):
            return []

    def _read_extended_key(self, sequence: str) -> list[events.Key] | None:
        shifted = ""
        us_letter = ""
        match = _ALTERNATES.fullmatch(sequence)
        if match is not None:
            sequence = f"\x1b[{match['codepoint']}{match['rest']}"
            shifted = chr(int(match["shifted"])) if match["shifted"] else ""
            us_letter = chr(int(match["us_key"])) if match["us_key"] else ""
        sequence = _as_kitty_sequence(sequence, shifted)
        keys = super()._parse_extended_key(sequence)
        if keys is None:
            return None
        codepoint = _CODEPOINT.match(sequence)
        letter = chr(int(codepoint[1])) if codepoint is not None else ""
        placed: list[events.Key] = []
        for key in keys:
            if not _has_surrogate(key.character or ""):
                placed.append(_find_place(key, key.character or letter, us_letter))
        return placed

    def _sequence_to_key_events(
        self, sequence: str, alt: bool = False
    ) -> Iterable[events.Key]:
        """Reads ESC and a character as the key with alt.

        Textual's table has other keys for some of these sequences.
        """
        if sequence == _ESCAPE:
            # Textual gives up a sequence that another ESC cuts short, and reads it one
            # character after the other: ESC `[` ESC `[` is alt+[ twice.
            self._is_after_escape = True
            return
        if sequence in _BEGINNINGS:
            return
        character = sequence.removeprefix(_ESCAPE)
        is_alt = alt or self._is_after_escape or character != sequence
        self._is_after_escape = False
        is_key = len(character) == 1 and (
            character.isprintable() or character in "\r\x7f"
        )
        if is_alt and is_key:
            bits = _ALT_BIT
            if character != character.lower():
                bits |= _SHIFT_BIT
            keys = self._parse_extended_key(_kitty_shortcut(ord(character), bits))
            yield from [key.copy() for key in keys or ()]
            return
        for key in super()._sequence_to_key_events(sequence, alt):
            yield _find_place(key, key.character or "")


# --- pastes
# ---------------------------------------------------------------------------------

_PASTE_WINDOW_SECONDS = 1.0
_MIN_PASTE_CHARACTERS = 400
"""A paste that brings fewer in `_PASTE_WINDOW_SECONDS` has lost its end.

A key that is held down sends 30 sequences of up to 12 characters a second, and the
slowest lines send twice as many characters.
"""
_MIN_LATE_CHARACTERS = 64
"""A read of so many characters is no typing, but more of a paste that has stalled."""
_MAX_PASTE_CHARACTERS = 16_000_000
"""So many are delivered before the end of the paste is known."""

PasteState = Literal["none", "open", "stalled"]
"""Stalled: it was given up, so that keys work, but its end may still come."""


class PasteParser(KeyParser):
    """Reads all of a bracketed paste as text; Textual acts on escape sequences in it.

    A paste without its end mark is delivered when nothing comes any more that cannot
    be typed. What then comes of it after all is another paste, never keys: a line end
    would send half a message.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._end = ""  # The last characters, which may begin a mark.
        self._paste_state: PasteState = "none"
        self._pasted: list[str] = []
        self._n_pasted = 0
        # The characters of the paste that have come since `_window_start`.
        self._n_in_window = 0
        self._window_start = 0.0

    def tick(self) -> Iterable[Message]:
        for message in super().tick():
            self._end = ""  # It was the escape key, not the beginning of a mark.
            yield message
        now = time.monotonic()
        if self._paste_state != "open":
            return
        if now - self._window_start < _PASTE_WINDOW_SECONDS:
            return
        if self._n_in_window < _MIN_PASTE_CHARACTERS:
            yield from self._end_paste("stalled")
        self._window_start = now
        self._n_in_window = 0

    def feed(self, data: str) -> Iterable[Message]:
        """Splits the input at the marks of pastes.

        `a`, start mark, `b` ESC `c`, end mark, `d` becomes the key a, a paste of "b",
        ESC and "c", and the key d. A mark may arrive in two halves.
        """
        if not data:  # It is the end of the input.
            yield from super().feed(data)
        elif self._paste_state == "stalled" and self._is_late(data):
            self._begin_paste()
        while data:
            is_pasting = self._paste_state == "open"
            mark = BRACKETED_PASTE_END if is_pasting else BRACKETED_PASTE_START
            position = (self._end + data).find(mark)
            has_mark = position >= 0
            n_read = len(data)
            if has_mark:
                n_read = position + len(mark) - len(self._end)
            part = data[:n_read]
            data = data[n_read:]
            end = self._end
            self._end = "" if has_mark else (end + part)[1 - len(mark) :]
            if not is_pasting:
                yield from super().feed(part)
                if has_mark:
                    self._begin_paste()
                continue
            self._pasted.append(part)
            self._n_pasted += len(part)
            self._n_in_window += len(part)
            if has_mark:
                yield from self._end_paste("none")
            elif self._n_pasted > _MAX_PASTE_CHARACTERS:
                yield from self._end_paste("open")

    def _is_late(self, data: str) -> bool:
        """Whether this is more of a paste that was given up."""
        if BRACKETED_PASTE_END in data:
            return True
        return len(data) >= _MIN_LATE_CHARACTERS and _ESCAPE not in data

    def _begin_paste(self) -> None:
        self._paste_state = "open"
        self._end = ""
        self._n_in_window = 0
        self._window_start = time.monotonic()

    def _end_paste(self, state: PasteState) -> Iterator[events.Paste]:
        """Delivers the text so far."""
        text = "".join(self._pasted)
        held_back = ""
        if state == "none":
            text = text.removesuffix(BRACKETED_PASTE_END)
        elif state == "open":
            held_back = self._end  # The end mark may have begun.
            text = text.removesuffix(held_back)
        else:
            self._end = ""
        self._pasted = [held_back]
        self._n_pasted = len(held_back)
        self._paste_state = state
        if state != "open":
            self._pasted = []
            # Textual has seen the start mark only: for it the paste is empty.
            for _ in super().feed(BRACKETED_PASTE_END):
                pass
        yield events.Paste(text.replace("\x00", ""))

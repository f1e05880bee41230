"""The terminal: bytes that come from it, text that goes to it, and its end.

Text is sanitized where it enters the app; the output filters remove control characters
that a library makes of clean text.
"""

from __future__ import annotations

import codecs
import locale
import os
import queue
import re
import select
import selectors
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.segment import Segment
from textual import events
from textual._xterm_parser import (
    BRACKETED_PASTE_END,
    BRACKETED_PASTE_START,
    XTermParser,
)
from textual.app import App
from textual.color import Color
from textual.driver import Driver
from textual.filter import LineFilter
from textual.message import Message

from localspec.config.toml_file import ignore_signal_keys
from localspec.sanitize import sanitize
from localspec.symbols import ASCII_TRANSLATION


def _is_surrogate(character: str | None) -> bool:
    return character is not None and any(
        "\ud800" <= part <= "\udfff" for part in character
    )


_ESCAPE = "\x1b"
_BEGINNINGS = ("\x1b[", "\x1bO")
"""How the sequences of other keys begin.  If nothing follows, they are alt+[ and alt+O."""
_MODIFY_OTHER_KEYS = re.compile(r"\x1b\[27;(?P<modifiers>\d+);(?P<codepoint>\d+)~")
_CSI_U = re.compile(r"\x1b\[(?P<codepoint>\d+);(?P<modifiers>\d+)(?:;(?P<text>\d+))?u")
_SHIFT_BIT = 1  # Modifiers are sent as the sum of their bits, plus one.
_ALT_BIT = 2
_LOCK_BITS = 64 + 128  # Caps lock and num lock.


def _as_kitty_sequence(sequence: str) -> str:
    """Returns the sequence that the kitty protocol has for the same key.

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
    if match["text"] is not None and not _is_own_text(int(match["text"]), codepoint):
        return sequence  # The modifiers were used for typing, such as Option on a Mac.
    if bits & ~(_SHIFT_BIT | _LOCK_BITS):
        return _kitty_shortcut(codepoint, bits)
    # xterm: in kitty it is lower case
    if match["text"] is None and chr(codepoint).isupper():
        return _kitty_text(codepoint, bits)
    return sequence


def _is_own_text(text: int, codepoint: int) -> bool:
    """Whether a key types this character without alt.

    Some terminals report the character with alt, too.
    """
    return chr(text) in (chr(codepoint), chr(codepoint).upper())


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
            keys = super()._parse_extended_key(_as_kitty_sequence(sequence))
        except (ValueError, OverflowError):
            return []
        if keys is None:
            return None
        return [key for key in keys if not _is_surrogate(key.character)]

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
        else:
            yield from super()._sequence_to_key_events(sequence, alt)


class PasteParser(KeyParser):
    """Reads all of a bracketed paste as text; Textual acts on escape sequences in it."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._end = ""  # The last characters, which may begin a mark.
        self._pasted: list[str] | None = None  # None outside of a paste.

    def tick(self) -> Iterable[Message]:
        for message in super().tick():
            self._end = ""  # It was the escape key, not the beginning of a mark.
            yield message

    def feed(self, data: str) -> Iterable[Message]:
        """Splits the input at the marks of pastes.

        `a`, start mark, `b` ESC `c`, end mark, `d` becomes the key a, a paste of "b",
        ESC and "c", and the key d. A mark may arrive in two halves.
        """
        if not data:  # It is the end of the input.
            yield from super().feed(data)
        while data:
            is_pasting = self._pasted is not None
            mark = BRACKETED_PASTE_END if is_pasting else BRACKETED_PASTE_START
            position = (self._end + data).find(mark)
            has_mark = position >= 0
            n_read = len(data)
            if has_mark:
                n_read = position + len(mark) - len(self._end)
            part = data[:n_read]
            data = data[n_read:]
            self._end = "" if has_mark else (self._end + part)[1 - len(mark) :]
            if self._pasted is None:
                yield from super().feed(part)
                if has_mark:
                    self._pasted = []
            else:
                self._pasted.append(part)
                if has_mark:
                    text = "".join(self._pasted).removesuffix(mark)
                    self._pasted = None
                    # Textual has seen the start mark only: for it the paste is empty.
                    for _ in super().feed(mark):
                        pass
                    yield events.Paste(text.replace("\x00", ""))


if sys.platform != "win32":
    from textual.drivers.linux_driver import LinuxDriver

    class PosixDriver(LinuxDriver):
        """Textual's driver, for a terminal that sends any bytes and may be closed."""

        def run_input_thread(self) -> None:
            """As Textual's method, but bytes that are no UTF-8 do not end the app.

            At the end of the input the app exits.
            """
            parser = PasteParser(self._debug)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            with selectors.SelectSelector() as selector:
                selector.register(self.fileno, selectors.EVENT_READ)
                while not self.exit_event.is_set():
                    if selector.select(0.1):
                        data = b""
                        with suppress(OSError):
                            data = os.read(self.fileno, 4096)
                        if not data:
                            self._app.call_later(self._app.exit, None, 129)
                            return
                        for message in parser.feed(decoder.decode(data)):
                            self.process_message(message)
                    for message in parser.tick():
                        self.process_message(message)

        def write(self, data: str) -> None:
            """Does not wait for a writer that has ended with the terminal."""
            writer = self._writer_thread
            while writer is not None and writer.is_alive():
                with suppress(queue.Full):
                    writer._queue.put(data, timeout=0.1)
                    return

        def close(self) -> None:
            if self._writer_thread is not None and self._writer_thread.is_alive():
                super().close()


def driver_class(default: type[Driver]) -> type[Driver]:
    """`PosixDriver` in place of Textual's for POSIX; any other driver as it is."""
    if sys.platform == "win32":
        from textual.drivers import win32  # noqa: PLC0415  only there

        # Textual's thread that reads the console makes a parser of this class.
        win32.XTermParser = PasteParser
    elif default is LinuxDriver:
        return PosixDriver
    return default


@contextmanager
def lend_terminal(app: App[Any]) -> Iterator[None]:
    """Suspends the app for a program that takes the terminal, and its keys that signal.

    Raises SuspendNotSupported, and what the block raises, once the app is back:
    Textual's `suspend` does not resume after an error.
    """
    failure = None
    with ignore_signal_keys(), app.suspend():
        try:
            yield
        except Exception as error:  # raised again below
            failure = error
    if failure is not None:
        raise failure


def watch_terminal(on_gone: Callable[[], None]) -> None:
    """Calls `on_gone` on a thread when the other end of the terminal is closed.

    SIGHUP says so only to processes that the terminal controls, and not while the app
    waits for a terminal that reads nothing.
    """
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    for stream in (sys.__stdin__, sys.__stderr__):
        if stream is not None:
            poll.register(stream.fileno(), 0)

    def watch() -> None:
        is_gone = select.POLLHUP | select.POLLERR
        if any(event & is_gone for _, event in poll.poll()):
            on_gone()

    threading.Thread(target=watch, daemon=True, name="terminal").start()


class ControlCharacterFilter(LineFilter):
    """Replaces the characters that `sanitize` removes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        filtered: list[Segment] = []
        for text, style, control in segments:
            clean = sanitize(text, multiline=False)
            # It is padded, so that nothing moves.
            filtered.append(Segment(clean.ljust(len(text)), style, control))
        return filtered


class AsciiFilter(LineFilter):
    """Replaces line-drawing and other symbols; letters of other scripts stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text.translate(ASCII_TRANSLATION), style, control)
            for text, style, control in segments
        ]


def shows_unicode() -> bool:
    """Whether the output encoding has the symbols, and the terminal's font too."""
    encoding = getattr(sys.__stdout__, "encoding", None)
    if not encoding:
        encoding = locale.getpreferredencoding(False)
    if os.environ.get("TERM") == "linux":  # The console's font lacks too many of them.
        return False
    return "utf" in encoding.lower()

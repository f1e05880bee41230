"""The terminal: bytes that come from it, text that goes to it, and its end.

Text is sanitized where it enters the app; the output filters remove control characters
that a library makes of clean text.
"""

from __future__ import annotations

import codecs
import locale
import os
import queue
import select
import selectors
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.segment import Segment
from textual import constants
from textual.app import App
from textual.color import Color
from textual.driver import Driver
from textual.filter import LineFilter

from localspec.config.toml_file import ignore_signal_keys
from localspec.sanitize import sanitize
from localspec.symbols import ASCII_TRANSLATION
from localspec.tui.key_parser import PasteParser

_REPORT_ALTERNATE_KEYS = "\x1b[=4;2u"
"""Adds a flag of the kitty protocol: keys are reported with their place, too."""
_SEND_ESCAPE_WITH_ALT = "\x1b[?1036s\x1b[?1036h"
"""Saves and sets a mode of xterm, which else types `±` for alt+1 (8-bit meta)."""
_RESTORE_ALT = "\x1b[?1036r"

if sys.platform != "win32":
    from textual.drivers.linux_driver import LinuxDriver

    class PosixDriver(LinuxDriver):
        """Textual's driver, for a terminal that sends any bytes and may be closed."""

        def start_application_mode(self) -> None:
            """As Textual's method, and asks for more about keys than it does.

            Terminals that do not know a request ignore it.
            """
            super().start_application_mode()  # type: ignore[no-untyped-call]
            if not constants.DISABLE_KITTY_KEY:
                # Textual's method has pushed its flags, and pops them at the end.
                self.write(_REPORT_ALTERNATE_KEYS)
            self.write(_SEND_ESCAPE_WITH_ALT)
            self.flush()

        def stop_application_mode(self) -> None:
            self.write(_RESTORE_ALT)
            super().stop_application_mode()

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

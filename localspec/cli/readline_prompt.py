"""One message typed at a prompt: several lines, history, completion, and pastes as one."""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from localspec.chat import slash_commands

_FENCE = '"""'


class ReadlinePrompt:
    """Asks for messages.

    A line that ends in `\\` goes on, and so does what begins with a fence until the next.  Lines
    of one paste are one message: readline sees to it, or else whatever waits already is read.
    """

    def __init__(
        self,
        prompt: str,
        read_line: Callable[[str], str] = input,
        has_pending_input: Callable[[], bool] | None = None,
    ) -> None:
        self._prompt = prompt
        self._read_line = read_line
        self._readline = _setup_readline()
        self._has_pending_input = has_pending_input or (
            _stdin_has_input if _lacks_bracketed_paste(self._readline) else _no_pending_input
        )

    def read_message(self, initial_text: str = "") -> str:
        """What was typed; `begun` stands there to be changed.

        Raises EOFError at Ctrl+D on an empty line, KeyboardInterrupt at Ctrl+C.
        """
        self._set_initial_text(initial_text)
        try:
            lines = [self._read_line(self._prompt)]
        finally:
            self._set_initial_text("")
        with suppress(EOFError):  # Ctrl+D in the middle ends the message
            while self._is_incomplete(lines):
                lines.append(self._read_line(""))
        return _join_lines(lines)

    def _is_incomplete(self, lines: list[str]) -> bool:
        whole = "\n".join(lines)
        if whole.lstrip().startswith(_FENCE):
            body = whole.strip()
            return len(body) < 2 * len(_FENCE) or not body.endswith(_FENCE)
        if lines[-1].endswith("\\"):
            return True
        return self._has_pending_input() and (len(lines) > 1 or slash_commands.parse(whole) is None)

    def _set_initial_text(self, text: str) -> None:
        """Have the next line begin with this text."""
        readline = self._readline
        if readline is None or not hasattr(readline, "set_pre_input_hook"):
            return

        def insert() -> None:
            readline.insert_text(text)
            readline.redisplay()

        readline.set_pre_input_hook(insert if text else None)


def _join_lines(lines: list[str]) -> str:
    whole = "\n".join(lines)
    body = whole.strip()
    if body.startswith(_FENCE):
        return body.removeprefix(_FENCE).removesuffix(_FENCE).strip("\n")
    return (
        "\n".join(line.removesuffix("\\") for line in lines[:-1]) + "\n" + lines[-1]
        if (len(lines) > 1)
        else whole
    )


def _setup_readline() -> Any:
    """The module, set up; None where there is none (Windows)."""
    try:
        readline: Any = importlib.import_module("readline")
    except ImportError:
        return None
    readline.set_completer_delims("")
    readline.set_completer(_complete_command)
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        for setting in ("set enable-bracketed-paste on", "set bell-style none", "tab: complete"):
            readline.parse_and_bind(setting)
    readline.clear_history()
    return readline


def _complete_command(prefix: str, number: int) -> str | None:
    found = slash_commands.complete(prefix)
    return found[number] if number < len(found) else None


def _lacks_bracketed_paste(readline: Any) -> bool:
    """Whether a paste arrives as if typed: without readline, with editline, where no terminal is
    known that could mark it."""
    unmarked = readline is None or "libedit" in (readline.__doc__ or "")
    return unmarked or os.environ.get("TERM") == "dumb"


def _no_pending_input() -> bool:
    return False


def _stdin_has_input() -> bool:
    """Whether more lines wait: those of a paste come together."""
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except (OSError, ValueError):  # Windows: not of a console
        return False

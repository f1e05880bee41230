"""The prompt of the linear chat: multi-line messages, history, completion, pastes."""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from localspec.chat import slash_commands, tab_completion

_FENCE = '"""'


class ReadlinePrompt:
    """Reads messages with readline.

    A message continues after a line that ends in `\\`, and between two `\"\"\"`.  A
    paste is one message: readline's bracketed paste, or else all lines that are already
    waiting on stdin.
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
        self.marks_pastes = not _lacks_bracketed_paste(self._readline)
        """Whether the terminal is asked to mark what is pasted."""
        if has_pending_input is None:
            has_pending_input = _stdin_has_input
            if self.marks_pastes:
                # readline already returns a paste as one line.
                has_pending_input = _no_input
        self._has_pending_input = has_pending_input

    def read_message(self, initial_text: str = "") -> str:
        """Read one message; `initial_text` is inserted at the prompt, to be edited.

        Raises EOFError at Ctrl+D on an empty line, KeyboardInterrupt at Ctrl+C.
        """
        self._set_initial_text(initial_text)
        try:
            lines = [self._read_line(self._prompt)]
        finally:
            self._set_initial_text("")
        with suppress(EOFError):  # Ctrl+D on a continued line ends the message
            while self._is_incomplete(lines):
                lines.append(self._read_line(""))
        text = "\n".join(lines)
        body = text.strip()
        if body.startswith(_FENCE):
            return body.removeprefix(_FENCE).removesuffix(_FENCE).strip("\n")
        *continued, last = lines
        return "\n".join([*(line.removesuffix("\\") for line in continued), last])

    def _is_incomplete(self, lines: list[str]) -> bool:
        text = "\n".join(lines)
        if text.lstrip().startswith(_FENCE):
            body = text.strip()
            return len(body) < 2 * len(_FENCE) or not body.endswith(_FENCE)
        if lines[-1].endswith("\\"):
            return True
        is_command = len(lines) == 1 and slash_commands.parse(text) is not None
        return not is_command and self._has_pending_input()

    def _set_initial_text(self, text: str) -> None:
        readline = self._readline
        if readline is None or not hasattr(readline, "set_pre_input_hook"):
            return

        def insert() -> None:
            readline.insert_text(text)
            readline.redisplay()

        hook = insert if text else None
        readline.set_pre_input_hook(hook)


def _setup_readline() -> Any:
    """The readline module, configured; None on Windows."""
    try:
        readline: Any = importlib.import_module("readline")
    except ImportError:
        return None
    readline.set_completer_delims("")
    readline.set_completer(_complete_command)
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        for setting in (
            "set enable-bracketed-paste on",
            "set bell-style none",
            "tab: complete",
        ):
            readline.parse_and_bind(setting)
    readline.clear_history()
    return readline


def _complete_command(prefix: str, number: int) -> str | None:
    names = tab_completion.complete(prefix)
    return names[number] if number < len(names) else None


def _lacks_bracketed_paste(readline: Any) -> bool:
    """Whether pasted lines arrive as if typed.

    They do without readline, with editline, and on a dumb terminal.
    """
    is_unsupported = readline is None or "libedit" in (readline.__doc__ or "")
    return is_unsupported or os.environ.get("TERM") == "dumb"


def _no_input() -> bool:
    return False


def _stdin_has_input() -> bool:
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except (OSError, ValueError):  # Windows: select() takes sockets only
        return False

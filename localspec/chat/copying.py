"""Copies an answer, one of its code blocks, or the chat.

A tool of the system copies it, or the terminal, which is asked by the sequence OSC 52.
"""

from __future__ import annotations

import base64
import codecs
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat import export
from localspec.chat.conversation import Turn
from localspec.chat.history import SavedChat
from localspec.chat.markdown_parser import MARKDOWN_PARSER
from localspec.chat.pictures import no_pictures
from localspec.errors import UsageError
from localspec.sanitize import sanitize
from localspec.units import count

_TIMEOUT = 3.0
_MAX_OSC52_BYTES = 74_994
"""The most bytes that terminals accept in one OSC 52 sequence, before base64."""
_HINT = "Type: /copy, /copy N, /copy code N or /copy all"


def select_text(chat: SavedChat, argument: str = "") -> str:
    """The sanitized text for `/copy ARGUMENT`. Raises UsageError.

    Empty: the last answer; `N`: that of turn N; `code` or `code N`: the last or the Nth
    code block of the last answer that has one; `all`: the chat as Markdown.
    """
    word, _, number = argument.strip().partition(" ")
    if word == "all":
        chat.conversation.require_turns()
        # A clipboard is no place for megabytes of pictures: they are named.
        return sanitize(export.render(replace(chat, read_picture=no_pictures), ".md"))
    if word == "code":
        return _select_code(chat, number)
    if word:
        return _select_answer(chat, _parse_number(argument))
    for turn in reversed(chat.conversation.turns):
        text = turn.visible_answer(chat.list_entry.pair.thinking)
        if text:
            return sanitize(text)
    raise UsageError("No answer to copy yet.", "Type a message.")


def _select_code(chat: SavedChat, number_text: str) -> str:
    number = 0
    if number_text.strip():
        number = _parse_number(number_text)
    for turn in reversed(chat.conversation.turns):
        blocks = find_code_blocks(_visible_answer(chat, turn))
        if blocks:
            return _code_of(blocks, number or len(blocks))
    raise UsageError("No answer has a code block.", "Type /copy for the whole answer.")


def _select_answer(chat: SavedChat, number: int) -> str:
    questions = chat.conversation.questions
    hint = "Type /turns to list them."
    if not 1 <= number <= len(questions):
        raise UsageError(f"There is no turn {number}.", hint)
    steps = chat.conversation.list_steps(questions[number - 1].id)
    text = _visible_answer(chat, steps[-1])
    if not text:
        raise UsageError(f"Turn {number} has no answer.", hint)
    return text


def _parse_number(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 6:
        shown = sanitize(text[:20], multiline=False)
        raise UsageError(f"/copy does not know {shown!r}.", _HINT)
    return int(text)


def code_block(chat: SavedChat, turn_id: int, number: int) -> str:
    """A code block of a turn's answer, from 1. Raises UsageError."""
    turn = chat.conversation.turn(turn_id)
    return _code_of(find_code_blocks(_visible_answer(chat, turn)), number)


def _code_of(blocks: list[str], number: int) -> str:
    if not 1 <= number <= len(blocks):
        n_blocks = count(len(blocks), "code block")
        raise UsageError(
            f"There is no code block {number}: the answer has {n_blocks}.", _HINT
        )
    return blocks[number - 1]


def _visible_answer(chat: SavedChat, turn: Turn) -> str:
    """Without thinking, sanitized as on the screen."""
    return sanitize(turn.visible_answer(chat.list_entry.pair.thinking))


def find_code_blocks(text: str) -> list[str]:
    """The code blocks of Markdown, in order, without their fences."""
    tokens = MARKDOWN_PARSER.parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def copy(
    text: str,
    write_to_terminal: Callable[[str], object] | None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Copy the text, and return a sentence on the result; it is empty on failure.

    The sentence claims no more than is known: a system tool reports success, tmux that
    it has the text, a terminal nothing. Over SSH no system tool is tried: it would fill
    the remote computer's clipboard.
    """
    size = count(len(text), "character")
    for tool in _system_tools(environment):
        if _run(tool, text):
            return f"Copied {size} with {tool.command[0]}."
    if environment.get("TMUX"):
        # Wrapped sequences (DCS) are off by default since tmux 3.3.
        if _run(_TMUX, text):
            return f"Copied {size} to tmux (prefix ] pastes), which passes them to the terminal."
        if _run(_TMUX_BEFORE_3_2, text):  # before tmux 3.2
            return f"Copied {size} to tmux only: prefix ] pastes them."
    data = text.encode("utf-8", "replace")
    is_linux_console = environment.get("TERM") == "linux"
    if len(data) > _MAX_OSC52_BYTES or write_to_terminal is None or is_linux_console:
        return ""
    write_to_terminal(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    return f"Sent {size} to the terminal; it does not say whether it copied them."


class ClipboardTool(Struct, frozen=True):
    """A program that takes the text to copy as its input."""

    command: tuple[str, ...]
    encoding: str = "utf-8"
    byte_order_mark: bytes = b""
    environment: Mapping[str, str] = MappingProxyType({})

    def encode(self, text: str) -> bytes:
        return self.byte_order_mark + text.encode(self.encoding, "replace")


# clip.exe reads the code page of the console, but UTF-16 with a byte order mark.
_CLIP = ClipboardTool(
    ("clip.exe",), encoding="utf-16-le", byte_order_mark=codecs.BOM_UTF16_LE
)
# Without a locale pbcopy reads Mac Roman.
_PBCOPY = ClipboardTool(("pbcopy",), environment={"LC_CTYPE": "UTF-8"})
_WL_COPY = ClipboardTool(("wl-copy",))
_XCLIP = ClipboardTool(("xclip", "-selection", "clipboard"))
_XSEL = ClipboardTool(("xsel", "--clipboard", "--input"))
_TMUX = ClipboardTool(("tmux", "load-buffer", "-w", "-"))
_TMUX_BEFORE_3_2 = ClipboardTool(("tmux", "load-buffer", "-"))


def _run(tool: ClipboardTool, text: str) -> bool:
    if shutil.which(tool.command[0]) is None:
        return False
    try:
        subprocess.run(
            tool.command,
            input=tool.encode(text),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=True,
            env={**os.environ, **tool.environment},
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _system_tools(environment: Mapping[str, str]) -> list[ClipboardTool]:
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        return []
    if sys.platform == "darwin":
        return [_PBCOPY]
    if sys.platform == "win32":
        return [_CLIP]
    tools = []
    if environment.get("WAYLAND_DISPLAY"):
        tools.append(_WL_COPY)
    if environment.get("DISPLAY"):
        tools += [_XCLIP, _XSEL]
    if environment.get("WSL_DISTRO_NAME"):
        tools.append(_CLIP)
    return tools

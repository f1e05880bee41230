"""What goes into a linear chat and comes out of it: files, and the clipboard."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click

from localspec.chat import clipboard, export, transcript
from localspec.chat.thinking import said
from localspec.chat.turn import Attachment
from localspec.clean import clean
from localspec.cli.state import State
from localspec.errors import AccessError, NotFoundError, UsageError
from localspec.units import count

_LARGEST = 4 * 1024 * 1024
"""Bytes of a file before a message."""

Say = Callable[[str], None]
"""Shows lines of talk."""


def copy(_: str, state: State, say: Say) -> Literal["ask"]:
    """The last answer, by a tool of this computer or through the terminal."""
    state.must_have_turns()
    turn = state.conversation.turns[-1]
    text = clean(said(turn.answer, state.loaded.thinking, turn.begins_inside))
    tool = clipboard.native(text)
    if tool:
        say(f"Copied with {tool}.")
        return "ask"
    sequence = None if state.look.plain else clipboard.osc52(text)
    if sequence is None:
        raise AccessError("The clipboard cannot be reached from here.", "Type: /save answer.txt")
    click.echo(sequence, nl=False)
    say("Copied, if this terminal allows it (OSC 52).")
    return "ask"


def read(text: str, state: State, say: Say) -> Literal["ask"]:
    """A file, which goes before the next message."""
    name = clean(text, multiline=False)
    path = Path(os.path.expanduser(text))
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"{name} is no file.", "Give the path of a text file.")
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", "Type: /read FILE") from error
    except (OSError, ValueError) as error:
        raise AccessError(f"{name} cannot be read: {error}.", "Type: /read FILE") from error
    if len(data) > _LARGEST or b"\0" in data:
        what = "too large" if len(data) > _LARGEST else "no text"
        raise UsageError(f"{name} is {what}.", "Give the path of a text file of up to 4 MB.")
    added = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").rstrip("\n")
    state.attached = (*state.attached, Attachment(path.name, added))
    say(f"{count(added.count(chr(10)) + 1)} lines of {name} go before your next message.")
    return "ask"


def save(text: str, state: State, say: Say) -> Literal["ask"]:
    """The chat, into a file."""
    state.must_have_turns()
    path = Path(os.path.abspath(os.path.expanduser(text)))
    kept = export.so_far(state.conversation, state.keeper.pair, state.settings)
    whole = export.written(kept, path.suffix)
    transcript.save(path, whole, overwrite=path in state.saved)
    state.saved.add(path)
    say(f"Saved: {clean(str(path), multiline=False)}")
    return "ask"

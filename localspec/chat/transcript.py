"""A conversation as a document to keep: Markdown, or plain text."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from localspec.chat.conversation import Conversation, message
from localspec.chat.thinking import said
from localspec.clean import clean
from localspec.errors import AccessError

Markers = tuple[str, str] | None


def markdown(conversation: Conversation, model: str, markers: Markers = None) -> str:
    """Headings say who speaks; thinking is left out."""
    name = clean(model, multiline=False)
    blocks = [f"# A chat with {name}"]
    if conversation.system:
        blocks += ["## System", clean(conversation.system)]
    for question, answer, by in _spoken(conversation, markers):
        blocks += ["## You", question] if question else []
        blocks += [f"## {by or name}", answer]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def plain(conversation: Conversation, model: str, markers: Markers = None) -> str:
    """Role words before each turn; thinking is left out."""
    name = clean(model, multiline=False)
    blocks = [f"System: {clean(conversation.system)}"] if conversation.system else []
    for question, answer, by in _spoken(conversation, markers):
        blocks += [f"You: {question}"] if question else []
        blocks += [f"{by or name}: {answer}"]
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def save(path: Path, text: str, *, overwrite: bool) -> None:
    """All of it or nothing.  Raises AccessError."""
    shown = clean(str(path), multiline=False)
    if not overwrite and path.exists():
        raise AccessError(f"{shown} exists already.", "Choose another name.")
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=".localspec-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise
    except OSError as error:
        raise AccessError(
            f"{shown} cannot be written: {error.strerror}.", "Choose another place."
        ) from error


def _spoken(conversation: Conversation, markers: Markers) -> list[tuple[str, str, str]]:
    """Question, answer, and who gave it, as far as that is known."""
    return [
        (
            clean(message(turn)),
            clean(said(turn.answer, markers, turn.begins_inside)),
            clean(turn.model, multiline=False),
        )
        for turn in conversation.turns
    ]

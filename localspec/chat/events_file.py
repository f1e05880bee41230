"""Reading the event files that `run --events` writes; damaged lines are skipped.

Besides the events of the engine they have a line for each call of a tool.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from localspec.chat.tool_loop import CallState
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.protocol.events import (
    SCHEMA_VERSION,
    EngineExit,
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    decode,
)
from localspec.protocol.wire import MAX_LINE_BYTES
from localspec.sanitize import sanitize

_MAX_BYTES = 512 * 1024 * 1024  # What follows in a larger file is not read.
_MAX_NAMED_LINES = 5
"""Skipped lines whose numbers a message lists; further ones are only counted."""
OVERFLOW_CODES = ("context-dropped", "context-summarised")
"""Codes of notices in the middle of an answer, which goes on after them."""
SKIPPED_LINE_CODES = ("damaged-line", "unknown-event")
"""Codes of the notices that `read` adds."""
_CALL = "call"
"""The `ev` of a line about a call, which is no event of the engine."""
_HINT = "Create one: localspec run … --events FILE"


def encode_call(state: CallState) -> str:
    """A call that has a result as one line of JSON, without a line feed."""
    assert state.result is not None
    body = {
        "v": SCHEMA_VERSION,
        "ev": _CALL,
        "id": state.request.call_id,
        "tool": state.result.tool,
        "arguments": dict(state.request.arguments),
        "result": state.result.text,
        "is_error": state.result.is_error,
        "verdict": state.result.verdict,
    }
    return json.dumps(body)


def read(path: str | Path) -> list[Event]:
    """Return the events of a file, in order, after notices about skipped lines.

    Raises NotFoundError, StorageError, or UsageError if the file has no round.
    """
    name = sanitize(str(path), multiline=False)
    try:
        with Path(path).open("rb") as file:
            events, damaged, unknown = _decode_lines(file)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", _HINT) from error
    except OSError as error:
        raise StorageError(
            f"{name} cannot be read: {error.strerror}.", _HINT
        ) from error
    if _last_round(events) < 0:
        raise UsageError(_why_no_answer(name, events, damaged), _HINT)
    if unknown:
        message = (
            f"{_describe_lines(unknown)} of a type this version does not know: skipped."
        )
        events.insert(0, Notice("info", "unknown-event", message))
    if damaged:
        message = f"{_describe_lines(damaged)} damaged: skipped."
        events.insert(0, Notice("warning", "damaged-line", message))
    return events


def _why_no_answer(name: str, events: list[Event], damaged: list[int]) -> str:
    if events:
        return f"{name} contains no answer."
    if damaged:
        lines = _describe_lines(damaged)
        lines = lines[0].lower() + lines[1:]
        return f"{name} is not an event file: {lines} damaged."
    return f"{name} is empty."


def split_answers(events: list[Event]) -> list[tuple[Event, ...]]:
    """Group the events by answer: the file of a chat holds several answers."""
    answers: list[list[Event]] = [[]]
    after_overflow = False
    for event in events:
        if isinstance(event, EngineReady):
            continue
        if _starts_answer(event, answers[-1], after_overflow):
            answers.append([])
        if isinstance(event, Notice) and event.code in OVERFLOW_CODES:
            after_overflow = True
        elif isinstance(event, Round):
            after_overflow = False
        answers[-1].append(event)
    return [tuple(answer) for answer in answers if _last_round(answer) >= 0]


def _starts_answer(event: Event, answer: list[Event], after_overflow: bool) -> bool:
    """Whether the event begins the next answer.

    After a context overflow it does not: the same answer continues with a new prefill.
    """
    if answer and isinstance(answer[-1], GenerationFinished | EngineExit):
        return True
    if after_overflow or _last_round(answer) < 0:
        return False
    if isinstance(event, Round):
        return event.n <= _last_round(answer)
    return isinstance(event, Prefill)


def _last_round(answer: list[Event]) -> int:
    """The number of the last round; -1 if there is none."""
    for event in reversed(answer):
        if isinstance(event, Round):
            return event.n
    return -1


def _decode_lines(file: BinaryIO) -> tuple[list[Event], list[int], list[int]]:
    """Return the valid events, and the line numbers of damaged and of unknown events."""
    events: list[Event] = []
    damaged: list[int] = []
    unknown: list[int] = []
    number = 0
    n_bytes_read = 0
    while n_bytes_read < _MAX_BYTES:
        # An overlong line is cut, and so counts as damaged.
        line = file.readline(MAX_LINE_BYTES)
        if not line:
            break
        number += 1
        n_bytes_read += len(line)
        if not line.strip():
            continue
        try:
            event = decode(line.decode())
        except (ValueError, RecursionError):
            damaged.append(number)
            continue
        if event is None:
            if not _is_call(line):
                unknown.append(number)
        elif isinstance(event, Round) and event.accepted > len(event.tokens):
            damaged.append(number)
        else:
            events.append(event)
    return events, damaged, unknown


def _is_call(line: bytes) -> bool:
    """Whether a line that can be decoded is about a call."""
    return bool(json.loads(line).get("ev") == _CALL)


def _describe_lines(numbers: list[int]) -> str:
    """`line 3 is`, `lines 3 and 4 are`, …"""
    shown = list(map(str, numbers[:_MAX_NAMED_LINES]))
    if len(numbers) > _MAX_NAMED_LINES:
        shown.append(f"{len(numbers) - _MAX_NAMED_LINES} more")
    if len(shown) == 1:
        return f"Line {shown[0]} is"
    return f"Lines {', '.join(shown[:-1])} and {shown[-1]} are"

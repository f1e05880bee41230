"""A file of events, as `run --events` writes it, read back with suspicion."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Union, get_args, get_origin, get_type_hints

from localspec.clean import clean
from localspec.errors import AccessError, NotFoundError, UsageError
from localspec.protocol.events import Dead, Event, Finished, Notice, Prefill, Ready, Round, decode
from localspec.protocol.wire import LONGEST_LINE

_LARGEST = 512 * 1024 * 1024
_NAMED = 5
"""Lines that are named one by one; more are counted."""
ROOM = ("context-dropped", "context-summarised")
"""The codes of the notices that tell how an answer got room to go on."""
LEFT_OUT = ("damaged-line", "unknown-event")
"""The codes of the notices that `read` adds."""
_HINT = "Make one: localspec run … --events FILE"


def read(path: str | Path) -> list[Event]:
    """The events of a file, in order; notices at the beginning say which lines were left out.

    Raises NotFoundError, AccessError, or UsageError where there is no round in it.
    """
    name = clean(str(path), multiline=False)
    try:
        with Path(path).open("rb") as file:
            events, damaged, unknown = _read(file)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", _HINT) from error
    except OSError as error:
        raise AccessError(f"{name} cannot be read: {error.strerror}.", _HINT) from error
    if not any(isinstance(event, Round) for event in events):
        raise UsageError(_nothing(name, len(events), damaged), _HINT)
    notices: list[Event] = []
    if damaged:
        notices.append(Notice("warning", LEFT_OUT[0], f"{_lines(damaged)} damaged: left out."))
    if unknown:
        what = f"{_lines(unknown)} of a kind this version does not know: left out."
        notices.append(Notice("info", LEFT_OUT[1], what))
    return notices + events


def answers(events: list[Event]) -> list[tuple[Event, ...]]:
    """The events of each answer by itself; a chat's file holds several."""
    found: list[list[Event]] = [[]]
    makes_room = False
    for event in events:
        if isinstance(event, Ready):
            continue
        if _begins(event, found[-1], makes_room):
            found.append([])
        makes_room = _is_room(event) or (makes_room and not isinstance(event, Round))
        found[-1].append(event)
    return [tuple(answer) for answer in found if _last(answer) >= 0]


def _begins(event: Event, answer: list[Event], makes_room: bool) -> bool:
    """Whether another answer begins with it; not where this one got room, and is read anew."""
    if answer and isinstance(answer[-1], Finished | Dead):
        return True
    if makes_room or _last(answer) < 0:
        return False
    return isinstance(event, Prefill) or (isinstance(event, Round) and event.n <= _last(answer))


def _is_room(event: Event) -> bool:
    return isinstance(event, Notice) and event.code in ROOM


def _last(answer: list[Event]) -> int:
    """The number of the newest round; -1 where there is none yet."""
    return next((event.n for event in reversed(answer) if isinstance(event, Round)), -1)


def _read(file: BinaryIO) -> tuple[list[Event], list[int], list[int]]:
    """Sound events, and the numbers of damaged and of unknown lines."""
    events: list[Event] = []
    damaged: list[int] = []
    unknown: list[int] = []
    for number, line in enumerate(_raw_lines(file), 1):
        if not line.strip():
            continue
        try:
            event = decode(line.decode())
        except (ValueError, RecursionError):
            damaged.append(number)
            continue
        if event is None:
            unknown.append(number)
        elif _sound(event):
            events.append(event)
        else:
            damaged.append(number)
    return events, damaged, unknown


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, the longest cut (so that they count as damaged); no more than a large file's worth."""
    seen = 0
    while (line := file.readline(LONGEST_LINE)) and seen < _LARGEST:
        seen += len(line)
        yield line


def _sound(event: Event) -> bool:
    """Whether every field has the type it should, and counts are possible."""
    if not fits(event, type(event)):
        return False
    if isinstance(event, Round):
        return 0 <= event.accepted <= event.drafted and event.accepted <= len(event.tokens)
    return not isinstance(event, Prefill) or min(event.done, event.total, event.reused) >= 0


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type, to its last part."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return value in parts
    if kind in (types.UnionType, Union):
        return any(fits(value, part) for part in parts)
    if kind in (tuple, dict):
        part = parts[0] if kind is tuple else parts[1]
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, kind) and all(fits(item, part) for item in items)
    if is_dataclass(hint):
        return type(value) is hint and all(
            fits(getattr(value, name), part) for name, part in _hints(type(value)).items()
        )
    return hint is Any or isinstance(value, int | float if hint is float else hint)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _lines(numbers: list[int]) -> str:
    """`line 3 is`, `lines 3 and 4 are`, …"""
    shown = [str(number) for number in numbers[:_NAMED]]
    if len(numbers) > _NAMED:
        shown.append(f"{len(numbers) - _NAMED} more")
    if len(shown) == 1:
        return f"Line {shown[0]} is"
    return f"Lines {', '.join(shown[:-1])} and {shown[-1]} are"


def _nothing(name: str, sound: int, damaged: list[int]) -> str:
    if damaged and not sound:
        return (
            f"{name} is no file of events: {_lines(damaged)[0].lower()}{_lines(damaged)[1:]} none."
        )
    return f"{name} holds no answer." if sound else f"{name} is empty."

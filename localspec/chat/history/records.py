"""Rows of the history's tables from what they keep, and back, with suspicion."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from localspec.chat import events_file
from localspec.chat.conversation import Attachment, Conversation, DroppedTurns, Turn
from localspec.chat.settings import ChatSettings
from localspec.protocol import events
from localspec.protocol.events import Event, FinishReason, Prefill
from localspec.protocol.json_dataclasses import from_json

_MAX_CHECKPOINT_BYTES = 256 * 1024 * 1024
"""Bytes of one checkpoint, unpacked: a damaged one must not fill the memory."""

TURN_COLUMNS = "key, id, parent, question, attached, answer, reason, attempt, inside, model"
"""The columns of which `turn` makes a turn."""
LIST_COLUMNS = "id, title, pair, turns, created, updated"


def replace_surrogates(text: str) -> str:
    """What SQLite can keep: lone surrogates become a mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- small parts ------------------------------------------------------------------------


def dump_settings(settings: ChatSettings) -> str:
    return json.dumps(asdict(settings))


def load_settings(text: object) -> ChatSettings:
    """As they were kept; the defaults where that makes no sense."""
    try:
        found = from_json(ChatSettings, _parse_object(text))
    except ValueError:
        return ChatSettings()
    return found if events_file.matches_type(found, ChatSettings) else ChatSettings()


def dump_pair(pair: ChatPair) -> str:
    return json.dumps(asdict(pair))


def load_pair(text: object) -> ChatPair:
    try:
        found = from_json(ChatPair, _parse_object(text))
    except ValueError:
        return ChatPair("")
    sound = events_file.matches_type(found, ChatPair) and len(found.thinking or "ab") == 2
    return found if sound else ChatPair("")


def dump_dropped(dropped: DroppedTurns) -> str:
    return json.dumps(asdict(dropped)) if dropped.turns else ""


def load_dropped(text: object) -> DroppedTurns:
    """None at all where it makes no sense: then all turns are sent."""
    try:
        found = from_json(DroppedTurns, _parse_object(text)) if text else DroppedTurns()
    except ValueError:
        return DroppedTurns()
    return (
        found
        if events_file.matches_type(found, DroppedTurns) and found.turns >= 0
        else DroppedTurns()
    )


def dump_attachments(attachments: Iterable[Attachment]) -> str:
    return json.dumps([[file.name, file.text] for file in attachments])


def load_attachments(text: object) -> tuple[Attachment, ...]:
    try:
        return tuple(Attachment(str(name), str(body)) for name, body in json.loads(str(text)))
    except (ValueError, TypeError, RecursionError):
        return ()


def _parse_object(text: object) -> Mapping[str, Any]:
    try:
        body = json.loads(str(text))
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


# --- events -----------------------------------------------------------------------------


def pack_events(answer_events: Iterable[Event]) -> bytes:
    """Lines of JSON, compressed: about a sixth."""
    return zlib.compress("\n".join(map(events.encode, answer_events)).encode(), 6)


def unpack_events(body: Any) -> list[Event]:
    """Those of a checkpoint; none of a damaged one, which its checksum gives away."""
    reader = zlib.decompressobj()
    try:
        lines = reader.decompress(body, _MAX_CHECKPOINT_BYTES).decode().split("\n")
    except (TypeError, ValueError, zlib.error):
        return []
    if not reader.eof:
        return []
    found = []
    for line in filter(None, lines):
        try:
            event = events.decode(line)
        except (ValueError, RecursionError):
            continue
        if event is not None:
            found.append(event)
    return found


# --- whole rows -------------------------------------------------------------------------


def load_list_entry(row: Sequence[Any]) -> ChatListEntry:
    """Raises ValueError where the row makes no sense."""
    id_, title, pair_, turns, created, updated = row
    try:
        return ChatListEntry(
            int(id_), str(title), load_pair(pair_), int(turns), float(created), float(updated)
        )
    except (TypeError, OverflowError) as error:
        raise ValueError("a damaged row") from error


def load_turn(row: Sequence[Any], answer_events: Sequence[Event] | None = None) -> Turn:
    """`heard` are its events; None where they were not looked at.

    Raises ValueError where the row makes no sense.
    """
    _, id_, parent, question, files, answer, reason, attempt, inside, model = row
    if answer_events is None:
        answer_events = [Prefill(0, 0, 0, thinking=True)] if inside else []
    if not isinstance(id_, int) or not isinstance(attempt, int):
        raise ValueError("a damaged row")
    return Turn(
        str(question),
        str(answer),
        reason if reason in get_args(FinishReason) else None,
        attempt,
        tuple(answer_events),
        load_attachments(files),
        id_,
        parent if isinstance(parent, int) else None,
        str(model),
    )


def clear_missing_parents(turns: Iterable[Turn]) -> list[Turn]:
    """Those that make a tree: what follows nothing that is here begins the chat."""
    known: dict[int, Turn] = {}
    for one in sorted(turns, key=lambda turn: turn.id):
        orphan = one.parent is not None and one.parent not in known
        known[one.id] = replace(one, parent=None) if orphan else one
    return list(known.values())


# --- What there is to know of a chat that was kept.


@dataclass(frozen=True, slots=True)
class ChatPair:
    """The pair that answers, as a person asks for it."""

    model: str
    """A reference or a path; `draft` too, or `auto` or `none`."""
    draft: str = "auto"
    name: str = ""
    """Of the model, for a person."""
    thinking: tuple[str, str] | None = None
    """The markers around what it thinks."""


@dataclass(frozen=True, slots=True)
class ChatLocation:
    """Where a chat is kept: its id means nothing in another file."""

    database_id: str
    chat_id: int


@dataclass(frozen=True, slots=True)
class ChatMetadata:
    """All of a chat but its turns, to be written."""

    title: str
    seed: int
    system: str
    settings: ChatSettings
    pair: ChatPair
    head: int | None
    dropped: DroppedTurns
    turn_count: int
    """On the path to the head."""


@dataclass(frozen=True, slots=True)
class ChatListEntry:
    """A chat in a list: nothing of its turns was read for it."""

    id: int
    title: str
    pair: ChatPair
    turn_count: int
    created: float
    """Seconds since 1970, UTC, by the clock of that moment; no order is made of it."""
    updated: float


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A chat to read or to go on with."""

    location: ChatLocation
    list_entry: ChatListEntry
    conversation: Conversation
    settings: ChatSettings


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A chat in which something was found: in a turn, or in its title where `turn` is None."""

    list_entry: ChatListEntry
    turn: int | None
    excerpt: str

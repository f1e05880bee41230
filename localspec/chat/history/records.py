"""Records of saved chats, and their conversion to and from database rows.

SQLite stores any type in any column. Loading checks every value, because a damaged file
must not crash the program and shows as much of a chat as can be read.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any, TypeVar, get_args

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from localspec.chat.conversation import (
    Attachment,
    CallResult,
    Conversation,
    DroppedTurns,
    PictureAttachment,
    Turn,
)
from localspec.chat.pictures import PictureReader, no_pictures
from localspec.chat.settings import ChatSettings
from localspec.chat.titles import replace_old_title
from localspec.models import catalog, model_names
from localspec.models.catalog import Catalog
from localspec.protocol import events
from localspec.protocol.events import Event, FinishReason, Prefill
from localspec.protocol.json_values import JsonError, from_json, parse_object
from localspec.protocol.wire import ToolCall
from localspec.sanitize import sanitize

_T = TypeVar("_T")
_MAX_CHECKPOINT_BYTES = 256 * 1024 * 1024
"""The most of an unpacked checkpoint: a damaged one must not fill the memory."""

SYSTEM_SINCE = "system_since"  # A key beside those of the settings.
TURN_COLUMNS = (
    "key, id, parent, question, attached, answer, reason, attempt, inside, model"
)
"""The columns that `load_turn` expects, before `pictures` and `calls`."""
LIST_COLUMNS = (
    "id, title, pair, turns, created, updated, (SELECT substr(question, 1, 1000) "
    "FROM turns WHERE turns.chat = chats.id ORDER BY turns.id LIMIT 1)"
)
"""The columns of `chats` that `load_list_entry` expects."""


class ChatPair(Struct, frozen=True):
    """The pair that answers, by the references that open it again."""

    model: str  # A reference or a path.
    draft: str = "auto"  # A reference, a path, `auto` or `none`.
    name: str = (
        ""  # Of the file that answers: screens show what `model_names` says of it.
    )
    thinking: tuple[str, str] | None = None  # The markers before and after thinking.


class ChatLocation(Struct, frozen=True):
    """A chat's id, and the id of the database in which it is valid."""

    database_id: str
    chat_id: int


class ChatMetadata(Struct, frozen=True):
    title: str
    seed: int
    system: str
    settings: ChatSettings
    pair: ChatPair
    head: int | None
    dropped: DroppedTurns
    turn_count: int  # Questions on the path to the head.
    system_since: int = 0  # As in `Conversation`.


class NewChat(Struct, frozen=True):
    """A chat to import. `created` and `updated` are in seconds since 1970."""

    metadata: ChatMetadata
    turns: Sequence[Turn]
    created: float
    updated: float
    pictures: Mapping[str, bytes] = {}  # The files of pictures, by their hashes.


class ChatListEntry(Struct, frozen=True):
    id: int
    title: str
    pair: ChatPair
    turn_count: int
    # Seconds since 1970. They do not sort chats: the system clock may jump.
    created: float
    updated: float


def name_models(chats: Iterable[ChatListEntry]) -> dict[int, str]:
    """The shown name of the model of each chat, by the chat's id.

    The saved name of a file may be that of another file, which another chat used: where
    both are listed, they are told apart by what they were opened by.
    """
    catalogue, _ = catalog.load_valid()  # others report an invalid file
    by_pair: dict[tuple[str, str], str] = {}
    paths: dict[tuple[str, str], PurePath] = {}
    keys: dict[int, tuple[str, str]] = {}
    for chat in chats:
        key = (chat.pair.model, chat.pair.name)
        keys[chat.id] = key
        if key in by_pair or key in paths:
            continue
        path = _find_path(chat.pair)
        if path is None:
            by_pair[key] = _name_model(chat.pair, catalogue)
        else:
            paths[key] = path
    by_path = model_names.name_files(paths.values(), catalogue)
    for key, path in paths.items():
        by_pair[key] = by_path[path]
    return {chat_id: by_pair[key] for chat_id, key in keys.items()}


def _find_path(pair: ChatPair) -> PurePath | None:
    """The file that a chat was opened by, or that its repository has; None for an id."""
    if "/" not in pair.model or not pair.name:
        return None
    folder = PurePath(pair.model.partition(":")[0])
    if os.path.isabs(pair.model):
        folder = PurePath(pair.model).parent
    return folder / PurePath(pair.name).name


def name_chat_model(pair: ChatPair) -> str:
    """The shown name of the model of one chat; empty if it is unknown."""
    catalogue, _ = catalog.load_valid()
    return _name_model(pair, catalogue)


def _name_model(pair: ChatPair, catalogue: Catalog) -> str:
    """By its file's name, which says the quantisation, too.

    By the id where the catalogue does not say how the file is called.
    """
    shown = model_names.name_recorded([pair.name], catalogue)[pair.name]
    if shown and shown != sanitize(pair.name, multiline=False):
        return shown
    listed = model_names.find_referenced(pair.model, catalogue)
    if listed is None or listed.file:
        return shown
    return model_names.name_model(listed)


def name_answers(
    chat_model: str, pair: ChatPair, turns: Iterable[Turn]
) -> dict[str, str]:
    """The shown name of the model that wrote each answer, by `Turn.model`.

    `chat_model`: that of the chat's pair, which also wrote what says no model.
    """
    recorded = {turn.model for turn in turns if turn.model}
    names = model_names.name_recorded(recorded)
    others = [names[model] for model in recorded if model != pair.name]
    if chat_model and chat_model not in others:
        names[pair.name] = chat_model
    names[""] = chat_model
    return names


class SavedChat(Struct, frozen=True):
    location: ChatLocation
    list_entry: ChatListEntry
    conversation: Conversation
    settings: ChatSettings
    read_picture: PictureReader = no_pictures
    """Reads the bytes of its pictures while the history is open."""


class SearchHit(Struct, frozen=True):
    """A search result: a match in a turn, or in the title if `turn` is None."""

    list_entry: ChatListEntry
    turn: int | None
    excerpt: str
    terms: tuple[str, ...] = ()  # The words that were searched for, in lower case.


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which SQLite cannot store, by U+FFFD, as they are shown."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def load_settings(text: object) -> tuple[ChatSettings, int]:
    """The settings, and `Conversation.system_since`.

    Invalid values become the defaults.
    """
    body = _parse_object(text)
    if body.get("exact", False) is None:
        # Earlier versions wrote null for `auto`.
        body["exact"] = False
    settings = _convert(ChatSettings, body) or ChatSettings()
    since = body.get(SYSTEM_SINCE)
    if not isinstance(since, int):
        since = 0
    return settings, since


def _convert(kind: type[_T], body: Mapping[str, Any]) -> _T | None:
    """None if a field is missing or has a wrong type."""
    try:
        return from_json(kind, body)
    except JsonError:
        return None


def load_pair(text: object) -> ChatPair:
    """An invalid value is a pair without a name."""
    if not isinstance(text, str):
        text = ""
    return _load_pair_text(text)


@lru_cache(maxsize=256)
def _load_pair_text(text: str) -> ChatPair:
    """Most chats have one of few pairs."""
    pair = _convert(ChatPair, _parse_object(text))
    if pair is None:
        return ChatPair("")
    if pair.thinking and len(pair.thinking) != 2:
        return ChatPair("")
    return pair


def load_dropped(text: object) -> DroppedTurns:
    """An invalid value drops nothing: then all turns are sent."""
    dropped = _convert(DroppedTurns, _parse_object(text))
    if dropped is None or dropped.turns < 0:
        return DroppedTurns()
    return dropped


def load_attachments(text: object) -> tuple[Attachment, ...]:
    """Pairs of a name and a text; none if the value is invalid."""
    try:
        pairs = from_json(list[tuple[str, str]], json.loads(str(text)))
    except (ValueError, RecursionError):
        return ()
    return tuple(Attachment(name, body) for name, body in pairs)


def load_pictures(text: object) -> tuple[PictureAttachment, ...]:
    """None if the value is invalid."""
    try:
        return from_json(tuple[PictureAttachment, ...], json.loads(str(text)))
    except (ValueError, RecursionError):
        return ()


class TurnCalls(Struct, frozen=True):
    """The calls of a turn, and what became of those of the turn before."""

    format: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[CallResult, ...] = ()


def dump_calls(turn: Turn) -> str:
    """Empty for a turn without calls and results, as most are."""
    if not turn.calls and not turn.results:
        return ""
    calls = TurnCalls(turn.call_format, turn.calls, turn.results)
    return json.dumps(to_builtins(calls))


def load_calls(text: object) -> TurnCalls:
    """None if the value is invalid."""
    if text == "":
        return TurnCalls()
    return _convert(TurnCalls, _parse_object(text)) or TurnCalls()


def _parse_object(text: object) -> dict[str, Any]:
    """Empty if the text is damaged."""
    try:
        return parse_object(str(text).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}


def pack_events(answer_events: Iterable[Event]) -> bytes:
    """Compress JSON lines to about a sixth of their size."""
    lines = "\n".join(events.encode(event) for event in answer_events)
    return zlib.compress(lines.encode(), 6)


def unpack_events(body: Any) -> list[Event]:
    """Return the events of a checkpoint; none if zlib's checksum does not match."""
    reader = zlib.decompressobj()
    try:
        lines = reader.decompress(body, _MAX_CHECKPOINT_BYTES).decode().split("\n")
    except (TypeError, ValueError, zlib.error):
        return []
    if not reader.eof:
        return []
    unpacked = []
    for line in lines:
        if not line:
            continue
        try:
            event = events.decode(line)
        except (ValueError, RecursionError):
            continue
        if event is not None:
            unpacked.append(event)
    return unpacked


def load_list_entry(row: Sequence[Any]) -> ChatListEntry:
    """Raises ValueError if the row is damaged."""
    id_, title, pair, turns, created, updated, question = row
    try:
        return ChatListEntry(
            id=int(id_),
            title=replace_old_title(str(title), str(question or "")),
            pair=load_pair(pair),
            turn_count=int(turns),
            created=float(created),
            updated=float(updated),
        )
    except (TypeError, OverflowError) as error:
        raise ValueError("a damaged row") from error


def load_turn(row: Sequence[Any], answer_events: Sequence[Event] | None = None) -> Turn:
    """Load a turn without its events if `answer_events` is None.

    Raises ValueError if the row is damaged.
    """
    _, id_, parent, question, files, answer, reason, attempt, inside, model, *later = (
        row
    )
    pictures, calls_text = later
    if not isinstance(id_, int) or not isinstance(attempt, int):
        raise ValueError("a damaged row")
    if not isinstance(parent, int):
        parent = None
    if reason not in get_args(FinishReason):
        reason = None
    loaded_events = list(answer_events or ())
    has_prefill = any(isinstance(event, Prefill) for event in loaded_events)
    if inside and not has_prefill:
        # The answer began inside its thinking, which only this event says.
        prefill = Prefill(done=0, total=0, reused=0, thinking=True)
        loaded_events.insert(0, prefill)
    calls = load_calls(calls_text)
    return Turn(
        question=str(question),
        answer=str(answer),
        finish_reason=reason,
        attempt=attempt,
        events=tuple(loaded_events),
        attachments=load_attachments(files),
        pictures=load_pictures(pictures),
        id=id_,
        parent=parent,
        model=str(model),
        calls=calls.calls,
        call_format=calls.format,
        results=calls.results,
    )


def clear_missing_parents(turns: Iterable[Turn]) -> list[Turn]:
    """Make a valid tree: a turn whose parent is missing becomes a first turn."""
    by_id: dict[int, Turn] = {}
    for turn in sorted(turns, key=lambda turn: turn.id):
        if turn.parent in by_id:
            by_id[turn.id] = turn
        else:
            by_id[turn.id] = replace(turn, parent=None)
    return list(by_id.values())

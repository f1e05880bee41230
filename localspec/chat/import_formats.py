"""Chats of other programs, and our own exports: their JSON becomes conversations.

The formats that are read, each recognised by its keys:

* localspec: `localspec export --json` (docs/json.md).
* ChatGPT: `conversations.json` of an export of 2023 to 2025: a tree of messages
  (`mapping`) and its last message (`current_node`).
* llama.cpp's web UI: a `session` line and `message` lines (its exports since 2026), or
  `conv` and `messages`, alone or in a list (since 2025).
* LM Studio 0.3 and later: a `.conversation.json`, whose messages have `versions`.
* Open WebUI: a list of chats, each with `chat.history`.

Pictures are read of our own format only. Elsewhere a picture, or another file that is no
text, becomes one line with its name.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.chat.conversation import (
    Attachment,
    CallResult,
    Conversation,
    PictureAttachment,
    Turn,
)
from localspec.chat.settings import ChatSettings
from localspec.errors import AudioError, PictureError, UsageError
from localspec.models.audio_files import Audio, check_audio, find_audio_kind
from localspec.models.pictures import Picture, check_picture
from localspec.protocol import events
from localspec.protocol.events import FinishReason
from localspec.protocol.json_values import JsonError, from_json
from localspec.protocol.wire import ToolCall

_T = TypeVar("_T")

THINKING_MARKERS = ("<think>", "</think>")
"""Around imported thinking, as most models write it."""
FORMATS = "localspec, ChatGPT, llama.cpp's web UI, LM Studio and Open WebUI"
_MAX_MESSAGES = 200_000  # The most that one chat may have.


class ImportedChat(Struct, frozen=True):
    conversation: Conversation
    title: str = ""  # Empty: one is made of the first question.
    model: str = ""  # The name of the model that answered last.
    # References of target and draft; without, the default model goes on with the chat.
    pair_refs: tuple[str, str] = ("", "auto")
    settings: ChatSettings = field(default_factory=ChatSettings)
    # Seconds since 1970; 0 if they are unknown.
    created: float = 0.0
    updated: float = 0.0
    has_thinking: bool = False
    pictures: dict[str, bytes] = {}  # The bytes of pictures, by hash.


class _Message(Struct, frozen=True):
    """A message of any format, as a node of the chat's tree."""

    id: str
    parent: str | None
    role: str
    text: str
    model: str = ""
    thinking: str = ""
    attachments: tuple[Attachment, ...] = ()


def parse_document(text: str) -> list[ImportedChat]:
    """The chats of a file. Raises UsageError if it is no export that is known."""
    try:
        document = _load_json(text)
        read = _find_format(document)
        if read is None:
            raise _not_an_export("None of the known formats")
        return list(read(document))
    except JsonError as error:
        raise _not_an_export(str(error)[:200]) from error
    except _DamagedTreeError as error:
        raise _not_an_export(str(error)) from error


def _not_an_export(why: str) -> UsageError:
    return UsageError(f"This is no export of chats: {why}.", f"Formats: {FORMATS}.")


def _load_json(text: str) -> Any:
    """One JSON value, or a list of the values of its lines."""
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        first_error: Exception = error
    try:
        lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        where = ""
        if isinstance(first_error, json.JSONDecodeError):
            where = f" (line {first_error.lineno}, column {first_error.colno})"
        raise _not_an_export(f"it is not JSON{where}") from first_error
    if len(lines) < 2:
        raise _not_an_export("it is not JSON")
    return lines


_Reader = Callable[[Any], Iterator[ImportedChat]]


def _find_format(document: Any) -> _Reader | None:
    first = document
    if isinstance(document, list):
        if not document:
            return _read_nothing
        first = document[0]
    if not isinstance(first, dict):
        return None
    if first.get("type") == "session":
        return _read_sessions
    for keys, read in _FORMAT_KEYS:
        if keys <= first.keys():
            return read
    return None


def _read_nothing(_: Any) -> Iterator[ImportedChat]:
    return iter(())


def _each(kind: type[_T], document: Any) -> list[_T]:
    """The chats of a document that is one, or a list of them. Raises JsonError."""
    if isinstance(document, list):
        return from_json(list[kind], document)  # type: ignore[valid-type]
    return [from_json(kind, document)]


# --- our own
# ------------------------------------------------------------------------------


class _OwnTurn(Struct):
    id: int
    parent: int | None
    question: str
    answer: str
    attempt: int = 0
    model: str = ""
    attached: list[Attachment] = []
    pictures: list[PictureAttachment] = []
    thinking: str = ""
    finish_reason: FinishReason | None = None
    calls: list[ToolCall] = []
    call_format: str = ""
    results: list[CallResult] = []
    events: list[dict[str, Any]] = []


class _OwnPair(Struct, frozen=True):
    model: str = ""
    draft: str = "auto"


class _OwnChat(Struct):
    turns: list[_OwnTurn]
    title: str = ""
    model: str = ""
    pair: _OwnPair = _OwnPair()
    created: str = ""
    updated: str = ""
    seed: int = 0
    system: str = ""
    settings: dict[str, Any] = {}
    path: list[int] = []
    pictures: dict[str, str] = {}  # Base64, by hash.


class _OwnExport(Struct):
    chat: _OwnChat


def _read_own(document: Any) -> Iterator[ImportedChat]:
    for export in _each(_OwnExport, document):
        chat = export.chat
        turns = [_convert_own_turn(turn) for turn in chat.turns]
        ids = {turn.id for turn in turns}
        if len(ids) < len(turns):
            raise JsonError("chat.turns", "two turns have one id")
        for turn in turns:
            if turn.parent is None:
                continue
            if turn.parent not in ids or turn.parent >= turn.id:
                raise JsonError("chat.turns", f"turn {turn.id} has no turn before it")
        head = next((n for n in reversed(chat.path) if n in ids), None)
        conversation = Conversation(chat.seed, chat.system, turns, head)
        try:
            settings = from_json(ChatSettings, chat.settings)
        except JsonError:  # Those of a newer version, say.
            settings = ChatSettings()
        yield ImportedChat(
            conversation,
            title=chat.title,
            model=chat.model,
            pair_refs=(chat.pair.model, chat.pair.draft),
            settings=settings,
            created=_parse_time(chat.created),
            updated=_parse_time(chat.updated),
            has_thinking=any(turn.thinking for turn in chat.turns),
            pictures=_decode_pictures(chat.pictures),
        )


def _decode_pictures(encoded: Mapping[str, str]) -> dict[str, bytes]:
    """The bytes of pictures and audio, checked as those that people send.

    Raises JsonError.
    """
    pictures: dict[str, bytes] = {}
    for sha256, text in encoded.items():
        try:
            data = base64.b64decode(text, validate=True)
            is_same = _check_media(data).sha256 == sha256
        except (AudioError, PictureError) as error:
            raise JsonError(f"chat.pictures.{sha256:.64}", error.message) from error
        except ValueError:
            is_same = False
        if not is_same:
            raise JsonError(f"chat.pictures.{sha256:.64}", "it is damaged")
        pictures[sha256] = data
    return pictures


def _check_media(data: bytes) -> Picture | Audio:
    """Raises AudioError or PictureError."""
    if find_audio_kind(data) is not None:
        return check_audio(data, "the audio")
    return check_picture(data, "the picture")


def _convert_own_turn(turn: _OwnTurn) -> Turn:
    converted = Turn(
        turn.question,
        _join_thinking(turn.thinking, turn.answer),
        turn.finish_reason,
        attempt=turn.attempt,
        attachments=tuple(turn.attached),
        pictures=tuple(turn.pictures),
        id=turn.id,
        parent=turn.parent,
        model=turn.model,
        calls=tuple(turn.calls),
        call_format=turn.call_format,
        results=tuple(turn.results),
    )
    try:
        parsed = [events.parse_event(body) for body in turn.events]
    except ValueError as error:
        raise JsonError(f"turn {turn.id}: events", str(error)) from error
    known = [event for event in parsed if event is not None]
    if not known:
        return converted
    # With the events, the text is the model's own, its marks of thinking included.
    return replace(converted, answer="", finish_reason=None).with_events(known)


def _join_thinking(thinking: str, answer: str) -> str:
    if not thinking:
        return answer
    start, end = THINKING_MARKERS
    return f"{start}{thinking}{end}{answer}"


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


# --- ChatGPT
# ------------------------------------------------------------------------------


class _GptAuthor(Struct):
    role: str


class _GptContent(Struct):
    content_type: str = "text"
    parts: list[Any] | None = None
    text: str | None = None
    language: str | None = None


class _GptMessage(Struct):
    author: _GptAuthor
    content: _GptContent | None = None
    recipient: str | None = None
    metadata: dict[str, Any] | None = None


class _GptNode(Struct):
    message: _GptMessage | None = None
    parent: str | None = None


class _GptConversation(Struct):
    mapping: dict[str, _GptNode]
    title: str | None = None
    current_node: str | None = None
    create_time: float | None = None
    update_time: float | None = None


_IMAGE = "image"
_GPT_SHOWN_TYPES = ("text", "multimodal_text", "code")


def _read_chatgpt(document: Any) -> Iterator[ImportedChat]:
    for chat in _each(_GptConversation, document):
        messages = [
            _convert_gpt_node(node_id, node) for node_id, node in chat.mapping.items()
        ]
        yield _build_chat(
            messages,
            current=chat.current_node,
            title=chat.title or "",
            created=chat.create_time or 0.0,
            updated=chat.update_time or 0.0,
        )


def _convert_gpt_node(node_id: str, node: _GptNode) -> _Message:
    """A node without a message, or with one that ChatGPT does not show, is empty."""
    message = node.message
    empty = _Message(node_id, node.parent, "", "")
    if message is None or message.content is None:
        return empty
    metadata = message.metadata or {}
    is_hidden = bool(metadata.get("is_visually_hidden_from_conversation"))
    is_for_tool = message.recipient not in (None, "all")
    if is_hidden or is_for_tool or message.content.content_type not in _GPT_SHOWN_TYPES:
        return empty
    lines = _name_files(metadata.get("attachments"))
    content = message.content
    if content.content_type == "code" and content.text:
        language = content.language or ""
        if language == "unknown":
            language = ""
        lines.append(f"```{language}\n{content.text}\n```")
    for part in content.parts or ():
        lines += _convert_gpt_part(part)
    role = message.author.role
    if role == "tool":  # It writes for the model, but what it draws is an answer.
        lines = [line for line in lines if line.startswith(f"[{_IMAGE}")]
        role = "assistant" if lines else ""
    return replace(
        empty,
        role=role,
        text="\n\n".join(lines),
        model=_text_of(metadata.get("model_slug")),
    )


def _convert_gpt_part(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part] if part else []
    if not isinstance(part, dict):
        return []
    if isinstance(part.get("text"), str):
        return [part["text"]]
    name = _text_of(part.get("asset_pointer")).rpartition("/")[2]
    if "image" in _text_of(part.get("content_type")):
        return [_name_file(_IMAGE, name)]
    return [_name_file("file", name)] if name else []


# --- llama.cpp's web UI
# ------------------------------------------------------------------------------


class _LlamaConversation(Struct):
    name: str = ""
    currNode: str | None = None  # noqa: N815  as in the file
    lastModified: float = 0.0  # noqa: N815


class _LlamaExtra(Struct):
    type: str = ""
    name: str = ""
    content: str = ""


class _LlamaMessage(Struct):
    id: str | int
    role: str
    content: str | None = None
    parent: str | int | None = None
    type: str = "text"
    model: str | None = None
    thinking: str | None = None
    reasoningContent: str | None = None  # noqa: N815
    extra: list[_LlamaExtra] | None = None


class _LlamaExport(Struct):
    conv: _LlamaConversation
    messages: list[_LlamaMessage]


class _LlamaSession(_LlamaConversation):
    type: str = ""


class _LlamaRecord(Struct):
    type: str = ""
    message: _LlamaMessage | None = None


def _read_llama(document: Any) -> Iterator[ImportedChat]:
    for export in _each(_LlamaExport, document):
        yield _build_llama_chat(export.conv, export.messages)


def _read_sessions(document: Any) -> Iterator[ImportedChat]:
    """A line is a chat, or a message of the chat before it."""
    records = document if isinstance(document, list) else [document]
    session: _LlamaSession | None = None
    messages: list[_LlamaMessage] = []
    for body in records:
        record = from_json(_LlamaRecord, body)
        if record.type == "session":
            if session is not None:
                yield _build_llama_chat(session, messages)
            session = from_json(_LlamaSession, body)
            messages = []
        elif record.type == "message" and record.message is not None:
            messages.append(record.message)
    if session is not None:
        yield _build_llama_chat(session, messages)


def _build_llama_chat(
    conversation: _LlamaConversation, messages: Sequence[_LlamaMessage]
) -> ImportedChat:
    return _build_chat(
        [_convert_llama_message(message) for message in messages],
        current=conversation.currNode,
        title=conversation.name,
        updated=conversation.lastModified / 1000,
    )


def _convert_llama_message(message: _LlamaMessage) -> _Message:
    files = []
    lines = []
    for extra in message.extra or ():
        if extra.content:
            files.append(Attachment(extra.name or "file", extra.content))
        else:
            lines.append(_name_file(extra.type.lower() or "file", extra.name))
    lines.append(message.content or "")
    parent = None
    if message.parent is not None:
        parent = str(message.parent)
    role = message.role
    if message.type == "root":  # The beginning of the tree, which nobody wrote.
        role = ""
    return _Message(
        str(message.id),
        parent,
        role=role,
        text="\n\n".join(lines).strip("\n"),
        model=message.model or "",
        thinking=message.reasoningContent or message.thinking or "",
        attachments=tuple(files),
    )


# --- LM Studio
# ------------------------------------------------------------------------------


class _StudioBlock(Struct):
    type: str = ""
    text: str | None = None
    name: str | None = None
    fileIdentifier: str | None = None  # noqa: N815


class _StudioStyle(Struct):
    type: str = ""


class _StudioStep(Struct):
    type: str = ""
    content: list[_StudioBlock] | None = None
    style: _StudioStyle | None = None


class _StudioSender(Struct):
    senderName: str | None = None  # noqa: N815


class _StudioVersion(Struct):
    role: str
    content: list[_StudioBlock] | str | None = None
    steps: list[_StudioStep] | None = None
    senderInfo: _StudioSender | None = None  # noqa: N815


class _StudioMessage(Struct):
    versions: list[_StudioVersion]
    currentlySelected: int = 0  # noqa: N815


class _StudioModel(Struct):
    identifier: str = ""


class _StudioField(Struct):
    key: str = ""
    value: Any = None


class _StudioConfig(Struct):
    fields: list[_StudioField] = []


class _StudioConversation(Struct):
    messages: list[_StudioMessage]
    name: str | None = None
    createdAt: float | None = None  # noqa: N815
    systemPrompt: str | None = None  # noqa: N815
    lastUsedModel: _StudioModel | None = None  # noqa: N815
    perChatPredictionConfig: _StudioConfig | None = None  # noqa: N815


_STUDIO_SYSTEM_KEY = "llm.prediction.systemPrompt"


def _read_lm_studio(document: Any) -> Iterator[ImportedChat]:
    for chat in _each(_StudioConversation, document):
        model = chat.lastUsedModel.identifier if chat.lastUsedModel else ""
        messages: list[_Message] = []
        parent: str | None = None
        for number, message in enumerate(chat.messages):
            for version_number, version in enumerate(message.versions):
                node_id = f"{number}.{version_number}"
                messages.append(_convert_version(version, node_id, parent, model))
            n_versions = len(message.versions)
            if n_versions:
                selected = min(max(message.currentlySelected, 0), n_versions - 1)
                parent = f"{number}.{selected}"
        created = 0.0
        if chat.createdAt is not None:
            created = chat.createdAt / 1000
        yield _build_chat(
            messages,
            current=parent,
            title=chat.name or "",
            system=_find_studio_system(chat),
            created=created,
            updated=created,
        )


def _find_studio_system(chat: _StudioConversation) -> str:
    system = chat.systemPrompt or ""
    config = chat.perChatPredictionConfig or _StudioConfig()
    for setting in config.fields:
        if setting.key == _STUDIO_SYSTEM_KEY:
            system = _text_of(setting.value) or system
    return system


def _convert_version(
    version: _StudioVersion, node_id: str, parent: str | None, model: str
) -> _Message:
    texts: list[str] = []
    thinking: list[str] = []
    if isinstance(version.content, str):
        texts.append(version.content)
    else:
        texts += _texts_of_blocks(version.content or ())
    for step in version.steps or ():
        is_thinking = step.style is not None and step.style.type == "thinking"
        target = thinking if is_thinking else texts
        target += _texts_of_blocks(step.content or ())
    sender = version.senderInfo.senderName if version.senderInfo else None
    if version.role != "assistant":
        sender = ""
        model = ""
    return _Message(
        node_id,
        parent,
        role=version.role,
        text="\n\n".join(texts),
        model=sender or model,
        thinking="\n\n".join(thinking),
    )


def _texts_of_blocks(blocks: Iterable[_StudioBlock]) -> Iterator[str]:
    for block in blocks:
        if block.text:
            yield block.text
        elif block.type in ("file", "image"):
            yield _name_file(block.type, block.name or block.fileIdentifier or "")


# --- Open WebUI
# ------------------------------------------------------------------------------


class _WebMessage(Struct):
    role: str
    content: Any = ""
    parentId: str | None = None  # noqa: N815
    model: str | None = None
    files: Any = None


class _WebHistory(Struct):
    messages: dict[str, _WebMessage]
    currentId: str | None = None  # noqa: N815


class _WebChat(Struct):
    history: _WebHistory
    title: str | None = None
    system: str | None = None


class _WebExport(Struct):
    chat: _WebChat
    title: str | None = None
    created_at: float | None = None
    updated_at: float | None = None


def _read_open_webui(document: Any) -> Iterator[ImportedChat]:
    for export in _each(_WebExport, document):
        history = export.chat.history
        messages = [
            _convert_web_message(node_id, message)
            for node_id, message in history.messages.items()
        ]
        yield _build_chat(
            messages,
            current=history.currentId,
            title=export.chat.title or export.title or "",
            system=export.chat.system or "",
            created=export.created_at or 0.0,
            updated=export.updated_at or 0.0,
        )


def _convert_web_message(node_id: str, message: _WebMessage) -> _Message:
    """Its content is a text, or parts in the form of OpenAI's API."""
    lines = _name_files(message.files)
    if isinstance(message.content, str):
        lines.append(message.content)
    for part in _list_of(message.content):
        lines += _convert_gpt_part(part)
    return _Message(
        node_id,
        message.parentId,
        role=message.role,
        text="\n\n".join(lines),
        model=message.model or "",
    )


_FORMAT_KEYS: tuple[tuple[set[str], _Reader], ...] = (
    ({"mapping"}, _read_chatgpt),
    ({"conv", "messages"}, _read_llama),
    ({"chat", "schema"}, _read_own),
    ({"chat"}, _read_open_webui),
    ({"messages"}, _read_lm_studio),
)
"""The keys of a chat in each format; the first that has all of its keys counts."""


# --- values that may have any type, and files and pictures by their names
# ------------------------------------------------------------------------------


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _name_file(kind: str, name: str) -> str:
    shown = re.sub(r"\s+", " ", name)[:200]
    return f"[{kind}: {shown}]" if shown else f"[{kind}]"


def _name_files(files: Any) -> list[str]:
    lines = []
    for file in _list_of(files):
        if isinstance(file, dict):
            lines.append(_name_file("file", _text_of(file.get("name"))))
    return lines


# --- a tree of messages becomes turns
# ------------------------------------------------------------------------------


class _DamagedTreeError(Exception):
    pass


class _OpenTurn(Struct, frozen=True):
    """A turn whose messages are still being collected, on one path of the tree."""

    parent: int | None
    questions: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    answers: tuple[str, ...] = ()
    model: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.questions or self.attachments or self.answers)

    def add(self, message: _Message) -> _OpenTurn:
        if message.role == "user":
            return replace(
                self,
                questions=(*self.questions, message.text),
                attachments=self.attachments + message.attachments,
            )
        answer = _join_thinking(message.thinking, message.text)
        if message.role != "assistant" or not answer:
            return self
        model = message.model or self.model
        return replace(self, answers=(*self.answers, answer), model=model)


class _TurnBuilder:
    """Turns in the order of the tree, so that each has a larger id than its parent."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._attempts: dict[int | None, int] = {}

    def add(self, turn: _OpenTurn) -> int:
        attempt = self._attempts.get(turn.parent, 0)
        self._attempts[turn.parent] = attempt + 1
        turn_id = len(self.turns) + 1
        answer = "\n\n".join(turn.answers)
        finish_reason: FinishReason | None = "eog" if answer else None
        self.turns.append(
            Turn(
                "\n\n".join(filter(None, turn.questions)),
                answer,
                finish_reason,
                attempt=attempt,
                attachments=turn.attachments,
                id=turn_id,
                parent=turn.parent,
                model=turn.model,
            )
        )
        return turn_id


def _build_chat(
    messages: Sequence[_Message],
    *,
    current: str | None,
    title: str,
    system: str = "",
    created: float = 0.0,
    updated: float = 0.0,
) -> ImportedChat:
    """Make turns of a tree of messages.

    A turn is a question and what follows until the next question. For example, of

        question 1 ─ answer A
                   └ answer B ─ question 2 ─ answer C

    come three turns: 1 with A, 1 with B, and, after the second, 2 with C. `current`, a
    message, selects the path.
    """
    if len(messages) > _MAX_MESSAGES:
        raise _DamagedTreeError(f"a chat has more than {_MAX_MESSAGES:,} messages")
    by_id = {message.id: message for message in messages}
    children: dict[str | None, list[_Message]] = {}
    for message in messages:
        parent = message.parent if message.parent in by_id else None
        children.setdefault(parent, []).append(message)
    builder = _TurnBuilder()
    turn_of: dict[str, int | None] = {}
    # The messages that are still to be read, each with the turn that is open before it.
    waiting = [
        (message, _OpenTurn(None)) for message in reversed(children.get(None, []))
    ]
    while waiting:
        message, turn = waiting.pop()
        if message.role == "system" and message.text and not system:
            system = message.text
        turn = turn.add(message)
        following = children.get(message.id, [])
        is_answered = bool(turn.answers)
        asks_next = any(child.role == "user" for child in following)
        next_turn = turn
        if not turn.is_empty and (not following or (is_answered and asks_next)):
            turn_id = builder.add(turn)
            next_turn = _OpenTurn(turn_id)
            turn_of[message.id] = turn_id
        else:
            turn_of[message.id] = turn.parent
        for child in reversed(following):
            turn_before = turn
            if child.role == "user":
                turn_before = next_turn
            waiting.append((child, turn_before))
    if len(turn_of) < len(by_id):
        raise _DamagedTreeError("messages of a chat follow each other in a circle")
    turns = builder.turns
    head = _find_head(current, by_id, children, turn_of)
    if head is None and turns:
        head = turns[-1].id
    conversation = Conversation(_make_seed(turns), system, turns, head)
    models = [turn.model for turn in conversation.turns if turn.model]
    last_model = models[-1] if models else ""
    return ImportedChat(
        conversation,
        title=title,
        model=last_model,
        created=created or updated,
        updated=updated or created,
        has_thinking=any(message.thinking for message in messages),
    )


def _find_head(
    current: str | None,
    by_id: Mapping[str, _Message],
    children: Mapping[str | None, Sequence[_Message]],
    turn_of: Mapping[str, int | None],
) -> int | None:
    """The turn of the selected message; it may end with a later message."""
    if current is None or current not in by_id:
        return None
    message = by_id[current]
    following = children.get(message.id, ())
    while following and not any(child.role == "user" for child in following):
        message = following[-1]
        following = children.get(message.id, ())
    return turn_of[message.id]


def _make_seed(turns: Sequence[Turn]) -> int:
    """The same for the same chat."""
    return sum(len(turn.question) + len(turn.answer) for turn in turns) & 0x7FFFFFFF

"""Checks that the text of every message reaches the prompt.

A template may leave a message out without an error, such as a second system prompt. To
look for the message in the prompt would prove nothing: its words may be the template's,
or those of another message. So a chat is rendered whose texts have marks: those that
are missing in the prompt name the messages that the template leaves out.

What a template does depends on the roles of a chat, and hardly on its words. So the
marked chat has short texts, and its result holds for all chats of one shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain

import jinja2
from msgspec import Struct
from msgspec.structs import replace

from localspec.models.chat_template.role_changes import (
    ChangedChat,
    Chat,
    RoleChange,
    apply_changes,
    list_changed_chats,
)
from localspec.protocol.wire import ChatMessage, ToolCall

_OPEN = "\ufdd4"  # Noncharacters: no template writes them.
_CLOSE = "\ufdd5"
_MARK = re.compile(rf"{_OPEN}(\d+)(\w*){_CLOSE}")
_NO_ARGUMENTS = ("", "{}", "null")

_HOPELESS = (
    # What no other chat changes: the template is broken, or takes too long.
    MemoryError,
    OverflowError,
    RecursionError,
    jinja2.TemplateSyntaxError,
)

_MIN_COLLAPSED = 16  # A chat of fewer messages is checked as it is.
_MAX_PERIOD = 6
_MIN_REPEATS = 5


# --- the shape of a chat


class MessageShape(Struct, frozen=True):
    """What of a message a template's treatment of it may depend on."""

    role: str
    has_text: bool
    has_reasoning: bool
    calls: tuple[bool, ...] = ()  # Of each call: whether it has arguments.
    answers: tuple[int, int] | None = None
    """Of a result: how many messages before it the call is, and which one there."""


Shape = tuple[MessageShape, ...]


def describe_shape(messages: Sequence[ChatMessage]) -> Shape:
    place_by_id: dict[str, tuple[int, int]] = {}
    shape = []
    for i, message in enumerate(messages):
        for k, call in enumerate(message.tool_calls):
            place_by_id[call.id] = (i, k)
        answers = None
        place = place_by_id.get(message.tool_call_id)
        if message.role == "tool" and place is not None:
            answers = (i - place[0], place[1])
        shape.append(
            MessageShape(
                message.role,
                has_text=bool(message.content.strip()),
                has_reasoning=bool(message.reasoning),
                calls=tuple(map(_has_arguments, message.tool_calls)),
                answers=answers,
            )
        )
    return tuple(shape)


def collapse(shape: Shape) -> Shape:
    """The shape without most of what a long chat repeats.

    A chat of 1,000 messages of the user and the assistant in turn has ten of them here,
    so that the next question is of a known shape, too. Of what is left out, the number
    of messages is even: templates count them by twos.
    """
    if len(shape) < _MIN_COLLAPSED:
        return shape
    kept: list[MessageShape] = []
    at = 0
    while at < len(shape):
        period, n_repeats = _find_repeats(shape, at)
        n_left_out = n_repeats - _MIN_REPEATS
        if period % 2:
            n_left_out -= n_left_out % 2
        if n_left_out <= 0:
            kept.append(shape[at])
            at += 1
            continue
        n_kept = n_repeats - n_left_out
        kept += shape[at : at + period * n_kept]
        at += period * n_repeats
    return tuple(kept)


def _find_repeats(shape: Shape, at: int) -> tuple[int, int]:
    """The shortest period of messages that is repeated from here on, and how often."""
    for period in range(1, _MAX_PERIOD + 1):
        end = at + period
        while end < len(shape) and shape[end] == shape[end - period]:
            end += 1
        n_repeats = (end - at) // period
        if n_repeats > _MIN_REPEATS:
            return period, n_repeats
    return 1, 1


# --- chats with marks


def make_marked_chat(shape: Shape) -> Chat:
    """A chat of this shape, whose texts are marks."""
    chat = []
    for i, message in enumerate(shape):
        calls = []
        for k, has_arguments in enumerate(message.calls):
            arguments = _mark_arguments(i, k) if has_arguments else "{}"
            calls.append(ToolCall(_call_id(i, k), "probe", arguments))
        call_id = ""
        if message.answers is not None:
            distance, k = message.answers
            call_id = _call_id(i - distance, k)
        text = _mark(i) if message.has_text else ""
        reasoning = "Hm." if message.has_reasoning else ""
        marked = ChatMessage(
            message.role,
            text,
            tool_calls=tuple(calls),
            tool_call_id=call_id,
            reasoning=reasoning,
        )
        chat.append(marked)
    return tuple(chat)


def mark_chat(messages: Sequence[ChatMessage]) -> Chat:
    """The chat itself, with marks around its texts and as arguments of its calls.

    The thinking that stands in an earlier answer may be left out, with the text before
    it: an answer has its mark only at its end.
    """
    chat = []
    for i, message in enumerate(messages):
        content = message.content.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd")
        if content.strip():
            content += _mark(i, "z")
            if message.role != "assistant":
                content = _mark(i, "a") + content
        calls = []
        for k, call in enumerate(message.tool_calls):
            if _has_arguments(call):
                calls.append(replace(call, arguments=_mark_arguments(i, k)))
            else:
                calls.append(call)
        chat.append(replace(message, content=content, tool_calls=tuple(calls)))
    return tuple(chat)


def _mark(i: int, part: str = "") -> str:
    return f"{_OPEN}{i}{part}{_CLOSE}"


def _mark_arguments(i: int, k: int) -> str:
    return json.dumps({"text": _mark(i, f"c{k}")}, ensure_ascii=False)


def _has_arguments(call: ToolCall) -> bool:
    return call.arguments.strip() not in _NO_ARGUMENTS


def _call_id(i: int, k: int) -> str:
    return f"{i:05}{k:04}"


def has_every_text(text: str, messages: Sequence[ChatMessage]) -> bool:
    """Whether the prompt has all texts in this order; a system prompt may be anywhere.

    Mistral's templates write it before the last question. That is not proof enough that
    a template wrote them, but for a chat of a shape that was checked it is.
    """
    at = 0
    for message in messages:
        is_system = message.role == "system"
        start = 0 if is_system else at
        content = message.content.strip()
        place = text.find(content, start)
        if place < 0:
            content = json.dumps(content, ensure_ascii=False)[1:-1]
            place = text.find(content, start)
        if place < 0:
            return False
        if not is_system:
            at = place + len(content)
    return True


# --- the search


class FittedChat(Struct, frozen=True):
    """A chat as a template accepts it."""

    changes: tuple[RoleChange, ...]
    lost: tuple[int, ...] = ()  # The messages that the template leaves out.


def fit_chat(
    chat: Chat, render: Callable[[Chat], str], known: tuple[RoleChange, ...] = ()
) -> FittedChat:
    """Find the changes with which all marks of a chat are in its rendering.

    `known` are tried first. If all changes leave messages out, the result is those that
    leave out the fewest. Raises what `render` raises
    for the unchanged chat, if it accepts no other one either.
    """
    expected = _find_marks("".join(map(_join_texts, chat)))
    best: FittedChat | None = None
    failure: Exception | None = None
    first = ChangedChat(apply_changes(chat, known), known)
    for changed in chain([first], list_changed_chats(chat)):
        try:
            text = render(changed.messages)
        except _HOPELESS as error:
            failure = failure or error
            break
        except Exception as error:  # a hostile template may raise anything
            failure = failure or error
            continue
        lost = tuple(sorted({int(i) for i, _ in expected - _find_marks(text)}))
        if not lost:
            return FittedChat(changed.changes)
        if best is None or len(lost) < len(best.lost):
            best = FittedChat(changed.changes, lost)
    if best is not None:
        return best
    assert failure is not None
    raise failure


def _join_texts(message: ChatMessage) -> str:
    arguments = [call.arguments for call in message.tool_calls]
    return "".join([message.content, *arguments])


def _find_marks(text: str) -> set[tuple[str, str]]:
    return set(_MARK.findall(text))

"""Changes to a chat for a template that rejects its roles, or leaves messages out.

A template is written for the chats of its makers: one system prompt, then the user and
the assistant in turn. Agents send others. A change keeps every text and moves it to a
message where the template shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile

from msgspec import Struct
from msgspec.structs import replace

from localspec.models.chat_template import generic_tools
from localspec.protocol.wire import ChatMessage, ToolCall

Chat = tuple[ChatMessage, ...]

_NO_RESULT = "[no result: the call was interrupted]"
_FIRST_QUESTION = "[The conversation begins.]"
_GO_ON = "Continue."
_UNDERSTOOD = "Understood."
"""Mistral's client says this for the assistant after an interrupted result."""
_SYSTEM_LABEL = "[System message]"
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}

_MAX_CHATS = 256
"""How many changed chats are tried.

Few changes have an effect on one chat: five of them make 32.
"""


class RoleChange(Struct, frozen=True):
    """A change that keeps every text; without effect, it returns an equal chat."""

    apply: Callable[[Sequence[ChatMessage]], list[ChatMessage]]
    cost: int
    """How far the chat is from what was said; the lowest sum is tried first."""
    description: str


class ChangedChat(Struct, frozen=True):
    messages: Chat
    changes: tuple[RoleChange, ...] = ()

    @property
    def cost(self) -> int:
        return sum(change.cost for change in self.changes)


def list_changed_chats(messages: Chat) -> Iterator[ChangedChat]:
    """The chat itself, then the chats that combinations of changes make of it.

    The cheapest comes first. Changes are applied in the order of `ROLE_CHANGES`. For
    example, of "system, system, user, system" come, among others: the first two joined;
    the later ones as the user's text; all three as the user's text.
    """
    yield ChangedChat(messages)
    found = {messages: ChangedChat(messages)}
    for change in ROLE_CHANGES:
        for chat in list(found.values()):
            changed = ChangedChat(
                tuple(change.apply(chat.messages)), (*chat.changes, change)
            )
            known = found.get(changed.messages)
            if known is None and len(found) == _MAX_CHATS:
                continue
            if known is None or changed.cost < known.cost:
                found[changed.messages] = changed
    del found[messages]
    yield from sorted(found.values(), key=lambda chat: chat.cost)
    transcript = _TRANSCRIPT.apply(messages)
    if tuple(transcript) not in found:
        yield ChangedChat(tuple(transcript), (_TRANSCRIPT,))


def apply_changes(
    messages: Sequence[ChatMessage], changes: Sequence[RoleChange]
) -> Chat:
    for change in changes:
        messages = change.apply(messages)
    return tuple(messages)


# --- messages that follow each other


def _merge_same_roles(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    groups: list[list[ChatMessage]] = []
    for message in messages:
        if groups and _can_merge(groups[-1][-1], message):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_merge(group) for group in groups]


def _can_merge(message: ChatMessage, following: ChatMessage) -> bool:
    """Whether both have the same role, and neither calls a tool or is its result."""
    if message.role != following.role or message.role == "tool":
        return False
    return not message.tool_calls and not following.tool_calls


def _merge(group: Sequence[ChatMessage]) -> ChatMessage:
    content = "\n\n".join(message.content for message in group)
    reasoning = "\n\n".join(each.reasoning for each in group if each.reasoning)
    return replace(group[-1], content=content, reasoning=reasoning)


def _leave_out_empty_answers(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    kept = []
    for message in messages:
        says_something = message.content.strip() or message.tool_calls
        if message.role != "assistant" or says_something:
            kept.append(message)
    return kept


def _add_first_question(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Begin with the user, after system prompts."""
    n_system = _count_leading_system(messages)
    changed = list(messages)
    if changed[n_system:] and changed[n_system].role != "user":
        changed.insert(n_system, ChatMessage("user", _FIRST_QUESTION))
    return changed


def _fill_turns(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The user and the assistant speak in turn; short messages fill the gaps.

    "call, result, user" becomes "call, result, assistant, user".
    """
    changed: list[ChatMessage] = []
    for message in messages:
        before = changed[-1].role if changed else ""
        if before == "tool" and message.role == "user":
            changed.append(ChatMessage("assistant", _UNDERSTOOD))
        elif before == "assistant" and message.role == "assistant":
            changed.append(ChatMessage("user", _GO_ON))
        changed.append(message)
    return changed


def _write_transcript(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The whole chat as one message of the user."""
    parts = []
    for message in _write_calls(messages):
        parts.append(f"{_SPEAKERS[message.role]}:\n{message.content}")
    return [ChatMessage("user", "\n\n".join(parts))]


# --- system messages


def _count_leading_system(messages: Sequence[ChatMessage]) -> int:
    leading = takewhile(lambda message: message.role == "system", messages)
    return len(list(leading))


def _move_system_to_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Those at the beginning become the user's text, and later ones with a label."""
    n_first = _count_leading_system(messages)
    first = [ChatMessage("user", message.content) for message in messages[:n_first]]
    later = [_label_system(message) for message in messages[n_first:]]
    if not first and later == list(messages):
        return later
    return _merge_same_roles([*first, *later])


def _move_later_system_to_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """All after those at the beginning become the user's text where they stand."""
    n_first = max(_count_leading_system(messages), 1)
    later = [_label_system(message) for message in messages[n_first:]]
    if later == list(messages[n_first:]):
        return list(messages)
    return _merge_same_roles([*messages[:n_first], *later])


def _label_system(message: ChatMessage) -> ChatMessage:
    """A later system message as text of the user, who did not say it."""
    if message.role != "system":
        return message
    return ChatMessage("user", f"{_SYSTEM_LABEL}\n{message.content}")


def _join_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """One system message at the beginning has the text of all."""
    system = [message for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    if not system:
        return others
    return [_merge(system), *others]


# --- calls of tools


def _join_text_with_thinking(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What an answer says between its thinking and a call becomes a part of the thinking.

    gpt-oss's template takes one of both, and shows it only until the question is
    answered. So this holds for calls after the last question. Of an earlier call, the
    text becomes a message of its own, and the thinking stays with the call.
    """
    last_question = max(
        (i for i, message in enumerate(messages) if message.role == "user"), default=-1
    )
    changed: list[ChatMessage] = []
    for i, message in enumerate(messages):
        is_beside = bool(message.content.strip() and message.reasoning)
        if not message.tool_calls or not is_beside:
            changed.append(message)
        elif i > last_question:
            thinking = f"{message.reasoning}\n\n{message.content.strip()}"
            changed.append(replace(message, content="", reasoning=thinking))
        else:
            changed.append(replace(message, reasoning="", tool_calls=()))
            changed.append(replace(message, content=""))
    return changed


def _split_text_from_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What an answer says before a call becomes a message of its own."""
    changed: list[ChatMessage] = []
    for message in messages:
        if message.tool_calls and message.content.strip():
            changed.append(replace(message, tool_calls=()))
            changed.append(replace(message, content="", reasoning=""))
        else:
            changed.append(message)
    return changed


def _add_missing_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Each call has a result; also one that the user interrupted."""
    changed: list[ChatMessage] = []
    for i, message in enumerate(messages):
        if message.role == "tool":
            continue
        changed.append(message)
        results = _results_after(messages, i)
        changed += results
        if not message.tool_calls:
            continue
        answered = {result.tool_call_id for result in results}
        missing = [call for call in message.tool_calls if call.id not in answered]
        for call in missing[: len(message.tool_calls) - len(results)]:
            changed.append(ChatMessage("tool", _NO_RESULT, tool_call_id=call.id))
    n_first = len(_results_after(messages, -1))
    return [*messages[:n_first], *changed]


def _results_after(messages: Sequence[ChatMessage], i: int) -> list[ChatMessage]:
    following = islice(messages, i + 1, None)
    return list(takewhile(lambda message: message.role == "tool", following))


def _move_orphans_to_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Results without a call become the user's text."""
    changed: list[ChatMessage] = []
    n_open = 0
    for message in messages:
        if message.role != "tool":
            n_open = len(message.tool_calls)
            changed.append(message)
        elif n_open:
            n_open -= 1
            changed.append(message)
        else:
            changed.append(ChatMessage("user", generic_tools.write_result(message)))
    if changed == list(messages):
        return changed
    return _merge_same_roles(changed)


def _split_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Each of several calls in a message of its own, with its result after it.

    "assistant calls a and b, result of a, result of b" becomes "assistant calls a,
    result of a, assistant calls b, result of b".
    """
    changed: list[ChatMessage] = []
    moved: set[int] = set()
    for i, message in enumerate(messages):
        calls = message.tool_calls
        result_by_id = {}
        for j in range(i + 1, min(i + 1 + len(calls), len(messages))):
            result_by_id[messages[j].tool_call_id] = j
        if len(calls) > 1 and all(call.id in result_by_id for call in calls):
            before = message
            for call in calls:
                result = result_by_id[call.id]
                changed.append(replace(before, tool_calls=(call,)))
                changed.append(messages[result])
                moved.add(result)
                # Only the first one thinks, and says something.
                before = replace(before, content="", reasoning="")
        elif i not in moved:
            changed.append(message)
    return changed


def _write_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Calls become text of the assistant, and results text of the user."""
    changed = []
    for message in messages:
        if message.tool_calls:
            written = [
                generic_tools.write_call(_with_object(call))
                for call in message.tool_calls
            ]
            if message.content.strip():
                written.insert(0, message.content)
            text = "\n".join(written)
            changed.append(replace(message, content=text, tool_calls=()))
        elif message.role == "tool":
            changed.append(ChatMessage("user", generic_tools.write_result(message)))
        else:
            changed.append(message)
    if changed == list(messages):
        return changed
    return _merge_same_roles(changed)


def _with_object(call: ToolCall) -> ToolCall:
    arguments = json.dumps(parse_arguments(call.arguments), ensure_ascii=False)
    return replace(call, arguments=arguments)


def parse_arguments(text: str) -> dict[str, object]:
    """The arguments of an earlier call as an object, which all templates can take.

    A call that was cut, or that another server wrote, may have none. What is no object
    is the value of one key: `[1]` becomes `{"arguments": [1]}`. A cut object is closed:
    `{"city": "Ro` becomes `{"city": "Ro"}`.
    """
    from localspec.models.chat_template.json_repair import JsonRepairer  # noqa: PLC0415

    value: object = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        repairer = JsonRepairer()
        repaired, rest = repairer.feed(value.lstrip())
        if not rest.strip():
            with suppress(ValueError, RecursionError):
                value = json.loads(repaired + repairer.close())
    if isinstance(value, dict):
        return value
    if value is None or value == "":
        return {}
    return {"arguments": value}


ROLE_CHANGES = (
    RoleChange(
        _leave_out_empty_answers, cost=2, description="empty answers were left out"
    ),
    RoleChange(
        _join_text_with_thinking,
        cost=1,
        description="the text before a call became a part of the thinking",
    ),
    RoleChange(
        _split_text_from_calls,
        cost=2,
        description="the text beside a call became a message",
    ),
    RoleChange(
        _add_missing_results, cost=3, description="calls without a result got one"
    ),
    RoleChange(
        _split_calls, cost=1, description="each call of a tool became a message"
    ),
    RoleChange(
        _move_orphans_to_user,
        cost=4,
        description="results without a call became the user's text",
    ),
    RoleChange(
        _move_later_system_to_user,
        cost=3,
        description="later system prompts became the user's text",
    ),
    RoleChange(
        _join_system, cost=5, description="all system prompts became the first one"
    ),
    RoleChange(
        _move_system_to_user,
        cost=6,
        description="the system prompt became part of the first message",
    ),
    RoleChange(
        _write_calls,
        cost=12,
        description="calls of tools and their results became text",
    ),
    RoleChange(
        _merge_same_roles,
        cost=2,
        description="messages of the same role were joined",
    ),
    RoleChange(
        _add_first_question,
        cost=4,
        description="a message of the user was added at the beginning",
    ),
    RoleChange(
        _fill_turns,
        cost=4,
        description="short messages were added, so that roles alternate",
    ),
)
_TRANSCRIPT = RoleChange(
    _write_transcript,
    cost=100,
    description="the whole chat became one message of the user",
)

"""What `/copy` copies: an answer, one of its code blocks, or the whole chat."""

from __future__ import annotations

from markdown_it import MarkdownIt

from localspec.chat import export
from localspec.chat.conversation import Turn
from localspec.chat.session import ChatSession
from localspec.errors import UsageError
from localspec.models.chat_template.thinking_tags import strip_thinking
from localspec.sanitize import sanitize
from localspec.units import count

_HINT = "Type: /copy, /copy N, /copy code N or /copy all"


def select_text(session: ChatSession, argument: str = "") -> str:
    """The sanitized text for `/copy ARGUMENT`. Raises UsageError.

    Empty: the last answer; `N`: that of turn N; `code` or `code N`: the last or the Nth code block
    of the last answer that has one; `all`: the chat as Markdown.
    """
    word, _, number = argument.strip().partition(" ")
    if word == "all":
        session.require_turns()
        chat = export.snapshot_chat(
            session.conversation, session.recorder.pair, session.recorder.settings
        )
        return sanitize(export.render(chat, ".md"))
    if word == "code":
        return _select_code(session, _parse_number(number) if number.strip() else 0)
    if word:
        return _select_answer(session, _parse_number(argument))
    if not session.last_answer_text:
        raise UsageError("No answer to copy yet.", "Type a message.")
    return sanitize(session.last_answer_text)


def _parse_number(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 6:
        shown = sanitize(text[:20], multiline=False)
        raise UsageError(f"/copy does not know {shown!r}.", _HINT)
    return int(text)


def _select_answer(session: ChatSession, number: int) -> str:
    turns = session.conversation.turns
    if not 1 <= number <= len(turns):
        raise UsageError(f"There is no turn {number}.", "Type /turns to list them.")
    if not (text := visible_answer(session, turns[number - 1])):
        raise UsageError(f"Turn {number} has no answer.", "Type /turns to list them.")
    return text


def _select_code(session: ChatSession, number: int) -> str:
    """`number` 0: the last block."""
    for turn in reversed(session.conversation.turns):
        if blocks := find_code_blocks(visible_answer(session, turn)):
            return _code_of(blocks, number or len(blocks))
    raise UsageError("No answer has a code block.", "Type /copy for the whole answer.")


def code_block(session: ChatSession, turn_id: int, number: int) -> str:
    """A code block of a turn's answer, from 1. Raises UsageError."""
    turn = session.conversation.turn(turn_id)
    return _code_of(find_code_blocks(visible_answer(session, turn)), number)


def _code_of(blocks: list[str], number: int) -> str:
    if not 1 <= number <= len(blocks):
        n_blocks = count(len(blocks), "code block")
        raise UsageError(f"There is no code block {number}: the answer has {n_blocks}.", _HINT)
    return blocks[number - 1]


def visible_answer(session: ChatSession, turn: Turn) -> str:
    """Without thinking, sanitized as on the screen."""
    text = strip_thinking(turn.answer, session.thinking_markers, turn.starts_in_thinking)
    return sanitize(text)


def find_code_blocks(text: str) -> list[str]:
    """The code blocks of Markdown, in order, without their fences."""
    tokens = MarkdownIt().enable("table").parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]

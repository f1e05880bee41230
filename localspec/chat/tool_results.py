"""Cuts the results of calls to what fits into the context beside their question.

Older turns can be left out of a prompt, but a question and its tool steps cannot. So
the results of one answer get at most half of the room that is left, and those after them
half of the rest.

For example, of a context of 4,096 cells 512 stay free for the answer, and a question with
its tools takes 584. Of the 3,000 cells that are left, the results of the first calls get
1,500, those of the second calls 750.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from localspec.chat.context_window import RequestOptions, build_count
from localspec.chat.conversation import CallResult, Conversation, DroppedTurns
from localspec.launch import Engine
from localspec.protocol.wire import ToolCall
from localspec.tools import folder_tools

_MIN_CHARACTERS = 200
"""How much of a result stays in any case."""
_MAX_TRIES = 6
"""How often shortened results are counted: each count renders the whole prompt."""
_ANSWER_SHARE = 8
"""One part of this many of the context stays free for the answer."""
_UNCOUNTED_SHARE = 16
"""Results of at most one part of this many of the context are not counted."""

ResultCount = Callable[[tuple[CallResult, ...]], int]
"""The tokens of a prompt that ends with these results."""


def fit_results(
    engine: Engine,
    conversation: Conversation,
    options: RequestOptions,
    results: tuple[CallResult, ...],
) -> tuple[CallResult, ...]:
    """Results of the calls with which a conversation ends, cut to what fits.

    Each cut one says so in its last line. Raises what the engine raises.
    """
    # Another thread may be showing the conversation.
    before = conversation.copy()

    def count(results: tuple[CallResult, ...]) -> int:
        """The question with its tool steps, without older turns."""
        conversation = before.copy()
        conversation.add_results(results)
        dropped = DroppedTurns(conversation.n_before_question)
        command = build_count(conversation, options, dropped)
        return engine.count(command).tokens

    calls = conversation.turns[-1].calls
    return cut_results(results, calls, options.loaded.n_ctx, count)


def cut_results(
    results: tuple[CallResult, ...],
    calls: Sequence[ToolCall],
    n_ctx: int,
    count: ResultCount,
) -> tuple[CallResult, ...]:
    """The results of `calls`, cut as `fit_results` does."""
    # A token has a byte or more, so there are no more tokens than bytes.
    if _count_bytes(results) <= n_ctx // _UNCOUNTED_SHARE:
        return results
    return _ResultCutter(calls, n_ctx=n_ctx, count=count).cut(results)


class _ResultCutter:
    """Cuts the results of one answer's calls."""

    def __init__(
        self, calls: Sequence[ToolCall], *, n_ctx: int, count: ResultCount
    ) -> None:
        self._arguments = {call.id: call.arguments for call in calls}
        self._n_ctx = n_ctx
        self._count = count

    def cut(self, results: tuple[CallResult, ...]) -> tuple[CallResult, ...]:
        """Shorten the longest results until all take no more than their room.

        For example, results of 3,000 and 200 characters take 800 tokens, and the room
        is 400. Half of the 3,200 characters are allowed, so the longer one is cut to
        1,400.
        """
        n_empty = self._count(tuple(_set_text(each, "") for each in results))
        n_left = self._n_ctx - self._n_ctx // _ANSWER_SHARE - n_empty
        room = max(0, n_left) // 2
        fitting = results
        n_characters = sum(len(result.text) for result in results)
        for _ in range(_MAX_TRIES):
            n_tokens = self._count(fitting) - n_empty
            if n_tokens <= room:
                break
            n_characters = n_characters * room // n_tokens
            limit = _find_limit([len(result.text) for result in results], n_characters)
            fitting = tuple(self._shorten(each, limit) for each in results)
            if limit <= _MIN_CHARACTERS:
                break
        return fitting

    def _shorten(self, result: CallResult, limit: int) -> CallResult:
        n_left_out = len(result.text) - limit
        if n_left_out <= 0:
            return result
        kept = result.text[:limit]
        note = ""
        if result.tool == folder_tools.READ_NAME:
            arguments = self._arguments.get(result.call_id, "")
            kept, note = folder_tools.cut_read_text(kept, arguments)
        if not note:
            note = (
                f"[{n_left_out:,} more characters of this result do not fit into the "
                "context. Ask for a smaller part.]"
            )
        return _set_text(result, f"{kept}\n{note}")


def _find_limit(lengths: Sequence[int], allowed: int) -> int:
    """The length to which the longest are cut, so that all together are `allowed`.

    Of 3,000 and 200, of which 1,600 are allowed, it is 1,400.
    """
    left = allowed
    n_left = len(lengths)
    for length in sorted(lengths):
        share = left // n_left
        if length > share:
            return max(_MIN_CHARACTERS, share)
        left -= length
        n_left -= 1
    return max(lengths, default=_MIN_CHARACTERS)


def _set_text(result: CallResult, text: str) -> CallResult:
    return replace(result, text=text)


def _count_bytes(results: Sequence[CallResult]) -> int:
    return sum(len(result.text.encode("utf-8", "replace")) for result in results)

"""Thinking tags: which ones a chat template uses, and the parser that finds them in an answer."""

from __future__ import annotations

import re
from typing import NamedTuple

from localspec.lazy_dataclass import dataclass


class ThinkingTags(NamedTuple):
    open: str
    close: str


_TAGS_BY_SIGN: tuple[tuple[str, ThinkingTags], ...] = (
    # A string in the template's source, and its tags; the first match applies.
    ("<|channel|>analysis", ThinkingTags("<|channel|>analysis<|message|>", "<|end|>")),
    ("<|channel>thought", ThinkingTags("<|channel>thought\n", "<channel|>")),
    ("</seed:think>", ThinkingTags("<seed:think>", "</seed:think>")),
    ("</mm:think>", ThinkingTags("<mm:think>", "</mm:think>")),
    ("[/THINK]", ThinkingTags("[THINK]", "[/THINK]")),
    ("<|END_THINKING|>", ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<|begin|>assistant<|think|>", ThinkingTags("<|think|>", "<|end|>")),
    ("<|inner_suffix|>", ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>")),
    (
        "[BEGIN FINAL RESPONSE]",
        ThinkingTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    ("</think>", ThinkingTags("<think>", "</think>")),
    ("</thinking>", ThinkingTags("<thinking>", "</thinking>")),
    ("</thought>", ThinkingTags("<thought>", "</thought>")),
    ("</reasoning>", ThinkingTags("<reasoning>", "</reasoning>")),
)

_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|start|>assistant<|channel|>final<|message|>",
    "<|think|>": "<|begin|>assistant<|content|>",
}
"""The text between a thinking part and the answer, by opening tag."""
_DIRECT_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
    "<|think|>": "<|content|>",
}
"""The text before an answer without a thinking part, by opening tag."""


def detect_tags(source: str) -> ThinkingTags | None:
    """The tags of a template; None if it has no thinking parts of a known format."""
    return next((tags for sign, tags in _TAGS_BY_SIGN if sign in source), None)


def with_answer_prefix(tags: ThinkingTags) -> ThinkingTags:
    """The tags, with the text between thinking and answer added to the closing tag."""
    return ThinkingTags(tags.open, tags.close + _ANSWER_PREFIXES.get(tags.open, ""))


def closing_text(tags: ThinkingTags) -> str:
    """What ends a thinking part and begins the answer after it."""
    after = _ANSWER_PREFIXES.get(tags.open, "\n\n")
    return f"\n{tags.close}{after}"


def direct_answer_prefix(tags: ThinkingTags) -> str:
    """What begins an answer without a thinking part; empty if nothing does."""
    return _DIRECT_ANSWER_PREFIXES.get(tags.open, "")


def answer_marker(tags: ThinkingTags | None, *, is_open: bool) -> str:
    """The text after which an answer without its thinking part begins; empty if at once.

    `is_open`: the prompt ends inside a thinking part.
    """
    if tags is None:
        return ""
    return _DIRECT_ANSWER_PREFIXES.get(tags.open) or (tags.close if is_open else "")


def is_open(generation_prompt: str, tags: ThinkingTags | None) -> bool:
    """Whether a prompt ends inside a thinking part, given what its template wrote at its end."""
    if tags is None:
        return False
    return generation_prompt.rfind(tags.open.rstrip()) > generation_prompt.rfind(tags.close)


def separate_thinking(
    answer: str, tags: ThinkingTags | None, starts_in_thinking: bool = False
) -> tuple[str | None, str]:
    """An answer's thinking (None without) and the rest of the answer.

    The prompt may hold the opening tag, so that the answer holds only the closing one. An answer
    that `starts_in_thinking` and has no closing tag, because it was cut, is thinking only.
    """
    if tags is None or not answer:
        return None, answer
    if is_harmony(tags):
        parts = split_thinking(answer, tags)
        thought = "".join(part.text for part in parts if part.is_thinking).strip()
        return thought or None, "".join(part.text for part in parts if not part.is_thinking)
    opening = tags.open.rstrip()
    is_opened = answer.lstrip().startswith(opening)
    if not is_opened and tags.close not in answer:
        if starts_in_thinking:
            return answer.strip(), ""
        return None, answer.removeprefix(_DIRECT_ANSWER_PREFIXES.get(tags.open, ""))
    parts = split_thinking(answer, (opening, tags.close), starts_in_thinking=not is_opened)
    thinking = "".join(part.text for part in parts if part.is_thinking)
    if tags.open in thinking:  # text before the thinking part: not a known format
        return None, answer
    rest = "".join(part.text for part in parts if not part.is_thinking).lstrip()
    return thinking.strip(), rest.removeprefix(_ANSWER_PREFIXES.get(tags.open, "")).lstrip()


@dataclass(frozen=True, slots=True)
class AnswerPart:
    is_thinking: bool
    text: str


class ThinkingParser:
    """Splits streamed text; the result does not depend on how the text is cut into pieces.

    Thinking can begin only before the first visible character. So an answer that explains the
    tags is not hidden. The tags are removed.
    """

    def __init__(self, tags: tuple[str, str] | None, starts_in_thinking: bool = False) -> None:
        self._open, self._close = tags or ("", "")
        self.in_thinking = starts_in_thinking and bool(self._close)
        self._buffer = ""  # Text that may be the beginning of a tag.

    @property
    def may_think(self) -> bool:
        """Whether the text is thinking, or thinking may still begin."""
        return bool(self._next_tag)

    def feed(self, text: str) -> list[AnswerPart]:
        """The parts that are certain so far."""
        self._buffer += text
        parts: list[AnswerPart] = []
        while tag := self._next_tag:
            before, found, after = self._buffer.partition(tag)
            if not found:
                break
            if not self.in_thinking and before.strip():
                self._open = ""  # visible text: no more thinking
                continue
            _append_part(parts, self.in_thinking, before)
            self.in_thinking = not self.in_thinking
            self._buffer = after
        end = len(self._buffer) - partial_length(self._buffer, self._next_tag)
        certain, self._buffer = self._buffer[:end], self._buffer[end:]
        self._emit(parts, certain)
        return parts

    def flush(self) -> list[AnswerPart]:
        """The buffered text at the end of the answer."""
        parts: list[AnswerPart] = []
        rest, self._buffer = self._buffer, ""
        self._emit(parts, rest)
        return parts

    @property
    def _next_tag(self) -> str:
        return self._close if self.in_thinking else self._open

    def _emit(self, parts: list[AnswerPart], text: str) -> None:
        if not self.in_thinking and text.strip():
            self._open = ""
            text, self._buffer = text + self._buffer, ""
        _append_part(parts, self.in_thinking, text)


def is_harmony(tags: tuple[str, str]) -> bool:
    """Whether an answer is a sequence of messages on channels (gpt-oss)."""
    return tags[0].startswith("<|channel|>analysis")


class HarmonyParser:
    """As `ThinkingParser`, for answers that are messages on channels (OpenAI's Harmony format).

    The channel `analysis` is thinking; other messages are text, without their headers. A tool call
    keeps its header, in one form, for `ToolCallParser`. The prompt ends with `<|start|>assistant`.
    """

    may_think = True
    _ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
    _BEGINNINGS = ("<|start|>", "<|channel|>", "<|message|>", "to=")
    _MAX_HEADER = 200

    def __init__(self, starts_in_thinking: bool = False) -> None:
        self.in_thinking = starts_in_thinking
        self._in_header = not starts_in_thinking
        self._buffer = ""

    def feed(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain so far."""
        self._buffer += text
        parts: list[AnswerPart] = []
        while self._read_header(parts) if self._in_header else self._read_body(parts):
            pass
        return parts

    def flush(self) -> list[AnswerPart]:
        """Return the buffered text at the end of the answer."""
        rest, self._buffer = self._buffer, ""
        if self._in_header and "<" in rest:
            return []
        parts: list[AnswerPart] = []
        _append_part(parts, self.in_thinking, rest)
        return parts

    def _read_header(self, parts: list[AnswerPart]) -> bool:
        """Read up to the beginning of a message; return whether it was found."""
        text = self._buffer.lstrip()
        is_header = any(text.startswith(b) or b.startswith(text) for b in self._BEGINNINGS)
        header, found, rest = text.partition("<|message|>")
        if is_header and not found and len(text) <= self._MAX_HEADER:
            return False
        self.in_thinking = self._in_header = False
        if not is_header or not found:  # text without a header
            return True
        self._buffer = rest
        channel = _HARMONY_CHANNEL.search(header)
        recipient = _HARMONY_RECIPIENT.search(header)
        if recipient is not None:
            name = channel[1] if channel is not None else "commentary"
            _append_part(parts, False, f"<|channel|>{name} to={recipient[1]}<|message|>")
        else:
            self.in_thinking = channel is not None and channel[1] == "analysis"
        return True

    def _read_body(self, parts: list[AnswerPart]) -> bool:
        """Read up to the end of a message; return whether it was found."""
        found = [(at, end) for end in self._ENDS if (at := self._buffer.find(end)) >= 0]
        if not found:
            n_held = max(partial_length(self._buffer, end) for end in self._ENDS)
            n = len(self._buffer) - n_held
            _append_part(parts, self.in_thinking, self._buffer[:n])
            self._buffer = self._buffer[n:]
            return False
        at, end = min(found)
        _append_part(parts, self.in_thinking, self._buffer[:at])
        self._buffer = self._buffer[at:].removeprefix(end if end in self._ENDS[:3] else "")
        self.in_thinking, self._in_header = False, True
        return True


_HARMONY_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_HARMONY_RECIPIENT = re.compile(r"to=(functions\.[\w.-]+)")


def make_parser(
    tags: tuple[str, str] | None, starts_in_thinking: bool = False
) -> ThinkingParser | HarmonyParser:
    """The parser of a stream with these tags."""
    if tags is not None and is_harmony(tags):
        return HarmonyParser(starts_in_thinking)
    return ThinkingParser(tags, starts_in_thinking)


def split_thinking(
    text: str, tags: tuple[str, str] | None, starts_in_thinking: bool = False
) -> tuple[AnswerPart, ...]:
    """Split a complete text into alternating parts."""
    parser = make_parser(tags, starts_in_thinking)
    return merge_parts([*parser.feed(text), *parser.flush()])


def merge_parts(parts: list[AnswerPart]) -> tuple[AnswerPart, ...]:
    """Join adjacent parts of the same type."""
    merged: list[AnswerPart] = []
    for part in parts:
        _append_part(merged, part.is_thinking, part.text)
    return tuple(merged)


def strip_thinking(
    text: str, tags: tuple[str, str] | None, starts_in_thinking: bool = False
) -> str:
    """Return the text without thinking; if there was any, also without surrounding white space."""
    parts = split_thinking(text, tags, starts_in_thinking)
    visible = "".join(part.text for part in parts if not part.is_thinking)
    return visible.strip() if any(part.is_thinking for part in parts) else visible


def _append_part(parts: list[AnswerPart], is_thinking: bool, text: str) -> None:
    if not text:
        return
    if parts and parts[-1].is_thinking is is_thinking:
        parts[-1] = AnswerPart(is_thinking, parts[-1].text + text)
    else:
        parts.append(AnswerPart(is_thinking, text))


def partial_length(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)

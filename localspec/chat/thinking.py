"""An answer's text in two kinds of parts: what was thought, and what was said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A piece of an answer."""

    is_thinking: bool
    text: str


class ThinkingSplitter:
    """Splits a text as it comes; however it is cut into pieces, the parts are the same.

    Thinking may only begin before anything but white space was said: a model that explains the
    markers later does not hide its answer.  The markers themselves are in no part.
    """

    def __init__(self, markers: tuple[str, str] | None, starts_in_thinking: bool = False) -> None:
        self._open_marker, self._close_marker = markers or ("", "")
        self._in_thinking = starts_in_thinking and bool(self._close_marker)
        self._buffer = ""
        """What may be the beginning of a marker."""

    @property
    def in_thinking(self) -> bool:
        """Whether what comes next is thinking."""
        return self._in_thinking

    def feed(self, text: str) -> list[AnswerPart]:
        """The parts that are certain now."""
        self._buffer += text
        parts: list[AnswerPart] = []
        while marker := self._next_marker():
            before, found, after = self._buffer.partition(marker)
            if not found:
                break
            if not self._in_thinking and before.strip():
                self._open_marker = ""  # something was said: no more thinking
                continue
            _append_part(parts, self._in_thinking, before)
            self._in_thinking = not self._in_thinking
            self._buffer = after
        keep = _partial_marker_length(self._buffer, self._next_marker())
        sure, self._buffer = (
            self._buffer[: len(self._buffer) - keep],
            self._buffer[len(self._buffer) - keep :],
        )
        self._emit(parts, sure)
        return parts

    def flush(self) -> list[AnswerPart]:
        """What was held back: it was no marker after all."""
        parts: list[AnswerPart] = []
        rest, self._buffer = self._buffer, ""
        self._emit(parts, rest)
        return parts

    def _next_marker(self) -> str:
        return self._close_marker if self._in_thinking else self._open_marker

    def _emit(self, parts: list[AnswerPart], text: str) -> None:
        if not self._in_thinking and text.strip():
            self._open_marker = ""
            text, self._buffer = text + self._buffer, ""
        _append_part(parts, self._in_thinking, text)


def split_thinking(
    text: str, markers: tuple[str, str] | None, starts_in_thinking: bool = False
) -> tuple[AnswerPart, ...]:
    """The parts of a whole text, no two of a kind side by side."""
    splitter = ThinkingSplitter(markers, starts_in_thinking)
    return merge_parts([*splitter.feed(text), *splitter.flush()])


def merge_parts(parts: list[AnswerPart]) -> tuple[AnswerPart, ...]:
    """The same parts, neighbours of a kind made one."""
    found: list[AnswerPart] = []
    for part in parts:
        _append_part(found, part.is_thinking, part.text)
    return tuple(found)


def strip_thinking(
    text: str, markers: tuple[str, str] | None, starts_in_thinking: bool = False
) -> str:
    """What was said, without the thinking and the space around it."""
    parts = split_thinking(text, markers, starts_in_thinking)
    spoken = "".join(part.text for part in parts if not part.is_thinking)
    return spoken.strip() if any(part.is_thinking for part in parts) else spoken


def _append_part(parts: list[AnswerPart], is_thinking: bool, text: str) -> None:
    if not text:
        return
    if parts and parts[-1].is_thinking is is_thinking:
        parts[-1] = AnswerPart(is_thinking, parts[-1].text + text)
    else:
        parts.append(AnswerPart(is_thinking, text))


def _partial_marker_length(text: str, marker: str) -> int:
    """How many characters at the end of `text` may begin `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)

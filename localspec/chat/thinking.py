"""Separating an answer's thinking from its visible text."""

from __future__ import annotations

from localspec.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AnswerPart:
    is_thinking: bool
    text: str


class ThinkingSplitter:
    """Splits streamed text; the result does not depend on how the text is cut into pieces.

    Thinking can begin only before the first visible character. So an answer that explains the
    markers is not hidden. The markers are removed.
    """

    def __init__(self, markers: tuple[str, str] | None, starts_in_thinking: bool = False) -> None:
        self._open_marker, self._close_marker = markers or ("", "")
        self._in_thinking = starts_in_thinking and bool(self._close_marker)
        self._buffer = ""
        """Text that may be the beginning of a marker."""

    @property
    def in_thinking(self) -> bool:
        return self._in_thinking

    def feed(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain so far."""
        self._buffer += text
        parts: list[AnswerPart] = []
        while marker := self._next_marker():
            before, found, after = self._buffer.partition(marker)
            if not found:
                break
            if not self._in_thinking and before.strip():
                self._open_marker = ""  # visible text: no more thinking
                continue
            _append_part(parts, self._in_thinking, before)
            self._in_thinking = not self._in_thinking
            self._buffer = after
        end = len(self._buffer) - _partial_marker_length(self._buffer, self._next_marker())
        certain, self._buffer = self._buffer[:end], self._buffer[end:]
        self._emit(parts, certain)
        return parts

    def flush(self) -> list[AnswerPart]:
        """Return the buffered text at the end of the answer."""
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
    """Split a complete text into alternating parts."""
    splitter = ThinkingSplitter(markers, starts_in_thinking)
    return merge_parts([*splitter.feed(text), *splitter.flush()])


def merge_parts(parts: list[AnswerPart]) -> tuple[AnswerPart, ...]:
    """Join adjacent parts of the same type."""
    merged: list[AnswerPart] = []
    for part in parts:
        _append_part(merged, part.is_thinking, part.text)
    return tuple(merged)


def strip_thinking(
    text: str, markers: tuple[str, str] | None, starts_in_thinking: bool = False
) -> str:
    """Return the text without thinking; if there was any, also without surrounding white space."""
    parts = split_thinking(text, markers, starts_in_thinking)
    visible = "".join(part.text for part in parts if not part.is_thinking)
    return visible.strip() if any(part.is_thinking for part in parts) else visible


def _append_part(parts: list[AnswerPart], is_thinking: bool, text: str) -> None:
    if not text:
        return
    if parts and parts[-1].is_thinking is is_thinking:
        parts[-1] = AnswerPart(is_thinking, parts[-1].text + text)
    else:
        parts.append(AnswerPart(is_thinking, text))


def _partial_marker_length(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)

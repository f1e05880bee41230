"""An answer's text in two kinds of parts: what was thought, and what was said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer."""

    thought: bool
    text: str


class Splitter:
    """Splits a text as it comes; however it is cut into pieces, the parts are the same.

    Thinking may only begin before anything but white space was said: a model that explains the
    markers later does not hide its answer.  The markers themselves are in no part.
    """

    def __init__(self, markers: tuple[str, str] | None, begins_inside: bool = False) -> None:
        self._open, self._close = markers or ("", "")
        self._inside = begins_inside and bool(self._close)
        self._held = ""
        """What may be the beginning of a marker."""

    @property
    def inside(self) -> bool:
        """Whether what comes next is thinking."""
        return self._inside

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        self._held += text
        parts: list[Part] = []
        while marker := self._awaited():
            before, found, after = self._held.partition(marker)
            if not found:
                break
            if not self._inside and before.strip():
                self._open = ""  # something was said: no more thinking
                continue
            _add(parts, self._inside, before)
            self._inside = not self._inside
            self._held = after
        keep = _overlap(self._held, self._awaited())
        sure, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        self._say(parts, sure)
        return parts

    def end(self) -> list[Part]:
        """What was held back: it was no marker after all."""
        parts: list[Part] = []
        rest, self._held = self._held, ""
        self._say(parts, rest)
        return parts

    def _awaited(self) -> str:
        return self._close if self._inside else self._open

    def _say(self, parts: list[Part], text: str) -> None:
        if not self._inside and text.strip():
            self._open = ""
            text, self._held = text + self._held, ""
        _add(parts, self._inside, text)


def split(
    text: str, markers: tuple[str, str] | None, begins_inside: bool = False
) -> tuple[Part, ...]:
    """The parts of a whole text, no two of a kind side by side."""
    splitter = Splitter(markers, begins_inside)
    return joined([*splitter.feed(text), *splitter.end()])


def joined(parts: list[Part]) -> tuple[Part, ...]:
    """The same parts, neighbours of a kind made one."""
    found: list[Part] = []
    for part in parts:
        _add(found, part.thought, part.text)
    return tuple(found)


def said(text: str, markers: tuple[str, str] | None, begins_inside: bool = False) -> str:
    """What was said, without the thinking and the space around it."""
    parts = split(text, markers, begins_inside)
    spoken = "".join(part.text for part in parts if not part.thought)
    return spoken.strip() if any(part.thought for part in parts) else spoken


def _add(parts: list[Part], thought: bool, text: str) -> None:
    if not text:
        return
    if parts and parts[-1].thought is thought:
        parts[-1] = Part(thought, parts[-1].text + text)
    else:
        parts.append(Part(thought, text))


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` may begin `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)

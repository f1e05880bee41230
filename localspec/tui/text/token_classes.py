"""Which token wrote each character of an answer's visible text, and how that is drawn.

The visible text is not that of the tokens. Thinking and its tags are left out of it, its
control characters are removed, and its last characters may be held back: they may be the
beginning of a tag.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style

from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import Token, TokenClass
from localspec.sanitize import sanitize
from localspec.tui.text.source_map import DrawnRun, find_runs
from localspec.tui.themes import TokenStyles

_MAX_WAITING_RUNS = 4_000
"""Of text that belongs to no part, such as the header of a tool call."""

DrawnClass = TokenClass | Literal["draft", "rejected"]
"""The class of a token, or of one that is drawn but is no part of the text."""


class ClassRun(Struct, frozen=True):
    """`length` characters that tokens of one class wrote; None: no token wrote them."""

    length: int
    token_class: DrawnClass | None


def skip_runs(runs: Iterable[ClassRun], length: int) -> Iterator[ClassRun]:
    """The runs after the first `length` characters."""
    for run in runs:
        if length < run.length:
            yield ClassRun(run.length - length, run.token_class)
        length = max(0, length - run.length)


class VisibleClasses:
    """The class of each character of a text that grows at the end."""

    def __init__(self) -> None:
        # The end of each run, and its class; neighbours have different ones.
        self._ends: list[int] = []
        self._classes: list[DrawnClass | None] = []

    def append(self, run: ClassRun) -> None:
        if not run.length:
            return
        end = self.length + run.length
        if self._classes and self._classes[-1] == run.token_class:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._classes.append(run.token_class)

    @property
    def length(self) -> int:
        return self._ends[-1] if self._ends else 0

    def slice(self, start: int, end: int) -> Iterator[ClassRun]:
        """The runs from `start` to `end`; beyond the text, no token wrote it."""
        index = bisect_right(self._ends, start)
        while start < end:
            run_end = end
            token_class = None
            if index < len(self._ends):
                run_end = min(end, self._ends[index])
                token_class = self._classes[index]
            yield ClassRun(run_end - start, token_class)
            start = run_end
            index += 1


class ClassAligner:
    """Finds the tokens that wrote the parts of an answer.

    For example, the tokens `<think>`, `Hm`, `</think>` and `Yes` come to the parts `Hm`
    (thinking) and `Yes`. `Yes` has the class of the last token, and the tags belong to no
    part. If a part is not found, as where a tool call is shown in another form, no token
    wrote it.
    """

    def __init__(self) -> None:
        # Text that was found in no part yet, and the classes of its characters.
        self._text = ""
        self._runs: deque[ClassRun] = deque()

    def add_tokens(self, tokens: Sequence[Token]) -> None:
        self._text += "".join(token.text for token in tokens)
        for token in tokens:
            self._runs.append(ClassRun(len(token.text), token.kind))

    def add_tail(self, text: str) -> None:
        """Text at the end that belongs to no token."""
        self._text += text
        self._runs.append(ClassRun(len(text), None))

    def align(self, parts: Sequence[AnswerPart]) -> list[list[ClassRun]]:
        """The runs of each of the next parts, which are those of its sanitized text."""
        found = []
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            found.append(self._align_part(part.text, is_last=is_last))
        n_old = len(self._runs) - _MAX_WAITING_RUNS
        if n_old > 0:
            self._take(sum(run.length for run in islice(self._runs, n_old)))
        return found

    def _align_part(self, text: str, *, is_last: bool) -> list[ClassRun]:
        """The last part is searched from the end: only text that is held back follows it.

        The tag before it may have its text, too: `</think>` has the `t` of `then`.
        """
        shown = sanitize(text)
        start = 0
        if not self._text.startswith(text):
            start = self._text.rfind(text) if is_last else self._text.find(text)
        if start < 0:
            return [ClassRun(len(shown), None)]
        self._take(start)
        runs: list[ClassRun] = []
        position = 0
        n_shown = 0
        for run in self._take(len(text)):
            end = position + run.length
            n_kept = run.length
            if shown != text:
                n_kept = len(sanitize(text[position:end]))
            runs.append(ClassRun(n_kept, run.token_class))
            n_shown += n_kept
            position = end
        if n_shown != len(shown):  # A control sequence goes over several tokens.
            return [ClassRun(len(shown), None)]
        return runs

    def _take(self, length: int) -> list[ClassRun]:
        self._text = self._text[length:]
        taken = []
        while length:
            run = self._runs.popleft()
            if run.length > length:
                rest = ClassRun(run.length - length, run.token_class)
                self._runs.appendleft(rest)
                run = ClassRun(length, run.token_class)
            taken.append(run)
            length -= run.length
        return taken


class _StyledColumns(Struct, frozen=True):
    """The characters of a row from `start` to `end`, and the style to add to theirs."""

    start: int
    end: int
    style: Style


def style_by_class(
    lines: list[list[Segment]],
    source: str,
    runs: Iterable[ClassRun],
    styles: TokenStyles,
) -> list[list[Segment]]:
    """Adds to drawn lines the styles of the tokens that wrote them.

    `runs` are those of the source. Lines that are drawn in another order than their
    source, such as those of a table, stay as they are.
    """
    ends: list[int] = []
    run_styles: list[Style] = []
    end = 0
    for run in runs:
        end += run.length
        ends.append(end)
        run_styles.append(_class_style(run.token_class, styles))
    if not any(run_styles):
        return lines
    rows = ["".join(segment.text for segment in line) for line in lines]
    drawn_runs, is_complete = find_runs(source, rows)
    if not is_complete:
        return lines
    columns: list[list[_StyledColumns]] = [[] for _ in lines]
    last: DrawnRun | None = None
    for drawn in drawn_runs:
        row = columns[drawn.row]
        if last is not None and last.row == drawn.row:
            blank = _find_blank_between(source, last, drawn)
            if blank >= 0:
                style = run_styles[bisect_right(ends, blank)]
                start = _end_column(last)
                row.append(_StyledColumns(start=start, end=drawn.column, style=style))
        position = drawn.position
        end = drawn.position + drawn.length
        while position < end:
            index = bisect_right(ends, position)
            length = min(ends[index], end) - position
            start = drawn.column + position - drawn.position
            row.append(
                _StyledColumns(start=start, end=start + length, style=run_styles[index])
            )
            position += length
        last = drawn
    return [_add_styles(line, columns[row]) for row, line in enumerate(lines)]


@lru_cache(maxsize=64)
def _class_style(token_class: DrawnClass | None, styles: TokenStyles) -> Style:
    if token_class is None:
        return Style.null()
    return Style.parse(getattr(styles, token_class, ""))


def _end_column(run: DrawnRun) -> int:
    return run.column + run.length


def _find_blank_between(source: str, left: DrawnRun, right: DrawnRun) -> int:
    """The position of a blank of the source between two runs; -1 without one.

    It has the class of what is drawn between them: a token usually begins with a blank.
    """
    left_end = left.position + left.length
    if _end_column(left) == right.column or left_end == right.position:
        return -1
    for position in (right.position - 1, left_end):
        if source[position].isspace():
            return position
    return -1


def _add_styles(line: list[Segment], columns: list[_StyledColumns]) -> list[Segment]:
    """`columns`: in order, and none overlaps the one before it."""
    styled: list[Segment] = []
    waiting = iter(columns)
    change = next(waiting, None)
    column = 0
    for segment in line:
        text = segment.text
        done = 0
        while done < len(text):
            while change is not None and change.end <= column + done:
                change = next(waiting, None)
            end = len(text)
            style = segment.style or Style.null()
            if change is not None:
                if change.start > column + done:
                    end = min(end, change.start - column)
                else:
                    end = min(end, change.end - column)
                    style += change.style
            styled.append(Segment(text[done:end], style))
            done = end
        column += len(text)
    return styled

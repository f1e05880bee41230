"""What passes cost here, in plain words, with the field's words beside them."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content

from localspec.bench.results import Report
from localspec.units import milliseconds

_NAME, _VALUE, _WORD = 16, 13, 24


def costs(report: Report, width: int) -> Iterator[Content]:
    """Lines of a table; nothing where nothing was measured."""
    if report.t1_ms is None:
        return
    yield Content.styled("What it costs here", "$muted bold")
    for name, value, meaning, word in _rows(report):
        yield _line(name, value, meaning, word, width)


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    yield "one pass", milliseconds(report.t1_ms), "the model alone, for one token", "t1"
    if report.c is not None:
        meaning = "the draft, for one token"
        yield "a guess", _passes(report.c), meaning, "c, draft cost ratio"
    widths = [w for w in ("2", "4", "8", "16") if w in report.verify_curve]
    for width in widths:
        meaning = f"the model, for {width} tokens at once"
        yield (
            _checking(int(width) - 1),
            _passes(report.verify_curve[width]),
            meaning,
            (f"v({width}), verify curve"),
        )
    if report.host_ms is not None:
        meaning = "around a pass that checks guesses"
        yield "everything else", milliseconds(report.host_ms), meaning, "host"


def _checking(guesses: int) -> str:
    return f"check {guesses} guess{'es' * (guesses > 1)}"


def _passes(n: float) -> str:
    return f"{n:.2f} passes"


def _line(name: str, value: str, meaning: str, word: str, width: int) -> Content:
    line = f"  {name:<{_NAME}}{value:>{_VALUE}}   {meaning:<34}"
    word = word if len(line) + _WORD <= width else word.partition(",")[0]
    room = width - len(line)
    if room < len(word):
        line, word = f"  {name:<{_NAME}}{value:>{_VALUE}}   {word}", ""
    return Content.assemble(line, (word, "$muted"))

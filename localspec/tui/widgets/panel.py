"""The speculation panel: whether it pays, and what it does, in the person's words."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content
from textual.widgets import Static

from localspec.clean import clean
from localspec.models import heads
from localspec.tui.figures import RECENT, Figures
from localspec.tui.glyphs import Glyphs
from localspec.units import per_second, percent

WIDTH = 32
"""Cells of text."""

_STATE_STYLES = {"on": "bold $success", "probing": "bold $accent", "paused": "bold $warning"}
_SOURCES = {"model": "draft", "lookup": "copying"} | heads.NAMES


class Panel(Static):
    """Redrawn from the figures; never taller than it is given room."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs

    def draw(self, figures: Figures, state: str = "") -> None:
        """Show the figures; `state` stands in for the plan while there is none."""
        lines = list(_lines(figures, self._glyphs, state, airy=self.size.height >= 28))
        self.update(Content("\n").join(lines), layout=False)


def _lines(figures: Figures, glyphs: Glyphs, state: str, *, airy: bool) -> Iterator[Content]:
    """`airy`: with room between the parts."""
    between = [Content("")] if airy else []
    yield _head(figures, state)
    if figures.plan is not None and not state:
        yield from _wrapped(clean(figures.plan.why, multiline=False))
    yield Content("")
    yield _row(f"{percent(figures.kept_now)} of guesses kept", "now")
    yield _row(percent(figures.kept), "chat")
    per_pass = figures.per_pass
    yield Content(f"{per_pass:.1f} tokens per pass" if per_pass else "– tokens per pass")
    yield _row(per_second(figures.speed), f"plain {_short(figures.plain)}")
    yield Content("")
    yield _muted(f"last {len(figures.recent)} rounds" if figures.recent else "rounds")
    yield Content.styled(_sparkline(figures, glyphs), "$accent")
    yield from between
    yield _muted("kept per round")
    yield from _histogram(figures.totals.histogram, glyphs)
    yield from between
    yield _muted("guesses from")
    yield from [_row(_source(name), percent(share)) for name, share in figures.sources] or [
        _muted("nobody yet")
    ]
    yield from between
    yield from _next(figures)


def _head(figures: Figures, state: str) -> Content:
    if state or figures.plan is None:
        return Content.styled(state or "READY", "bold $accent" if state else "bold $muted")
    word = figures.plan.state
    gain = figures.gain
    said = (
        f"{gain:.2f}× if on" if word == "paused" and gain else f"{gain:.1f}× plain" if gain else ""
    )
    return _row(word.upper(), said, _STATE_STYLES.get(word, "bold"))


def _row(left: str, right: str, style: str = "") -> Content:
    """Left and right, in fixed columns, so that nothing jumps."""
    space = " " * max(1, WIDTH - len(left) - len(right))
    return Content.assemble((left, style), space, (right, "$muted"))


def _muted(text: str) -> Content:
    return Content.styled(text, "$muted")


def _short(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _sparkline(figures: Figures, glyphs: Glyphs) -> str:
    """Tokens of each round, against the most of any."""
    counts = [len(r.tokens) for r in figures.recent][-min(RECENT, WIDTH) :]
    most = max(counts, default=1)
    return glyphs.line([n / most for n in counts]) or glyphs.dot


def _histogram(counts: list[int], glyphs: Glyphs) -> Iterator[Content]:
    """Two to a line: how many rounds kept 0, 1, 2, … guesses; the last stands for all above."""
    shown = [*counts[:7], sum(counts[7:])] if len(counts) > 8 else counts
    shown = shown + [0] * (6 - len(shown))
    most = max(shown) or 1
    half = WIDTH // 2
    for i in range(0, len(shown), 2):
        parts: list[Content] = []
        for kept in range(i, min(i + 2, len(shown))):
            more = "+" if kept == 7 and len(counts) > 8 else " "
            bar = glyphs.bar(shown[kept] / most, half - 5).ljust(half - 2)
            parts += [Content(f"{kept}{more}"), Content.styled(bar, "$accent")]
        yield Content.assemble(*parts)


def _source(name: str) -> str:
    return " then ".join(
        _SOURCES.get(part, clean(part, multiline=False)) for part in name.split("+")
    )


def _next(figures: Figures) -> Iterator[Content]:
    """What the last round shows of the choice that is made every round."""
    if not figures.recent:
        return
    last = figures.recent[-1]
    said = f"{last.drafted} guesses, {_source(last.source)}" if last.source else "no guess"
    yield _muted("last round")
    yield Content(said)
    if figures.plan is not None and last.reason and last.reason != figures.plan.why:
        yield from _wrapped(clean(last.reason, multiline=False))


def _wrapped(text: str) -> Iterator[Content]:
    """Words on lines of the panel's width, three at most."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(word[:WIDTH])
    for line in lines[:3]:
        yield _muted(line)

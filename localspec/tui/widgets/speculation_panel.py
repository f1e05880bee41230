"""The speculation panel: whether it pays, and what it does, in the person's words."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content
from textual.widgets import Static

from localspec.models import draft_heads
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.tui.speculation_stats import RECENT_ROUNDS, SpeculationStats
from localspec.units import percent, token_rate

PANEL_WIDTH = 32
"""Cells of text."""

_STATE_STYLES = {"on": "bold $success", "probing": "bold $accent", "paused": "bold $warning"}
_SOURCE_NAMES = {"model": "draft", "lookup": "copying"} | draft_heads.KIND_TITLES


class SpeculationPanel(Static):
    """Redrawn from the figures; never taller than it is given room."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs

    def draw(self, stats: SpeculationStats, state: str = "") -> None:
        """Show the figures; `state` stands in for the plan while there is none."""
        lines = list(_panel_lines(stats, self._glyphs, state, spacious=self.size.height >= 28))
        self.update(Content("\n").join(lines), layout=False)


def _panel_lines(
    stats: SpeculationStats, glyphs: Glyphs, state: str, *, spacious: bool
) -> Iterator[Content]:
    """`airy`: with room between the parts."""
    between = [Content("")] if spacious else []
    yield _state_line(stats, state)
    if stats.plan is not None and not state:
        yield from _wrap_muted(sanitize(stats.plan.why, multiline=False))
    yield Content("")
    yield _two_columns(f"{percent(stats.recent_acceptance_rate)} of guesses kept", "now")
    yield _two_columns(percent(stats.acceptance_rate), "chat")
    per_pass = stats.tokens_per_pass
    yield Content(f"{per_pass:.1f} tokens per pass" if per_pass else "– tokens per pass")
    yield _two_columns(
        token_rate(stats.tokens_per_second), f"plain {_format_rate(stats.plain_speed)}"
    )
    yield Content("")
    yield _muted(f"last {len(stats.recent_rounds)} rounds" if stats.recent_rounds else "rounds")
    yield Content.styled(_sparkline(stats, glyphs), "$accent")
    yield from between
    yield _muted("kept per round")
    yield from _histogram(stats.totals.histogram, glyphs)
    yield from between
    yield _muted("guesses from")
    yield from [
        _two_columns(_format_source(name), percent(share)) for name, share in stats.draft_shares
    ] or [_muted("nobody yet")]
    yield from between
    yield from _last_round(stats)


def _state_line(stats: SpeculationStats, state: str) -> Content:
    if state or stats.plan is None:
        return Content.styled(state or "READY", "bold $accent" if state else "bold $muted")
    word = stats.plan.state
    gain = stats.speedup
    said = (
        f"{gain:.2f}× if on" if word == "paused" and gain else f"{gain:.1f}× plain" if gain else ""
    )
    return _two_columns(word.upper(), said, _STATE_STYLES.get(word, "bold"))


def _two_columns(left: str, right: str, style: str = "") -> Content:
    """Left and right, in fixed columns, so that nothing jumps."""
    space = " " * max(1, PANEL_WIDTH - len(left) - len(right))
    return Content.assemble((left, style), space, (right, "$muted"))


def _muted(text: str) -> Content:
    return Content.styled(text, "$muted")


def _format_rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _sparkline(stats: SpeculationStats, glyphs: Glyphs) -> str:
    """Tokens of each round, against the most of any."""
    counts = [len(r.tokens) for r in stats.recent_rounds][-min(RECENT_ROUNDS, PANEL_WIDTH) :]
    most = max(counts, default=1)
    return glyphs.sparkline([n / most for n in counts]) or glyphs.dot


def _histogram(counts: list[int], glyphs: Glyphs) -> Iterator[Content]:
    """Two to a line: how many rounds kept 0, 1, 2, … guesses; the last stands for all above."""
    shown = [*counts[:7], sum(counts[7:])] if len(counts) > 8 else counts
    shown = shown + [0] * (6 - len(shown))
    most = max(shown) or 1
    half = PANEL_WIDTH // 2
    for i in range(0, len(shown), 2):
        parts: list[Content] = []
        for kept in range(i, min(i + 2, len(shown))):
            more = "+" if kept == 7 and len(counts) > 8 else " "
            bar = glyphs.bar(shown[kept] / most, half - 5).ljust(half - 2)
            parts += [Content(f"{kept}{more}"), Content.styled(bar, "$accent")]
        yield Content.assemble(*parts)


def _format_source(name: str) -> str:
    return " then ".join(
        _SOURCE_NAMES.get(part, sanitize(part, multiline=False)) for part in name.split("+")
    )


def _last_round(stats: SpeculationStats) -> Iterator[Content]:
    """What the last round shows of the choice that is made every round."""
    if not stats.recent_rounds:
        return
    last = stats.recent_rounds[-1]
    said = f"{last.drafted} guesses, {_format_source(last.source)}" if last.source else "no guess"
    yield _muted("last round")
    yield Content(said)
    if stats.plan is not None and last.reason and last.reason != stats.plan.why:
        yield from _wrap_muted(sanitize(last.reason, multiline=False))


def _wrap_muted(text: str) -> Iterator[Content]:
    """Words on lines of the panel's width, three at most."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) <= PANEL_WIDTH:
            lines[-1] = longer
        else:
            lines.append(word[:PANEL_WIDTH])
    for line in lines[:3]:
        yield _muted(line)

"""The speculation panel: state, speed-up, acceptance and draft sources."""

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

_STATE_LABELS = {"probing": "MEASURING"}
_STATE_STYLES = {"on": "bold $success", "probing": "bold $accent", "paused": "bold $warning"}
_SOURCE_NAMES = {"model": "draft model", "lookup": "prompt lookup"} | draft_heads.KIND_TITLES


class SpeculationPanel(Static):
    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs

    def draw(self, stats: SpeculationStats, state: str = "") -> None:
        """`state` is shown instead of the plan, for example while the model loads."""
        lines = list(_panel_lines(stats, self._glyphs, state, spacious=self.size.height >= 28))
        self.update(Content("\n").join(lines), layout=False)


def _panel_lines(
    stats: SpeculationStats, glyphs: Glyphs, state: str, *, spacious: bool
) -> Iterator[Content]:
    """`spacious`: with blank lines between the sections."""
    gap = [Content("")] if spacious else []
    yield _state_line(stats, state)
    if stats.plan is not None and not state:
        yield from _wrap_muted(sanitize(stats.plan.why, multiline=False))
    yield Content("")
    yield _muted("acceptance rate")
    yield _two_columns(_format_rate(stats.recent_accepted, stats.recent_drafted), "now")
    yield _two_columns(_format_rate(stats.totals.accepted, stats.totals.drafted), "chat")
    per_pass = stats.tokens_per_pass
    yield Content(f"{per_pass:.1f} tokens per pass" if per_pass else "– tokens per pass")
    yield _two_columns(
        token_rate(stats.tokens_per_second), f"plain {_format_speed(stats.plain_speed)}"
    )
    yield Content("")
    n_rounds = len(stats.recent_rounds)
    yield _muted(f"last {n_rounds} round{'s' * (n_rounds != 1)}" if n_rounds else "rounds")
    yield Content.styled(_sparkline(stats, glyphs), "$accent")
    yield from gap
    yield _muted("accepted tokens per round")
    yield from _histogram(stats.totals.histogram, glyphs)
    yield from gap
    yield _muted("draft source")
    yield from [
        _two_columns(_format_source(name), percent(share)) for name, share in stats.draft_shares
    ] or [_muted("none yet")]
    yield from gap
    yield from _last_round(stats)


def _state_line(stats: SpeculationStats, state: str) -> Content:
    if state or stats.plan is None:
        return Content.styled(state or "READY", "bold $accent" if state else "bold $muted")
    plan_state, speedup = stats.plan.state, stats.speedup
    label = _STATE_LABELS.get(plan_state, plan_state.upper())
    gain = ""
    if speedup:
        gain = f"{speedup:.2f}× if on" if plan_state == "paused" else f"{speedup:.1f}× plain"
    return _two_columns(label, gain, _STATE_STYLES.get(plan_state, "bold"))


def _two_columns(left: str, right: str, style: str = "") -> Content:
    """Text at the left and right edge, so that changing numbers move nothing."""
    space = " " * max(1, PANEL_WIDTH - len(left) - len(right))
    return Content.assemble((left, style), space, (right, "$muted"))


def _muted(text: str) -> Content:
    return Content.styled(text, "$muted")


def _format_rate(accepted: int, drafted: int) -> str:
    return f"{percent(accepted / drafted)} ({accepted} of {drafted})" if drafted else "–"


def _format_speed(speed: float | None) -> str:
    return "?" if speed is None else f"{speed:.1f}" if speed < 100 else f"{speed:.0f}"


def _sparkline(stats: SpeculationStats, glyphs: Glyphs) -> str:
    """Tokens of each round, relative to the largest round."""
    counts = [len(r.tokens) for r in stats.recent_rounds][-min(RECENT_ROUNDS, PANEL_WIDTH) :]
    most = max(counts, default=1)
    return glyphs.sparkline([n / most for n in counts]) or glyphs.dot


def _histogram(counts: list[int], glyphs: Glyphs) -> Iterator[Content]:
    """How many rounds accepted 0, 1, 2, … tokens, two per line; the last includes all above."""
    shown = [*counts[:7], sum(counts[7:])] if len(counts) > 8 else counts
    shown = shown + [0] * (6 - len(shown))
    most = max(shown) or 1
    half = PANEL_WIDTH // 2
    for i in range(0, len(shown), 2):
        parts: list[Content] = []
        for accepted in range(i, min(i + 2, len(shown))):
            suffix = "+" if accepted == 7 and len(counts) > 8 else " "
            bar = glyphs.bar(shown[accepted] / most, half - 5).ljust(half - 2)
            parts += [Content(f"{accepted}{suffix}"), Content.styled(bar, "$accent")]
        yield Content.assemble(*parts)


def _format_source(name: str) -> str:
    return " + ".join(
        _SOURCE_NAMES.get(part, sanitize(part, multiline=False)) for part in name.split("+")
    )


def _last_round(stats: SpeculationStats) -> Iterator[Content]:
    """The draft length and source of the last round, which may change every round."""
    if not stats.recent_rounds:
        return
    last = stats.recent_rounds[-1]
    yield _muted("last round")
    source = _format_source(last.source) if last.source else ""
    yield Content(f"{last.drafted} drafted, {source}" if source else "nothing drafted")
    if stats.plan is not None and last.reason and last.reason != stats.plan.why:
        yield from _wrap_muted(sanitize(last.reason, multiline=False))


def _wrap_muted(text: str) -> Iterator[Content]:
    """Wraps to the panel's width, at most three lines."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) <= PANEL_WIDTH:
            lines[-1] = longer
        else:
            lines.append(word[:PANEL_WIDTH])
    for line in lines[:3]:
        yield _muted(line)

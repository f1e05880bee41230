"""The speculation panel: what guessing ahead gains, and what happens now and why.

Its first lines answer whether it is faster and by how much. The details are for those
who know the field's terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from localspec import draft_kinds
from localspec.chat.session import ChatSession
from localspec.chat.speculation_stats import (
    RECENT_ROUNDS,
    SpeculationStats,
    known_rate,
)
from localspec.protocol.round_totals import DraftTotals
from localspec.report.speculation import Phase, SpeculationView, view_speculation
from localspec.tui.chat_phase import ChatPhase
from localspec.tui.text.report_content import role_colour
from localspec.tui.text.wrapping import fit_to_width, one_line, wrap_words
from localspec.units import percent, short_count, token_rate

PANEL_WIDTH = RECENT_ROUNDS  # Cells of text.
_PHASES: dict[ChatPhase, Phase] = {
    "loading": "loading",
    "ready": "idle",
    "answering": "answering",
    "inspecting": "idle",
    "failed": "failed",
}
_BAR_WIDTH = PANEL_WIDTH - len("│ without") + 1
"""So that a mark at its end has its label to the right of it."""
_STRIP_SCALES = (4, 8, 16)
"""Right guesses of the strip's highest bar: few values, so bars seldom change."""
_MAX_SENTENCE_LINES = 4
_VALUE_END = 20  # The column at which the values of the figures end.

_Lines = list[Content]


class SpeculationPanel(Static):
    def __init__(self, ascii_only: bool = False) -> None:
        super().__init__(markup=False)
        self._ascii_only = ascii_only
        self._stats = SpeculationStats()
        self._phase: Phase = "idle"
        self._announcement = ""
        self._draft_name = ""
        self._has_details = False

    def show_details(self, shown: bool) -> None:
        self._has_details = shown
        self._redraw()

    def draw_session(
        self, session: ChatSession, stats: SpeculationStats, phase: ChatPhase
    ) -> None:
        """`stats`: of what is on the screen."""
        self._draft_name = session.draft_name
        shown_phase = _PHASES[phase]
        announcement = session.next_speculation if shown_phase == "idle" else ""
        self.draw(stats, shown_phase, announcement)

    def draw(
        self, stats: SpeculationStats, phase: Phase, announcement: str = ""
    ) -> None:
        """The arguments are those of `view_speculation`."""
        self._stats = stats
        self._phase = phase
        self._announcement = announcement
        self._redraw()

    def _redraw(self) -> None:
        view = view_speculation(
            self._stats, self._phase, self._announcement, draft_name=self._draft_name
        )
        details: list[_Lines] = []
        if self._has_details:
            details = _detail_sections(self._stats, view)
        lines = arrange_panel(
            view, details, height=self.size.height, ascii_only=self._ascii_only
        )
        self.update(Content("\n").join(lines), layout=False)

    def on_resize(self) -> None:
        self._redraw()


def arrange_panel(
    view: SpeculationView,
    details: Sequence[_Lines] = (),
    *,
    height: int,
    ascii_only: bool = False,
) -> _Lines:
    """The sections that fit into `height` lines, with a blank line between them.

    Where not all of them fit, the details go first, then the strip, then the bar.
    """
    headline = list(_headline(view))
    bar = list(_bar(view))
    figures = list(_figures(view))
    strip = list(_strip(view, ascii_only))
    sentence = _wrap(view.sentence, "")[:_MAX_SENTENCE_LINES]
    by_importance = [headline, sentence, figures, bar, strip, *details]
    if details:
        by_importance = [headline, sentence, figures, *details, bar, strip]
    fitting: list[_Lines] = []
    n_lines = 0
    for section in by_importance:
        n_added = len(section)
        if section is not headline and section is not bar:
            n_added += 1  # The blank line above it.
        if section and (section is headline or n_lines + n_added <= height):
            fitting.append(section)
            n_lines += n_added
    lines: _Lines = []
    for section in (headline, bar, figures, strip, sentence, *details):
        if not any(section is each for each in fitting):
            continue
        if lines and section is not bar:
            lines.append(Content(""))
        lines += section
    return lines


def _headline(view: SpeculationView) -> Iterator[Content]:
    style = f"bold {role_colour(view.role)}".strip()
    if len(view.headline) + 2 + len(view.speeds) <= PANEL_WIDTH:
        yield _two_columns(view.headline, view.speeds, style)
    else:
        yield _fit(view.headline, style)
        yield _two_columns("", view.speeds)


def _bar(view: SpeculationView) -> Iterator[Content]:
    """A bar of the faster speed, with a mark at each of the two speeds.

    With 8.4 and 14.2 tok/s the first 14 of 24 cells are what both have, and the other
    10 what the guesses gain.
    """
    speed = view.speculative_speed
    plain = view.plain_speed
    if view.speedup is None or not speed or not plain:
        return
    n_both = round(_BAR_WIDTH * min(speed, plain) / max(speed, plain))
    n_both = max(1, n_both)
    n_more = _BAR_WIDTH - n_both
    more_style = role_colour("success")
    labels = _label_marks(n_both, slow="without", fast="with")
    if speed <= plain:
        more_style = role_colour("warning")
        labels = _label_marks(n_both, slow="with", fast="without")
    yield Content.assemble(("█" * n_both, "$muted"), ("▒" * n_more, more_style))
    yield _muted(labels)


def _label_marks(at: int, *, slow: str, fast: str) -> str:
    """The two marks with their labels: the slower one's at cell `at`, counted from 1.

    Its label is to the left of it, or to the right where there is no room.
    """
    end = f"│ {fast}"
    if at >= _BAR_WIDTH:
        return f"{slow} {end}".rjust(_BAR_WIDTH + len(end) - 1)
    start = f"{slow} │".rjust(at)
    if len(start) > at:
        start = " " * (at - 1) + f"│ {slow}"
    return start.ljust(_BAR_WIDTH - 1) + end


def _figures(view: SpeculationView) -> Iterator[Content]:
    if view.state in ("loading", "failed", "empty", "reading"):
        return
    if view.drafted:
        yield _figure("Guesses right", view.shown_rate, view.guesses)
    per_step = "–"
    if view.tokens_per_step is not None:
        per_step = f"{view.tokens_per_step:.1f}"
    yield _figure("Tokens per step", per_step)
    if view.drafted:
        yield _figure(" without guesses", "1.0").stylize("$muted")
        yield _two_columns("Guessed by", one_line(view.guesser))


def _strip(view: SpeculationView, ascii_only: bool) -> Iterator[Content]:
    """A column per step: its right guesses as a bar, or a mark if it has none.

    The line above says what a bar of full height is.
    """
    if not view.strip:
        return
    most = max((n_right or 0) for n_right in view.strip)
    scale = next((n for n in _STRIP_SCALES if n >= most), _STRIP_SCALES[-1])
    n_steps = len(view.strip)
    title = "the first step" if n_steps == 1 else f"last {n_steps} steps"
    if most and ascii_only:
        title += ": guesses right"
    elif most:
        title += f": 0–{scale} right each"
    yield _muted(title)
    cells = [_strip_cells(n_right, scale, ascii_only) for n_right in view.strip]
    green = role_colour("accepted")
    if not ascii_only:
        upper_line = "".join(upper for upper, _, _ in cells)
        yield Content.styled(upper_line, green)
    yield Content.assemble(*((lower, style) for _, lower, style in cells))
    gap = "  "
    right = "█"
    if ascii_only:
        gap = " "
        right = "1–9"
    yield Content.assemble(
        (f"· no guess{gap}", "$muted"),
        ("×", role_colour("correction")),
        (f" all wrong{gap}", "$muted"),
        (right, green),
        (" right", "$muted"),
    )


def _strip_cells(
    n_right: int | None, scale: int, ascii_only: bool
) -> tuple[str, str, str]:
    """A step's cells in the upper and the lower line, and their style.

    A bar has 16 levels: at a scale of 8, three right guesses are level 6, `▆` in the
    lower line; six are level 12, `▄` above `█`.
    """
    if n_right is None:
        return " ", "·", "$muted"
    if not n_right:
        return " ", "×", role_colour("correction")
    style = role_colour("accepted")
    if ascii_only:
        digit = str(n_right) if n_right < 10 else "+"
        return " ", digit, style
    steps = "▁▂▃▄▅▆▇█"
    share = min(n_right / scale, 1)
    level = max(1, round(2 * len(steps) * share))
    if level > len(steps):
        return steps[level - len(steps) - 1], steps[-1], style
    return " ", steps[level - 1], style


# --- Details, in the field's terms.


def _detail_sections(stats: SpeculationStats, view: SpeculationView) -> list[_Lines]:
    sections = (_speed_details(stats, view), _draft_sources(stats), _last_round(stats))
    return [lines for lines in map(list, sections) if lines]


def _speed_details(stats: SpeculationStats, view: SpeculationView) -> Iterator[Content]:
    if view.speedup is not None:
        low_high = f"{view.speedup.low:.2f}–{view.speedup.high:.2f}×"
        yield _two_columns("speed-up, 95 %", low_high)
    if view.state in ("guessing", "waiting", "paused"):
        now = token_rate(stats.recent_tokens_per_second)
        yield _two_columns(f"now, last {len(view.strip)} rounds", now)
    totals = stats.totals
    if totals.drafted:
        rate = _rate_and_count(totals)
        yield _two_columns("acceptance, chat", rate)
    if totals.overlapped:
        in_time = percent(totals.overlap_hits / totals.overlapped)
        yield _two_columns("drafted in time", in_time)
    if stats.plain_speed is None and stats.answer.rounds:
        yield _fit("/spec off, once, measures plain", "$muted")
    if view.state == "paused":
        yield from _pause_details(stats)


def _pause_details(stats: SpeculationStats) -> Iterator[Content]:
    """What would have to change, and the next trial."""
    needed = stats.break_even_rate
    # It is 0 if a busy computer measured wide passes as cheaper.
    if needed:
        shown = percent(needed) if needed <= 1 else "none pays here"
        yield _two_columns("acceptance needed", shown)
    n_rounds = stats.rounds_to_next_trial
    if n_rounds is not None:
        yield _two_columns("next trial in rounds", short_count(n_rounds))


def _rate_and_count(totals: DraftTotals) -> str:
    drafted = short_count(totals.drafted)
    rate = known_rate(totals)
    if rate is None:
        return f"{totals.accepted} of {drafted}"
    return f"{percent(rate)} of {drafted}"


def _draft_sources(stats: SpeculationStats) -> Iterator[Content]:
    """A table; `ms` is the time to draft, per round."""
    sources = stats.draft_sources
    if not sources:
        return
    yield _muted(_table_row("source", "drafted", "rate", "ms"))
    for name, source in sources:
        ms = source.draft_ms / source.rounds
        shown_ms = f"{ms:.1f}" if ms < 9.95 else short_count(round(ms))
        yield Content(
            _table_row(
                _format_source(name),
                short_count(source.drafted),
                percent(known_rate(source)),
                shown_ms,
            )
        )


_COLUMN_WIDTHS = (7, 5, 5)
"""Of the numbers; a blank is before each."""


def _table_row(name: str, *cells: str) -> str:
    """A cell that is too wide is cut: columns never touch."""
    name_width = PANEL_WIDTH - sum(_COLUMN_WIDTHS) - len(_COLUMN_WIDTHS)
    row = fit_to_width(name, name_width)
    for cell, width in zip(cells, _COLUMN_WIDTHS, strict=True):
        row += " " + fit_to_width(cell.rjust(width), width)
    return row


def _last_round(stats: SpeculationStats) -> Iterator[Content]:
    """The draft length and source of the last round, and the engine's reason for it."""
    if not stats.recent_rounds:
        return
    last = stats.recent_rounds[-1]
    yield _muted(f"round {short_count(last.n + 1)}")
    if last.source:
        sources = " + ".join(map(_format_source, last.source.split("+")))
        yield _fit(f"{short_count(last.drafted)} drafted, {sources}", "")
    else:
        yield Content("nothing drafted")
    if last.reason and not _is_reason_of_plan(stats):
        yield from _wrap(last.reason, "$muted")[:3]


def _is_reason_of_plan(stats: SpeculationStats) -> bool:
    """Whether the last round only repeats why speculation is in its state.

    The sentence says that, and may have to say otherwise.
    """
    return stats.plan is not None and stats.recent_rounds[-1].reason == stats.plan.why


def _format_source(name: str) -> str:
    kind = draft_kinds.kinds().get(name)
    if kind is None:  # It is of another package.
        return one_line(name)
    return kind.panel_word or kind.title


# --- Lines of the panel's width.


def _figure(label: str, value: str, more: str = "") -> Content:
    """`Guesses right   78 %  25 of 32`: values end in one column, so nothing moves."""
    value = f" {value.rjust(_VALUE_END - len(label) - 1)}"
    room = PANEL_WIDTH - len(label) - len(value) - 2
    more = more if len(more) <= room else ""
    return Content.assemble(label, (value, "bold"), "  ", (more, "$muted"))


def _two_columns(left: str, right: str, style: str = "") -> Content:
    """Text at the left and right edge, so that changing numbers move nothing.

    Where both do not fit, the left one is cut.
    """
    right = fit_to_width(right, min(cell_len(right), PANEL_WIDTH))
    room = max(0, PANEL_WIDTH - cell_len(right) - 1)
    left = fit_to_width(left, room) + " " * (PANEL_WIDTH - cell_len(right) - room)
    return Content.assemble((left, style), (right, "$muted"))


def _fit(text: str, style: str) -> Content:
    return Content.styled(fit_to_width(text, PANEL_WIDTH).rstrip(), style)


def _muted(text: str) -> Content:
    return Content.styled(text, "$muted")


def _wrap(text: str, style: str) -> _Lines:
    return [_fit(line, style) for line in wrap_words(text, PANEL_WIDTH)]

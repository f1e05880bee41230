"""The speculation panel: what speculation gives now, why, and how its drafts fare."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content
from textual.widgets import Static

from localspec import draft_kinds
from localspec.chat.session import ChatSession
from localspec.chat.speculation_stats import (
    RECENT_ROUNDS,
    SpeculationStats,
    known_rate,
)
from localspec.protocol.events import Round
from localspec.report.answer_stats import STATE_ROLES, format_acceptance
from localspec.symbols import draw_bar
from localspec.tui.scheduling import set_reliable_timer
from localspec.tui.text.report_content import role_colour
from localspec.tui.text.wrapping import one_line, wrap_words
from localspec.units import count, percent, token_rate

PANEL_WIDTH = RECENT_ROUNDS  # Cells of text.
REFRESH_SECONDS = 0.2  # Minimum time between two updates while an answer streams.
_PHASE_LABELS = {"loading": "LOADING", "failed": "NOT LOADED"}
_NO_GAIN = 1.02  # A range that reaches below this shows no clear gain.
_STRIP_SCALES = (4, 8, 16)
"""Accepted tokens of the strip's highest bar: few values, so bars seldom change."""


class SpeculationPanel(Static):
    def __init__(self, ascii_only: bool = False) -> None:
        super().__init__(markup=False)
        self._ascii_only = ascii_only
        self._shown = (SpeculationStats(), "")
        self._refresh_pending = False

    def draw_session(self, session: ChatSession, phase: str) -> None:
        """`phase`: of the chat's screen."""
        if phase == "answering":
            self.draw_soon(session.stats)
        else:
            self.draw(
                session.stats, _PHASE_LABELS.get(phase) or session.next_speculation
            )

    def draw_soon(self, stats: SpeculationStats) -> None:
        def refresh() -> None:
            if self._refresh_pending:  # nothing newer was drawn
                self.draw(stats)

        if not self._refresh_pending:
            self._refresh_pending = True
            set_reliable_timer(self, REFRESH_SECONDS, refresh)

    def draw(self, stats: SpeculationStats, state: str = "") -> None:
        """`state` is shown instead of the plan, for example while the model loads."""
        self._refresh_pending = False
        self._shown = stats, state
        lines = _panel_lines(stats, state, self.size.height, self._ascii_only)
        self.update(Content("\n").join(lines), layout=False)

    def on_resize(self) -> None:
        self.draw(*self._shown)


def _panel_lines(
    stats: SpeculationStats, state: str, height: int, ascii_only: bool = False
) -> list[Content]:
    """The sections that fit into `height` lines; the most important come first."""
    lines = list(_summary(stats, state))
    for section in (
        _acceptance(stats),
        _strip(stats, ascii_only),
        _draft_sources(stats),
        _histogram(stats.totals.histogram),
        _last_round(stats),
    ):
        added = [Content(""), *section]
        if len(added) > 1 and len(lines) + len(added) <= height:
            lines += added
    return lines


def _summary(stats: SpeculationStats, state: str) -> Iterator[Content]:
    yield _headline(stats, state)
    label = "speculation, before" if stats.is_off else "with speculation"
    yield _two_columns(label, token_rate(stats.speculative_speed))
    yield _two_columns("plain decoding", token_rate(stats.plain_speed))
    if stats.plan is not None and not state:
        yield from _wrap_muted(stats.plan.why)
        for reason in _reasons(stats):
            yield from _wrap_muted(reason)


def _headline(stats: SpeculationStats, state: str) -> Content:
    if state:
        return Content.styled(state, "bold $accent")
    if stats.plan is None:
        return Content.styled("READY", "bold $muted")
    plan_state = stats.plan.state
    speedup = stats.speedup
    label = "MEASURING" if plan_state == "probing" else plan_state.upper()
    gain = ""
    style = "$muted"
    if plan_state == "paused":
        gain = "at plain speed"
    elif speedup is not None and plan_state != "off":
        gain = f"{speedup} plain speed"
        style = "bold"
        if speedup.high < 1:
            style = "bold $warning"
        elif speedup.low > _NO_GAIN:
            style = "bold $success"
    elif stats.answer.rounds and plan_state != "off":
        gain = "few rounds so far" if stats.plain_speed else "plain speed unknown"
    state_style = f"bold {role_colour(STATE_ROLES[plan_state])}".rstrip()
    return _two_columns(label, gain, state_style, style)


def _reasons(stats: SpeculationStats) -> Iterator[str]:
    """What would have to change, and the next trial."""
    assert stats.plan is not None
    state = stats.plan.state
    if state == "paused":
        if stats.speedup is not None:
            yield f"speculation would give {stats.speedup}"
        break_even = _break_even(stats)
        if break_even:
            yield break_even
        n_rounds = stats.rounds_to_next_trial
        if n_rounds is not None:
            yield f"next trial in {count(n_rounds, 'round')}"
    elif state == "probing" and stats.answer.rounds and not stats.answer.totals.drafted:
        yield "a trial may cost 3 % of the answer"
    elif state == "on" and stats.plain_speed is None and stats.answer.rounds:
        yield "/spec off, once, measures it"
    elif state == "on" and stats.speedup is not None and stats.speedup.high < 1:
        yield "drafts cost more than they save"


def _break_even(stats: SpeculationStats) -> str:
    """The acceptance rate above which drafts pay; empty if it says nothing."""
    needed = stats.break_even_rate
    if not needed:  # It is 0 if a busy computer measured wide passes as cheaper.
        return ""
    if needed > 1:
        return "on this computer no acceptance rate pays"
    rate = known_rate(stats.recent)
    if rate is None:
        return f"would pay above {percent(needed)} accepted"
    if rate >= needed:
        return ""
    return f"{percent(rate)} accepted, pays above {percent(needed)}"


def _acceptance(stats: SpeculationStats) -> Iterator[Content]:
    yield _muted("acceptance rate")
    totals = stats.totals
    for part, label in ((stats.recent, "now"), (totals, "chat")):
        rate = format_acceptance(part)
        if part.drafted:
            rate = f"{rate} drafted"
        yield _two_columns(rate, label)
    per_pass = totals.tokens_per_pass
    if per_pass:
        yield Content(f"{per_pass:.1f} tokens per target pass")
    else:
        yield Content("– tokens per pass")
    if totals.overlapped:
        in_time = percent(totals.overlap_hits / totals.overlapped)
        yield _two_columns(in_time, "drafted in time")


def _strip(stats: SpeculationStats, ascii_only: bool) -> Iterator[Content]:
    """A column per round: its accepted tokens as a bar, or a mark if it has none."""
    rounds = stats.recent_rounds
    if not rounds:
        return
    most = max(event.accepted for event in rounds)
    scale = next((n for n in _STRIP_SCALES if n >= most), _STRIP_SCALES[-1])
    yield _muted(f"last {count(len(rounds), 'round')}: accepted, 0–{scale}")
    cells = [_strip_cells(event, scale, ascii_only) for event in rounds]
    if not ascii_only:
        upper_line = "".join(upper for upper, _, _ in cells)
        yield Content.styled(upper_line, role_colour("accepted"))
    yield Content.assemble(*((lower, style) for _, lower, style in cells))
    yield _muted("· plain  × all rejected")


def _strip_cells(event: Round, scale: int, ascii_only: bool) -> tuple[str, str, str]:
    """A round's cells in the upper and the lower line, and their style.

    A bar has 16 levels: at a scale of 8, three accepted tokens are level 6, `▆` in the
    lower line; six are level 12, `▄` above `█`.
    """
    if not event.drafted:
        return " ", "·", "$muted"
    if not event.accepted:
        return " ", "×", role_colour("correction")
    style = role_colour("accepted")
    if ascii_only:
        digit = str(event.accepted) if event.accepted < 10 else "+"
        return " ", digit, style
    steps = "▁▂▃▄▅▆▇█"
    share = min(event.accepted / scale, 1)
    level = max(1, round(2 * len(steps) * share))
    if level > len(steps):
        return steps[level - len(steps) - 1], steps[-1], style
    return " ", steps[level - 1], style


def _histogram(counts: list[int]) -> Iterator[Content]:
    """How many rounds accepted 0, 1, 2, … tokens, two per line.

    There are at most eight numbers: the last then includes all above.
    """
    if not counts:
        return
    yield _muted("accepted tokens per round")
    is_cut = len(counts) > 8
    shown = [*counts[:7], sum(counts[7:])] if is_cut else counts
    shown = shown + [0] * (6 - len(shown))
    most = max(shown) or 1
    half = PANEL_WIDTH // 2
    for i in range(0, len(shown), 2):
        parts: list[Content] = []
        for accepted, n in enumerate(shown[i : i + 2], i):
            suffix = "+" if is_cut and accepted == 7 else " "
            bar = draw_bar(n / most, half - 5).ljust(half - 2)
            parts += [Content(f"{accepted}{suffix}"), Content.styled(bar, "$accent")]
        yield Content.assemble(*parts)


def _draft_sources(stats: SpeculationStats) -> Iterator[Content]:
    """A table; `ms` is the time to draft, per round."""
    sources = stats.draft_sources
    if not sources:
        return
    yield _muted(f"{'source':<11}{'drafted':>8}{'accepted':>9}{'ms':>4}")
    for name, source in sources:
        shown = _format_source(name)[:11]
        ms = source.draft_ms / source.rounds
        shown_ms = f"{ms:.1f}" if ms < 9.95 else f"{ms:.0f}"
        rate = percent(known_rate(source))
        yield Content(f"{shown:<11}{source.drafted:>8,}{rate:>9}{shown_ms:>4}")


def _last_round(stats: SpeculationStats) -> Iterator[Content]:
    """The draft length and source of the last round, which may change every round."""
    if not stats.recent_rounds:
        return
    last = stats.recent_rounds[-1]
    yield _muted("last round")
    if last.source:
        sources = " + ".join(map(_format_source, last.source.split("+")))
        yield Content(f"{last.drafted} drafted, {sources}")
    else:
        yield Content("nothing drafted")
    if stats.plan is not None and last.reason and last.reason != stats.plan.why:
        yield from _wrap_muted(last.reason)


def _two_columns(
    left: str, right: str, style: str = "", right_style: str = "$muted"
) -> Content:
    """Text at the left and right edge, so that changing numbers move nothing."""
    space = " " * max(1, PANEL_WIDTH - len(left) - len(right))
    return Content.assemble((left, style), space, (right, right_style))


def _format_source(name: str) -> str:
    kind = draft_kinds.kinds().get(name)
    if kind is None:  # It is of another package.
        return one_line(name)
    return kind.panel_word or kind.title


def _muted(text: str) -> Content:
    return Content.styled(text, "$muted")


def _wrap_muted(text: str) -> Iterator[Content]:
    """At most three lines."""
    return map(_muted, wrap_words(text, PANEL_WIDTH)[:3])

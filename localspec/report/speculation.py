"""What every front end says about speculation: one value, made by one function.

The panel, the status line, the line under an answer, `--stats`, `/stats` and the linear
chat show parts of a `SpeculationView`. None of them decides a state or formats a
speed-up, so they cannot contradict each other.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from localspec import draft_kinds
from localspec.chat.decode_speed import Speedup
from localspec.chat.speculation_stats import SpeculationStats, known_rate
from localspec.protocol.events import SpeculationPlan
from localspec.protocol.round_totals import RoundTotals
from localspec.report.lines import Role
from localspec.sanitize import sanitize
from localspec.units import count, duration, milliseconds, percent, short_count

Phase = Literal["loading", "failed", "answering", "idle"]
"""Of a chat; between two answers it is idle."""

SpeculationViewState = Literal[
    "loading",
    "failed",
    "empty",
    "reading",
    "off",
    "paused",
    "waiting",
    "guessing",
    "done",
]
"""`waiting`: nothing was worth guessing lately. `done`: the answer has ended."""

Verdict = Literal["unknown", "faster", "slower", "same", "unclear"]
"""How the measured speed compares.

`unclear`: the range of the speed-up reaches to both sides of 1, and is wide.
"""

_MIN_GAIN = 1.05
"""A ratio nearer to 1 would be shown as 1.0×: it is neither faster nor slower."""
_MIN_SHARE = 0.5
"""The share of a gain or loss that rounds with guesses must have to be its reason."""
_N_LATELY = 8
"""The last rounds of an answer, which say what happens now."""
_MAX_REASON = 200  # Characters of the engine's reason; a file may have a long one.


class SpeculationView(Struct, frozen=True):
    """Speeds are in tokens per second; None is what was not measured.

    With speculation off, `speed` and `plain_speed` are those of this answer, and
    `speedup` compares the last answer with speculation to it.
    """

    state: SpeculationViewState
    headline: str
    role: Role
    """Of the headline."""
    sentence: str
    """What happens now and why; between two answers, what the last one gained."""
    speed: float | None
    """Of the answer: its tokens after the first, divided by their time."""
    speculative_speed: float | None
    """`speed`; with speculation off, that of the last answer with it."""
    plain_speed: float | None
    verdict: Verdict
    speedup: Speedup | None
    guesser: str
    """What most guesses come from: the draft's name, or what is done to guess."""
    guessed_right: int
    drafted: int
    rate: float | None
    """The acceptance rate; None below ten draft tokens."""
    n_tokens: int
    n_steps: int
    """Passes of the target."""
    tokens_per_step: float | None
    seconds: float | None
    """Of the tokens after the first."""
    plain_seconds: float | None
    """What the same tokens take at `plain_speed`; None unless that is a gain or a loss."""
    strip: tuple[int | None, ...]
    """For each of the last steps, how many guesses were right; None without a guess."""

    @property
    def speeds(self) -> str:
        """`14.2 vs 8.4 tok/s`: with and without speculation, if both are measured."""
        if self.speed is None:
            return ""
        if self.verdict == "unknown":
            return f"{_format_speed(self.speed)} tok/s"
        without = _format_speed(self.plain_speed)
        return f"{_format_speed(self.speculative_speed)} vs {without} tok/s"

    @property
    def spoken(self) -> str:
        """The headline, the sentence and the speeds, for a screen reader."""
        speeds = "Speed not measured."
        if self.speed is not None:
            speeds = f"{_format_speed(self.speed)} tokens per second."
        if self.verdict != "unknown" and self.state != "off":
            without = _format_speed(self.plain_speed)
            speeds = f"{speeds[:-1]}, {without} without guesses."
        headline = self.headline.replace("≈", "About").replace("×", " times")
        headline = f"{headline[:1].upper()}{headline[1:]}"
        if headline.endswith("–"):
            headline = "Speed-up not measured"
        return f"{headline}. {self.sentence} {speeds}"

    @property
    def guesses(self) -> str:
        """`25 of 32`."""
        return f"{short_count(self.guessed_right)} of {short_count(self.drafted)}"

    @property
    def shown_rate(self) -> str:
        return percent(self.rate)

    @property
    def cells(self) -> tuple[str, ...]:
        """For a status line, the longest form first: `1.7× faster  25 of 32`.

        Without drafts it is the speed; empty where there is none.
        """
        if self.speed is None:
            return ()
        if self.state == "off" or not self.drafted:
            return (f"{_format_speed(self.speed)} tok/s",)
        if self.verdict == "unknown":
            return (f"{self.guesses} right",)
        return (f"{self.headline}  {self.guesses}", self.headline)

    @property
    def answer_line(self) -> str:
        """`38 tokens in 13 steps · 2.1 s instead of 3.4 s`, as far as it is measured."""
        size = count(self.n_tokens, "token")
        if self.drafted:
            size += f" in {count(self.n_steps, 'step')}"
        if self.seconds is None:
            return size
        longest = max(self.seconds, self.plain_seconds or 0.0)
        time = _format_seconds(self.seconds, longest=longest)
        if self.plain_seconds is not None:
            plain_time = _format_seconds(self.plain_seconds, longest=longest)
            if plain_time != time:
                time = f"{time} instead of {plain_time}"
        return f"{size} · {time}"


def view_speculation(
    stats: SpeculationStats,
    phase: Phase = "idle",
    announcement: str = "",
    *,
    draft_name: str = "",
) -> SpeculationView:
    """Look at the answer of `stats`, which is the last one between two answers.

    `announcement`: what the settings change from the next answer on. `draft_name`: of
    the pair, if it is known.
    """
    figures = stats.figures
    totals = figures.totals
    speed = stats.tokens_per_second
    plain_speed = stats.plain_speed
    speedup = stats.speedup
    verdict = _judge(speedup)
    if _is_measured_gain(stats, verdict):
        verdict = _check_verdict(stats, verdict)
    state = _find_state(stats, phase)
    seconds = None
    if speed is not None:
        seconds = figures.decode_speed.ms / 1e3
    plain_seconds = None
    if seconds is not None and plain_speed and _is_measured_gain(stats, verdict):
        plain_seconds = figures.decode_speed.n_tokens / plain_speed
    headline, role = _write_headline(stats, state, verdict)
    strip: list[int | None] = []
    for event in stats.recent_rounds:
        strip.append(event.accepted if event.drafted else None)
    return SpeculationView(
        state=state,
        headline=headline,
        role=role,
        sentence=announcement or _write_sentence(stats, state, verdict),
        speed=speed,
        speculative_speed=stats.speculative_speed,
        plain_speed=plain_speed,
        verdict=verdict,
        speedup=speedup,
        guesser=_name_guesser(totals, draft_name),
        guessed_right=totals.accepted,
        drafted=totals.drafted,
        rate=known_rate(totals),
        n_tokens=totals.tokens,
        n_steps=totals.passes,
        tokens_per_step=totals.tokens_per_pass,
        seconds=seconds,
        plain_seconds=plain_seconds,
        strip=tuple(strip),
    )


def _judge(speedup: Speedup | None) -> Verdict:
    if speedup is None:
        return "unknown"
    if speedup.low > 1 and speedup.value >= _MIN_GAIN:
        return "faster"
    if speedup.high < 1 and speedup.value * _MIN_GAIN <= 1:
        return "slower"
    return "unclear" if speedup.is_rough else "same"


def _check_verdict(stats: SpeculationStats, verdict: Verdict) -> Verdict:
    """`faster` and `slower` only if the rounds with guesses are the reason.

    An answer of 80 tokens takes 880 ms where 800 were expected. If its one guess cost
    10 ms of the 80, the speed varied for another reason, and guessing made no
    difference.
    """
    speed = stats.figures.decode_speed
    plain_speed = stats.plain_speed
    if not plain_speed:
        return verdict
    gain = speed.guessing_gain(plain_speed)
    all_gain = 1e3 * speed.n_tokens / plain_speed - speed.ms
    if gain / all_gain >= _MIN_SHARE:
        is_impossible = verdict == "faster" and not stats.figures.totals.accepted
        return "unclear" if is_impossible else verdict
    is_small = abs(gain) <= (_MIN_GAIN - 1) * speed.ms
    return "same" if is_small else "unclear"


def _is_measured_gain(stats: SpeculationStats, verdict: Verdict) -> bool:
    """Whether this answer itself was faster or slower than without speculation."""
    return verdict in ("faster", "slower") and not stats.is_off


def _find_state(stats: SpeculationStats, phase: Phase) -> SpeculationViewState:
    if phase == "loading":
        return "loading"
    if phase == "failed":
        return "failed"
    if phase == "answering" and not stats.answer.rounds:
        return "reading"
    if not stats.figures.rounds:
        return "empty"
    if stats.is_off:
        return "off"
    if phase == "idle":
        return "done"
    if stats.plan is not None and stats.plan.state == "paused":
        return "paused"
    return "guessing" if _find_source(stats) else "waiting"


def _find_source(stats: SpeculationStats) -> str:
    """The source of the latest draft; empty if there was none lately."""
    for event in reversed(stats.answer.rounds[-_N_LATELY:]):
        if event.drafted:
            return event.source or "?"
    return ""


def _write_headline(
    stats: SpeculationStats, state: SpeculationViewState, verdict: Verdict
) -> tuple[str, Role]:
    if state == "loading":
        return "Loading", "accent"
    if state == "failed":
        return "Not loaded", "error"
    if state == "empty":
        return "No answer yet", "muted"
    if state == "reading":
        return "Reading", "muted"
    if state == "off":
        return "Off", "muted"
    if not stats.figures.totals.drafted:
        return "No guesses", "muted"
    if stats.speedup is None or verdict == "unknown":
        return "Speed-up –", "muted"
    if verdict == "unclear":
        return "gain unclear", "muted"
    if verdict == "same":
        return "same speed", "strong"
    if verdict == "faster":
        return _compare(stats.speedup), "success"
    return _compare(stats.speedup), "warning"


def _compare(speedup: Speedup) -> str:
    """`1.7× faster`; a ratio of 0.5 is `2.0× slower`. A rough one is marked as such."""
    about = "≈ " if speedup.is_rough else ""
    if speedup.value > 1:
        return f"{about}{_format_ratio(speedup.value)} faster"
    slowdown = 1 / speedup.value if speedup.value else 99.0
    return f"{about}{_format_ratio(slowdown)} slower"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio < 99 else "99×"


# --- The sentence.


def _write_sentence(
    stats: SpeculationStats, state: SpeculationViewState, verdict: Verdict
) -> str:
    if state == "loading":
        return "The model is being loaded."
    if state == "failed":
        return "The model is not loaded."
    if state == "empty":
        return "A fast guesser runs ahead, the model checks it: what that gains is shown here."
    if state == "reading":
        return "Now reading the prompt."
    if state == "off":
        return _describe_off(stats)
    if state == "done":
        return _describe_result(stats, verdict)
    if state == "paused":
        reason = _reason_of(stats.plan)
        if verdict == "faster":
            return f"Guessing gained so far; now paused: {reason}."
        return f"Now paused: {reason}."
    if state == "waiting":
        yet = "" if stats.figures.totals.drafted else " yet"
        return f"Now nothing is worth guessing{yet}."
    return f"Now {_name_activity(_find_source(stats))}{_ADDITIONS[verdict]}."


_ADDITIONS: dict[Verdict, str] = {
    "unknown": "",
    "faster": "",
    "slower": ", so far slower than without",
    "same": ", so far at the same speed as without",
    "unclear": ", so far without a clear gain",
}
"""What the measured speed adds to what happens now."""


def _name_guesser(totals: RoundTotals, draft_name: str) -> str:
    """Empty if nothing was guessed."""
    # A copy: the answer's thread may add a source meanwhile.
    sources = list(totals.by_source.items())
    if not sources:
        return ""
    source, _ = max(sources, key=lambda item: item[1].drafted)
    first = source.split("+")[0]
    kind = draft_kinds.kinds().get(first)
    if first == "lookup":
        return "copying the text"
    if first == "grammar":
        return "the required format"
    if draft_name or kind is None:
        return draft_name or sanitize(first[:_MAX_REASON], multiline=False)
    return kind.title if kind.is_head else f"the {kind.title}"


def _name_activity(source: str) -> str:
    """A source may have several parts: `model+lookup`."""
    names = []
    activities = []
    for part in source.split("+"):
        kind = draft_kinds.kinds().get(part)
        if part == "lookup":
            activities.append("copying from the text")
        elif part == "grammar":
            activities.append("writing what the format requires")
        elif kind is None:  # It is of another package.
            names.append(sanitize(part[:_MAX_REASON], multiline=False))
        elif kind.is_head:
            names.append(kind.title)
        else:
            names.append(f"the {kind.title}")
    if names:
        activities.insert(0, f"guessing with {' and '.join(names)}")
    return " and ".join(activities)


def _describe_off(stats: SpeculationStats) -> str:
    reason = _reason_of(stats.plan)
    if reason and reason != "turned off":
        return f"Off: {reason}."
    if stats.speedup is None:
        return "Speculation is off."
    comparison = "as fast"
    if _judge(stats.speedup) in ("faster", "slower"):
        comparison = _compare(stats.speedup)
    return f"Speculation is off. The answer before, with it, was {comparison}."


def _describe_result(stats: SpeculationStats, verdict: Verdict) -> str:
    """What the guesses of a finished answer gave."""
    totals = stats.figures.totals
    if not totals.drafted:
        if stats.plan is not None and stats.plan.state == "paused":
            return f"Nothing was guessed: {_reason_of(stats.plan)}."
        return "Nothing in this answer was worth guessing."
    guesses = f"{totals.accepted:,} of {totals.drafted:,} guesses"
    if totals.drafted == 1:
        guesses = f"{totals.accepted} of 1 guess"
    if verdict == "faster":
        return f"{guesses} right: that saved time."
    if verdict == "slower":
        return f"{guesses} right: checking them took longer than they saved."
    if not totals.accepted and verdict != "unknown":
        return f"{guesses} right: nothing was saved."
    if verdict == "same":
        return f"{guesses} right: as fast as without them."
    if verdict == "unclear":
        return f"{guesses} right: too little to tell whether that is faster."
    if stats.plain_speed is None:
        return f"{guesses} right. The speed without them is not measured yet."
    return f"{guesses} right. The answer is too short to compare its speed."


def _reason_of(plan: SpeculationPlan | None) -> str:
    if plan is None:
        return ""
    return sanitize(plan.why[:_MAX_REASON], multiline=False).rstrip(".")


# --- Numbers.


def _format_speed(speed: float | None) -> str:
    if speed is None:
        return "–"
    return f"{speed:.1f}" if speed < 100 else f"{speed:,.0f}"


def _format_seconds(seconds: float, *, longest: float) -> str:
    """Two times that are compared have one unit, which the longer one decides."""
    if longest < 1:
        return milliseconds(1e3 * seconds)
    if longest < 60:
        return f"{seconds:.1f} s"
    return duration(seconds)

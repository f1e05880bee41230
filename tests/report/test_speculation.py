"""What a person is told about speculation never contradicts itself."""

import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.speculation_stats import MIN_DRAFTED, SpeculationStats
from localspec.protocol.events import (
    Event,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    SpeculationState,
    Token,
)
from localspec.protocol.wire import MeasuredCosts
from localspec.report.speculation import Phase, SpeculationView, view_speculation

PLAIN_MS = 20.0  # 50 tok/s.
MEASURED = MeasuredCosts(PLAIN_MS, {"1": 1.0, "4": 1.2}, c=0.1)
ON = SpeculationPlan("on", "worth it for this text", 1.8)
OFF = SpeculationPlan("off", "turned off")
PAUSED = SpeculationPlan("paused", "not worth it for this text", 0.9)
PROBING = SpeculationPlan("probing", "measuring draft acceptance")


def step(
    n: int,
    drafted: int = 0,
    right: int = 0,
    ms: float = PLAIN_MS,
    source: str = "lookup",
) -> Round:
    return Round(
        n=n,
        source=source if drafted else None,
        reason="",
        drafted=drafted,
        accepted=right,
        tokens=(Token(1, "x", "accepted"),) * (right + 1),
        ms=RoundTimes(0.0, ms, 0.0),
    )


def steps(
    n: int, drafted: int = 0, right: int = 0, ms: float = PLAIN_MS
) -> list[Round]:
    """The first one reads the prompt, in half a second."""
    later = [step(i, drafted, right, ms) for i in range(1, n)]
    return [step(0, ms=500.0), *later]


def look(
    *events: Event,
    phase: Phase = "idle",
    measured: MeasuredCosts | None = MEASURED,
) -> SpeculationView:
    stats = SpeculationStats(measured)
    for event in events:
        stats.add(event)
    return view_speculation(stats, phase)


# --- One sentence for one state.

SLOW = steps(20, 4, 1, ms=50.0)  # 40 tok/s.
FAST = steps(20, 4, 2, ms=30.0)  # 100 tok/s.
SENTENCES: dict[str, tuple[list[Event], Phase, str, str]] = {
    "B6, on and slower": ([ON, *SLOW], "answering", "1.2× slower",
        "Now copying from the text, so far slower than without."),
    "B6, it has ended": ([ON, *SLOW], "idle", "1.2× slower",
        "19 of 76 guesses right: checking them took longer than they saved."),
    "B7, nothing to guess": ([PROBING, *steps(20)], "answering", "No guesses",
        "Now nothing is worth guessing yet."),
    "B7, idle": ([PROBING, *steps(20)], "idle", "No guesses",
        "Nothing in this answer was worth guessing."),
    "B7, one draft of 32 rounds": ([PROBING, *steps(32), step(33, 1)], "idle", "same speed",
        "0 of 1 guess right: nothing was saved."),
    "faster": ([ON, *FAST], "answering", "2.0× faster", "Now copying from the text."),
    "paused": ([PAUSED, *steps(20)], "answering", "No guesses",
        "Now paused: not worth it for this text."),
    "paused after a gain": ([ON, *FAST, PAUSED], "answering", "2.0× faster",
        "Guessing gained so far; now paused: not worth it for this text."),
    "off": ([OFF, *steps(20)], "answering", "Off", "Speculation is off."),
    "reading": ([ON, Prefill(0, 24, 8)], "answering", "Reading", "Now reading the prompt."),
    "empty": ([], "idle", "No answer yet",
        "A fast guesser runs ahead, the model checks it: what that gains is shown here."),
    "loading": ([], "loading", "Loading", "The model is being loaded."),
    "too short": ([ON, *steps(4, 4, 2)], "idle", "Speed-up –",
        "6 of 12 guesses right. The answer is too short to compare its speed."),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_a_state_has_one_headline_and_one_sentence(name: str) -> None:
    events, phase, headline, sentence = SENTENCES[name]
    view = look(*events, phase=phase)
    assert (view.headline, view.sentence) == (headline, sentence)


def look_at_answers(
    answers: list[list[Event]], measured: MeasuredCosts | None = None
) -> SpeculationView:
    """Look at the last of some answers of one chat."""
    stats = SpeculationStats(measured)
    for events in answers:
        stats.start_answer(GeneratedAnswer())
        for event in events:
            stats.add(event)
    return view_speculation(stats)


def test_without_a_plain_speed_no_gain_is_claimed() -> None:
    view = look(ON, *steps(40, 4, 2), measured=None)
    assert view.headline == "Speed-up –"
    assert view.sentence.endswith("The speed without them is not measured yet.")
    assert view.speeds == "150 tok/s"


def test_the_line_under_an_answer_has_the_seconds_that_were_saved() -> None:
    view = look(
        ON, *steps(22, 4, 2, ms=100.0), measured=MeasuredCosts(54.0, {"1": 1.0})
    )
    assert view.answer_line == "64 tokens in 22 steps · 2.1 s instead of 3.4 s"
    assert look(*steps(22, ms=100.0)).answer_line == "22 tokens · 2.1 s"
    assert look(step(0)).answer_line == "1 token"


def test_an_answer_has_one_speed_however_it_varies() -> None:
    """B13: the panel showed that of the last 32 rounds, the line that of the answer."""
    view = look(ON, *steps(40, 4, 1, ms=60.0), *steps(40, 4, 3, ms=20.0)[1:])
    assert view.speed is not None
    assert view.seconds is not None
    # 39 rounds of 2 tokens in 60 ms, 39 of 4 in 20 ms.
    assert view.speed == pytest.approx(1e3 * (39 * 2 + 39 * 4) / (39 * 80))
    assert view.speed * view.seconds == pytest.approx(view.n_tokens - 1)


def test_three_steps_without_a_guess_are_a_standard_if_they_agree() -> None:
    """A first answer has no other: nothing of the pair has been measured yet."""
    drafted = [step(n, 4, 3, ms=30.0) for n in range(4, 14)]
    equal = [step(0), *[step(n, ms=20.0) for n in (1, 2, 3)], *drafted]
    uneven = [step(0), *[step(n, ms=2.5 * 4**n) for n in (1, 2, 3)], *drafted]
    known = look(ON, *equal, measured=None)
    unknown = look(ON, *uneven, measured=None)
    assert known.headline == "2.4× faster"
    assert known.answer_line == "44 tokens in 14 steps · 360 ms instead of 860 ms"
    assert unknown.headline == "gain unclear"
    assert "instead of" not in unknown.answer_line


def test_one_guess_is_not_the_reason_of_a_slow_answer() -> None:
    """Some plain steps took twice as long: other programs were busy meanwhile."""
    slow = [step(n, ms=40.0) for n in range(40, 50)]
    view = look(PROBING, *steps(40), *slow, step(50, 1, ms=25.0))
    assert view.speed is not None
    assert view.plain_speed is not None
    assert view.plain_speed / view.speed > 1.15
    assert view.headline == "same speed"
    assert view.sentence == "0 of 1 guess right: nothing was saved."
    assert "instead of" not in view.answer_line


def test_few_guesses_are_not_the_reason_of_a_fast_answer() -> None:
    """Its plain steps are faster than those of the last answer without guesses."""
    few = [step(n, 4, 1, ms=38.0) for n in (9, 10)]
    view = look_at_answers([[OFF, *steps(20, ms=40.0)], [ON, *steps(8), *few]])
    assert view.speed is not None
    assert view.plain_speed == 25.0
    assert view.speed / view.plain_speed > 2
    assert view.headline == "gain unclear"
    assert "saved time" not in view.sentence


def test_a_plain_speed_that_the_checks_contradict_is_not_used() -> None:
    """15 ms a token were measured beside other programs; drafts are checked in 8 ms."""
    stale = MeasuredCosts(14.9, {"1": 1.0})
    view = look(ON, *steps(40, 1, 1, ms=8.0), measured=stale)
    assert view.plain_speed is None
    assert view.headline == "Speed-up –"
    assert view.sentence.endswith("The speed without them is not measured yet.")
    assert view.speeds == "250 tok/s"


def test_the_last_plain_answer_is_not_compared_with_if_the_checks_contradict_it() -> (
    None
):
    view = look_at_answers(
        [[OFF, *steps(20, ms=14.9)], [ON, *steps(40, 1, 1, ms=8.0)]],
        MeasuredCosts(6.0, {"1": 1.0}),
    )
    assert view.headline == "1.5× faster"


def test_a_screen_reader_hears_words_in_place_of_signs() -> None:
    spoken = look(ON, *FAST).spoken
    assert spoken == (
        "2.0 times faster. 38 of 76 guesses right: that saved time. "
        "100 tokens per second, 50.0 without guesses."
    )


def test_the_cell_of_the_status_line_says_the_gain_or_the_speed() -> None:
    assert look(ON, *FAST).cells[0] == "2.0× faster  38 of 76"
    assert look(OFF, *steps(20)).cells == ("50.0 tok/s",)
    assert look(ON, *steps(4, 4, 2)).cells == ("6 of 12 right",)
    assert look(ON).cells == ()


# --- Any sequence of events.

STATES = get_args(SpeculationState)
REASONS = ("not worth it for this text", "worth it for this text", "turned off", "")
PLANS = st.builds(SpeculationPlan, st.sampled_from(STATES), st.sampled_from(REASONS))


@st.composite
def any_round(draw: st.DrawFn) -> Round:
    drafted = draw(st.sampled_from([0, 0, 1, 4, 16]))
    return step(
        draw(st.integers(0, 3)),
        drafted,
        draw(st.integers(0, drafted)),
        ms=draw(st.sampled_from([0.0, 0.4, 18.0, 20.0, 23.0, 60.0, 4000.0])),
        source=draw(
            st.sampled_from(["lookup", "model", "eagle3", "model+lookup", "a-b"])
        ),
    )


EVENTS = st.lists(
    st.one_of(
        any_round(),
        PLANS,
        st.just(Prefill(3, 24, 0)),
        st.just(GenerationFinished("eog")),
    ),
    max_size=60,
)
ANSWERS = st.lists(EVENTS, min_size=1, max_size=3)
COSTS = st.sampled_from([None, MEASURED, MeasuredCosts(1e-3, {"1": 1.0})])


@settings(deadline=None, max_examples=400)
@given(ANSWERS, COSTS, st.sampled_from(get_args(Phase)))
def test_headline_sentence_and_figures_agree(
    answers: list[list[Event]], measured: MeasuredCosts | None, phase: Phase
) -> None:
    stats = SpeculationStats(measured)
    for events in answers:
        stats.start_answer(GeneratedAnswer())
        for event in events:
            stats.add(event)
    view = view_speculation(stats, phase)
    everything = f"{view.headline} {view.sentence} {view.cells} {view.answer_line}"
    told = everything.lower()

    # A ratio is shown only where it is measured, never as 1.0×.
    shows_ratio = re.search(r"\d×", everything) is not None
    assert not shows_ratio or view.speedup is not None
    assert "1.0×" not in everything
    assert " 0.0×" not in everything
    assert (" vs " in view.speeds) == (view.verdict != "unknown")
    assert (view.verdict == "unknown") == (view.speedup is None)

    # What is said is what the two speeds say.
    if view.state not in ("off", "loading", "failed") and view.speedup is not None:
        assert view.speed is not None
        assert view.plain_speed is not None
        ratio = view.speed / view.plain_speed
        assert view.speedup.value == pytest.approx(ratio)
        assert ("faster" in view.headline) == (view.verdict == "faster")
        assert ("slower" in view.headline) == (view.verdict == "slower")
        assert view.verdict != "faster" or ratio > 1
        assert view.verdict != "slower" or ratio < 1
        if view.plain_seconds is not None and view.seconds is not None:
            saved = view.plain_seconds / view.seconds
            assert saved == pytest.approx(ratio)
            assert view.verdict in ("faster", "slower")
    loses = "slower than without" in told or "took longer than they saved" in told
    assert not loses or view.verdict == "slower"
    gains = "gained" in told or "that saved time" in told
    assert not gains or (view.verdict == "faster" and view.guessed_right)

    # Nothing is said to be guessed where nothing was, and the reverse.
    if not view.drafted:
        assert view.state not in ("guessing",)
        assert view.rate is None
        assert "guesses right" not in told
        assert "step" not in view.answer_line
    assert view.drafted or view.verdict == "unknown" or view.state == "off"
    assert "measuring" not in told

    # No rate below ten drafts.
    assert (view.rate is None) == (view.drafted < MIN_DRAFTED)
    assert "%" not in everything or view.rate is not None

    # Between two answers nothing happens now.
    if phase != "answering":
        assert "now" not in view.sentence.lower().split()
        assert view.state not in ("guessing", "waiting", "paused", "reading")
    assert len(view.strip) <= 32
    assert (
        view.guessed_right == sum(n or 0 for n in view.strip) or len(view.strip) == 32
    )

"""Frames of an answer: each token is shown once, in order, and soon."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.answer import AnswerDelta, replay_turn
from localspec.chat.conversation import Turn
from localspec.protocol.events import (
    Event,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    SpeculationPlan,
)
from localspec.tui.text.live_frames import (
    GUESS_INTERVAL,
    GUESS_SECONDS,
    NO_GUESS,
    RESULT_SECONDS,
    SLOW_TOKENS_PER_SECOND,
    LiveFrame,
    LiveFrames,
    LiveGuess,
)
from tests.support.scripted_engine import drafted_round

TAGS = ("<think>", "</think>")


def round_of(right: Sequence[str], own: str, *rejected: str) -> Round:
    """A round with accepted draft tokens, and the model's own token after them."""
    return drafted_round(1, right, own, *rejected)


def deltas_of(*events: Event, tags: tuple[str, str] | None = None) -> list[AnswerDelta]:
    return list(replay_turn(Turn("q", id=1).with_events(list(events)), tags)[1])


TOWN = round_of([" the", " old"], " town", " city", " hall")
PLAIN = round_of([], " And")

WORD = st.sampled_from([" a", " b", "c", "\n", "<think>", "</think>", "", " é"])
ROUNDS = st.builds(
    lambda right, own, rejected: round_of(right, own, *rejected),
    st.lists(WORD, max_size=4),
    WORD,
    st.lists(WORD, max_size=3),
)
EVENTS = st.lists(
    ROUNDS
    | st.sampled_from(
        [Prefill(1, 4, 0), SpeculationPlan("on", ""), Notice("info", "x", "said")]
    ),
    max_size=14,
)
ENDS = st.sampled_from(["eog", "cancelled", "error", None])
SECONDS = st.floats(0, 0.6)


def run(
    frames: LiveFrames, arrivals: list[tuple[float, AnswerDelta]], ended_at: float
) -> list[tuple[float, LiveFrame]]:
    """Asks for a frame when something arrives and when one is due."""
    shown: list[tuple[float, LiveFrame]] = []
    waiting = list(arrivals)
    due: float | None = None
    while True:
        times = [at for at, _ in waiting[:1]]
        if due is not None:
            times.append(due)
        if not frames._has_ended:
            times.append(ended_at)
        if not times:
            return shown
        now = min(times)
        while waiting and waiting[0][0] <= now:
            frames.add([waiting.pop(0)[1]])
        if not waiting and now >= ended_at:
            frames.end()
        frame = frames.next_frame(now)
        assert frame.due is None or frame.due >= now
        due = frame.due
        shown.append((now, frame))


@settings(deadline=None, max_examples=300)
@given(
    EVENTS,
    st.lists(SECONDS, min_size=14, max_size=14),
    ENDS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_delta_is_shown_once_and_in_order_and_the_last_frame_has_no_guess(
    events: list[Event],
    gaps: list[float],
    end: str | None,
    is_slow: bool,
    has_guesses: bool,
    thinks: bool,
) -> None:
    if end is not None:
        events = [*events, GenerationFinished(end)]  # type: ignore[arg-type]
    deltas = deltas_of(*events, tags=TAGS if thinks else None)
    arrivals = []
    at = 0.0
    for delta, gap in zip(deltas, [*gaps, 0.0], strict=False):
        at += gap
        arrivals.append((at, delta))
    frames = LiveFrames(has_guesses=has_guesses, is_slow=is_slow)
    shown = run(frames, arrivals, at)
    confirmed = [(now, delta) for now, frame in shown for delta in frame.deltas]
    assert [delta for _, delta in confirmed] == deltas
    assert not frames.is_behind
    assert shown[-1][1].guess == NO_GUESS
    if not is_slow:
        for (arrived, _), (now, _) in zip(arrivals, confirmed, strict=True):
            assert now - arrived <= GUESS_SECONDS + RESULT_SECONDS + 1e-9
    if not has_guesses:
        assert {frame.guess for _, frame in shown} == {NO_GUESS}


@settings(deadline=None, max_examples=100)
@given(EVENTS, st.integers(0, 14), st.booleans())
def test_all_that_has_arrived_can_be_shown_at_any_time(
    events: list[Event], n_frames: int, is_slow: bool
) -> None:
    """As a key, the end of the answer, a stop and an error do."""
    deltas = deltas_of(*events)
    frames = LiveFrames(is_slow=is_slow)
    frames.add(deltas)
    shown: list[AnswerDelta] = []
    for n in range(n_frames):
        shown += frames.next_frame(0.05 * n).deltas
    shown += frames.catch_up().deltas
    assert shown == deltas
    assert not frames.is_behind
    assert frames.next_frame(99.0) == LiveFrame((), NO_GUESS, None)


def test_a_guess_is_dim_first_and_then_its_first_wrong_token_is_struck() -> None:
    deltas = deltas_of(TOWN)
    frames = LiveFrames()
    frames.add(deltas)
    first = frames.next_frame(10.0)
    assert first.deltas == ()
    assert first.guess == LiveGuess(unchecked=" the old city hall")
    assert first.due == pytest.approx(10.0 + GUESS_SECONDS)
    second = frames.next_frame(10.1)
    assert second.deltas == tuple(deltas)
    assert second.guess == LiveGuess(rejected=" city", n_own=len(" town"))
    assert second.due is None


def test_the_next_guess_stands_beside_what_was_struck_before_it() -> None:
    frames = LiveFrames()
    frames.add(deltas_of(TOWN))
    frames.next_frame(0.0)
    frames.next_frame(0.1)
    frames.add(deltas_of(round_of([" hall"], ".")))
    guess = frames.next_frame(0.4).guess
    assert guess == LiveGuess(rejected=" city", n_own=5, unchecked=" hall")


def test_what_was_struck_goes_when_more_text_follows_it() -> None:
    frames = LiveFrames()
    frames.add(deltas_of(TOWN))
    frames.next_frame(0.0)
    frames.next_frame(0.1)
    frames.add(deltas_of(PLAIN))
    assert frames.next_frame(0.2).guess == NO_GUESS


def test_of_a_fast_model_about_four_guesses_a_second_are_shown() -> None:
    deltas = deltas_of(*[TOWN] * 400)
    arrivals = [(n * 0.01, delta) for n, delta in enumerate(deltas)]
    shown = run(LiveFrames(), arrivals, 4.0)
    guesses = 0
    was_dim = False
    for _, frame in shown:
        is_dim = bool(frame.guess.unchecked)
        guesses += is_dim and not was_dim
        was_dim = is_dim
    assert guesses == pytest.approx(4.0 / GUESS_INTERVAL, abs=1)


def test_slow_motion_confirms_the_guess_from_the_left_at_reading_speed() -> None:
    deltas = deltas_of(TOWN, PLAIN)
    frames = LiveFrames(is_slow=True)
    shown = run(frames, [(0.0, delta) for delta in deltas], 0.0)
    changes = [frame for _, frame in shown]
    assert [frame.guess for frame in changes] == [
        LiveGuess(unchecked=" the old city hall"),
        LiveGuess(right=" the", unchecked=" old city hall"),
        LiveGuess(right=" the old", unchecked=" city hall"),
        LiveGuess(rejected=" city", n_own=5),
        NO_GUESS,
    ]
    assert [len(frame.deltas) for frame in changes] == [0, 0, 0, 1, 1]
    step = 1 / SLOW_TOKENS_PER_SECOND
    assert [now for now, _ in shown] == pytest.approx(
        [n * step for n in (0, 2, 3, 4, 6)]
    )


def test_a_higher_speed_makes_slow_motion_faster() -> None:
    frames = LiveFrames(is_slow=True)
    frames.speed = 2.0
    frames.add(deltas_of(PLAIN, PLAIN))
    due = frames.next_frame(0.0).due
    assert due == pytest.approx(0.5 / SLOW_TOKENS_PER_SECOND)


def test_thinking_is_neither_guessed_at_nor_waited_for() -> None:
    rounds = [round_of([], "<think>"), *[TOWN] * 9, round_of([], "</think>"), PLAIN]
    deltas = deltas_of(*rounds, tags=TAGS)
    for is_slow in (True, False):
        frames = LiveFrames(is_slow=is_slow)
        frames.add(deltas)
        frame = frames.next_frame(0.0)
        assert len(frame.deltas) == len(deltas)
        assert frame.guess == NO_GUESS


def test_answers_that_recorded_no_rejected_tokens_show_what_was_right() -> None:
    round_ = round_of([" the"], " town")
    frames = LiveFrames()
    frames.add(deltas_of(round_))
    assert frames.next_frame(0.0).guess == LiveGuess(unchecked=" the")
    assert frames.next_frame(1.0).guess == NO_GUESS

"""The speculation panel: what its numbers are, and what a glance at it says."""

from collections.abc import Callable, Iterable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from textual.content import Content

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.speculation_stats import SpeculationStats
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
from localspec.report.speculation import Phase, view_speculation
from localspec.tui.widgets import speculation_panel
from localspec.tui.widgets.speculation_panel import SpeculationPanel, arrange_panel
from tests.support.app_driver import Chat
from tests.support.scripted_engine import Script, ScriptedEngine

ON = SpeculationPlan("on", "worth it for this text", 1.8)
OFF = SpeculationPlan("off", "turned off")
SOURCE_GAPS = (12, 20, 26)
"""The blank columns of the table of draft sources."""
PLAIN_MS = 20.0
"""As `scripted.MEASURED`: 50 tok/s."""
DRAFT_MS = 2.0


def round_(
    n: int, drafted: int, accepted: int, source: str = "model", ms: float | None = None
) -> Round:
    """A plain one takes PLAIN_MS, one with a draft half as long again."""
    whole_ms = PLAIN_MS if ms is None else ms
    draft_ms = 0.0
    if drafted:
        draft_ms = DRAFT_MS
        if ms is None:
            whole_ms = 1.5 * PLAIN_MS
    return Round(
        n=n,
        source=source if drafted else None,
        reason="",
        drafted=drafted,
        accepted=accepted,
        tokens=(Token(1, "x", "accepted"),) * (accepted + 1),
        ms=RoundTimes(draft_ms, whole_ms - draft_ms, 0.0),
    )


def rounds(n: int, drafted: int, accepted: int) -> list[Round]:
    """The first reads the prompt and is not counted."""
    first = round_(0, 0, 0, ms=500.0)
    return [first, *[round_(i, drafted, accepted) for i in range(1, n)]]


def stats(*events: Event, measured: MeasuredCosts | None = None) -> SpeculationStats:
    built = SpeculationStats(measured)
    for event in events:
        built.add(event)
    return built


def lines(
    shown: SpeculationStats,
    phase: Phase = "answering",
    *,
    details: bool = True,
    ascii_only: bool = False,
) -> list[str]:
    return [
        " ".join(line.plain.split())
        for line in drawn_lines(shown, phase, details=details, ascii_only=ascii_only)
    ]


def drawn_lines(
    shown: SpeculationStats,
    phase: Phase = "answering",
    *,
    details: bool = True,
    ascii_only: bool = False,
    height: int = 60,
) -> list[Content]:
    view = view_speculation(shown, phase)
    sections = []
    if details:
        sections = speculation_panel._detail_sections(shown, view)
    return arrange_panel(view, sections, height=height, ascii_only=ascii_only)


MEASURED = MeasuredCosts(PLAIN_MS, {"1": 1.0, "2": 1.3, "4": 1.8}, c=0.1)


def shown(*events: Event, measured: MeasuredCosts | None = MEASURED) -> str:
    """All lines as one, with single spaces."""
    text = " ".join(lines(stats(*events, measured=measured)))
    return " ".join(text.split())


def paused(why: str, until: int | None = None) -> SpeculationPlan:
    return SpeculationPlan("paused", why, 1.0, until)


UNEVEN = [round_(n, 4, 4 if n % 2 else 0) for n in range(1, 20)]
MIXED = [round_(0, 0, 0), round_(1, 4, 0), round_(2, 4, 4), round_(3, 8, 8)]
FELL = [*rounds(20, 4, 0), *[round_(n, 0, 0) for n in range(20, 30)]]
STEEP = MeasuredCosts(PLAIN_MS, {"1": 1.0, "2": 2.1, "4": 4.3}, c=0.3)
FLAT = MeasuredCosts(PLAIN_MS, {"1": 1.0, "2": 0.9, "8": 0.9})
LATE = [replace(round_(n, 4, 2), overlap="miss") for n in range(32)]
IN_TIME = [replace(round_(n, 4, 2), overlap="hit") for n in range(96)]
NOT_WORTH = "not worth it for this text"
NO_TEXT = "no repeated text yet"
GLANCES: dict[str, tuple[list[Event], str]] = {
    "a gain": ([ON, *rounds(40, 4, 2)],
        "2.0× faster 100 vs 50.0 tok/s ████████████▒▒▒▒▒▒▒▒▒▒▒▒ without │ │ with "
        "Guesses right 50 % 78 of 156 Tokens per step 3.0 without guesses 1.0 "
        "Guessed by the draft model"),
    "six rounds prove nothing": ([ON, *rounds(6, 4, 2)], "Speed-up – 100 tok/s"),
    "twenty uneven ones give the answer's own speed": ([ON, round_(0, 0, 0), *UNEVEN],
        "2.1× faster 104 vs 50.0 tok/s"),
    "steps without a guess are no full bars": ([ON, *rounds(12, 0, 0)],
        "last 12 steps ············ · no guess × all wrong █ right"),
    "all wrong": ([ON, *MIXED],
        "last 4 steps: 0–8 right each █ ·×██ · no guess × all wrong █ right"),
    "steps without a guess count": (
        [ON, *rounds(40, 0, 0), *[round_(n, 4, 4) for n in range(40, 50)]],
        "Tokens per step 1.8 without guesses 1.0"),
    "no rate of one token": ([ON, round_(0, 0, 0), round_(1, 1, 1)],
        "Guesses right – 1 of 1"),
    "a rate of sixteen": ([ON, *rounds(5, 4, 3)], "Guesses right 75 % 12 of 16"),
    "a pause": ([paused(NOT_WORTH, 42), *FELL],
        "1.3× slower 37.7 vs 50.0 tok/s"),
    "the reason of a pause": ([paused(NOT_WORTH, 42), *FELL],
        "Now paused: not worth it for this text."),
    "what a pause waits for": ([paused(NOT_WORTH, 42), *FELL],
        "acceptance needed 41 % next trial in rounds 12"),
    "a loss": ([SpeculationPlan("on", "max draft tokens 4, model"), *rounds(30, 4, 0)],
        "Now guessing with the draft model, so far slower than without."),
    "in time": ([*rounds(5, 4, 2), *IN_TIME, *LATE], "drafted in time 75 %"),
}  # fmt: skip


@pytest.mark.parametrize("name", GLANCES)
def test_what_a_glance_says(name: str) -> None:
    events, words = GLANCES[name]
    assert words in shown(*events)


def test_where_wide_passes_cost_too_much_no_acceptance_rate_pays() -> None:
    text = shown(paused(NOT_WORTH), *rounds(9, 0, 0), measured=STEEP)
    assert "acceptance needed none pays here" in text


def test_one_draft_token_gives_no_acceptance_rate() -> None:
    assert "%" not in shown(ON, round_(0, 0, 0), round_(1, 1, 1))


def test_without_overlapped_drafting_nothing_is_drafted_in_time() -> None:
    assert "drafted in time" not in shown(*rounds(5, 4, 2))


@pytest.mark.parametrize("costs", [None, FLAT], ids=["unknown", "pays from 0 %"])
def test_a_break_even_that_says_nothing_is_not_shown(
    costs: MeasuredCosts | None,
) -> None:
    text = shown(paused(NO_TEXT), *rounds(9, 0, 0), measured=costs)
    assert "acceptance needed" not in text


def answer(plan: SpeculationPlan, events: Iterable[Round]) -> Callable[[], Script]:
    script: list[Event] = [plan, Prefill(24, 24, 8), *events]
    script.append(GenerationFinished("eog", "", {}))
    return lambda: script


def panel_of(chat: Chat) -> str:
    return " ".join(str(chat.screen.query_one(SpeculationPanel).content).split())


SPECULATING = answer(ON, rounds(40, 4, 2))  # At 100 tok/s.
SPECULATING_BRIEFLY = answer(ON, rounds(9, 4, 2))
TURNED_OFF = answer(OFF, rounds(40, 0, 0))


async def test_in_a_narrow_window_the_panel_hides_until_there_is_room() -> None:
    async with Chat(ScriptedEngine(SPECULATING_BRIEFLY)) as chat:
        await chat.press("f3")
        await chat.send("hi")
        panel = chat.screen.query_one(SpeculationPanel)
        is_shown = []
        for width in (80, 40, 80):
            await chat.pilot.resize_terminal(width, 24)
            await chat.press("end")
            is_shown.append(panel.display and panel.styles.display == "block")
        assert is_shown == [True, False, True]


async def test_in_a_narrow_window_the_key_says_what_the_panel_needs() -> None:
    async with Chat(ScriptedEngine(SPECULATING_BRIEFLY)) as chat:
        await chat.send("hi")  # The hint of an empty chat would be beside the message.
        await chat.pilot.resize_terminal(40, 24)
        await chat.wait(lambda: chat.screen.has_class("-narrow"))
        await chat.press("f3")
        await chat.sees("needs 80 columns")


async def switch_speculation(chat: Chat, to: str) -> None:
    """By its key; `to` is what the app says of speculation after it."""
    chat.app.clear_notifications()
    await chat.press("ctrl+s")
    await chat.sees(f"Speculation is {SAID[to]}")


SAID = {
    "off": "off, from the next answer on",
    "auto": "automatic: on where it is",
    "model": "on in every step, with the",
    "lookup": "on in every step, with prompt",
}
PAUSED_BY_AUTO = answer(
    SpeculationPlan("paused", "not worthwhile", 0.6), rounds(40, 0, 0)
)
SWITCHES: dict[str, list[tuple[str, Callable[[], Script]]]] = {
    "auto that drafts": [
        ("auto", SPECULATING),
        ("model", SPECULATING),
        ("off", TURNED_OFF),
        ("auto", SPECULATING),
    ],
    "auto that pauses": [
        ("auto", PAUSED_BY_AUTO),
        ("model", answer(ON, rounds(40, 4, 1))),
        ("off", TURNED_OFF),
        ("auto", PAUSED_BY_AUTO),
    ],
    "lookup": [("lookup", SPECULATING), ("off", TURNED_OFF), ("lookup", SPECULATING)],
}
"""The value of `/spec` for each answer, and the answer."""


@pytest.mark.parametrize("name", SWITCHES)
async def test_one_key_turns_speculation_on_and_off(name: str) -> None:
    specs = [spec for spec, _ in SWITCHES[name]]
    engine = ScriptedEngine(*[script for _, script in SWITCHES[name]])
    async with Chat(engine) as chat:
        await chat.press("f3")
        if specs[0] != "auto":
            await chat.send(f"/spec {specs[0]}")
        await chat.send("hi")
        for spec in specs[1:]:
            await switch_speculation(chat, spec)
            await chat.send("hi")
        assert [request.spec for request in engine.asked] == specs


async def test_in_a_new_chat_the_key_turns_the_draft_on() -> None:
    engine = ScriptedEngine(SPECULATING)
    async with Chat(engine) as chat:
        await switch_speculation(chat, "model")

        await chat.send("hi")

        assert [request.spec for request in engine.asked] == ["model"]


async def test_with_speculation_off_both_speeds_are_beside_each_other() -> None:
    async with Chat(ScriptedEngine(SPECULATING, TURNED_OFF)) as chat:
        await chat.press("f3")
        await chat.send("hi")
        await switch_speculation(chat, "model")
        await switch_speculation(chat, "off")
        await chat.sees("Off from the next answer on.")
        await chat.sees("With speculation 100 tok/s, without 50.0 tok/s.")
        await chat.send("hi")
        assert panel_of(chat).startswith("Off 100 vs 50.0 tok/s")
        said = "The answer before, with it, was 2.0× faster."
        assert said in panel_of(chat)


async def test_a_plain_speed_that_was_measured_stays_for_a_new_chat() -> None:
    engine = ScriptedEngine(TURNED_OFF, SPECULATING_BRIEFLY, measured=None)
    async with Chat(engine) as chat:
        await chat.press("f3")
        await chat.send("hi")
        await chat.send("/clear")
        await chat.send("hi")
        gain = "2.0× faster 100 vs 50.0 tok/s"
        assert panel_of(chat).startswith(gain)


async def test_a_plain_speed_that_is_unknown_is_measured_by_spec_off() -> None:
    async with Chat(ScriptedEngine(SPECULATING_BRIEFLY, measured=None)) as chat:
        await chat.press("f3")
        await chat.send("hi")
        assert panel_of(chat).startswith("Speed-up – 100 tok/s")
        await chat.press("f3")
        assert "/spec off, once, measures plain" in panel_of(chat)


def test_the_details_have_the_acceptance_rate_of_the_chat() -> None:
    of_chat = stats(*rounds(33, 4, 0))
    of_chat.start_answer(GeneratedAnswer())
    for event in rounds(33, 4, 4):
        of_chat.add(event)
    assert "Guesses right 100 % 128 of 128" in lines(of_chat)
    assert "acceptance, chat 50 % of 256" in lines(of_chat)


def test_speeds_leave_out_the_round_that_reads_the_prompt_and_forced_ones() -> None:
    forced = round_(9, 0, 0, ms=0.0)
    assert stats(*rounds(9, 4, 2), forced).tokens_per_second == 100.0


QUIET = MeasuredCosts(PLAIN_MS / 2, {"1": 1.0})
"""Measured when the computer was not busy: half as long."""


def test_many_plain_rounds_of_the_answer_are_the_plain_speed() -> None:
    """Costs measured on a quiet computer say nothing about one that is busy now."""
    plain_and_drafted = [*rounds(20, 0, 0), *rounds(20, 4, 2)[1:]]
    busy = stats(ON, *plain_and_drafted, measured=QUIET)
    assert busy.plain_speed == 50.0


def test_with_few_plain_rounds_the_plain_speed_is_the_measured_one() -> None:
    assert stats(*rounds(3, 0, 0), measured=QUIET).plain_speed == 100.0


def test_a_table_of_draft_sources() -> None:
    events = [
        *[round_(n, 3, 2) for n in range(5)],
        *[round_(n, 2, 1, "lookup") for n in range(3)],
        round_(8, 5, 5, "model+lookup"),
        round_(9, 5, 5, "lookup+model"),
        *[round_(n, 1, 0, "eagle3") for n in range(10, 12)],
    ]
    table = lines(stats(*events))
    first = table.index("source drafted rate ms") + 1
    assert table[first : first + 4] == [
        "draft model 15 67 % 2.0",
        "mixed 10 100 % 2.0",
        "lookup 6 – 2.0",
        "EAGLE-3 2 – 2.0",
    ]


@pytest.mark.parametrize(
    ("source", "draft_name", "said"),
    [
        ("eagle3", "smollm2-135m-eagle3", "smollm2-135m-eagle3"),
        ("eagle3", "", "EAGLE-3"),
        ("model+lookup", "qwen3-0.6b", "qwen3-0.6b"),
        ("lookup", "qwen3-0.6b", "copying the text"),
        ("lookup+grammar", "", "copying the text"),
        ("grammar", "qwen3-0.6b", "the required format"),
        ("echo", "", "echo"),
    ],
)
def test_the_panel_says_what_guessed(source: str, draft_name: str, said: str) -> None:
    """Once: where the draft guessed most, by its name."""
    answer = stats(ON, *[round_(n, 4, 2, source) for n in range(5)])
    answer.add(round_(5, 1, 1, "other"))
    view = view_speculation(answer, draft_name=draft_name)
    texts = [line.plain.split() for line in arrange_panel(view, height=60)]
    assert ["Guessed", "by", *said.split()] in texts


def test_without_a_guess_nothing_guessed() -> None:
    assert "Guessed by" not in shown(ON, *rounds(9, 0, 0))


@pytest.mark.parametrize("most", range(17))
def test_the_strip_says_what_its_highest_bar_is(most: int) -> None:
    answer = stats(ON, *[round_(n, 16, n) for n in range(most + 1)])
    scale = next(n for n in (4, 8, 16) if n >= most)
    title = f"last {most + 1} steps: 0–{scale} right each"
    if not most:
        title = "the first step"
    assert title in lines(answer)
    assert all(len(line.plain) <= 32 for line in drawn_lines(answer))


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("height", [1, 4, 9, 14, 22, 38, 48])
def test_the_panel_fits_and_shows_whole_sections(height: int, details: bool) -> None:
    events = [round_(n, 16, n % 17) for n in range(40)]
    answer = stats(ON, *events, measured=MEASURED)
    texts = [line.plain for line in drawn_lines(answer, details=details, height=height)]
    assert len(texts) <= height
    assert any(text.startswith("last 32 steps") for text in texts) == (
        height >= (32 if details else 16)
    )
    assert any(text.startswith("source") for text in texts) == (
        details and height >= 16
    )


HUGE = st.integers(0, 10**12)
ANY_MS = st.floats(0, 1e12)


@st.composite
def any_answer(draw: st.DrawFn) -> SpeculationStats:
    """Numbers that no computer has, and names and reasons that no engine gives."""
    answer = SpeculationStats(draw(st.sampled_from([None, MEASURED, STEEP])))
    reason = draw(st.text("ab 漢\u200d\n1", max_size=120))
    until = draw(HUGE)
    state = draw(st.sampled_from(get_args(SpeculationState)))
    answer.add(SpeculationPlan(state, reason, None, until))
    n = 0
    for _ in range(draw(st.integers(0, 14))):
        n += draw(st.integers(1, 10**9))
        drafted = draw(st.sampled_from([0, 1, 16, 100_000]))
        accepted = draw(st.integers(0, drafted))
        name = draw(st.sampled_from(["lookup", "eagle3", "model+lookup", "漢" * 20]))
        event = round_(n, drafted, min(accepted, 40), name, draw(ANY_MS))
        answer.add(replace(event, accepted=accepted, reason=reason, overlap="hit"))
    return answer


@settings(deadline=None, max_examples=150)
@given(any_answer(), st.sampled_from(get_args(Phase)), st.booleans())
def test_no_line_is_wider_than_the_panel_and_no_columns_touch(
    answer: SpeculationStats, phase: Phase, ascii_only: bool
) -> None:
    drawn = drawn_lines(answer, phase, ascii_only=ascii_only)
    texts = [line.plain for line in drawn]
    assert max(map(cell_len, texts)) <= speculation_panel.PANEL_WIDTH
    heading = "source       drafted  rate    ms"
    for text in texts[[*texts, heading].index(heading) + 1 :][
        : len(answer.draft_sources)
    ]:
        cells = "".join(character * cell_len(character) for character in text)
        assert [cells[i] for i in SOURCE_GAPS] == [" "] * len(SOURCE_GAPS)


def test_a_trial_that_took_two_seconds_has_its_own_column() -> None:
    """B11: `EAGLE-3    1        –1865` read as minus 1865."""
    slow = replace(round_(1, 1, 0, "eagle3"), ms=RoundTimes(1865.0, 20.0, 0.0))
    assert "EAGLE-3 1 – 1.9k" in lines(stats(ON, round_(0, 0, 0), slow))


def test_in_ascii_the_bars_are_digits() -> None:
    bars = [round_(0, 0, 0), round_(1, 4, 0), round_(2, 4, 4), round_(3, 16, 12)]
    shown = stats(ON, *bars)
    assert "·×4+" in lines(shown, ascii_only=True)
    assert "·×4+" not in lines(shown)

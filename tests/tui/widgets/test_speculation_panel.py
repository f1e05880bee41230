"""The speculation panel: what its numbers are, and what a glance at it says."""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from localspec.chat.speculation_stats import RECENT_ROUNDS, SpeculationStats
from localspec.protocol.events import (
    Event,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
)
from localspec.protocol.wire import MeasuredCosts
from localspec.tui.widgets import speculation_panel
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from tests.support.app_driver import Chat
from tests.support.scripted_engine import Script, ScriptedEngine

ON = SpeculationPlan("on", "worth it for this text", 1.8)
OFF = SpeculationPlan("off", "turned off")
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


def lines(shown: SpeculationStats, ascii_only: bool = False) -> list[str]:
    drawn = speculation_panel._panel_lines(shown, "", 60, ascii_only)
    return [" ".join(line.plain.split()) for line in drawn]


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
        "ON 2.0× plain speed with speculation 100 tok/s plain decoding 50.0 tok/s"),
    "six rounds prove nothing": ([ON, *rounds(6, 4, 2)], "ON few rounds so far"),
    "twenty uneven ones a range": ([ON, round_(0, 0, 0), *UNEVEN], "ON 1.4–2.7× plain speed"),
    "plain rounds are no full bars": ([ON, *rounds(12, 0, 0)],
        "last 12 rounds: accepted, 0–4 ············ · plain"),
    "all rejected": ([ON, *MIXED], "last 4 rounds: accepted, 0–8 █ ·×██ · plain × all rejected"),
    "plain passes count": (
        [ON, *rounds(40, 0, 0), *[round_(n, 4, 4) for n in range(40, 50)]],
        "1.8 tokens per target pass"),
    "no rate of one token": ([ON, round_(0, 0, 0), round_(1, 1, 1)],
        "acceptance rate 1 of 1 drafted now 1 of 1 drafted chat"),
    "a rate of sixteen": ([ON, *rounds(5, 4, 3)], "75 % of 16 drafted now"),
    "a pause": ([paused(NOT_WORTH, 42), *FELL],
        "PAUSED at plain speed with speculation 37.7 tok/s plain decoding 50.0 tok/s "
        "not worth it for this text speculation would give 0.8× 0 % accepted, pays above 41 % "
        "next trial in 12 rounds"),
    "a loss": ([SpeculationPlan("on", "max draft tokens 4, model"), *rounds(30, 4, 0)],
        "drafts cost more than they save"),
    "in time": ([*rounds(5, 4, 2), *IN_TIME, *LATE], "75 % drafted in time"),
}  # fmt: skip


@pytest.mark.parametrize("name", GLANCES)
def test_what_a_glance_says(name: str) -> None:
    events, words = GLANCES[name]
    assert words in shown(*events)


def test_where_wide_passes_cost_too_much_no_acceptance_rate_pays() -> None:
    text = shown(paused(NOT_WORTH), *rounds(9, 0, 0), measured=STEEP)
    assert "on this computer no acceptance rate pays" in text


def test_one_draft_token_gives_no_acceptance_rate() -> None:
    assert "%" not in shown(ON, round_(0, 0, 0), round_(1, 1, 1))


def test_without_overlapped_drafting_nothing_is_drafted_in_time() -> None:
    assert "drafted in time" not in shown(*rounds(5, 4, 2))


@pytest.mark.parametrize("costs", [None, FLAT], ids=["unknown", "pays from 0 %"])
def test_a_break_even_that_says_nothing_is_not_shown(
    costs: MeasuredCosts | None,
) -> None:
    assert "pay" not in shown(paused(NO_TEXT), *rounds(9, 0, 0), measured=costs)


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
        await chat.sees("OFF FROM THE NEXT ANSWER")
        await chat.sees("With speculation 100 tok/s, plain 50.0 tok/s.")
        await chat.send("hi")
        speeds = "OFF speculation, before 100 tok/s plain decoding 50.0 tok/s"
        assert panel_of(chat).startswith(speeds)


async def test_a_plain_speed_that_was_measured_stays_for_a_new_chat() -> None:
    engine = ScriptedEngine(TURNED_OFF, SPECULATING_BRIEFLY, measured=None)
    async with Chat(engine) as chat:
        await chat.press("f3")
        await chat.send("hi")
        await chat.send("/clear")
        await chat.send("hi")
        gain = "ON 2.0× plain speed with speculation 100 tok/s"
        assert panel_of(chat).startswith(gain)


async def test_a_plain_speed_that_is_unknown_is_measured_by_spec_off() -> None:
    async with Chat(ScriptedEngine(SPECULATING_BRIEFLY, measured=None)) as chat:
        await chat.press("f3")
        await chat.send("hi")
        assert panel_of(chat).startswith("ON plain speed unknown")
        assert "/spec off, once, measures it" in panel_of(chat)


def test_the_acceptance_rate_of_the_chat_and_of_the_last_rounds() -> None:
    old = [round_(n, 4, 0) for n in range(RECENT_ROUNDS)]
    new = [round_(n, 4, 4) for n in range(RECENT_ROUNDS)]
    shown = lines(stats(*old, *new))
    assert "100 % of 128 drafted now" in shown
    assert "50 % of 256 drafted chat" in shown
    assert "3.0 tokens per target pass" in shown


def test_speeds_leave_out_the_round_that_reads_the_prompt_and_forced_ones() -> None:
    forced = round_(9, 0, 0, ms=0.0)
    assert stats(*rounds(9, 4, 2), forced).tokens_per_second == 100.0


QUIET = MeasuredCosts(PLAIN_MS / 2, {"1": 1.0})
"""Measured when the computer was not busy: half as long."""


def test_many_plain_rounds_of_the_answer_are_the_plain_speed() -> None:
    """Costs measured on a quiet computer say nothing about one that is busy now."""
    busy = stats(paused(NO_TEXT), *rounds(40, 0, 0), measured=QUIET)
    assert lines(busy)[0] == "PAUSED at plain speed"
    assert "speculation would give 1.0×" in lines(busy)


def test_with_few_plain_rounds_the_plain_speed_is_the_measured_one() -> None:
    assert stats(*rounds(8, 0, 0), measured=QUIET).plain_speed == 100.0


def test_a_table_of_draft_sources() -> None:
    events = [
        *[round_(n, 3, 2) for n in range(5)],
        *[round_(n, 2, 1, "lookup") for n in range(3)],
        round_(8, 5, 5, "model+lookup"),
        round_(9, 5, 5, "lookup+model"),
        *[round_(n, 1, 0, "eagle3") for n in range(10, 12)],
    ]
    table = lines(stats(*events))
    first = table.index("source drafted accepted ms") + 1
    assert table[first : first + 4] == [
        "draft model 15 67 % 2.0",
        "mixed 10 100 % 2.0",
        "lookup 6 – 2.0",
        "EAGLE-3 2 – 2.0",
    ]


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("height", [4, 9, 14, 22, 38, 48])
def test_the_panel_fits_and_shows_whole_sections(height: int, ascii_only: bool) -> None:
    events = [round_(n, 16, n % 17) for n in range(40)]
    shown = stats(ON, *events, measured=MEASURED)
    drawn = speculation_panel._panel_lines(shown, "", height, ascii_only)
    assert len(drawn) <= max(height, 4)
    assert all(line.cell_length <= speculation_panel.PANEL_WIDTH for line in drawn)
    texts = [line.plain for line in drawn]
    for title, least in (("last 32 rounds", 14), ("source", 22)):
        assert any(text.startswith(title) for text in texts) == (height >= least)
    if height >= 38:
        assert {"accepted tokens per round", "last round"} <= {*texts}


def test_in_ascii_the_bars_are_digits() -> None:
    bars = [round_(0, 0, 0), round_(1, 4, 0), round_(2, 4, 4), round_(3, 16, 12)]
    shown = stats(ON, *bars)
    assert "·×4+" in lines(shown, ascii_only=True)
    assert "·×4+" not in lines(shown)

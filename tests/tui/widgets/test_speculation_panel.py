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


def round_(
    n: int, drafted: int, accepted: int, source: str = "model", ms: float | None = None
) -> Round:
    """A plain one takes PLAIN_MS, one with a draft half as long again."""
    said = tuple(Token(1, "x", "accepted") for _ in range(accepted + 1))
    took = ms if ms is not None else PLAIN_MS * (1.5 if drafted else 1.0)
    times = RoundTimes(2.0 * bool(drafted), took - 2.0 * bool(drafted), 0.0)
    return Round(n, source if drafted else None, "", drafted, accepted, said, times)


def rounds(n: int, drafted: int, accepted: int, source: str = "model") -> list[Round]:
    """The first reads the prompt and is not counted."""
    return [
        round_(0, 0, 0, ms=500.0),
        *(round_(i, drafted, accepted, source) for i in range(1, n)),
    ]


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
    return " ".join(" ".join(lines(stats(*events, measured=measured))).split())


def paused(why: str, until: int | None = None) -> SpeculationPlan:
    return SpeculationPlan("paused", why, 1.0, until)


UNEVEN = [round_(0, 0, 0), *(round_(n, 4, 4 * (n % 2)) for n in range(1, 20))]
MIXED = [round_(0, 0, 0), round_(1, 4, 0), round_(2, 4, 4), round_(3, 8, 8)]
FELL = [*rounds(20, 4, 0), *(round_(n, 0, 0) for n in range(20, 30))]
STEEP = MeasuredCosts(PLAIN_MS, {"1": 1.0, "2": 2.1, "4": 4.3}, c=0.3)
FLAT = MeasuredCosts(PLAIN_MS, {"1": 1.0, "2": 0.9, "8": 0.9})
LATE = [replace(round_(n, 4, 2), overlap="miss") for n in range(32)]
IN_TIME = [replace(round_(n, 4, 2), overlap="hit") for n in range(96)]
NOT_WORTH, NO_TEXT = "not worth it for this text", "no repeated text yet"
GLANCES: dict[str, tuple[list[Event], str]] = {
    "a gain": ([ON, *rounds(40, 4, 2)],
        "ON 2.0× plain speed with speculation 100 tok/s plain decoding 50.0 tok/s"),
    "six rounds prove nothing": ([ON, *rounds(6, 4, 2)], "ON few rounds so far"),
    "twenty uneven ones a range": ([ON, *UNEVEN], "ON 1.4–2.7× plain speed"),
    "plain rounds are no full bars": ([ON, *rounds(12, 0, 0)],
        "last 12 rounds: accepted, 0–4 ············ · plain"),
    "all rejected": ([ON, *MIXED], "last 4 rounds: accepted, 0–8 █ ·×██ · plain × all rejected"),
    "plain passes count": (
        [ON, *rounds(40, 0, 0), *(round_(n, 4, 4) for n in range(40, 50))],
        "1.8 tokens per target pass"),
    "no rate of one token": ([ON, round_(0, 0, 0), round_(1, 1, 1)],
        "acceptance rate 1 of 1 drafted now 1 of 1 drafted chat"),
    "a rate of sixteen": ([ON, *rounds(5, 4, 3)], "75 % of 16 drafted now"),
    "a pause": ([paused(NOT_WORTH, 42), *FELL],
        "PAUSED at plain speed with speculation 37.7 tok/s plain decoding 50.0 tok/s "
        "not worth it for this text speculation would give 0.8× 0 % accepted, pays above 41 % "
        "next trial in 12 rounds"),
    "nothing pays here": ([paused(NOT_WORTH), *rounds(9, 0, 0)],
        "on this computer no acceptance"),
    "a loss": ([SpeculationPlan("on", "max draft tokens 4, model"), *rounds(30, 4, 0)],
        "drafts cost more than they save"),
    "in time": ([*rounds(5, 4, 2), *IN_TIME, *LATE], "75 % drafted in time"),
}  # fmt: skip


@pytest.mark.parametrize("name", GLANCES)
def test_what_a_glance_says(name: str) -> None:
    events, words = GLANCES[name]
    assert words in shown(
        *events, measured=STEEP if name == "nothing pays here" else MEASURED
    )


def test_what_is_not_known_is_not_said() -> None:
    assert "%" not in shown(ON, round_(0, 0, 0), round_(1, 1, 1))
    assert "drafted in time" not in shown(*rounds(5, 4, 2))
    for costs in (None, FLAT):  # unknown, and from 0 %
        assert "pay" not in shown(paused(NO_TEXT), *rounds(9, 0, 0), measured=costs)


def said(plan: SpeculationPlan, events: Iterable[Round]) -> Callable[[], Script]:
    script: list[Event] = [plan, Prefill(24, 24, 8), *events]
    script.append(GenerationFinished("eog", "", {}))
    return lambda: script


def panel_of(chat: Chat) -> str:
    return " ".join(str(chat.screen.query_one(SpeculationPanel).content).split())


async def test_the_panel_leaves_the_chat_its_room() -> None:
    """In a window that became narrow it would cover the chat; it comes back with the
    room.
    """
    async with Chat(ScriptedEngine(said(ON, rounds(9, 4, 2)))) as chat:
        await chat.press("f3")
        await chat.send("hi")
        panel = chat.screen.query_one(SpeculationPanel)
        seen = []
        for width in (80, 40, 80):
            await chat.pilot.resize_terminal(width, 24)
            await chat.press("end")
            seen.append(panel.display and panel.styles.display == "block")
        assert seen == [True, False, True]
        await chat.pilot.resize_terminal(40, 24)
        await chat.wait(lambda: chat.screen.has_class("-narrow"))
        await chat.press("f3")
        await chat.sees("needs 80 columns")


PAUSE = SpeculationPlan("paused", "not worthwhile", 0.6)
KEY_TURNS: dict[str, list[tuple[SpeculationPlan, int, str]]] = {
    "auto": [(ON, 2, "auto"), (OFF, 0, "off"), (ON, 2, "auto")],
    "a draft that auto pauses is on for show": [
        (PAUSE, 0, "auto"), (ON, 1, "model"), (OFF, 0, "off"), (PAUSE, 0, "auto")
    ],
    "/spec lookup": [(ON, 2, "lookup"), (OFF, 0, "off"), (ON, 2, "lookup")],
}  # fmt: skip


@pytest.mark.parametrize("name", KEY_TURNS)
async def test_one_key_turns_speculation_on_and_off(name: str) -> None:
    """And both speeds are beside each other."""
    turns = KEY_TURNS[name]
    engine = ScriptedEngine(*(said(p, rounds(40, 4 * bool(n), n)) for p, n, _ in turns))
    async with Chat(engine) as chat:
        await chat.press("f3")
        if name.startswith("/"):
            await chat.send(name)
        for i, (_, accepted, _) in enumerate(turns):
            await chat.send("hi")
            if accepted == 0 and name == "auto":
                assert panel_of(chat).startswith(
                    "OFF speculation, before 100 tok/s plain decoding 50.0 tok/s"
                )
            chat.app.clear_notifications()
            if i + 1 < len(turns):
                await chat.press("ctrl+s")
                state = "OFF" if turns[i + 1][2] == "off" else "ON"
                await chat.sees(
                    f"{state} FROM THE NEXT ANSWER", f"spec: {turns[i + 1][2]}"
                )
            if i == 0 and name == "auto":
                await chat.sees("With speculation 100 tok/s, plain 50.0 tok/s.")
        assert [request.spec for request in engine.asked] == [
            spec for *_, spec in turns
        ]


async def test_how_plain_speed_becomes_known_and_stays_for_a_new_chat() -> None:
    engine = ScriptedEngine(
        said(OFF, rounds(40, 0, 0)), said(ON, rounds(9, 4, 2)), measured=None
    )
    async with Chat(engine) as chat:
        await chat.press("f3")
        await chat.send("hi")
        await chat.send("/clear")
        await chat.send("hi")
        assert panel_of(chat).startswith(
            "ON 2.0× plain speed with speculation 100 tok/s"
        )
    async with Chat(ScriptedEngine(said(ON, rounds(9, 4, 2)), measured=None)) as chat:
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
    forced = Round(9, None, "", 0, 0, (Token(1, "x", "plain"),), RoundTimes(0, 0, 0))
    assert stats(*rounds(9, 4, 2), forced).tokens_per_second == 100.0


def test_plain_rounds_of_the_answer_are_the_standard_where_there_are_enough() -> None:
    """Costs measured on a quiet computer say nothing about one that is busy now."""
    quiet = MeasuredCosts(PLAIN_MS / 2, {"1": 1.0})
    busy = stats(paused("no repeated text yet"), *rounds(40, 0, 0), measured=quiet)
    assert lines(busy)[0] == "PAUSED at plain speed"
    assert "speculation would give 1.0×" in lines(busy)
    assert stats(*rounds(8, 0, 0), measured=quiet).plain_speed == 100.0


def test_a_table_of_draft_sources() -> None:
    table = lines(
        stats(
            *(round_(n, 3, 2) for n in range(5)),
            *(round_(n, 2, 1, "lookup") for n in range(3)),
            round_(8, 5, 5, "model+lookup"),
            round_(9, 5, 5, "lookup+model"),
            *(round_(n, 1, 0, "eagle3") for n in range(10, 12)),
        )
    )
    shown = " ".join(table[table.index("source drafted accepted ms") + 1 :])
    assert shown.startswith("draft model 15 67 % 2.0 mixed 10 100 % 2.0 lookup 6 – 2.0")
    assert "EAGLE-3 2 – 2.0" in table


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
    bars = [round_(0, 0, 0), round_(1, 4, 0), round_(2, 4, 4), round_(3, 16, 12)]
    assert ("·×4+" in lines(stats(ON, *bars), ascii_only)) is ascii_only
    assert height < 38 or {"accepted tokens per round", "last round"} <= {*texts}

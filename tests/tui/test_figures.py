"""The panel's statistics, computed from events."""

from localspec.protocol.events import (
    Event,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
)
from localspec.tui.glyphs import UNICODE
from localspec.tui.speculation_stats import RECENT_ROUNDS, SpeculationStats
from localspec.tui.widgets import speculation_panel


def round_(n: int, drafted: int, accepted: int, tokens: int, source: str | None = "model") -> Round:
    said = tuple(Token(1, "x", "accepted") for _ in range(tokens))
    return Round(n, source if drafted else None, "", drafted, accepted, said, RoundTimes(1, 8, 1))


def after(*events: Event, plain: float | None = None) -> SpeculationStats:
    figures = SpeculationStats(plain_speed=plain)
    figures.start_answer()
    figures.add_events(events)
    return figures


def test_nothing_is_known_before_anything_happened() -> None:
    figures = after()
    assert (
        figures.recent_acceptance_rate is None
        and figures.acceptance_rate is None
        and figures.tokens_per_pass is None
    )
    assert (
        figures.tokens_per_second is None and figures.speedup is None and figures.draft_shares == []
    )


def test_the_acceptance_rate_of_the_chat_and_of_the_last_rounds() -> None:
    old = [round_(n, 4, 0, 1) for n in range(RECENT_ROUNDS)]
    new = [round_(n, 4, 4, 5) for n in range(RECENT_ROUNDS)]
    figures = after(*old, *new)
    assert figures.recent_acceptance_rate == 1.0 and figures.acceptance_rate == 0.5
    assert figures.tokens_per_pass == 3.0


def test_tokens_per_pass_counts_plain_passes_too() -> None:
    plain = [round_(n, 0, 0, 1) for n in range(3)]
    assert after(*plain).tokens_per_pass == 1.0
    assert after(*plain, round_(3, 4, 4, 5)).tokens_per_pass == 2.0


def test_the_panel_shows_the_counts_behind_each_rate() -> None:
    def lines(figures: SpeculationStats) -> list[str]:
        shown = speculation_panel._panel_lines(figures, UNICODE, "", spacious=False)
        return [" ".join(line.plain.split()) for line in shown]

    assert lines(after())[2:6] == ["acceptance rate", "– now", "– chat", "– tokens per pass"]
    probing = after(SpeculationPlan("probing", "measuring draft acceptance"), round_(1, 4, 2, 3))
    shown = lines(probing)
    assert shown[:2] == ["MEASURING", "measuring draft acceptance"]
    assert {
        "50 % (2 of 4) now",
        "50 % (2 of 4) chat",
        "last 1 round",
        "4 drafted, draft model",
    } <= {*shown}


def test_speed_leaves_out_the_round_that_reads_the_prompt() -> None:
    first = Round(0, None, "", 0, 0, (Token(1, "x", "plain"),), RoundTimes(0, 5000, 0))
    figures = after(first, round_(1, 4, 1, 2), plain=100.0)
    assert figures.tokens_per_second == 200.0 and figures.speedup == 2.0


def test_the_plans_own_gain_comes_first() -> None:
    assert (
        after(SpeculationPlan("paused", "poor", 0.9), round_(1, 4, 1, 2), plain=100.0).speedup
        == 0.9
    )


def test_sources_by_share_of_guesses() -> None:
    figures = after(round_(1, 3, 1, 2), round_(2, 1, 1, 2, "lookup"))
    assert figures.draft_shares == [("model", 0.75), ("lookup", 0.25)]


def test_the_context_holds_prompt_and_answer() -> None:
    figures = after(Prefill(0, 40, 30), Prefill(40, 40, 30), round_(1, 4, 3, 4))
    assert (figures.context_tokens, figures.reused_tokens, figures.prefill) == (44, 30, None)
    figures.add_events([GenerationFinished("eog", "", {"timings": {"first_token_ms": 12.0}})])
    assert figures.first_token_ms == 12.0


def test_another_answer_begins_anew_but_the_chat_goes_on() -> None:
    figures = after(round_(1, 4, 2, 3))
    figures.start_answer()
    assert (
        figures.recent_acceptance_rate is None
        and figures.acceptance_rate == 0.5
        and figures.answer_tokens == 0
    )

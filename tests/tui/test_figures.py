"""The panel's numbers, from events."""

from localspec.protocol.events import Event, Finished, Plan, Prefill, Round, Times, Token
from localspec.tui.figures import RECENT, Figures


def round_(n: int, drafted: int, accepted: int, tokens: int, source: str | None = "model") -> Round:
    said = tuple(Token(1, "x", "accepted") for _ in range(tokens))
    return Round(n, source if drafted else None, "", drafted, accepted, said, Times(1, 8, 1))


def after(*events: Event, plain: float | None = None) -> Figures:
    figures = Figures(plain=plain)
    figures.begin()
    figures.take(events)
    return figures


def test_nothing_is_known_before_anything_happened() -> None:
    figures = after()
    assert figures.kept_now is None and figures.kept is None and figures.per_pass is None
    assert figures.speed is None and figures.gain is None and figures.sources == []


def test_kept_is_of_the_chat_and_now_of_the_last_rounds() -> None:
    old = [round_(n, 4, 0, 1) for n in range(RECENT)]
    new = [round_(n, 4, 4, 5) for n in range(RECENT)]
    figures = after(*old, *new)
    assert figures.kept_now == 1.0 and figures.kept == 0.5
    assert figures.per_pass == 3.0


def test_speed_leaves_out_the_round_that_reads_the_prompt() -> None:
    first = Round(0, None, "", 0, 0, (Token(1, "x", "plain"),), Times(0, 5000, 0))
    figures = after(first, round_(1, 4, 1, 2), plain=100.0)
    assert figures.speed == 200.0 and figures.gain == 2.0


def test_the_plans_own_gain_comes_first() -> None:
    assert after(Plan("paused", "poor", 0.9), round_(1, 4, 1, 2), plain=100.0).gain == 0.9


def test_sources_by_share_of_guesses() -> None:
    figures = after(round_(1, 3, 1, 2), round_(2, 1, 1, 2, "lookup"))
    assert figures.sources == [("model", 0.75), ("lookup", 0.25)]


def test_the_context_holds_prompt_and_answer() -> None:
    figures = after(Prefill(0, 40, 30), Prefill(40, 40, 30), round_(1, 4, 3, 4))
    assert (figures.context, figures.reused, figures.reading) == (44, 30, None)
    figures.take([Finished("eog", "", {"timings": {"first_token_ms": 12.0}})])
    assert figures.first_token_ms == 12.0


def test_another_answer_begins_anew_but_the_chat_goes_on() -> None:
    figures = after(round_(1, 4, 2, 3))
    figures.begin()
    assert figures.kept_now is None and figures.kept == 0.5 and figures.answered == 0

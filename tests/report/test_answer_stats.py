"""How a report describes an answer: its rounds, its acceptance, its end."""

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.speculation_stats import SpeculationStats
from localspec.protocol.events import (
    FinishReason,
    GenerationFinished,
    Round,
    RoundTimes,
    Token,
)
from localspec.protocol.round_totals import DraftTotals
from localspec.report import answer_stats
from localspec.report.answer_stats import AnswerStats
from localspec.report.lines import plain_text
from localspec.report.speculation import view_speculation

TIMES = RoundTimes(draft=1.0, verify=19.0, host=1.0)
DRAFTED = Round(
    n=3,
    source="model",
    reason="why",
    drafted=2,
    accepted=1,
    tokens=(Token(1, " one", "accepted"), Token(2, "two\n", "correction")),
    ms=TIMES,
)
PLAIN = Round(
    n=0,
    source=None,
    reason="",
    drafted=0,
    accepted=0,
    tokens=(Token(1, "one", "plain"),),
    ms=TIMES,
)


def answer(*rounds: Round, end: FinishReason | None = None) -> GeneratedAnswer:
    made = GeneratedAnswer()
    for event in rounds:
        made.add(event)
    if end is not None:
        made.add(GenerationFinished(end))
    return made


def test_a_rate_of_few_draft_tokens_is_not_shown() -> None:
    few = DraftTotals(drafted=9, accepted=3)
    enough = DraftTotals(drafted=1200, accepted=600)
    assert answer_stats.format_acceptance(DraftTotals()) == "–"
    assert answer_stats.format_acceptance(few) == "3 of 9"
    assert answer_stats.format_acceptance(enough) == "50 % of 1,200"


def test_a_round_is_a_line_with_marks_and_visible_line_ends() -> None:
    line = plain_text(answer_stats.format_round(DRAFTED))
    assert line == "    3  model     1/2     21 ms   oneˢ two\\n▔"


def test_a_round_without_tokens_is_its_numbers_alone() -> None:
    empty = Round(
        n=0, source=None, reason="", drafted=0, accepted=0, tokens=(), ms=TIMES
    )
    assert plain_text(answer_stats.format_round(empty)) == (
        "    0  plain             21 ms"
    )


def test_a_round_can_be_read_as_sentences() -> None:
    assert answer_stats.describe_round(DRAFTED) == (
        'Step 4, 21 ms: model guessed 2, 1 right: " one". Written instead: "two\\n".'
    )
    assert answer_stats.describe_round(PLAIN) == (
        'Step 1, 21 ms: no guess. Written by the model: "one".'
    )


def test_a_summary_says_how_the_answer_ended() -> None:
    ended = answer_stats.format_answer_summary(answer(PLAIN, DRAFTED, end="eog"))
    assert ended.startswith("3 tokens in 2 steps, 21 ms, 1 of 2 guesses right, ")
    assert ended.endswith("tok/s. The model ended the answer.")
    unfinished = answer_stats.format_answer_summary(answer(PLAIN))
    assert unfinished.endswith("The recording ends here.")


def stats_of(said: GeneratedAnswer, stopped_ms: float | None = None) -> AnswerStats:
    view = view_speculation(SpeculationStats(answer=said))
    return AnswerStats(said, view, n_ctx=256, stopped_ms=stopped_ms)


def test_the_status_names_what_stopped_the_answer() -> None:
    full = stats_of(answer(PLAIN, end="context"))
    assert answer_stats.format_status_line(full).startswith("the context is full · ")
    assert answer_stats.describe_status(full).startswith("The context is full. ")
    ordinary = stats_of(answer(PLAIN, end="eog"))
    assert list(ordinary.list_notable_ends()) == []


def test_a_stopped_answer_says_how_long_stopping_took() -> None:
    stopped = stats_of(answer(PLAIN, end="cancelled"), stopped_ms=12.4)
    assert answer_stats.format_status_line(stopped).startswith("stopped in 12 ms · ")
    spoken = answer_stats.describe_status(stopped)
    assert spoken.startswith("Stopped in 12 milliseconds. ")

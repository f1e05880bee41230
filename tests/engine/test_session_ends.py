"""How answers end, and which prompts and requests are refused."""

from __future__ import annotations

import pytest

from localspec.errors import EngineError, PromptTooLongError, UsageError
from localspec.protocol.events import GenerationFinished, Prefill, Round
from localspec.protocol.wire import GenerateCommand, SamplingParams
from tests.support.sessions import folded, loaded, say
from tests.support.zoo import HELLO_TEXT, Zoo

PROMPT = "the one "


# --- limits, stops, ends -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "text"),
    [("world", " Hello, "), ("lo, w", " Hel"), ("\n", " Hello, world!"), ("none", HELLO_TEXT)],
)
def test_an_end_or_a_stop_text_inside_an_accepted_run_cuts_exactly(
    zoo: Zoo, stop: str, text: str
) -> None:
    with loaded(zoo["parrot"], zoo["parrot"]) as session:
        said = say(session, "a", stop=(stop,), draft_length=16, spec="model")
    assert said.text == text
    assert said.reason == ("eog" if stop == "none" else "stop")
    if stop == "none":
        assert said.speculation["acceptance_rate"] == 1.0
        assert said.rounds[-1].tokens[-1].text == ""


def test_stopping_ends_the_answer_and_not_the_session(zoo: Zoo) -> None:
    with loaded(zoo["chatter"], zoo["chatter"]) as session:
        events = session.generate(GenerateCommand("a", max_tokens=400))
        taken = []
        for event in events:
            taken.append(event)
            if isinstance(event, Round) and event.n == 3:
                session.stop()
        said = folded(taken)
        assert said.reason == "cancelled"
        assert len(said.rounds) == 4
        assert say(session, "a", max_tokens=20).reason == "length"


def test_stopping_while_reading_a_long_prompt(zoo: Zoo) -> None:
    with loaded(zoo["chatter"]) as session:
        events = session.generate(GenerateCommand("a" * 400, max_tokens=20))
        taken = []
        for event in events:
            taken.append(event)
            if isinstance(event, Prefill) and 0 < event.done < 200:
                session.stop()
        said = folded(taken)
    assert (said.reason, said.ids) == ("cancelled", [])
    assert isinstance(taken[-1], GenerationFinished)
    assert taken[-1].totals["timings"]["first_token_ms"] is None
    assert max(event.done for event in taken if isinstance(event, Prefill)) < 300


# --- prompts and requests that cannot be ---------------------------------------------------


def test_a_prompt_longer_than_the_context(zoo: Zoo) -> None:
    with loaded(zoo["target"]) as session:
        with pytest.raises(PromptTooLongError, match=r"The prompt has .* the context holds 512"):
            say(session, "x " * 400)
        assert say(session, PROMPT, max_tokens=3).reason == "length"
        last = say(session, "ж" * 254 + "x", max_tokens=9)  # one token of room is enough
    assert last.totals["prompt_tokens"] == 511
    assert (last.reason, len(last.ids)) == ("context", 1)


def test_a_request_that_makes_no_sense(zoo: Zoo) -> None:
    samplings = (
        SamplingParams(temperature=float("nan")),
        SamplingParams(temperature=-1),
        SamplingParams(top_p=0),
        SamplingParams(min_p=2),
        SamplingParams(top_k=-1),
        SamplingParams(repeat_penalty=0),
        SamplingParams(repeat_penalty=float("inf")),
    )
    requests = [{"sampling": sampling} for sampling in samplings]
    with loaded(zoo["target"]) as session:
        for request in (*requests, {"max_tokens": 0}, {"spec": "magic"}):
            with pytest.raises(UsageError):
                say(session, "a", **request)  # type: ignore[arg-type]


@pytest.mark.parametrize("draft", [None, "parrot", "nan-later"])
def test_invalid_numbers_end_in_one_sentence_after_what_was_said_before(
    zoo: Zoo, draft: str | None
) -> None:
    told = []
    with (
        loaded(zoo["nan-later"], zoo[draft] if draft else None) as session,
        pytest.raises(EngineError, match="invalid numbers"),
    ):
        for event in session.generate(GenerateCommand("a", SamplingParams(temperature=0))):
            told.append(event)
    text = folded(told).text
    assert text and " Hello, wor".startswith(text)
    with loaded(zoo["nan"], zoo[draft] if draft else None) as session:
        for top_k, top_p in ((40, 0.9), (0, 0.9), (0, 1)):
            with pytest.raises(EngineError, match="invalid numbers"):
                say(session, "a", sampling=SamplingParams(seed=1, top_k=top_k, top_p=top_p))

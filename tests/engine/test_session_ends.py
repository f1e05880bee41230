"""How answers end, what is told of them, and which pairs and prompts are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.errors import EngineError, IncompatiblePairError, PromptTooLongError, UsageError
from localspec.protocol.events import EngineReady, GenerationFinished, Prefill, Round
from localspec.protocol.wire import GenerateCommand, SamplingParams
from tests.support.sessions import SETTINGS, folded, loaded, require_same_logits_at_every_width, say
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


# --- what is told -----------------------------------------------------------------------------


def test_ready_says_what_is_really_used(zoo: Zoo) -> None:
    with loaded(zoo["target"], zoo["cousin"]) as session:
        ready: EngineReady = session.ready
    assert (ready.model, ready.draft) == ("target.gguf", "cousin.gguf")
    assert ready.settings["target"]["n_ctx"] == 512
    assert ready.settings["draft_max"] == 16
    assert ready.load_ms > 0
    assert ready.devices
    assert ready.notices == ()
    with loaded(zoo["target"], settings=replace(SETTINGS, n_ctx=2048)) as session:
        assert [notice.code for notice in session.ready.notices] == ["beyond-trained"]
        assert session.ready.settings["target"]["n_ctx"] == 2048


@pytest.mark.parametrize(
    ("draft", "level", "words"),
    [("padded", "warning", "larger than its target"), ("f32", "info", "the target itself")],
)
def test_a_draft_as_large_as_its_target_is_told(
    draft: str, level: str, words: str, zoo: Zoo
) -> None:
    with loaded(zoo["f32"], zoo[draft]) as session:
        (notice,) = session.ready.notices
        assert (notice.level, notice.code) == (level, "large-draft")
        assert words in notice.message and "or none" in notice.hint
        assert say(session, PROMPT, spec="model").speculation["drafted"], "it is used all the same"


# --- pairs and prompts that cannot be ---------------------------------------------------------


def test_a_padded_vocabulary_is_no_reason_to_refuse(zoo: Zoo) -> None:
    require_same_logits_at_every_width(zoo["target"])
    with loaded(zoo["target"], zoo["padded"]) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=40)
        assert say(session, PROMPT, spec="model", max_tokens=40).ids == plain.ids
    with loaded(zoo["padded"], zoo["target"]) as session:
        assert say(session, PROMPT, spec="model", max_tokens=40).speculation["drafted"] > 0


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ("renamed", "token 257 is '▁other' in the draft"),
        ("wide", "its vocabulary has 56[0-9] tokens, the target's has 36[0-9]"),
    ],
)
def test_a_draft_of_another_vocabulary_is_refused(zoo: Zoo, draft: str, words: str) -> None:
    with pytest.raises(IncompatiblePairError, match=words), loaded(zoo["f32"], zoo[draft]):
        pass


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

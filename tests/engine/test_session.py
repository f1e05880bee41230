"""The laws of the loop (design, "A round"), on real tiny models through real llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from localspec.engine.session import Session
from localspec.errors import UsageError
from localspec.protocol.wire import GenerateCommand, SamplingParams, TokenizeCommand
from tests.support.sessions import GREEDY, SETTINGS, loaded, require_same_logits_at_every_width, say
from tests.support.zoo import Zoo

PROMPT = "the one "


@pytest.fixture(scope="module")
def pair(zoo: Zoo) -> Iterator[Session]:
    """A target and a near relation as its draft: right often, and wrong often."""
    require_same_logits_at_every_width(zoo["target"])
    with loaded(zoo["target"], zoo["cousin"]) as session:
        yield session


# --- 1 and 3: the text does not depend on the drafter -----------------------------------------


@pytest.mark.parametrize("name", ["tied", "sliding", "hybrid", "recurrent"])
def test_other_architectures_say_what_they_say_plainly(zoo: Zoo, name: str) -> None:
    """A recurrent target runs plain and says so; a hybrid rolls back by its snapshots."""
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo["stranger"]) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=80)
        said = {
            spec: say(session, PROMPT, spec=spec, max_tokens=80) for spec in ("model", "lookup")
        }
        codes = [notice.code for notice in session.ready.notices]
    assert {tuple(each.ids) for each in said.values()} == {tuple(plain.ids)}
    assert ("no-rollback" in codes) is (name == "recurrent")
    plan = said["model"].plan
    assert plan is not None and plan.state == ("off" if name == "recurrent" else "on")
    assert ("cannot roll back" in plan.why) is (name == "recurrent")
    assert (said["model"].speculation["drafted"] > 0) is (name != "recurrent")


def test_a_sliding_window_says_the_same_far_beyond_its_slots(zoo: Zoo) -> None:
    """Guesses are taken back all along; a draft's window has 256 slots, 600 tokens go round."""
    require_same_logits_at_every_width(zoo["sliding"])
    settings = replace(SETTINGS, n_ctx=1024)
    with loaded(zoo["sliding"], zoo["sliding"], settings) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=600)
        said = say(session, PROMPT, spec="model", draft_length=16, max_tokens=600)
    assert len(said.ids) == 600
    assert said.ids == plain.ids


# --- 4: a draft is as good as its model -------------------------------------------------------


@pytest.mark.parametrize("name", ["target", "sliding"])
def test_a_model_drafting_for_itself_is_always_right(zoo: Zoo, name: str) -> None:
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo[name]) as session:
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(temperature=temperature, seed=3)
            said = say(session, PROMPT, spec="model", sampling=sampling, max_tokens=90)
            assert said.speculation["acceptance_rate"] == 1.0
            # The prompt's last token, then 14 rounds of 5 drafted and a bonus, then what is left.
            assert said.speculation["histogram"][5] == 14
            kinds = [token.kind for token in said.rounds[1].tokens]
            assert kinds == ["accepted"] * 5 + ["bonus"]


# --- 6: an answer leaves nothing behind -------------------------------------------------------


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid", "recurrent"])
def test_a_second_answer_is_what_a_fresh_session_says(zoo: Zoo, name: str) -> None:
    require_same_logits_at_every_width(zoo[name])
    prompts = [PROMPT, PROMPT, PROMPT + "and", "x" + PROMPT, PROMPT]
    with loaded(zoo[name], zoo["stranger"]) as session:
        again = [say(session, prompt, max_tokens=9) for prompt in prompts][1:]
    for prompt, said in zip(prompts[1:], again, strict=True):
        with loaded(zoo[name], zoo["stranger"]) as session:
            assert say(session, prompt, max_tokens=9).ids == said.ids
    if name in ("target", "sliding"):
        assert again[0].totals["reused_tokens"] > 3


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid", "recurrent"])
def test_an_answer_may_be_closed_after_any_event(zoo: Zoo, name: str) -> None:
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name]) as session:
        wanted = say(session, PROMPT * 9, spec="off", max_tokens=30).ids
    with loaded(zoo[name], zoo["cousin"]) as session:
        for spec, stop_after in product(("auto", "lookup"), range(1, 9)):
            events = session.generate(GenerateCommand(PROMPT * 9, GREEDY, spec=spec))
            for _, _ in zip(range(stop_after), events, strict=False):
                pass
            events.close()  # type: ignore[attr-defined]
            assert say(session, PROMPT * 9, spec=spec, max_tokens=30).ids == wanted


@pytest.mark.parametrize("name", ["target", "hybrid"])
def test_answers_up_to_a_full_context(zoo: Zoo, name: str) -> None:
    with loaded(zoo[name], zoo["cousin"], replace(SETTINGS, n_ctx=256)) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=1000)
        for spec in ("auto", "lookup"):
            full = say(session, PROMPT, spec=spec, max_tokens=1000)
            assert (full.ids, full.reason) == (plain.ids, "context")
            assert full.totals["prompt_tokens"] + len(full.ids) == 256


def test_a_prediction_is_copied_and_changes_no_text(pair: Session) -> None:
    plain = say(pair, PROMPT, spec="off", max_tokens=60)
    said = say(pair, PROMPT, spec="lookup", max_tokens=60, prediction=plain.text)
    without = say(pair, PROMPT, spec="lookup", max_tokens=60)
    assert said.ids == plain.ids == without.ids
    assert said.speculation["accepted"] > without.speculation["accepted"]


def test_bias_and_penalties_give_one_text_whatever_speculates(pair: Session) -> None:
    plain = say(pair, PROMPT, spec="off", max_tokens=40)
    banned = plain.ids[3]
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(
            temperature,
            seed=3,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            logit_bias=((banned, -100.0),),
        )
        biased = say(pair, PROMPT, spec="off", sampling=sampling, max_tokens=40)
        assert banned not in biased.ids
        for spec in ("model", "lookup"):
            said = say(pair, PROMPT, spec=spec, sampling=sampling, max_tokens=40, draft_length=4)
            assert said.ids == biased.ids, spec


def test_tokens_of_a_text_and_back(pair: Session) -> None:
    tokenized = pair.tokenize(TokenizeCommand("the one é", pieces=True))
    text = " the one é"  # this vocabulary begins a text with a space
    assert "".join(tokenized.pieces).encode("latin-1").decode() == text
    prompt = pair.tokenize(TokenizeCommand(PROMPT, add_special=True)).tokens
    by_tokens = say(pair, "", prompt_tokens=prompt, max_tokens=20)
    assert by_tokens.ids == say(pair, PROMPT, max_tokens=20).ids
    with pytest.raises(UsageError, match="does not have"):
        say(pair, "", prompt_tokens=(10**6,))


def test_as_many_alternatives_as_asked_for(pair: Session) -> None:
    said = say(pair, PROMPT, max_tokens=3, probabilities=True, n_alternatives=20)
    for token in (token for event in said.rounds for token in event.tokens):
        ranks = sorted([token.rank or 0, *(other.rank for other in token.alternatives)])
        assert ranks[:20] == list(range(1, 21))

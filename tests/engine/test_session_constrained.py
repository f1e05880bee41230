"""Constrained answers of a session: with and without speculation, thinking, and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from localspec.engine.session import Session
from localspec.errors import GrammarError, UsageError
from localspec.paths import package_data_dir
from localspec.protocol.wire import ChatMessage, GenerateCommand, SamplingParams
from tests.engine.laws import MODES
from tests.support.sessions import GREEDY, folded, loaded, say
from tests.support.zoo import Zoo

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "tags"],
    }
)
PROMPT = "data = "


@pytest.fixture(scope="module")
def demo() -> Iterator[Session]:
    folder = package_data_dir() / "demo"
    with loaded(folder / "demo-target.gguf", folder / "demo-draft.gguf") as session:
        yield session


def test_a_seed_is_a_text_whatever_speculates(demo: Session) -> None:
    for sampling in (SamplingParams(seed=0), SamplingParams(seed=1), SamplingParams(temperature=0)):
        plain = say(demo, PROMPT, spec="off", sampling=sampling, json_schema=PERSON)
        assert plain.reason == "eog"
        assert list(json.loads(plain.text)) == ["name", "tags"]
        for spec in ("model", "lookup", "auto"):
            said = say(demo, PROMPT, spec=spec, sampling=sampling, json_schema=PERSON)
            assert said.ids == plain.ids, spec


@pytest.mark.parametrize("mode", MODES)
def test_every_verification_method_obeys_the_schema(demo: Session, mode: str) -> None:
    for seed in range(3):
        sampling = SamplingParams(seed=seed, top_k=0, temperature=1.2)
        said = say(demo, PROMPT, verify=mode, spec="model", sampling=sampling, json_schema=PERSON)
        assert list(json.loads(said.text)) == ["name", "tags"]


def test_an_answer_is_resumed_within_its_grammar(demo: Session) -> None:
    whole = say(demo, PROMPT, json_schema=PERSON)
    begun = tuple(whole.ids[:5])
    rest = say(demo, PROMPT, json_schema=PERSON, resumed_tokens=begun)
    assert [*begun, *rest.ids] == whole.ids
    with pytest.raises(GrammarError, match="text so far"):
        say(demo, PROMPT, grammar='root ::= "x"', resumed_tokens=begun)


def test_an_unusable_grammar_leaves_the_session_usable_and_the_next_answer_is_free(
    demo: Session,
) -> None:
    free = say(demo, PROMPT, max_tokens=20)
    for request in ({"grammar": "root ::= missing"}, {"json_schema": "{"}):
        with pytest.raises(GrammarError):
            say(demo, PROMPT, **request)
    with pytest.raises(UsageError):
        say(demo, PROMPT, grammar='root ::= "x"', json_schema="{}")
    assert say(demo, PROMPT, grammar='root ::= "xyz"').text == "xyz"
    assert say(demo, PROMPT, max_tokens=20).ids == free.ids


def test_an_empty_prompt_is_refused_in_words_for_every_front_end(demo: Session) -> None:
    with pytest.raises(UsageError, match="empty") as error:
        say(demo, "")
    assert error.value.hint and "-p" not in error.value.hint


@pytest.mark.parametrize("spec", ["off", "model", "lookup", "auto"])
def test_thinking_is_free_and_the_answer_is_not(zoo: Zoo, spec: str) -> None:
    with loaded(zoo["thinker"], zoo["thinker"]) as session:
        asked = GenerateCommand(
            messages=(ChatMessage("user", "Hi?"),),
            sampling=GREEDY,
            max_tokens=99,
            think=True,
            spec=spec,
            grammar='root ::= " "? "there" "."',
        )
        thought = "They greet me; I greet back.</think>"
        assert folded(session.generate(asked)).text == f"{thought} there."
        cut = folded(session.generate(replace(asked, think_budget=2)))
        assert cut.text.endswith("</think> there.")
        direct = folded(session.generate(replace(asked, think=False)))
        assert direct.text == " there."

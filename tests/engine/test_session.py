"""Answers of sessions on tiny models: whatever drafts, however they end or are resumed."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.errors import EngineError, GrammarError, PromptTooLongError, UsageError
from localspec.paths import package_data_dir
from localspec.protocol.events import Event, Prefill
from localspec.protocol.wire import (
    ChatMessage,
    GenerateCommand,
    SamplingParams,
    TokenizeCommand,
)
from tests.support.sessions import (
    GREEDY,
    SETTINGS,
    Said,
    folded,
    loaded,
    require_same_logits_at_every_width,
    say,
    say_like_plain,
)
from tests.support.zoo import CHAT_TEXT, CHATTER, Zoo

PROMPT = "the one "


@pytest.fixture(scope="module")
def pair(zoo: Zoo) -> Iterator[Session]:
    require_same_logits_at_every_width(zoo["target"])
    with loaded(zoo["target"], zoo["cousin"]) as session:
        yield session


@pytest.mark.parametrize("name", ["tied", "sliding", "hybrid", "recurrent"])
def test_other_architectures_say_what_they_say_plainly(zoo: Zoo, name: str) -> None:
    """A recurrent target runs plain and says so; a hybrid rolls back by its snapshots."""
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo["stranger"]) as session:
        say_like_plain(session, "lookup", max_tokens=80)
        (said,) = say_like_plain(session, max_tokens=80)
        codes = [notice.code for notice in session.ready.notices]
    plan = said.plan
    assert plan is not None
    if name == "recurrent":
        assert "no-rollback" in codes
        assert plan.state == "off"
        assert "cannot roll back" in plan.why
        assert said.speculation["drafted"] == 0
    else:
        assert "no-rollback" not in codes
        assert plan.state == "on"
        assert "cannot roll back" not in plan.why
        assert said.speculation["drafted"] > 0


@pytest.mark.parametrize("name", ["target", "sliding"])
def test_a_model_drafting_for_itself_is_always_right(zoo: Zoo, name: str) -> None:
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo[name]) as session:
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(temperature=temperature, seed=3)
            said = say(session, PROMPT, spec="model", sampling=sampling, max_tokens=90)
            assert said.speculation["acceptance_rate"] == 1.0
            # The prompt's last token, then 14 rounds of 5 drafted and a bonus, then
            # what is left.
            assert said.speculation["histogram"][5] == 14
            kinds = [token.kind for token in said.rounds[1].tokens]
            assert kinds == ["accepted"] * 5 + ["bonus"]


def test_the_pieces_of_a_text_are_the_text(pair: Session) -> None:
    tokenized = pair.tokenize(TokenizeCommand("the one é", pieces=True))

    text = " the one é"  # this vocabulary begins a text with a space
    assert "".join(tokenized.pieces).encode("latin-1").decode() == text


def test_a_prompt_of_tokens_is_answered_like_its_text(pair: Session) -> None:
    prompt = pair.tokenize(TokenizeCommand(PROMPT, add_special=True)).tokens

    by_tokens = say(pair, "", prompt_tokens=prompt, max_tokens=20)

    assert by_tokens.ids == say(pair, PROMPT, max_tokens=20).ids


def test_a_prompt_with_a_token_that_the_model_lacks_is_refused(pair: Session) -> None:
    with pytest.raises(UsageError, match="does not have"):
        say(pair, "", prompt_tokens=(10**6,))


def test_as_many_alternatives_as_asked_for(pair: Session) -> None:
    said = say(pair, PROMPT, max_tokens=3, probabilities=True, n_alternatives=20)
    for event in said.rounds:
        for token in event.tokens:
            ranks = [token.rank or 0]
            ranks += [other.rank for other in token.alternatives]
            assert sorted(ranks)[:20] == list(range(1, 21))


def test_a_prompt_longer_than_the_context_is_refused_and_the_next_is_answered(
    pair: Session,
) -> None:
    with pytest.raises(
        PromptTooLongError, match=r"The prompt has .* the context holds 512"
    ):
        say(pair, "x " * 400)

    assert say(pair, PROMPT, max_tokens=3).reason == "length"


def test_one_token_of_room_is_enough_for_an_answer(pair: Session) -> None:
    last = say(pair, "ж" * 254 + "x", max_tokens=9)

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


DRAFTS_OF_NAN = pytest.mark.parametrize("draft", [None, "parrot", "nan-later"])


def draft_file(zoo: Zoo, name: str | None) -> Path | None:
    return zoo[name] if name else None


@DRAFTS_OF_NAN
def test_invalid_numbers_end_the_answer_after_what_was_said_before(
    zoo: Zoo, draft: str | None
) -> None:
    events: list[Event] = []
    greedy = GenerateCommand("a", SamplingParams(temperature=0))
    with (
        loaded(zoo["nan-later"], draft_file(zoo, draft)) as session,
        pytest.raises(EngineError, match="invalid numbers"),
    ):
        for event in session.generate(greedy):
            events.append(event)

    text = folded(events).text
    assert text
    assert " Hello, wor".startswith(text)


@DRAFTS_OF_NAN
def test_invalid_numbers_are_an_error_with_every_sampling(
    zoo: Zoo, draft: str | None
) -> None:
    with loaded(zoo["nan"], draft_file(zoo, draft)) as session:
        for top_k, top_p in ((40, 0.9), (0, 0.9), (0, 1)):
            sampling = SamplingParams(seed=1, top_k=top_k, top_p=top_p)
            with pytest.raises(EngineError, match="invalid numbers"):
                say(session, "a", sampling=sampling)


WARM = SamplingParams(temperature=0.9, seed=7, repeat_penalty=1.1)


def check_seams(session: Session, asked: GenerateCommand, step: int = 1) -> Said:
    """An answer that is cut anywhere and resumed is the same; returns the whole answer."""
    whole = folded(session.generate(replace(asked, spec="off")))
    shown: list[str] = []
    for event in whole.rounds:
        shown += [token.text for token in event.tokens]
    for cut in range(0, len(whole.ids) + 1, step):
        begun = tuple(whole.ids[:cut])
        rest = folded(session.generate(replace(asked, resumed_tokens=begun)))
        assert [*begun, *rest.ids] == whole.ids, (asked.spec, cut)
        assert "".join(shown[:cut]) + rest.text == whole.text
        assert rest.reason == whole.reason
    return whole


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("target", "cousin"),
        ("sliding", "target"),
        ("hybrid", "target"),
        ("deep", "eagle3"),
        ("recurrent", None),
    ],
)
def test_an_answer_goes_on_in_this_process_and_in_another_one(
    zoo: Zoo, target: str, draft: str | None
) -> None:
    """Another process reads everything first."""
    require_same_logits_at_every_width(zoo[target])
    draft_path = draft_file(zoo, draft)
    asked = GenerateCommand(PROMPT, WARM, max_tokens=24)
    specs = ("off", "model", "lookup", "auto") if draft else ("lookup",)
    with loaded(zoo[target], draft_path) as session:
        for sampling, spec in product((GREEDY, WARM), specs):
            request = replace(asked, sampling=sampling, spec=spec)
            whole = check_seams(session, request, step=3)
    with loaded(zoo[target], draft_path) as session:
        begun = tuple(whole.ids[:9])
        events = list(session.generate(replace(asked, resumed_tokens=begun)))
    rest = folded(events)
    known = whole.totals["prompt_tokens"] + len(begun)
    assert [*begun, *rest.ids] == whole.ids
    assert {event.total for event in events if isinstance(event, Prefill)} == {known}
    assert rest.totals["prompt_tokens"] == known
    assert rest.totals["tokens"] == 24 - 9


def check_seams_with_and_without_draft(
    model: Path, request: GenerateCommand, text: str
) -> None:
    with loaded(model, model, replace(SETTINGS, n_ctx=2048)) as session:
        for spec in ("off", "model"):
            asked = replace(request, sampling=GREEDY, max_tokens=200, spec=spec)
            assert check_seams(session, asked).text == text


def test_a_character_is_whole_across_the_seam(zoo: Zoo) -> None:
    request = GenerateCommand(messages=(ChatMessage("user", "Hi?"),))

    check_seams_with_and_without_draft(zoo["chatty"], request, CHAT_TEXT)


@pytest.mark.parametrize(
    ("stop", "text"),
    [("world", " Hello, "), ("o, w", " Hell"), ("!\n", " Hello, world")],
)
def test_a_stop_string_is_found_across_the_seam(stop: str, text: str, zoo: Zoo) -> None:
    """The tokens are ▁Hello , ▁wor ld ! and a line feed."""
    request = GenerateCommand("a", stop=(stop,))

    check_seams_with_and_without_draft(zoo["parrot"], request, text)


def test_an_answer_that_filled_its_context_stays_so(zoo: Zoo) -> None:
    with loaded(zoo["chatter"]) as session:
        begun = tuple(say(session, "a", max_tokens=5).ids) * 200

        rest = say(session, "a", max_tokens=999, resumed_tokens=begun)

        assert rest.ids == []
        assert rest.reason == "context"


def test_an_answer_with_tokens_of_another_model_is_refused_and_the_next_is_given(
    zoo: Zoo,
) -> None:
    with loaded(zoo["chatter"]) as session:
        with pytest.raises(UsageError, match="tokens that this model does not have"):
            say(session, PROMPT, resumed_tokens=(1, 99_999))

        next_answer = say(session, "a", max_tokens=len(CHATTER))

        assert next_answer.reason == "length"


PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "tags": {
                "type": "array",
                "items": {"enum": ["red", "green"]},
                "maxItems": 3,
            },
        },
        "required": ["name", "tags"],
    }
)
DATA = "data = "


@pytest.fixture(scope="module")
def demo() -> Iterator[Session]:
    folder = package_data_dir() / "demo"
    with loaded(folder / "demo-target.gguf", folder / "demo-draft.gguf") as session:
        yield session


def test_a_seed_is_a_text_whatever_speculates(demo: Session) -> None:
    for sampling in (
        SamplingParams(seed=0),
        SamplingParams(seed=1),
        SamplingParams(temperature=0),
    ):
        plain = say(demo, DATA, spec="off", sampling=sampling, json_schema=PERSON)
        assert plain.reason == "eog"
        assert list(json.loads(plain.text)) == ["name", "tags"]
        for spec in ("model", "lookup", "auto"):
            said = say(demo, DATA, spec=spec, sampling=sampling, json_schema=PERSON)
            assert said.ids == plain.ids, spec


def test_an_answer_is_resumed_within_its_grammar(demo: Session) -> None:
    whole = check_seams(demo, GenerateCommand(DATA, GREEDY, json_schema=PERSON), 4)
    with pytest.raises(GrammarError, match="text so far"):
        say(demo, DATA, grammar='root ::= "x"', resumed_tokens=tuple(whole.ids[:5]))


@pytest.mark.parametrize(
    "request_", [{"grammar": "root ::= missing"}, {"json_schema": "{"}]
)
def test_an_unusable_grammar_leaves_the_session_usable(
    demo: Session, request_: dict[str, str]
) -> None:
    with pytest.raises(GrammarError):
        say(demo, DATA, **request_)

    assert say(demo, DATA, grammar='root ::= "xyz"').text == "xyz"


def test_a_grammar_and_a_schema_exclude_each_other(demo: Session) -> None:
    with pytest.raises(UsageError):
        say(demo, DATA, grammar='root ::= "x"', json_schema="{}")


def test_the_answer_after_one_with_a_grammar_is_free(demo: Session) -> None:
    free = say(demo, DATA, max_tokens=20)
    say(demo, DATA, grammar='root ::= "xyz"')

    assert say(demo, DATA, max_tokens=20).ids == free.ids


@pytest.fixture(scope="module")
def thinker(zoo: Zoo) -> Iterator[Session]:
    with loaded(zoo["thinker"], zoo["thinker"]) as session:
        yield session


EVERY_SPEC = pytest.mark.parametrize("spec", ["off", "model", "lookup", "auto"])
THERE = GenerateCommand(
    messages=(ChatMessage("user", "Hi?"),),
    sampling=GREEDY,
    max_tokens=99,
    think=True,
    grammar='root ::= " "? "there" "."',
)
"""The answer must be "there.", with or without a space before it."""


@EVERY_SPEC
def test_thinking_is_free_and_the_answer_follows_the_grammar(
    thinker: Session, spec: str
) -> None:
    said = folded(thinker.generate(replace(THERE, spec=spec)))

    assert said.text == "They greet me; I greet back.</think> there."


@EVERY_SPEC
def test_the_answer_follows_the_grammar_after_thinking_that_was_cut(
    thinker: Session, spec: str
) -> None:
    said = folded(thinker.generate(replace(THERE, spec=spec, think_budget=2)))

    assert said.text.endswith("</think> there.")


@EVERY_SPEC
def test_an_answer_without_thinking_follows_the_grammar(
    thinker: Session, spec: str
) -> None:
    said = folded(thinker.generate(replace(THERE, spec=spec, think=False)))

    assert said.text == " there."

"""An answer read once more tells of its tokens what it would have told while it was written."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.rescore import rescore
from localspec.engine.session import Session
from localspec.engine.token_probabilities import TokenProbabilities, score_tokens
from localspec.engine.verifiers import make_verifier
from localspec.engine_process.client import EngineProcess
from localspec.errors import PromptTooLongError, UsageError
from localspec.protocol.events import TokenScore
from localspec.protocol.wire import InspectCommand, LoadCommand, SamplingParams
from tests.engine.laws import PROMPT
from tests.fakes import PLAIN, HistoryModel, Stop, StubbornModel, job, plain
from tests.sessions import SETTINGS, loaded, require_same_logits_at_every_width, say
from tests.support.zoo import Zoo

SAMPLED = SamplingParams(temperature=0.8, seed=5)
TEXT = "the one "


def written(n: int) -> tuple[list[int], list[TokenProbabilities]]:
    """An answer, and what was seen of it while it was written."""
    what = replace(job(PROMPT, n, sampling=PLAIN), score_tokens=score_tokens)
    got = plain(HistoryModel(1), make_verifier("coupled", 2), what)
    return got.tokens, [seen for step in got.steps for seen in step.probabilities]


# --- on fakes ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HistoryModel, StubbornModel])
def test_each_token_is_seen_as_it_was(kind: type[HistoryModel]) -> None:
    tokens, seen = written(40)
    for width, n in product((1, 2, 5, 17), (0, 1, 2, 16, 17, 18, 40)):
        target = PrefixCache(kind(1, n_batch=8))
        target.decode([*PROMPT, 0, 0], 0)
        passes = list(rescore(target, PROMPT, tokens[:n], width, lambda: False))
        assert [one for part in passes for one in part] == seen[:n]
        assert all(len(part) <= width for part in passes)
        if n:
            assert target.n_cached == target.model.n_past == len(PROMPT) + n - 1
            assert target.rewind_to([*PROMPT, *tokens[:n], 0]) == len(PROMPT) + n - 1


def test_where_it_is_stopped_the_first_are_known() -> None:
    tokens, seen = written(40)
    target = PrefixCache(HistoryModel(1))
    passes = list(rescore(target, PROMPT, tokens, 4, Stop(3)))
    assert [one for part in passes for one in part] == seen[:12]
    assert target.rewind_to([*PROMPT, *tokens]) == target.n_cached == len(PROMPT) + 11


def test_a_stop_while_the_prompt_is_read() -> None:
    prompt = PROMPT * 10
    target = PrefixCache(HistoryModel(1, n_batch=8))
    assert list(rescore(target, prompt, [1, 2, 3], 4, Stop(2))) == []


@pytest.mark.parametrize("tokens", [[6], [-1], [0] * 300])
def test_what_cannot_be_its_answer(tokens: list[int]) -> None:
    with pytest.raises(UsageError):
        list(rescore(PrefixCache(HistoryModel(1)), PROMPT, tokens, 4, lambda: False))


# --- on real models ---------------------------------------------------------------------


def inspected(session: Session, ids: list[int]) -> list[TokenScore]:
    asked = InspectCommand(tuple(ids), TEXT)
    return [place for part in session.inspect(asked) for place in part.places]


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid", "recurrent"])
def test_it_says_what_was_said_while_writing(zoo: Zoo, name: str) -> None:
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo["stranger"]) as session:
        said = say(session, TEXT, sampling=SAMPLED, probabilities=True, max_tokens=60)
        tokens = [token for event in said.rounds for token in event.tokens]
        places = inspected(session, said.ids)
        assert len(places) == 60
        for token, place in zip(tokens, places, strict=True):
            assert place.p_target == pytest.approx(token.p_target, abs=1e-5)
            assert place.rank == token.rank
            own = [other for other in token.alternatives if not other.was_drafted]
            first = {other.id for other in place.alternatives}
            assert first == {other.id for other in own} or len(own) < len(token.alternatives)
            assert all(other.text and not other.was_drafted for other in place.alternatives)
        again = say(session, TEXT, sampling=SAMPLED, max_tokens=60)
    assert again.ids == said.ids


def test_the_chat_goes_on_from_what_was_read(zoo: Zoo) -> None:
    with loaded(zoo["target"]) as session:
        said = say(session, TEXT, spec="off", max_tokens=40)
        words = session._target.vocabulary
        inspected(session, said.ids)
        reader = session._target_cache
        assert reader.n_cached == len(words.tokenize(TEXT)) + 39
        with pytest.raises(PromptTooLongError):
            list(session.inspect(InspectCommand((1,), "a" * 600)))
        with pytest.raises(UsageError):
            list(session.inspect(InspectCommand((10**6,), "a")))
        assert say(session, TEXT, spec="off", max_tokens=40).ids == said.ids


def test_through_the_engine_process(zoo: Zoo) -> None:
    worker = EngineProcess()
    try:
        worker.load(LoadCommand(str(zoo["parrot"]), None, SETTINGS))
        places = worker.inspect(InspectCommand(tuple(range(3, 43)), "a"))
        assert worker.inspect(InspectCommand((), "a")) == ()
    finally:
        worker.close()
    assert len(places) == 40
    assert all(isinstance(place, TokenScore) and len(place.alternatives) == 3 for place in places)

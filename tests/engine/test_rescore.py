"""Decoding a finished answer again: its passes and its probabilities."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.engine.rescore import rescore
from localspec.engine.session import Session
from localspec.errors import PromptTooLongError, UsageError
from localspec.protocol.events import TokenScore
from localspec.protocol.wire import (
    InspectCommand,
    ReplayCommand,
    ReplayResult,
    SamplingParams,
)
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.token_probabilities import N_ALTERNATIVES, TokenProbabilities
from localspec.spec.verifiers import make_verifier
from tests.spec import laws
from tests.support.fake_models import (
    PLAIN,
    HistoryModel,
    Stop,
    StubbornModel,
    job,
    plain,
)
from tests.support.sessions import (
    GREEDY,
    Said,
    loaded,
    require_same_logits_at_every_width,
    say,
)
from tests.support.zoo import Zoo

PROMPT = "the one "
SEEDED = SamplingParams(temperature=0.8, seed=3)
PENALISED = replace(SEEDED, repeat_penalty=1.3)


@pytest.fixture(scope="module", params=["target", "f32", "hybrid"])
def session(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[Session]:
    with loaded(zoo[request.param], zoo["cousin"]) as session:
        yield session


def spoken(session: Session, sampling: SamplingParams, spec: str) -> Said:
    """As from a fresh session: an empty replay forgets the text."""
    session.replay(ReplayCommand(PROMPT, (), (), ()))
    asked = {"sampling": sampling, "spec": spec, "draft_length": 3, "max_tokens": 60}
    return say(session, PROMPT, **asked)


def replayed(session: Session, said: Said, sampling: SamplingParams) -> ReplayResult:
    passes = said.rounds[1:]
    widths = tuple(event.drafted + 1 for event in passes)
    emitted = tuple(len(event.tokens) for event in passes)
    return session.replay(
        ReplayCommand(PROMPT, tuple(said.ids), widths, emitted, sampling)
    )


def test_the_same_passes_pick_the_same_tokens(session: Session) -> None:
    """Whatever widths round to; and the next answer is as from fresh."""
    for sampling, spec in product(
        (GREEDY, SEEDED, PENALISED), ("off", "model", "lookup", "auto")
    ):
        said = spoken(session, sampling, spec)
        found = replayed(session, said, sampling)
        assert list(found.best) == said.ids, spec
        assert all(0 < p <= 1 for p in found.probability)
        assert all(0 <= mass <= 1 for mass in (*found.below, *found.above))
    first = spoken(session, GREEDY, "model")
    replayed(session, first, GREEDY)
    again = say(session, PROMPT, spec="model", draft_length=3, max_tokens=60)
    assert (again.ids, again.totals["reused_tokens"]) == (first.ids, 0)


def test_a_distribution_whose_parts_are_known(zoo: Zoo) -> None:
    """Every token of the vocabulary as the first: the parts add up to one distribution."""
    with loaded(zoo["target"]) as session:
        asked = [
            session.replay(ReplayCommand(PROMPT, (t,), (), (), PLAIN))
            for t in range(300)
        ]
    probability, below, above = (
        np.array([getattr(each, name)[0] for each in asked])
        for name in ("probability", "below", "above")
    )
    assert np.allclose(below, probability.cumsum() - probability)
    order = np.argsort(-probability, kind="stable")
    likelier = probability[order].cumsum() - probability[order]
    rest = 1 - probability.sum()  # the tokens from 300 on
    assert np.all(above[order] - likelier >= -1e-9)
    assert np.all(above[order] - likelier <= rest + 1e-9)


def written(n: int) -> tuple[list[int], list[TokenProbabilities]]:
    what = replace(job(laws.PROMPT, n, sampling=PLAIN), n_alternatives=N_ALTERNATIVES)
    got = plain(HistoryModel(1), make_verifier("coupled", 2), what)
    return got.tokens, [seen for step in got.steps for seen in step.probabilities]


@pytest.mark.parametrize("kind", [HistoryModel, StubbornModel])
def test_each_token_is_seen_as_it_was(kind: type[HistoryModel]) -> None:
    tokens, seen = written(40)
    for width, n in product((1, 2, 5, 17), (0, 1, 2, 16, 17, 18, 40)):
        target = PrefixCache(kind(1, n_batch=8))
        target.decode([*laws.PROMPT, 0, 0], 0)
        passes = list(rescore(target, laws.PROMPT, tokens[:n], width, lambda: False))
        assert [one for part in passes for one in part] == seen[:n]
        assert all(len(part) <= width for part in passes)
        if n:
            assert target.n_cached == target.model.n_past == len(laws.PROMPT) + n - 1
            assert (
                target.rewind_to([*laws.PROMPT, *tokens[:n], 0])
                == len(laws.PROMPT) + n - 1
            )


def test_where_it_is_stopped_the_first_are_known() -> None:
    tokens, seen = written(40)
    target = PrefixCache(HistoryModel(1))
    passes = list(rescore(target, laws.PROMPT, tokens, 4, Stop(3)))
    assert [one for part in passes for one in part] == seen[:12]
    assert (
        target.rewind_to([*laws.PROMPT, *tokens])
        == target.n_cached
        == len(laws.PROMPT) + 11
    )
    for wrong in ([6], [-1], [0] * 300):
        with pytest.raises(UsageError):
            list(rescore(target, laws.PROMPT, wrong, 4, lambda: False))


def inspected(
    session: Session, ids: list[int], prompt: str = PROMPT
) -> list[TokenScore]:
    asked = InspectCommand(prompt, tokens=tuple(ids))
    return [place for part in session.inspect(asked) for place in part.places]


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid", "recurrent"])
def test_it_says_what_was_said_while_writing_and_the_chat_goes_on(
    zoo: Zoo, name: str
) -> None:
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo["stranger"]) as session:
        said = say(session, PROMPT, sampling=SEEDED, probabilities=True, max_tokens=60)
        tokens = [token for event in said.rounds for token in event.tokens]
        places = inspected(session, said.ids)
        assert len(places) == 60
        for token, place in zip(tokens, places, strict=True):
            assert place.p_target == pytest.approx(token.p_target, abs=1e-5)
            assert place.rank == token.rank
            own = [other for other in token.alternatives if not other.was_drafted]
            first = {other.id for other in place.alternatives}
            assert first == {other.id for other in own} or len(own) < len(
                token.alternatives
            )
            assert all(
                other.text and not other.was_drafted for other in place.alternatives
            )
        n_prompt = len(session._target.vocabulary.tokenize(PROMPT))
        assert session._target_cache.n_cached == n_prompt + 59
        with pytest.raises(PromptTooLongError):
            inspected(session, [1], "a" * 600)
        with pytest.raises(UsageError):
            inspected(session, [10**6])
        assert say(session, PROMPT, sampling=SEEDED, max_tokens=60).ids == said.ids

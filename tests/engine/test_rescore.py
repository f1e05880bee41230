"""Decoding a finished answer again: its passes and its probabilities."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.engine.rescore import rescore
from localspec.engine.session import Session
from localspec.errors import PromptTooLongError, UsageError
from localspec.protocol.events import Round, Token, TokenScore
from localspec.protocol.wire import (
    InspectCommand,
    ReplayCommand,
    ReplayResult,
    SamplingParams,
)
from localspec.spec.picture_ids import list_row_ids, make_picture_id
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.token_probabilities import N_ALTERNATIVES, TokenProbabilities
from localspec.spec.verifiers import make_verifier
from tests.spec import laws
from tests.support.fake_models import (
    PLAIN,
    HistoryModel,
    SeeingModel,
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


def replay_command(
    tokens: Sequence[int], rounds: Sequence[Round], sampling: SamplingParams
) -> ReplayCommand:
    return ReplayCommand(
        PROMPT,
        tokens=tuple(tokens),
        widths=tuple(event.drafted + 1 for event in rounds),
        emitted=tuple(len(event.tokens) for event in rounds),
        sampling=sampling,
    )


def answer_afresh(session: Session, sampling: SamplingParams, spec: str) -> Said:
    """An answer as from a fresh session: an empty replay empties the memory."""
    session.replay(replay_command((), (), GREEDY))
    asked = {"sampling": sampling, "spec": spec, "draft_length": 3, "max_tokens": 60}
    return say(session, PROMPT, **asked)


def replayed(session: Session, said: Said, sampling: SamplingParams) -> ReplayResult:
    later_rounds = said.rounds[1:]  # The first reads the prompt.
    return session.replay(replay_command(said.ids, later_rounds, sampling))


def test_the_same_passes_pick_the_same_tokens(session: Session) -> None:
    """They do so even where passes of different widths round differently."""
    samplings = (GREEDY, SEEDED, PENALISED)
    for sampling, spec in product(samplings, ("off", "model", "lookup", "auto")):
        said = answer_afresh(session, sampling, spec)

        found = replayed(session, said, sampling)

        assert list(found.best) == said.ids, spec
        assert all(0 < p <= 1 for p in found.probability)
        assert all(0 <= mass <= 1 for mass in (*found.below, *found.above))


def test_the_answer_after_a_replay_is_as_from_a_fresh_session(
    session: Session,
) -> None:
    first = answer_afresh(session, GREEDY, "model")
    replayed(session, first, GREEDY)

    again = say(session, PROMPT, spec="model", draft_length=3, max_tokens=60)

    assert again.ids == first.ids
    assert again.totals["reused_tokens"] == 0


def test_a_distribution_whose_parts_are_known(zoo: Zoo) -> None:
    """Every token of the vocabulary as the first: the parts add up to one distribution."""
    with loaded(zoo["target"]) as session:
        results = [
            session.replay(replay_command((token,), (), PLAIN)) for token in range(300)
        ]
    probability = np.array([result.probability[0] for result in results])
    below = np.array([result.below[0] for result in results])
    above = np.array([result.above[0] for result in results])
    assert np.allclose(below, probability.cumsum() - probability)
    order = np.argsort(-probability, kind="stable")
    likelier = probability[order].cumsum() - probability[order]
    rest = 1 - probability.sum()  # the tokens from 300 on
    assert np.all(above[order] - likelier >= -1e-9)
    assert np.all(above[order] - likelier <= rest + 1e-9)


Scores = list[TokenProbabilities]


def written(n: int, prompt: Sequence[int] = laws.PROMPT) -> tuple[list[int], Scores]:
    """The tokens of an answer, and their probabilities as they were generated."""
    what = replace(job(list(prompt), n, sampling=PLAIN), n_alternatives=N_ALTERNATIVES)
    got = plain(SeeingModel(1), make_verifier("coupled", 2), what)
    seen: Scores = []
    for step in got.steps:
        seen += step.probabilities
    return got.tokens, seen


def rescored(
    target: PrefixCache,
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool] = lambda: False,
    *,
    prompt: Sequence[int] = laws.PROMPT,
) -> Scores:
    """The probabilities of all passes; none is wider than `width`."""
    scores: Scores = []
    for part in rescore(
        target, list(prompt), tokens=tokens, width=width, cancelled=cancelled
    ):
        assert len(part) <= width
        scores += part
    return scores


@pytest.mark.parametrize("kind", [HistoryModel, StubbornModel])
def test_each_token_is_seen_as_it_was(kind: type[HistoryModel]) -> None:
    tokens, seen = written(40)
    for width, n in product((1, 2, 5, 17), (0, 1, 2, 16, 17, 18, 40)):
        target = PrefixCache(kind(1, n_batch=8))
        target.decode([*laws.PROMPT, 0, 0], 0)

        scores = rescored(target, tokens[:n], width)

        assert scores == seen[:n]
        if n:
            n_all_but_last = len(laws.PROMPT) + n - 1
            assert target.n_cached == n_all_but_last
            assert target.model.n_past == n_all_but_last
            longer = [*laws.PROMPT, *tokens[:n], 0]
            assert target.rewind_to(longer) == n_all_but_last


@pytest.mark.parametrize("n_rows", [4, 7, 8])
def test_a_picture_at_the_end_of_the_prompt_may_fill_a_pass(n_rows: int) -> None:
    prompt = [1, 2, *list_row_ids(make_picture_id(0), n_rows)]
    tokens, seen = written(20, prompt)
    for width in (1, 2, 5, 8, 17):
        target = PrefixCache(SeeingModel(1, n_batch=8))

        assert rescored(target, tokens, width, prompt=prompt) == seen
        assert target.n_cached == len(prompt) + len(tokens) - 1


def test_where_it_is_stopped_the_first_are_known() -> None:
    tokens, seen = written(40)
    target = PrefixCache(HistoryModel(1))

    scores = rescored(target, tokens, width=4, cancelled=Stop(3))

    assert scores == seen[:12]
    n_all_but_last = len(laws.PROMPT) + 11
    assert target.n_cached == n_all_but_last
    assert target.rewind_to([*laws.PROMPT, *tokens]) == n_all_but_last


def test_tokens_that_cannot_be_scored_are_refused() -> None:
    target = PrefixCache(HistoryModel(1))
    for wrong in ([6], [-1], [0] * 300):
        with pytest.raises(UsageError):
            rescored(target, wrong, width=4)


def inspected(
    session: Session, ids: list[int], prompt: str = PROMPT
) -> list[TokenScore]:
    places: list[TokenScore] = []
    for part in session.inspect(InspectCommand(prompt, tokens=tuple(ids))):
        places += part.places
    return places


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid", "recurrent"])
def test_it_says_what_was_said_while_writing_and_the_chat_goes_on(
    zoo: Zoo, name: str
) -> None:
    require_same_logits_at_every_width(zoo[name])
    with loaded(zoo[name], zoo["stranger"]) as session:
        said = say(session, PROMPT, sampling=SEEDED, probabilities=True, max_tokens=60)
        tokens: list[Token] = []
        for event in said.rounds:
            tokens += event.tokens
        places = inspected(session, said.ids)
        assert len(places) == 60
        for token, place in zip(tokens, places, strict=True):
            assert place.p_target == pytest.approx(token.p_target, abs=1e-5)
            assert place.rank == token.rank
            own = [other for other in token.alternatives if not other.was_drafted]
            # Beside a rejected draft token there is one alternative fewer.
            if len(own) == len(token.alternatives):
                own_ids = {other.id for other in own}
                assert {other.id for other in place.alternatives} == own_ids
            for other in place.alternatives:
                assert other.text
                assert not other.was_drafted
        n_prompt = len(session._target.vocabulary.tokenize(PROMPT))
        assert session._target_cache.n_cached == n_prompt + 59
        with pytest.raises(PromptTooLongError):
            inspected(session, [1], "a" * 600)
        with pytest.raises(UsageError):
            inspected(session, [10**6])
        assert say(session, PROMPT, sampling=SEEDED, max_tokens=60).ids == said.ids

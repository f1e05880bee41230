"""What a draft is judged to reach is what it reaches when it is run."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.bench import draft_test
from localspec.engine import draft_scoring
from localspec.engine.draft_scoring import ScoredAnswer
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    DraftScore,
    GenerateCommand,
    MeasuredCosts,
    SamplingParams,
    ScoreDraftCommand,
)
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.prepared_answer import TokenPart
from localspec.spec.protocols import Drafter
from localspec.spec.verifiers import make_verifier
from tests.spec.laws import PROMPT, SAMPLED, MakeModel, history
from tests.support.fake_models import (
    GREEDY,
    N_VOCAB,
    PLAIN,
    HistoryModel,
    StubbornModel,
    job,
    model_drafter,
    plain,
    run,
)
from tests.support.sessions import loaded, require_same_logits_at_every_width, say
from tests.support.zoo import Zoo

COSTS = MeasuredCosts(10.0, {"1": 1.0, "2": 1.2, "9": 2.0}, 0.1)
N = 60


def recorded(
    sampling: SamplingParams, make: MakeModel = history
) -> tuple[ScoredAnswer, ScoreDraftCommand]:
    prepared = job(PROMPT, N, sampling=sampling)
    tokens = tuple(plain(make(), prepared.verifier, prepared).tokens)
    answer = ScoredAnswer(prepared, tokens, N_VOCAB)
    request = GenerateCommand(sampling=sampling, max_tokens=N)
    return answer, ScoreDraftCommand(request, tokens)


def rates(command: ScoreDraftCommand, score: DraftScore) -> dict[int, RoundTotals]:
    found = draft_test.judge("draft", "model", [(command, score)], COSTS)
    return {length: rates.totals for length, rates in found.by_length.items()}


def counted(
    drafter: Drafter, sampling: SamplingParams, length: int, make: MakeModel = history
) -> list[int]:
    """Drafted and accepted tokens, and rounds that drafted, of a real run."""
    what = job(PROMPT, N, sampling=sampling, draft_length=length)
    steps = run(make(), drafter, make_verifier("coupled", sampling.seed), what).steps
    drafting = [step for step in steps if step.draft.tokens]
    return [
        sum(len(step.draft.tokens) for step in drafting),
        sum(step.accepted for step in drafting),
        len(drafting),
    ]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_a_model_reaches_what_it_is_judged_to_reach(sampling: SamplingParams) -> None:
    answer, command = recorded(sampling)
    for seed, length in product((1, 2), (1, 2, 3, 5, 8)):
        score = draft_scoring.score_model(PrefixCache(HistoryModel(seed)), answer)
        got = rates(command, score)[length]
        verifier = make_verifier("coupled", sampling.seed)
        drafter = model_drafter(HistoryModel(seed), verifier, sampling, len(PROMPT))
        expected = counted(drafter, sampling, length)
        assert [got.drafted, got.accepted, got.rounds] == expected


@pytest.mark.parametrize(
    ("target", "draft", "drafter"),
    [
        ("target", "cousin", "model"),
        ("target", "cousin", "lookup"),
        ("deep", "eagle3", "eagle3"),
        ("mimo", "mimo", "mtp"),
    ],
)
def test_a_loaded_draft_reaches_what_it_is_judged_to_reach(
    zoo: Zoo, target: str, draft: str, drafter: str
) -> None:
    """So hot that a head with random weights is right now and then."""
    require_same_logits_at_every_width(zoo[target])
    given: dict[str, Any] = {
        "sampling": replace(PLAIN, temperature=2.0, seed=3),
        "max_tokens": 90,
    }
    if drafter == "lookup":
        given["sampling"] = GREEDY
    with loaded(zoo[target], zoo[draft]) as session:
        ids = tuple(say(session, "the one ", spec="off", **given).ids)
        request = GenerateCommand("the one ", **given)
        asked: Any = "lookup" if drafter == "lookup" else "model"
        command = ScoreDraftCommand(request, ids, asked)
        score = session.score_draft(command)
        said = say(session, "the one ", spec=drafter, draft_length=3, **given)
    got = rates(command, score)[3]
    assert said.ids == list(ids)
    assert got.accepted == said.speculation["accepted"] > 0
    assert got.drafted == pytest.approx(said.speculation["drafted"], abs=3)


def test_speed_is_by_the_costs_of_the_passes() -> None:
    """Four tokens a round: a pass of the target four wide, and three of the draft."""
    command = ScoreDraftCommand(GenerateCommand(max_tokens=1000), tuple(range(401)))
    every = DraftScore((16,) * 401, (16,) * 401)
    found = draft_test.judge("draft", "model", [(command, every)], COSTS)
    assert found.by_length[3].totals.mean_accepted_length == 4.0
    passes = 3 * 0.1 + 1.2 + 2 / 7 * 0.8
    assert found.by_length[3].tokens_per_second == pytest.approx(
        4 / passes * 100, rel=0.01
    )
    never = DraftScore((16,) * 401, (0,) * 401)
    none = draft_test.judge("draft", "model", [(command, never)], COSTS)
    assert none.best_length == 1
    assert none.speedup < 1


def test_rounds_without_a_draft_are_not_counted() -> None:
    """Lookup finds three tokens at one place of the answer, and all are accepted."""
    command = ScoreDraftCommand(GenerateCommand(max_tokens=1000), tuple(range(401)))
    n_found = [0] * 401
    n_found[9] = 3
    score = DraftScore(tuple(n_found), tuple(n_found))

    result = draft_test.judge("lookup", "lookup", [(command, score)], COSTS)

    totals = result.by_length[3].totals
    assert totals.rounds == 1
    assert totals.mean_accepted_length == 4.0


def test_an_answer_that_fills_the_drafts_context_is_judged_as_far_as_it_reaches() -> (
    None
):
    answer, _ = recorded(GREEDY)
    score = draft_scoring.score_model(PrefixCache(HistoryModel(1, n_ctx=20)), answer)
    assert len(score.accepted) == N
    assert all(n == 0 for n in score.accepted[20 - len(PROMPT) :])


@pytest.mark.parametrize("model", [HistoryModel, StubbornModel])
def test_answers_are_judged_alike_whatever_was_judged_before(
    model: type[HistoryModel],
) -> None:
    """The second text begins as the first. If possible, that is not read again."""
    answer, _ = recorded(SAMPLED)
    parts = (TokenPart([*answer.prompt[:-1], 5]),)
    other = replace(
        answer,
        prepared=replace(answer.prepared, parts=parts),
        tokens=answer.tokens[:40],
    )
    alone = [
        draft_scoring.score_model(PrefixCache(model(1)), one) for one in (answer, other)
    ]
    reader = model(1)
    draft = PrefixCache(reader)
    assert [draft_scoring.score_model(draft, one) for one in (answer, other)] == alone
    reader.reads.clear()
    draft_scoring.score_model(draft, answer)
    n_shared = len(answer.prompt) - 1 if model is HistoryModel else 0
    assert sum(reader.reads) == len(answer.prompt) + N - 1 - n_shared

"""Probabilities belong to the right token, change nothing, and cost nothing unasked."""

import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.protocol.events import Token
from localspec.protocol.wire import SamplingParams, VerifyMode
from localspec.spec import speculative_loop
from localspec.spec.drafters import NoDrafter
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import Draft, Drafter, Logits
from localspec.spec.token_probabilities import (
    N_ALTERNATIVES,
    TokenProbabilities,
    score_tokens,
)
from localspec.spec.verifiers import make_verifier
from tests.spec.laws import MODES, PROMPT, SAMPLED
from tests.support.fake_models import (
    GREEDY,
    N_VOCAB,
    PLAIN,
    FakeModel,
    HistoryModel,
    OracleDrafter,
    RandomDrafter,
    Run,
    StubbornModel,
    job,
    model_drafter,
    plain,
    run,
)
from tests.support.sessions import Said, loaded, say
from tests.support.zoo import Zoo

PENALISED = replace(SAMPLED, repeat_penalty=1.4, repeat_last_n=8)
SAMPLINGS = {"greedy": GREEDY, "cut": SAMPLED, "whole": PLAIN, "penalised": PENALISED}
NEAR = 1e-6


def softmax(row: Logits) -> NDArray[np.float64]:
    exact = np.exp(row.astype(np.float64) - float(row.max()))
    return np.asarray(exact / exact.sum())


def order(row: Logits) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def alone(row: Sequence[float], token: int) -> TokenProbabilities:
    (insight,) = score_tokens(np.array([row], np.float32), [token], Draft())
    return insight


@pytest.mark.parametrize("n_vocab", [1, 3, 5000])
@pytest.mark.parametrize("spread", [0.0, 30.0])
def test_the_probabilities_of_all_tokens_add_up_to_one(
    n_vocab: int, spread: float
) -> None:
    row = (
        np.random.default_rng(n_vocab)
        .normal(scale=spread, size=n_vocab)
        .astype(np.float32)
    )
    rows = np.broadcast_to(row, (n_vocab, n_vocab))
    insights = score_tokens(rows, range(n_vocab), Draft())
    expected = softmax(row)
    assert sum(insight.chosen.p for insight in insights) == pytest.approx(1.0, abs=NEAR)
    assert [insight.chosen.id for insight in insights] == list(range(n_vocab))
    assert [insight.chosen.p for insight in insights] == pytest.approx(
        expected, rel=1e-5
    )
    ranks = {insight.chosen.id: insight.chosen.rank for insight in insights}
    assert sorted(ranks, key=ranks.__getitem__) == order(row)
    assert sorted(ranks.values()) == list(range(1, n_vocab + 1))


def test_a_token_that_cannot_be_has_no_probability() -> None:
    seen = alone([0.0, -math.inf, -math.inf], 0)
    assert seen.chosen.p == 1.0
    others = [(other.id, other.p, other.rank) for other in seen.alternatives]
    assert others == [(1, 0, 2), (2, 0, 3)]
    assert alone([1e4, -1e4], 1).chosen.p == 0.0


def test_a_token_that_the_draft_does_not_have_or_did_not_choose() -> None:
    row = np.arange(6, 0, -1, dtype=np.float32)
    theirs = np.zeros(5, np.float32)
    (unknown,) = score_tokens(row[None], [5], Draft([2], logits=[theirs]))
    assert unknown.chosen.p_draft == 0.0
    forced = score_tokens(np.array([row, row]), [2, 3], Draft([2, 3], logits=[theirs]))[
        1
    ]
    assert forced.chosen.p_draft is None, "by a grammar"


class Cousin(HistoryModel):
    def row(self, past: Sequence[int]) -> Logits:
        return np.asarray(
            HistoryModel(1).row(past) + 0.5 * super().row(past), np.float32
        )


def check(
    got: Run, prompt: Sequence[int], target: FakeModel, draft: FakeModel | None
) -> None:
    """Every token's insight, from rows computed again: these models only know the text."""
    text = list(prompt)
    for step in got.steps:
        assert len(step.probabilities) == len(step.tokens)
        for i, (token, seen) in enumerate(
            zip(step.tokens, step.probabilities, strict=True)
        ):
            row = target.row(text)
            guessed = step.draft.tokens[i : i + 1]
            theirs = softmax(draft.row(text)) if draft and guessed else None
            p = softmax(row)
            best = order(row)
            assert seen.chosen.id == token
            assert seen.chosen.p == pytest.approx(p[token], abs=NEAR)
            assert seen.chosen.rank == best.index(token) + 1
            if theirs is None:
                assert seen.chosen.p_draft is None
            else:
                assert seen.chosen.p_draft == pytest.approx(theirs[token])
            rejected = [guess for guess in guessed if guess != token]
            assert [
                other.id for other in seen.alternatives if other.was_drafted
            ] == rejected
            others = [other for other in best if other not in (token, *rejected)][
                :N_ALTERNATIVES
            ]
            assert [other.id for other in seen.alternatives] == [*rejected, *others]
            for other in seen.alternatives:
                assert other.p == pytest.approx(p[other.id], abs=NEAR)
                assert other.rank == best.index(other.id) + 1
                if other.was_drafted and theirs is not None:
                    assert other.p_draft == pytest.approx(theirs[other.id])
                else:
                    assert other.p_draft is None
            text.append(token)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("mode", MODES)
def test_each_verifier_with_a_draft_model(
    mode: VerifyMode, sampling: SamplingParams
) -> None:
    seed = 1
    sampling = replace(sampling, seed=seed)
    what = job(PROMPT, 60, sampling=sampling, draft_length=4)
    answers = []
    for asked in (False, True):
        verifier = make_verifier(mode, seed)
        start = len(what.prompt)
        drafter = model_drafter(Cousin(2), verifier, sampling, start, keep_logits=asked)
        n_alternatives = N_ALTERNATIVES if asked else None
        this = replace(what, n_alternatives=n_alternatives)
        answers.append(run(HistoryModel(1), drafter, verifier, this))
    without, got = answers
    check(got, PROMPT, HistoryModel(1), Cousin(2))
    assert 10 < sum(got.accepted) < sum(map(len, got.drafts))
    assert (got.tokens, got.end, got.drafts) == (
        without.tokens,
        without.end,
        without.drafts,
    )
    assert not any(step.probabilities for step in without.steps)
    assert all(step.draft.logits is None for step in without.steps)


@pytest.mark.parametrize("kind", [HistoryModel, StubbornModel])
def test_drafts_that_no_model_made_and_an_end_inside_one(
    kind: type[HistoryModel],
) -> None:
    """The second kind cannot be cut.

    After each rejection it reads the text from its start.
    """
    free = plain(HistoryModel(1), make_verifier("coupled", 0), job(PROMPT, 40)).tokens
    end = next(token for i, token in enumerate(free) if i > 2 and token not in free[:i])
    oracle = OracleDrafter([*PROMPT, *free], N_VOCAB)
    drafted: list[tuple[Drafter, PreparedAnswer]] = [
        (RandomDrafter(1), job(PROMPT, 60, sampling=replace(PLAIN, seed=1))),
        (oracle, job(PROMPT, 40, draft_length=20, ends=[end])),
    ]
    for drafter, what in drafted:
        verifier = make_verifier("coupled", what.sampling.seed)
        asked = replace(what, n_alternatives=N_ALTERNATIVES)
        got = run(kind(1, n_batch=24), drafter, verifier, asked)
        check(got, PROMPT, HistoryModel(1), None)
        assert sum(got.accepted) > 0
    assert got.end == "eog"
    assert len(got.steps[-1].tokens) < len(got.steps[-1].draft.tokens)


def test_the_time_of_looking_is_not_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or costs would be learned that are only there while someone watches."""
    now = [0.0]
    monkeypatch.setattr(
        speculative_loop, "time", SimpleNamespace(perf_counter=lambda: now[0])
    )

    def score_slowly(
        rows: Logits, tokens: Sequence[int], draft: Draft, n_alternatives: int
    ) -> tuple[TokenProbabilities, ...]:
        now[0] += 60.0
        return score_tokens(rows, tokens, draft, n_alternatives)

    monkeypatch.setattr(speculative_loop, "score_tokens", score_slowly)

    def host(n_alternatives: int | None) -> float:
        what = replace(job(PROMPT, 10), n_alternatives=n_alternatives)
        got = run(HistoryModel(1), NoDrafter(), make_verifier("coupled", 0), what)
        return max(abs(step.ms.host) for step in got.steps)

    watched = host(N_ALTERNATIVES)
    assert now[0] >= 60.0
    assert watched == pytest.approx(host(None), abs=1e-3)


TEXT = "the one "
WARM = SamplingParams(temperature=0.8, seed=5)


def emitted(said: Said) -> list[Token]:
    tokens: list[Token] = []
    for event in said.rounds:
        tokens.extend(event.tokens)
    return tokens


def test_the_end_has_a_probability_and_no_text(zoo: Zoo) -> None:
    with loaded(zoo["parrot"], zoo["parrot"]) as session:
        said = say(session, "a", spec="model", probabilities=True)
    end = emitted(said)[-1]
    assert (said.reason, end.text, end.rank) == ("eog", "", 1)
    assert end.p_target is not None

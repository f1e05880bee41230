"""A model drafts what it would say, from the text as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import eq

import pytest

from localspec.engine import drafters
from localspec.engine.drafters import NoDrafter
from localspec.engine.drafters.lookup import LookupDrafter
from localspec.engine.drafters.model import ModelDrafter
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Draft
from localspec.engine.sampling import compute_distribution
from localspec.engine.verifiers import (
    GumbelCoupledVerifier,
    RejectionVerifier,
    SeededRandom,
    make_verifier,
)
from localspec.protocol.wire import SamplingParams
from tests.engine.laws import PROMPT, SAMPLED
from tests.support.fake_models import (
    GREEDY,
    PLAIN,
    HistoryModel,
    StubbornModel,
    job,
    model_drafter,
    plain,
    run,
)


def test_it_drafts_what_it_would_say() -> None:
    model = HistoryModel(1)
    expected = plain(HistoryModel(1), make_verifier("coupled", 0), job(PROMPT, 4)).tokens
    drafter = model_drafter(model, make_verifier("coupled", 0), GREEDY, len(PROMPT))
    draft = drafter.propose(PROMPT, 4)
    assert (draft.tokens, draft.source) == (expected, "model")
    assert draft.decode_seconds == model.decode_seconds > 0


def test_its_laws_are_those_it_drew_from() -> None:
    for verifier in (GumbelCoupledVerifier(3), RejectionVerifier(SeededRandom(3))):
        model = HistoryModel(1)
        drafter = model_drafter(model, verifier, SAMPLED, len(PROMPT))
        draft = drafter.propose(PROMPT, 4)
        assert draft.distributions is not None
        for i, (token, own) in enumerate(zip(draft.tokens, draft.distributions, strict=True)):
            expected = compute_distribution(model.row([*PROMPT, *draft.tokens[:i]]), SAMPLED)
            assert own.ids.tolist() == expected.ids.tolist()
            assert own.probs.tolist() == expected.probs.tolist()
            assert own.prob(token) > 0


def test_its_laws_see_the_penalty_for_its_own_guesses() -> None:
    sampling = replace(PLAIN, repeat_penalty=1.5, repeat_last_n=3)
    model = HistoryModel(1)
    draft = model_drafter(model, GumbelCoupledVerifier(3), sampling, len(PROMPT)).propose(PROMPT, 5)
    assert draft.distributions is not None
    for i, own in enumerate(draft.distributions):
        past = [*PROMPT, *draft.tokens[:i]]
        assert (
            own.probs.tolist()
            == compute_distribution(model.row(past), sampling, past).probs.tolist()
        )


def test_it_draws_by_the_noise_of_the_place_in_the_answer() -> None:
    model = HistoryModel(1)
    text = [*PROMPT, 4, 4]
    draft = model_drafter(model, GumbelCoupledVerifier(3), PLAIN, len(PROMPT)).propose(text, 4)
    assert draft.distributions is not None
    assert draft.tokens == [
        GumbelCoupledVerifier(3).sample_draft_token(own, 2 + i)
        for i, own in enumerate(draft.distributions)
    ]


def test_it_stops_at_an_end_and_at_its_limit() -> None:
    free = (
        model_drafter(HistoryModel(1), GumbelCoupledVerifier(0), GREEDY, 5)
        .propose(PROMPT, 8)
        .tokens
    )
    for end in range(6):
        drafter = model_drafter(
            HistoryModel(1), GumbelCoupledVerifier(0), GREEDY, 5, is_eog=partial(eq, end)
        )
        cut = free[: free.index(end) + 1] if end in free else free
        assert drafter.propose(PROMPT, 8).tokens == cut
    for limit in range(1, 8):
        drafter = model_drafter(HistoryModel(1), GumbelCoupledVerifier(0), GREEDY, 5)
        assert drafter.propose(PROMPT, limit).tokens == free[:limit]


def test_what_it_has_not_read_rides_along() -> None:
    """One llama_decode a guess, also after a round of which it knows all but the last two."""
    model = HistoryModel(1)
    verifier = GumbelCoupledVerifier(0)
    drafter = model_drafter(model, verifier, GREEDY, len(PROMPT))
    run(HistoryModel(1), drafter, verifier, job(PROMPT, 13, draft_length=3))
    assert model.reads == [6, 1, 1, 2, 1, 1, 2, 1, 1]


def test_a_long_text_is_read_in_batches() -> None:
    model = HistoryModel(1, n_batch=4)
    text = [*PROMPT, *PROMPT, 0]
    draft = model_drafter(model, GumbelCoupledVerifier(0), GREEDY, len(text)).propose(text, 3)
    assert model.reads == [4, 4, 3, 1, 1]
    assert draft.tokens == plain(HistoryModel(1), GumbelCoupledVerifier(0), job(text, 3)).tokens


@pytest.mark.parametrize(("n_ctx", "guesses"), [(4, 0), (5, 0), (6, 1), (7, 2), (30, 4)])
def test_it_guesses_no_further_than_its_context(n_ctx: int, guesses: int) -> None:
    model = HistoryModel(1, n_ctx=n_ctx)
    draft = model_drafter(model, GumbelCoupledVerifier(0), GREEDY, len(PROMPT)).propose(PROMPT, 4)
    assert len(draft.tokens) == guesses
    if not guesses:
        assert draft == Draft(reason="the draft model's context is full")
        assert model.reads == []


def test_it_recovers_from_a_text_that_was_too_long() -> None:
    drafter = model_drafter(HistoryModel(1, n_ctx=8), GumbelCoupledVerifier(0), GREEDY, len(PROMPT))
    expected = drafter.propose(PROMPT, 3).tokens
    assert drafter.propose([*PROMPT, 0, 0, 0, 0], 3).tokens == []
    assert drafter.propose(list(PROMPT), 3).tokens == expected


def test_a_memory_that_cannot_be_cut_is_read_again() -> None:
    model = StubbornModel(1, n_batch=4)
    drafter = model_drafter(model, GumbelCoupledVerifier(0), GREEDY, len(PROMPT))
    text = list(PROMPT)
    for token in (0, 1, 2):
        draft = drafter.propose(text, 3)
        assert draft.tokens == plain(HistoryModel(1), GumbelCoupledVerifier(0), job(text, 3)).tokens
        text.append(token)


# --- vocabularies of two sizes ----------------------------------------------------------


def test_tokens_that_the_target_lacks_are_not_drafted() -> None:
    model = HistoryModel(1, n_vocab=9)
    verifier = RejectionVerifier(SeededRandom(0))
    draft = model_drafter(model, verifier, PLAIN, 5, n_vocab=6).propose(PROMPT, 20)
    assert draft.distributions is not None
    assert all(max(own.ids) < 6 for own in draft.distributions)
    assert all(own.probs.sum() == pytest.approx(1) for own in draft.distributions)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, replace(SAMPLED, repeat_penalty=1.3)])
def test_tokens_that_the_draft_lacks_change_nothing(sampling: SamplingParams) -> None:
    """A target may say what its draft's vocabulary, up to 128 tokens shorter, does not have."""
    what = job([1, 2, 3, 1, 2], 20, sampling=sampling, draft_length=3)
    verifier = make_verifier("coupled", sampling.seed)
    expected = plain(HistoryModel(1), verifier, what).tokens
    assert {4, 5} & set(expected)
    drafter = model_drafter(HistoryModel(2, n_vocab=4), verifier, sampling, 5, n_vocab=6)
    assert run(HistoryModel(1), drafter, verifier, what).tokens == expected


# --- by name ----------------------------------------------------------------------------


def needs(reader: PrefixCache | None) -> drafters.DrafterInputs:
    return drafters.DrafterInputs(
        reader, make_verifier("coupled", 0), GREEDY, 5, 6, lambda token: False
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("none", NoDrafter), ("lookup", LookupDrafter), ("model", ModelDrafter)]
)
def test_each_name_makes_its_drafter(name: str, kind: type) -> None:
    assert isinstance(drafters.make(name, needs(PrefixCache(HistoryModel(1)))), kind)


def test_every_name_can_be_made() -> None:
    for name in ("none", "lookup", "model"):
        drafter = drafters.make(name, needs(PrefixCache(HistoryModel(1))))
        assert len(drafter.propose(PROMPT, 3).tokens) <= 3


@pytest.mark.parametrize("name", ["magic", "", "../model", "MODEL"])
def test_another_name_makes_none(name: str) -> None:
    with pytest.raises(KeyError):
        drafters.make(name, needs(PrefixCache(HistoryModel(1))))


def test_a_model_drafter_needs_a_model() -> None:
    with pytest.raises(KeyError):
        drafters.make("model", needs(None))

"""A model drafts what it would say, from the text as it is."""

from __future__ import annotations

from dataclasses import replace

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
    FakeModel,
    HistoryModel,
    job,
    model_drafter,
    plain,
    run,
)

COUPLED = GumbelCoupledVerifier(0)


def greedy(model: FakeModel) -> ModelDrafter:
    return model_drafter(model, COUPLED, GREEDY, len(PROMPT))


def said(text: list[int], n: int) -> list[int]:
    return plain(HistoryModel(1), COUPLED, job(text, n)).tokens


@pytest.mark.parametrize("sampling", [SAMPLED, replace(PLAIN, repeat_penalty=1.5, repeat_last_n=3)])
def test_its_distributions_are_those_it_drew_from(sampling: SamplingParams) -> None:
    """With its own draft tokens among those that are penalised."""
    for verifier in (GumbelCoupledVerifier(3), RejectionVerifier(SeededRandom(3))):
        model, text = HistoryModel(1), list(PROMPT)
        draft = model_drafter(model, verifier, sampling, len(PROMPT)).propose(PROMPT, 5)
        assert draft.distributions is not None
        for token, own in zip(draft.tokens, draft.distributions, strict=True):
            expected = compute_distribution(model.row(text), sampling, text)
            assert own.ids.tolist() == expected.ids.tolist()
            assert own.probs.tolist() == expected.probs.tolist()
            assert own.prob(token) > 0
            text.append(token)


def test_what_it_has_not_read_rides_along() -> None:
    """One llama_decode a token, also after a round of which it knows all but the last two."""
    model = HistoryModel(1)
    run(HistoryModel(1), greedy(model), COUPLED, job(PROMPT, 13, draft_length=3))
    assert model.reads == [6, 1, 1, 2, 1, 1, 2, 1, 1]
    model = HistoryModel(1, n_batch=4)
    text = [*PROMPT, *PROMPT, 0]
    assert greedy(model).propose(text, 3).tokens == said(text, 3)
    assert model.reads == [4, 4, 3, 1, 1], "a long text is read in batches"


@pytest.mark.parametrize(("n_ctx", "n_tokens"), [(4, 0), (5, 0), (6, 1), (7, 2), (30, 4)])
def test_it_drafts_no_further_than_its_context(n_ctx: int, n_tokens: int) -> None:
    model = HistoryModel(1, n_ctx=n_ctx)
    draft = greedy(model).propose(PROMPT, 4)
    assert len(draft.tokens) == n_tokens
    if not n_tokens:
        assert draft == Draft(reason="the draft model's context is full")
        assert model.reads == []


def test_it_recovers_from_a_text_that_was_too_long() -> None:
    drafter = greedy(HistoryModel(1, n_ctx=8))
    expected = drafter.propose(PROMPT, 3).tokens
    assert drafter.propose([*PROMPT, 0, 0, 0, 0], 3).tokens == []
    assert drafter.propose(list(PROMPT), 3).tokens == expected


def test_tokens_that_the_target_lacks_are_not_drafted() -> None:
    model, verifier = HistoryModel(1, n_vocab=9), RejectionVerifier(SeededRandom(0))
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


def test_a_drafter_by_its_name() -> None:
    model = PrefixCache(HistoryModel(1))
    inputs = drafters.DrafterInputs(model, COUPLED, GREEDY, 5, 6, lambda token: False)
    kinds = {"none": NoDrafter, "lookup": LookupDrafter, "model": ModelDrafter}
    for name, kind in kinds.items():
        assert isinstance(drafters.make(name, inputs), kind)
    for unknown in ("magic", "", "../model", "MODEL"):
        with pytest.raises(KeyError):
            drafters.make(unknown, inputs)
    with pytest.raises(KeyError):
        drafters.make("model", replace(inputs, draft_cache=None))

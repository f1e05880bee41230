"""A model drafts what it would say, from the text as it is."""

import pytest
from msgspec.structs import replace

from localspec.protocol.wire import SamplingParams
from localspec.spec.drafters.model import ModelDrafter
from localspec.spec.protocols import Draft
from localspec.spec.verifiers import (
    GumbelCoupledVerifier,
    RejectionVerifier,
    SeededRandom,
    make_verifier,
)
from tests.spec.laws import PROMPT, SAMPLED
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


def test_what_it_has_not_read_rides_along() -> None:
    """One llama_decode a token, also after a round whose last two tokens it lacks."""
    model = HistoryModel(1)
    run(HistoryModel(1), greedy(model), COUPLED, job(PROMPT, 13, draft_length=3))
    assert model.reads == [6, 1, 1, 2, 1, 1, 2, 1, 1]
    model = HistoryModel(1, n_batch=4)
    text = [*PROMPT, *PROMPT, 0]
    assert greedy(model).propose(text, 3).tokens == said(text, 3)
    assert model.reads == [4, 4, 3, 1, 1], "a long text is read in batches"


@pytest.mark.parametrize(
    ("n_ctx", "n_tokens"), [(4, 0), (5, 0), (6, 1), (7, 2), (30, 4)]
)
def test_it_drafts_no_further_than_its_context(n_ctx: int, n_tokens: int) -> None:
    model = HistoryModel(1, n_ctx=n_ctx)
    draft = greedy(model).propose(PROMPT, 4)
    assert len(draft.tokens) == n_tokens
    if not n_tokens:
        assert draft == Draft(reason="the draft model's context is full")
        assert model.reads == []


def test_tokens_that_the_target_lacks_are_not_drafted() -> None:
    model = HistoryModel(1, n_vocab=9)
    verifier = RejectionVerifier(SeededRandom(0))
    draft = model_drafter(model, verifier, PLAIN, 5, n_vocab=6).propose(PROMPT, 20)
    assert draft.distributions is not None
    assert all(max(own.ids) < 6 for own in draft.distributions)
    assert all(own.probs.sum() == pytest.approx(1) for own in draft.distributions)


@pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, replace(SAMPLED, repeat_penalty=1.3)]
)
def test_tokens_that_the_draft_lacks_change_nothing(sampling: SamplingParams) -> None:
    """The draft's vocabulary may be up to 128 tokens shorter than the target's."""
    what = job([1, 2, 3, 1, 2], 20, sampling=sampling, draft_length=3)
    verifier = make_verifier("coupled", sampling.seed)
    expected = plain(HistoryModel(1), verifier, what).tokens
    assert {4, 5} & set(expected)
    drafter = model_drafter(
        HistoryModel(2, n_vocab=4), verifier, sampling, 5, n_vocab=6
    )
    assert run(HistoryModel(1), drafter, verifier, what).tokens == expected

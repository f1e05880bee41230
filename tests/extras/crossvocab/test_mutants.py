"""The checks can fail: bugs planted in the drafter across vocabularies are caught."""

from functools import partial

import pytest

from localspec.extras.crossvocab.drafter import DraftText, _TextDraft
from localspec.protocol.wire import SamplingParams
from localspec.spec.verifiers import make_verifier
from tests.extras.crossvocab import test_drafter
from tests.extras.crossvocab.fake_vocabularies import (
    DRAFT,
    TARGET,
    crossed,
    vocabulary,
)
from tests.spec import laws
from tests.spec.laws import PROMPT, SAMPLED, history
from tests.spec.test_mutants import Mutant, check_that_it_is_caught
from tests.support.fake_models import HistoryModel, job, plain


def memory_is_the_text(sampling: SamplingParams = SAMPLED) -> None:
    """Before a draft, the draft model holds the text as its own tokenizer splits it.

    Only the last token may be another: a longer one may have replaced it.
    """
    target = vocabulary(TARGET)
    draft = vocabulary(DRAFT)
    for draft_length in (1, 2, 5):
        what = job(PROMPT, 40, sampling=sampling, draft_length=draft_length)
        verifier = make_verifier("coupled", sampling.seed)
        model = HistoryModel(2, n_vocab=len(DRAFT))
        drafter = crossed(model, verifier, sampling, len(PROMPT))
        text = list(PROMPT)
        for step in plain(history(), verifier, what).steps:
            text += step.tokens
            drafter.propose(text, draft_length)
            spelled = draft.tokenize(target.join(text))
            n_before_last = len(spelled) - 1
            assert model.memory[:n_before_last] == spelled[:-1]
            last_held = draft.join(model.memory[n_before_last:][:1])
            if last_held:
                assert last_held.startswith(draft.join(spelled[-1:]))


MUTANTS = {
    "the likeliest of all first tokens": Mutant(
        _TextDraft._draw,
        "first == wanted",
        "first >= 0",
        partial(laws.always_right, "the target under other numbers", SAMPLED),
    ),
    "respelled words stay in memory": Mutant(
        DraftText._append,
        "min(self.n_unchanged, start)",
        "len(self.tokens)",
        memory_is_the_text,
    ),
    "a healed token stays in memory": Mutant(
        _TextDraft._draw_longer,
        "self._cache.truncate(self._cache.n_cached - 1)",
        "self._cache",
        test_drafter.test_a_longer_token_replaces_the_last_one,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    check_that_it_is_caught(monkeypatch, mutant)

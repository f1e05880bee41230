"""Answers that follow a grammar: the target's masked law, whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.errors import GrammarError
from localspec.models.chat_template.thinking_tags import ThinkingTags
from localspec.protocol.wire import SamplingParams, VerifyMode
from localspec.spec.constraints.grammars import CallStates
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.constraints.tool_call_text import (
    CallGrammar,
    MarkTokens,
    TextBetweenCalls,
)
from localspec.spec.protocols import Draft, Drafter, DraftStopPolicy
from localspec.spec.sampling import compute_distribution
from localspec.spec.thinking_budget import make_byte_parser
from localspec.spec.verifiers import make_verifier
from tests.spec import laws
from tests.spec.laws import (
    DRAFTERS,
    MODES,
    Case,
    certain_case,
    constrained,
    tables_case,
)
from tests.support.fake_models import (
    GREEDY,
    PLAIN,
    ConstantDrafter,
    HistoryModel,
    TableModel,
    ToyGrammar,
    job,
    model_drafter,
    plain,
    run,
    table,
)

GRAMMAR = ToyGrammar(
    {0: {0: 1, 1: 2}, 1: {1: 2, 2: 3}, 2: {2: 0}, 3: {0: 3, 1: 1, 2: 0}}
)
"""Over three tokens: one, two or all of them, by what came before."""
WIDE = ToyGrammar({0: {1: 1, 2: 0, 4: 2, 5: 0}, 1: {0: 0}, 2: {0: 1, 3: 0, 5: 2}})
"""Over six tokens."""


PIECES = (b"[", b"]", b"<", b"n")
"""Of four tokens: tags of a thinking part, the mark of a call, and a name."""


class FourTokens:
    n_tokens = 4
    eos = 2

    def is_eog(self, token: int) -> bool:
        return False

    def text_piece(self, token: int) -> bytes:
        return PIECES[token]

    piece = text_piece
    token_text = text_piece

    def tokenize_plain(self, data: bytes) -> list[int]:
        return [PIECES.index(bytes([byte])) for byte in data]


def text_with_calls() -> TextBetweenCalls:
    """Free text; a call is `<n]` or `<nn`, and its state is complete where 2 may follow.

    What begins with `[` is thinking up to `]`.
    """
    call = ToyGrammar({0: {3: 1}, 1: {1: 2, 3: 2}, 2: {2: 2}})
    vocabulary = FourTokens()
    marks = MarkTokens(["<"], vocabulary.n_tokens, vocabulary.piece)
    states = CallStates({"<": call}, (), ends_answer=False)
    calls = CallGrammar(states, marks, vocabulary)
    return TextBetweenCalls(
        calls, make_byte_parser(ThinkingTags("[", "]"), is_open=False)
    )


def call_case() -> Case:
    return tables_case(n=4, n_vocab=4, grammar=text_with_calls())


def unmasked() -> Case:
    """The draft model does not know of the grammar."""
    case = tables_case(grammar=GRAMMAR)
    return replace(
        case,
        drafter=lambda verifier, what, text: case.drafter(
            verifier, replace(what, constraint=None), text
        ),
    )


CASES: dict[str, Case] = {
    "a masked draft": tables_case(grammar=GRAMMAR),
    "a draft that ignores the grammar": unmasked(),
    "a certain draft": certain_case([1, 2], grammar=GRAMMAR),
    "a certain draft outside": certain_case([2, 2], grammar=GRAMMAR),
    "a repeat penalty": tables_case(
        replace(PLAIN, top_k=1, repeat_penalty=1.7, repeat_last_n=2), grammar=GRAMMAR
    ),
    "a call in free text": call_case(),
    "temperature 0": tables_case(GREEDY, n=5, draft_length=3, grammar=GRAMMAR),
}


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_answer_has_the_masked_targets_probability(
    case: Case, mode: VerifyMode
) -> None:
    laws.exactly_the_targets_law(case, mode)


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, replace(PLAIN, top_k=2)])
def test_every_draft_gives_the_text_of_plain_decoding(sampling: SamplingParams) -> None:
    laws.every_draft_same_as_plain(sampling, 3, 3, GRAMMAR)


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY])
def test_every_draft_of_a_call_gives_the_text_of_plain_decoding(
    sampling: SamplingParams,
) -> None:
    laws.every_draft_same_as_plain(sampling, 3, 4, text_with_calls())


def test_free_text_has_the_distribution_that_it_has_without_tools() -> None:
    """To the bit: there is no grammar at all where no call has begun."""
    constraint = OutputConstraint(text_with_calls(), n_prompt=2)
    assert constraint.state_after([0, 0]) is None
    assert constraint.state_after([0, 0, 3, 1]) is None
    assert constraint.state_after([0, 0, 3, 2]) is not None
    assert constraint.state_after([0, 0, 3, 2, 3, 1]) is None
    assert constraint.state_after([0, 0, 0, 2, 2]) is None, "thinking"
    assert constraint.state_after([0, 0, 0, 1, 2]) is not None


def test_a_draft_that_begins_to_think_leaves_the_text_as_it_is() -> None:
    constraint = OutputConstraint(text_with_calls(), n_prompt=0)
    assert constraint.state_after([], [0, 2]) is None, "a mark in the thinking"
    assert constraint.state_after([2]) is not None, "the text has begun a call"


@pytest.mark.parametrize("sampling", [GREEDY, laws.SAMPLED])
def test_every_drafter_gives_the_text_of_plain_decoding(
    sampling: SamplingParams,
) -> None:
    for make in DRAFTERS.values():
        what = job(laws.PROMPT, 24, sampling=sampling, draft_length=3)
        judge = make_verifier("coupled", sampling.seed)
        expected = plain(laws.history(), judge, constrained(what, WIDE)).tokens
        follows(WIDE, expected)
        what = constrained(what, WIDE)
        drafter = make(judge, what, [*what.prompt, *expected])
        assert run(laws.history(), drafter, judge, what).tokens == expected


def follows(grammar: ToyGrammar, tokens: Sequence[int]) -> None:
    for token in tokens:
        assert token in grammar.allowed_tokens()
        grammar = grammar.advance(token)


class Watched:
    def __init__(self, drafter: Drafter, constraint: OutputConstraint) -> None:
        self._drafter = drafter
        self._constraint = constraint

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        draft = self._drafter.propose(tokens, limit)
        state = self._constraint.state_after(tokens)
        assert isinstance(state, ToyGrammar)
        follows(state, draft.tokens)
        return draft


def test_no_draft_leaves_the_grammar() -> None:
    """The draft model is masked too, so nothing of its drafts is certain to be rejected."""
    case = tables_case(n=12, draft_length=4, grammar=GRAMMAR)
    for seed in range(5):
        what = constrained(case.what, GRAMMAR)
        judge = make_verifier("coupled", seed)
        assert what.constraint is not None
        drafter = Watched(case.drafter(judge, what, []), what.constraint)
        assert any(run(case.target(), drafter, judge, what).drafts)


def constraint_after(text: list[int]) -> OutputConstraint:
    """After 0, the grammar allows 1 and 2; after 1 it forces 2."""
    constraint = constrained(job([0, 1], 4, sampling=PLAIN), GRAMMAR).constraint
    assert constraint is not None
    constraint.commit(text)
    return constraint


def test_drafts_are_cut_where_the_grammar_ends_them() -> None:
    constraint = constraint_after([0, 1, 0])
    for guess, limit, expected in (
        ([1, 2, 1, 0], 4, [1, 2, 1]),
        ([1, 1], 4, [1]),
        ([0, 1], 4, []),
        ([2, 0, 0, 0], 4, [2, 0, 0, 0]),
        ([1], 1, [1]),
    ):
        proposed = Draft(guess[:limit], source="constant")
        draft = constraint.fit_draft([0, 1, 0], proposed, limit)
        assert draft.tokens == expected
        assert draft.source == "constant"


def test_a_draft_goes_on_with_what_the_grammar_forces() -> None:
    constraint = constraint_after([0, 1, 0])

    draft = constraint.fit_draft([0, 1, 0], Draft([1], source="constant"), 4)

    assert draft.tokens == [1, 2]
    assert draft.source == "constant+grammar"


def test_what_the_grammar_forces_is_a_draft_by_itself() -> None:
    constraint = constraint_after([0, 1, 0, 1])

    forced = constraint.fit_draft([0, 1, 0, 1], Draft(), 4)

    assert forced.tokens == [2]
    assert forced.source == "grammar"


def test_an_end_token_that_the_grammar_allows_ends_the_answer() -> None:
    what = job([0, 1], 9, sampling=PLAIN, draft_length=2, ends=[2])
    once = ToyGrammar({0: {0: 1}, 1: {1: 2}, 2: {2: 2}})
    judge = make_verifier("coupled", 0)
    for guess in np.ndindex(3, 3):
        drafter = ConstantDrafter(guess)
        got = run(TableModel(table(3, 3)), drafter, judge, constrained(what, once))
        assert got.tokens == [0, 1, 2]
        assert got.end == "eog"


def test_where_the_grammar_allows_no_token_is_an_error() -> None:
    what = job([0, 1], 9, sampling=PLAIN, draft_length=2, ends=[2])
    dead = ToyGrammar({0: {1: 1}, 1: {}})
    judge = make_verifier("coupled", 0)

    with pytest.raises(GrammarError, match="any token"):
        plain(HistoryModel(1), judge, constrained(what, dead))


class Allowing:
    """A `GrammarState` that counts the tokens it was asked for."""

    def __init__(self, allowed: NDArray[np.int64]) -> None:
        self.allowed = allowed
        self.n_tested = 0

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        self.n_tested += len(tokens)
        return np.isin(tokens, self.allowed)

    def allowed_tokens(self) -> NDArray[np.int64]:
        self.n_tested += 10**6
        return self.allowed

    def forced_tokens(self) -> list[int]:
        return []

    def advance(self, token: int) -> Allowing:
        return self


def mask_is_exact(seed: int, share: float, sampling: SamplingParams) -> None:
    rng = np.random.default_rng(seed)
    # with ties
    row = np.array((rng.normal(scale=3, size=700) * 8).round() / 8, np.float32)
    allowed = (rng.random(700) < share).nonzero()[0]
    if not len(allowed):
        return
    recent = rng.integers(700, size=5).tolist()
    masked = np.full_like(row, -np.inf)
    masked[allowed] = row[allowed]
    expected = compute_distribution(masked, sampling, recent)
    got = compute_distribution(
        row, sampling, recent, Allowing(rng.permutation(allowed))
    )
    assert dict(
        zip(got.ids.tolist(), got.probs.tolist(), strict=True)
    ) == pytest.approx(
        dict(zip(expected.ids.tolist(), expected.probs.tolist(), strict=True)),
        abs=1e-12,
    )


@settings(derandomize=True, max_examples=150)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.002, 0.1, 0.5, 0.99]),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.8]),
        top_k=st.sampled_from([0, 1, 5, 40, 200]),
        top_p=st.sampled_from([0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
        repeat_penalty=st.sampled_from([1.0, 1.5]),
    ),
)
def test_the_mask_comes_before_penalties_and_truncation(
    seed: int, share: float, sampling: SamplingParams
) -> None:
    mask_is_exact(seed, share, sampling)


def test_few_tokens_are_tested_where_most_are_allowed() -> None:
    row = np.arange(100_000, dtype=np.float32)
    most = Allowing(np.arange(0, 100_000, 2))
    compute_distribution(row, SamplingParams(temperature=0), (), most)
    assert most.n_tested <= 1 + 64
    most.n_tested = 0
    compute_distribution(row, SamplingParams(top_k=20), (), most)
    assert most.n_tested <= 64


class RecordingPolicy:
    def __init__(self) -> None:
        self.confidences: list[float] = []

    def should_draft_token(self, confidence: float) -> bool:
        self.confidences.append(confidence)
        return True

    def should_continue(self, token: int) -> bool:
        return True


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY])
def test_a_draft_is_sure_of_the_only_token_that_is_allowed(
    sampling: SamplingParams,
) -> None:
    """Else drafting would stop where the grammar helps most."""
    forced = ToyGrammar({0: {2: 1}, 1: {0: 1, 1: 0}})
    for seed in range(10):
        judge = make_verifier("coupled", seed)
        what = constrained(job([0, 1], 9, sampling=sampling), forced)
        model = TableModel(table(seed, 3))
        drafter = model_drafter(model, judge, sampling, 2, constraint=what.constraint)
        policy = RecordingPolicy()
        draft = drafter.propose([0, 1], 4, policy)
        only = [token == 2 for token in draft.tokens]
        assert only[0]
        for is_only, confidence in zip(only, policy.confidences, strict=True):
            assert (confidence == 1.0) == is_only

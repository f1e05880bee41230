"""Each way of verifying draws from the target's own law: enumerated, and by chance."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.protocol.wire import SamplingParams, VerifyMode
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import (
    Distribution,
    Draft,
    Drafter,
    DraftStopPolicy,
    Logits,
    Verifier,
)
from localspec.spec.verifiers import (
    BlockVerifier,
    SeededRandom,
    make_verifier,
    residual_probs,
    sample_inverse_cdf,
)
from tests.spec import laws
from tests.spec.laws import (
    MODES,
    Case,
    exactly_the_targets_law,
    tables_case,
)
from tests.support.fake_models import (
    GREEDY,
    PLAIN,
    ConstantDrafter,
    Explorer,
    RandomDrafter,
    TableModel,
    job,
    model_drafter,
    table,
)

TOP_K = replace(PLAIN, top_k=2)
TOP_P = replace(PLAIN, top_p=0.8)
ALL = SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1)
DRY = replace(PLAIN, dry_multiplier=0.8, dry_base=1.5, dry_allowed_length=1)
XTC = replace(PLAIN, temperature=0.7, xtc_probability=0.5, xtc_threshold=0.2)


def over(
    target: Logits,
    draft: Logits,
    sampling: SamplingParams = PLAIN,
    *,
    draft_length: int = 2,
    ends: tuple[int, ...] = (),
) -> Case:

    def drafter(verifier: Verifier, what: PreparedAnswer, text: list[int]) -> Drafter:
        return model_drafter(
            TableModel(draft), verifier, what.sampling, 2, is_eog=what.is_eog
        )

    what = job([0, 1], 4, sampling=sampling, draft_length=draft_length, ends=ends)
    return Case(what, lambda: TableModel(target), drafter)


def drafted_by(make: laws.MakeDrafter, sampling: SamplingParams) -> Case:
    return replace(tables_case(sampling, n=5, draft_length=3), drafter=make)


def lookup(sampling: SamplingParams) -> Case:
    return drafted_by(lambda verifier, what, text: LookupDrafter(1), sampling)


def without(rows: Logits, *tokens: int) -> Logits:
    out = rows.copy()
    out[..., list(tokens)] = -np.inf
    return out


REPEAT = replace(PLAIN, repeat_penalty=1.7, repeat_last_n=2)
CASES = {
    "nothing truncated, 1 token drafted": tables_case(draft_length=1),
    "nothing truncated, 3 drafted": tables_case(n=5, n_vocab=2, draft_length=3),
    "top-k": tables_case(TOP_K, n=5, draft_length=3),
    "top-p": tables_case(replace(PLAIN, top_p=0.6), n=5, draft_length=3),
    "min-p": tables_case(replace(PLAIN, min_p=0.5), n=5, draft_length=3),
    "all at once": tables_case(ALL, n_vocab=4),
    "a draft with more tokens": tables_case(TOP_K, draft_sampling=PLAIN, n=3),
    "a draft with fewer tokens": tables_case(draft_sampling=TOP_K),
    "a draft of one token": tables_case(draft_sampling=GREEDY),
    "a draft at another temperature": tables_case(
        TOP_P, draft_sampling=replace(TOP_P, temperature=0.5)
    ),
    "temperature 0": tables_case(GREEDY, n=5, draft_length=3),
    "the same distribution": over(table(11, 3), table(11, 3), TOP_P, draft_length=3),
    "no token in common": over(without(table(1, 4), 2, 3), without(table(2, 4), 0, 1)),
    "one token in common": over(without(table(1, 4), 0), without(table(2, 4), 1, 2)),
    "equal logits": over(
        np.zeros((3, 3, 3), np.float32), np.zeros((3, 3, 3), np.float32), TOP_K
    ),
    "an end": over(table(11, 3), table(12, 3), draft_length=3, ends=(2,)),
    "a repeat penalty": tables_case(REPEAT),
    "DRY": tables_case(DRY, draft_length=3),
    "DRY over repeated sequences": tables_case(
        replace(DRY, dry_allowed_length=2), n=5, n_vocab=2
    ),
    "XTC": tables_case(XTC, n=5, n_vocab=2, draft_length=3),
    "XTC, top-p": tables_case(replace(XTC, top_p=0.8), n_vocab=4, n=3),
    "XTC and DRY": tables_case(replace(DRY, xtc_probability=1.0, xtc_threshold=0.3)),
    "lookup": lookup(PLAIN),
    "lookup, XTC": lookup(XTC),
    "lookup, a repeat penalty": lookup(replace(REPEAT, top_k=2, repeat_last_n=3)),
    "any number of draft tokens": drafted_by(
        lambda verifier, what, text: RandomDrafter(4, 3), PLAIN
    ),
    "one draft for all": drafted_by(
        lambda verifier, what, text: ConstantDrafter([1, 0, 1]), TOP_P
    ),
}


@pytest.mark.parametrize("mode", ["rejection", "block", "match"])
def test_the_law_is_the_targets_to_the_last_bits(mode: VerifyMode) -> None:
    for case in CASES.values():
        exactly_the_targets_law(case, mode)


class EndedDrafter:
    """Ends each draft after a number of tokens, or after an unlikely one."""

    def __init__(self, inner: Drafter, likely: float) -> None:
        self._inner = inner
        self._likely = likely
        self._round = 0

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self._round += 1
        return self._inner.propose(tokens, min(limit, self._round % 4), self)

    def should_draft_token(self, confidence: float) -> bool:
        return confidence > self._likely

    def should_continue(self, token: int) -> bool:
        return token != 0


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("likely", [0.0, 0.45])
def test_the_law_is_the_targets_whatever_ends_a_draft(
    mode: VerifyMode, likely: float
) -> None:
    """A draft ends by its length, or by a token's distribution before or after a draw."""
    whole = tables_case(n=5, draft_length=3)
    cut = replace(
        whole, drafter=lambda *given: EndedDrafter(whole.drafter(*given), likely)
    )
    exactly_the_targets_law(cut, mode)


def mean_accepted(mode: VerifyMode, seed: int, draft_length: int) -> float:
    """The mean of one round, between distributions that depend on all that was said."""

    def law_after(side: int, said: Sequence[int]) -> Distribution:
        rng = np.random.default_rng([seed, side, len(said), *said])
        return Distribution(np.arange(3), rng.dirichlet(np.full(3, 1.5)))

    def a_round(draws: Explorer) -> list[int]:
        verifier = make_verifier(mode, 0, draws)
        tokens = list[int]()
        distributions = list[Distribution]()
        for i in range(draft_length):
            distributions.append(law_after(1, tokens))
            tokens.append(verifier.sample_draft_token(distributions[-1], i))
        draft = Draft(tokens, distributions)
        return [verifier.verify(lambda i: law_after(0, tokens[:i]), draft, 0)[0]]

    outcomes = Explorer().outcomes(a_round)
    assert sum(outcomes.values()) == pytest.approx(1, abs=1e-12)
    return sum(n[0] * weight for n, weight in outcomes.items())


@pytest.mark.parametrize("draft_length", [1, 2, 3])
def test_block_accepts_no_fewer_than_rejection(draft_length: int) -> None:
    gains = [
        mean_accepted("block", seed, draft_length)
        - mean_accepted("rejection", seed, draft_length)
        for seed in range(8)
    ]
    assert min(gains) >= -1e-12
    assert (max(gains) > 0.01) is (draft_length > 1)


def test_block_asks_nothing_beyond_what_cannot_be() -> None:
    """A prefix that the target never says ends the search; no later row is looked at."""
    p = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    q = Distribution(np.array([2]), np.ones(1))
    got = BlockVerifier(SeededRandom(0)).verify(
        [p].__getitem__, Draft([2, 0, 1], [q, p, p]), 0
    )
    assert got[0] == 0 and got[1] in (0, 1)


@pytest.mark.parametrize(
    "sampling", [PLAIN, TOP_K, ALL, GREEDY], ids=["plain", "k", "all", "0"]
)
def test_coupled_gives_plain_decodings_token_for_every_draft(
    sampling: SamplingParams,
) -> None:
    for draft_length in (1, 3):
        laws.every_draft_same_as_plain(sampling, draft_length)


@pytest.mark.parametrize("mode", MODES)
def test_seeded_answers_follow_the_targets_law(mode: VerifyMode) -> None:
    laws.rarely_by_chance(mode)


LAST = 1 - 2.0**-53
"""The largest number that a generator draws."""


@pytest.mark.parametrize(
    ("probs", "u", "index"),
    [
        ([0.5, 0.5], 0.5, 1),
        ([0.0, 1.0], 0.0, 1),
        ([1.0, 0.0], LAST, 0),
        ([0.0, 0.3, 0.7, 0.0, 0.0], LAST, 2),
        ([0.3, 0.0, 0.7], 0.3, 2),
        ([1 / 3, 1 / 3, 1 / 3, 0.0], LAST, 2),
        ([0.1 + 2.0**-54] * 10, LAST, 9),
    ],
)
def test_pick_inverts_the_cumulated_sum(
    probs: list[float], u: float, index: int
) -> None:
    assert sample_inverse_cdf(np.array(probs), u) == index


def test_the_residual_of_equal_distributions_is_all_of_it() -> None:
    p = Distribution(np.array([7, 2, 5]), np.array([0.5, 0.3, 0.2]))
    assert residual_probs(p, p).tolist() == p.probs.tolist()


@pytest.mark.parametrize("mode", ["rejection", "block", "match"])
def test_the_rest_of_an_answer_is_not_drawn_as_its_beginning_was(
    mode: VerifyMode,
) -> None:
    """With the same numbers again, a text that goes on would repeat its choices."""
    even = Distribution(np.arange(1000), np.full(1000, 0.001))
    empty = Draft([])
    drawn: list[list[int]] = []
    for n_resumed in (0, 5, 5, 6):
        verifier = make_verifier(mode, 3, n_resumed=n_resumed)
        drawn.append([verifier.verify(lambda _: even, empty, i)[1] for i in range(8)])
    first, later, again, other = drawn
    assert later == again
    assert first != later
    assert other not in (first, later)

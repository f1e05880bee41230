"""What drafting gains at each length, and where a draft ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.protocol.wire import MODEL_DRAFT_MAX
from localspec.spec.control.draft_plan import (
    DraftCosts,
    DraftPlan,
    PlannedStop,
    plan_drafts,
)
from localspec.spec.control.pair_beliefs import Acceptance, PairBeliefs


def costs(step: float, c: float, excursion: float = 0.0) -> DraftCosts:
    verify = [0.0, *(1 + step * i for i in range(17))]
    return DraftCosts(verify, first_draft=c, next_draft=c, excursion=excursion)


def plan(
    mean: float, prices: DraftCosts, rate: float = 1.0, held_width: int = 1
) -> DraftPlan:
    acceptance = Acceptance((mean,) * 5, mean)
    return DraftPlan(
        PairBeliefs(), acceptance, prices, rate=rate, held_width=held_width
    )


def test_the_example_of_the_docstring() -> None:
    prices = costs(step=0.1, c=0.1)
    assert plan(0.6, prices).gain == pytest.approx(0.576)
    assert plan(0.6, prices, rate=2.0).gain == pytest.approx(0.2)


a_price = st.floats(0.0, 0.5)


@given(
    mean=st.floats(0.01, 0.99),
    step=a_price,
    c=a_price,
    rate=st.floats(1.0, 4.0),
    held_width=st.sampled_from([1, 2, 4, 8]),
    excursion=st.sampled_from([0.0, 0.3]),
)
def test_the_gain_is_that_of_the_best_length(
    mean: float,
    step: float,
    c: float,
    rate: float,
    held_width: int,
    excursion: float,
) -> None:
    prices = costs(step, c, excursion)
    found = plan(mean, prices, rate, held_width)

    def gain(n: int) -> float:
        """Of n draft tokens, beside a plain round at width 1."""
        width = n + 1
        verify = prices.verify[width] + excursion * (width != held_width)
        tokens = sum(mean**k for k in range(1, n + 1))
        return tokens - rate * (c * n + verify - prices.verify[1])

    best = max(gain(n) for n in range(1, MODEL_DRAFT_MAX + 1))
    assert found.gain == pytest.approx(best)


@given(
    mean=st.floats(0.05, 0.95),
    step=a_price,
    c=a_price,
    rate=st.floats(1.0, 3.0),
    n=st.integers(1, 8),
    probability=st.floats(0.01, 1.0),
)
def test_a_draft_goes_on_where_some_number_of_further_tokens_pays(
    mean: float, step: float, c: float, rate: float, n: int, probability: float
) -> None:
    prices = costs(step, c)
    found = plan(mean, prices, rate)

    gains = []
    for k in range(1, found.max_draft - n + 1):
        tokens = probability * sum(mean**j for j in range(1, k + 1))
        gains.append(tokens - rate * k * (c + step))

    goes_on = probability > found.thresholds.go_on[n]
    if max(gains) > 1e-9:
        assert goes_on
    if max(gains) < -1e-9:
        assert not goes_on


def test_a_draft_ends_sooner_where_time_is_dear_and_tokens_are_unsure() -> None:
    lengths = {}
    for rate, confidence in itertools.product((1.0, 2.0), (0.3, 0.99)):
        beliefs = PairBeliefs()
        acceptance = beliefs.acceptance()
        prices = costs(step=0.1, c=0.05)
        found = DraftPlan(beliefs, acceptance, prices, rate=rate, held_width=1)
        stop = PlannedStop(found, 16, is_probe=False)
        while stop.should_draft_token(confidence) and stop.should_continue(7):
            pass
        lengths[rate, confidence] = len(stop.buckets)
    assert lengths[1.0, 0.3] < lengths[1.0, 0.99]
    assert lengths[2.0, 0.99] < lengths[1.0, 0.99]


def test_a_probe_drafts_one_token_in_any_case() -> None:
    hopeless = plan(0.01, costs(step=0.5, c=0.5))
    stop = PlannedStop(hopeless, 16, is_probe=True)
    assert stop.should_draft_token(0.01)
    assert not stop.should_continue(7)
    assert stop.buckets == [0]


def test_a_token_that_is_refused_is_remembered() -> None:
    hopeless = plan(0.01, costs(step=0.5, c=0.5))
    stop = PlannedStop(hopeless, 16, is_probe=False)
    assert not stop.should_draft_token(0.5)
    assert stop.refused_bucket == 1


def test_a_block_head_pays_for_its_pass_once() -> None:
    """Behind the first token only the rows of the target cost anything."""
    verify = [0.0, *(1 + 0.01 * i for i in range(17))]
    block = DraftCosts(verify, first_draft=0.3, next_draft=0.0)
    single = DraftCosts(verify, first_draft=0.3, next_draft=0.3)
    assert block.drafting(8) == 0.3
    assert plan(0.7, block).gain > plan(0.7, single).gain + 0.5
    assert plan(0.7, block).thresholds.go_on[1] < 0.05


def test_a_copy_is_as_long_as_pays() -> None:
    """Behind 12 matched tokens 95 % of each next token are right, behind 2 only 45 %."""
    found = plan(0.5, costs(step=0.3, c=0.1))
    long = found.copy_gain(13, 16)
    short = found.copy_gain(2, 16)
    assert long.n > 10
    assert short.n < 5
    assert found.copy_gain(13, 3).n == 3
    assert found.copy_gain(13, 0).n == 0
    dear = plan(0.5, costs(step=0.9, c=0.1), rate=2.0)
    assert dear.copy_gain(2, 16).n == 0


def test_a_width_is_held_where_changing_it_is_dear() -> None:
    beliefs = PairBeliefs()
    free = plan_drafts(beliefs, costs(0.05, 0.05), rate=1.0, held_width=1)
    dear = plan_drafts(beliefs, costs(0.05, 0.05, 0.6), rate=1.0, held_width=1)
    assert [each.held_width for each in free] == [1, 1]
    plain, drafting = dear
    assert plain.held_width == 1
    assert drafting.held_width > 1
    assert drafting.gain > plain.gain


def test_drafts_are_planned_at_the_rate_that_they_promise() -> None:
    beliefs = PairBeliefs()
    prices = costs(0.1, 0.1)
    _, first = plan_drafts(beliefs, prices, rate=1.0, held_width=1)
    assert first.rate == pytest.approx(1.506, abs=0.001)
    _, later = plan_drafts(beliefs, prices, rate=1.8, held_width=1)
    assert later.rate == 1.8


def test_a_copy_that_cannot_be_rolled_back_costs_reading_again() -> None:
    """Of 6 copied tokens 2 can be dropped: with up to 3 right ones they are read again."""
    beliefs = PairBeliefs()
    right = 0.9
    beliefs.copy_rates = [right] * len(beliefs.copy_rates)
    free = costs(step=0.02, c=0.1)
    limited = replace(free, max_rollback=2)

    without, with_price = (
        DraftPlan(beliefs, beliefs.acceptance(), prices, rate=1.0, held_width=1)
        for prices in (free, limited)
    )

    read_again = 0.0
    for n_right in range(4):
        only_these = right**n_right * (1 - right)
        read_again += only_these * 0.02 * (n_right + 1)
    whole = without.copy_gain(2, 6)
    priced = with_price.copy_gain(2, 6)
    assert (whole.n, priced.n) == (6, 6)
    assert priced.gain == pytest.approx(whole.gain - read_again)
    assert with_price.copy_gain(2, 2) == without.copy_gain(2, 2)


def test_a_copy_is_as_long_as_it_gains() -> None:
    """All 62 tokens where each further row is nearly free and each token nearly sure."""
    beliefs = PairBeliefs()
    beliefs.copy_rates = [0.995] * len(beliefs.copy_rates)
    verify = [0.0, *(1 + 0.01 * i for i in range(MODEL_DRAFT_MAX * 4))]
    cheap = DraftCosts(verify, first_draft=0.1, next_draft=0.1)
    dear = replace(
        cheap, verify=[0.0, *(1 + 0.3 * i for i in range(MODEL_DRAFT_MAX * 4))]
    )

    lengths = [
        DraftPlan(beliefs, beliefs.acceptance(), prices, rate=3.0, held_width=1)
        .copy_gain(40, 62)
        .n
        for prices in (cheap, dear)
    ]

    # A dear row costs .9 tokens at this rate: worth it while .995 ** n is above that.
    assert lengths == [62, 21]

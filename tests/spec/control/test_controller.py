"""The controller in worlds whose best draft length is known: no clock, no model.

What it aims at is the least time over a person's use of a pair (docs/drafters.md). No
account holds an answer to a bound, so the bounds are those of many answers.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import exp
from statistics import mean
from typing import cast

import numpy as np
import pytest

from localspec.protocol.events import RoundTimes, SpeculationPlan
from localspec.protocol.wire import MeasuredCosts
from localspec.spec.control.controller import RoundPlan, SpeculationController
from localspec.spec.control.pair_beliefs import SIBLING_PRIOR, PairBeliefs
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.protocols import Draft, DraftStopPolicy
from localspec.spec.speculative_loop import RoundResult
from tests.spec.control.worlds import (
    CLIFF,
    FLAT,
    H100,
    STEEP,
    World,
    mixed,
    steady,
    turning,
)

HOPELESS = {
    "flat": World(steady(0.01)),
    "weak, steep, dear": World(steady(0.4), c=0.3, curve=STEEP),
    "a cliff": World(steady(0.3), c=0.05, curve=CLIFF),
    "a confident liar": World(steady(0.02), honest=lambda _: 0.95),
}
WORTH = {
    "fair, steep": World(steady(0.6), curve=STEEP),
    "very good": World(steady(0.9), c=0.05),
    "behind a cliff": World(steady(0.85), c=0.05, curve=CLIFF),
    "easy and hard tokens": World(mixed(0.1, 0.95, 0.5)),
    "never measured": World(steady(0.7), told=False),
    "a dear draft on a GPU": World(steady(0.9), c=0.35, on_gpu=True),
    "a noisy machine": World(steady(0.7), noise=0.4),
}
MISJUDGED = {
    "wide passes are dearer": World(steady(0.3), truly=lambda n: 1.5),
    "a plain pass is cheaper": World(steady(0.2), curve=STEEP, believed=2.5),
    "a plain pass is cheaper, and little to gain": World(
        steady(0.3), c=0.2, believed=2.5
    ),
    "the host takes its time": World(steady(0.5), host=lambda width: 0.15 * width),
}
"""Than what was measured before: something else was running, say."""


CHANGING: dict[str, Callable[[], World]] = {
    "turns bad": lambda: World(turning(0.95, 0.02, every=60)),
    "back and forth": lambda: World(turning(0.9, 0.05, every=7)),
    "turns bad behind a cliff": lambda: World(
        turning(0.95, 0.0, every=100), c=0.05, curve=CLIFF
    ),
    "noise": lambda: World(steady(0.3), curve=STEEP, noise=0.2),
    "never measured, a dear draft": lambda: World(
        steady(0.4), c=0.5, told=False, curve=STEEP
    ),
    "never measured, a cliff": lambda: World(steady(0.45), told=False, curve=CLIFF),
    "every change of the width is dear": lambda: World(
        steady(0.5), c=0.09, curve=H100, change=0.3, settling=2
    ),
}
"""Worlds that are not what they were, or were thought to be."""


def speedups(world: World, n_answers: int, n_tokens: int = 200) -> list[float]:
    """Of consecutive answers of a pair, of which nothing is known before the first."""
    found = []
    for _ in range(n_answers):
        saved = world.beliefs.saved()
        world.beliefs = PairBeliefs.from_saved(saved, SIBLING_PRIOR)
        controller = world.controller()
        ms = world.run(controller, n_tokens, 16, controller)
        plain_ms = 10.0 * (1 + world.host(1)) * exp(world.noise**2 / 2)
        found.append(plain_ms / ms)
    return found


@pytest.mark.parametrize("world", HOPELESS.values(), ids=HOPELESS)
def test_where_nothing_pays_a_first_answer_loses_little_and_later_ones_less(
    world: World,
) -> None:
    for seed in range(4):
        first, *later = speedups(replace(world, seed=seed), 4)
        assert first >= 0.93
        assert min(later) >= 0.97


@pytest.mark.parametrize("world", MISJUDGED.values(), ids=MISJUDGED)
def test_wrong_measurements_cost_little(world: World) -> None:
    """Plain passes are timed now and then: only they show that drafting is slower."""
    found = [speedups(replace(world, seed=seed), 3) for seed in range(4)]
    assert mean(itertools.chain(*found)) >= 0.97


@pytest.mark.parametrize("world", WORTH.values(), ids=WORTH)
def test_it_comes_near_the_best_fixed_length(world: World) -> None:
    best = world.best_fixed()
    first: list[float] = []
    later: list[float] = []
    for seed in range(4):
        found = speedups(replace(world, seed=seed), 5)
        first.append(found[0])
        later += found[1:]
    if world.curve is CLIFF:
        # By the prior no length pays behind the cliff; probes find out that one does.
        assert mean(first) >= 0.97
        assert mean(speedups(world, 8, n_tokens=1000)[4:]) >= 0.85 * best
        return
    assert mean(first) >= 0.9 * best
    assert mean(later) >= 0.93 * best


@pytest.mark.parametrize("make_world", CHANGING.values(), ids=CHANGING)
def test_where_things_change_few_answers_of_a_known_pair_lose_more_than_three_percent(
    make_world: Callable[[], World],
) -> None:
    later: list[float] = []
    for seed in range(8):
        later += speedups(replace(make_world(), seed=seed), 6)[1:]
    assert mean(found >= 0.97 for found in later) >= 0.9
    assert min(later) >= 0.85


def test_passes_that_become_three_times_as_dear_in_every_answer_cost_a_tenth() -> None:
    """The rate of now and the error of the plan notice it, each time anew."""

    def dearer_later(n_tokens: int) -> float:
        return 3.0 if n_tokens > 100 else 1.0

    found: list[float] = []
    for seed in range(8):
        world = World(steady(0.7), curve=STEEP, truly=dearer_later, seed=seed)
        found += speedups(world, 6)[1:]
    assert mean(found) >= 0.95
    assert min(found) >= 0.75


def test_a_long_text_is_read_where_the_rest_of_the_answer_pays_for_it() -> None:
    """The same good pair: behind 200 tokens, behind 8,000, and at an answer's end."""
    for n_prompt, max_left, drafts in (
        (200, 10_000, True),
        (8_000, 10_000, False),
        (200, 3, False),
    ):
        beliefs = known_beliefs(0.8)
        costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "8": 1.35}, 0.1))
        controller = SpeculationController(NoDraft(), None, costs, beliefs)
        controller.max_tokens_left = max_left
        controller.propose([7] * n_prompt, 16)
        assert (controller.round_plan.source == "draft") == drafts


def test_a_draft_of_which_nothing_is_known_reads_only_a_small_part_of_the_answer() -> (
    None
):
    """Of 120 tokens 4 % are 4.8 passes: 480 tokens at a hundredth of a pass each."""
    for n_prompt, drafts in ((400, True), (600, False)):
        costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "8": 1.35}, 0.1))
        controller = SpeculationController(NoDraft(), None, costs, PairBeliefs())
        controller.propose([7] * n_prompt, 16)
        assert (controller.round_plan.source == "draft") == drafts


def test_probes_are_spaced_by_what_they_cost_across_answers() -> None:
    """One probe costs .05 + .04 passes, and .001 for each token since the last.

    So one after 16 tokens is the least that is allowed. Where a second row costs .35
    passes, one after 45 tokens is 1 %.
    """
    for curve, least_tokens in ((FLAT, 16), (STEEP, 45)):
        world = World(steady(0.01), c=0.05, curve=curve, reading=0.001)
        world.beliefs.reading = 0.02
        n_probes = 0
        for _ in range(20):
            saved = world.beliefs.saved()
            world.beliefs = PairBeliefs.from_saved(saved, SIBLING_PRIOR)
            controller = world.controller()
            watched = Watched(controller)
            world.run(cast(SpeculationController, watched), 100, 16, controller)
            n_probes += watched.sources.count("probe")
        assert 1000 / least_tokens < n_probes <= 2000 / least_tokens


def test_knowing_which_tokens_are_easy_beats_every_fixed_length() -> None:
    world = World(mixed(0.1, 0.95, 0.6))
    assert mean(speedups(world, 3, 1000)) > 1.05 * world.best_fixed()


@pytest.mark.parametrize(
    "sure", [steady(0.4), mixed(0.1, 0.95, 0.4)], ids=["weak", "mixed"]
)
def test_a_width_is_held_where_changing_it_is_dear(
    sure: Callable[[np.random.Generator], float],
) -> None:
    """As on a worker, which is sent its graph again when the width changes.

    There, ending a draft early costs more than a long draft.
    """
    priced, unpriced = (
        mean(
            World(sure, change=1.0, prices_changes=knows, seed=seed).adaptive(1500)
            for seed in range(5)
        )
        for knows in (True, False)
    )
    assert priced > 1.01 * unpriced
    assert priced > 0.95 * World(sure, change=1.0).best_fixed()


@pytest.mark.parametrize("chance", [0.5, 0.7, 0.85])
def test_on_a_gpu_with_graphs_the_price_of_a_new_width_is_part_of_the_plan(
    chance: float,
) -> None:
    """The first two passes of a width are launched kernel by kernel."""
    world = partial(
        World, mixed(0.3, 0.95, chance), c=0.09, curve=H100, change=0.26, settling=2
    )
    priced, unpriced = (
        mean(world(prices_changes=knows, seed=seed).adaptive(1500) for seed in range(5))
        for knows in (True, False)
    )
    assert priced > 0.99 * unpriced
    assert priced > 0.95 * world().best_fixed()


@pytest.mark.parametrize("chance", [0.5, 0.85])
def test_where_graphs_are_off_as_on_metal_no_change_is_priced(chance: float) -> None:
    """Each draft ends where it should: no width is held."""
    sure = mixed(0.3, 0.95, chance)
    free = World(sure, c=0.09, curve=H100)
    assert free.adaptive(1500) > 0.97 * World(sure, c=0.09, curve=H100).best_fixed()
    assert free.costs().in_passes().excursion == 0


def test_a_pause_ends_when_the_draft_gets_better() -> None:
    world = World(steady(0.01))
    controller = world.controller()
    world.run(controller, 300, 16, controller)
    assert state(controller).state == "paused"
    world.sure = steady(0.9)
    world.run(controller, 900, 16, controller)
    assert state(controller).state == "on"


def test_a_score_of_a_draft_spares_its_trial() -> None:
    """`localspec pair` scores drafts: a good one is used at once, a bad one never."""
    for n_accepted, source in ((5, "draft"), (0, "plain")):
        beliefs = PairBeliefs()
        beliefs.record_score([n_accepted] * 100)
        costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "8": 1.35}, 0.35))
        controller = SpeculationController(NoDraft(), None, costs, beliefs)
        controller.propose([7] * 300, 16)
        assert controller.round_plan.source == source


def test_a_head_reads_along_only_if_it_is_known_to_gain() -> None:
    costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "8": 1.35}, 0.1))
    for beliefs, pays in (
        (PairBeliefs(), False),
        (known_beliefs(0.8), True),
        (known_beliefs(0.0), False),
    ):
        controller = SpeculationController(NoDraft(), None, costs, beliefs)
        assert controller.pays_to_read(300) == pays
        assert not controller.pays_to_read(100_000)


def test_three_rounds_by_hand() -> None:
    """The example of the module's docstring."""
    costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "17": 2.6}, 0.1))
    draft = ScriptedDraft([0.9, 0.5, 0.1])
    lookup = ScriptedCopies()
    controller = SpeculationController(draft, lookup, costs, PairBeliefs())
    tokens = list(range(200))

    first = controller.propose(tokens, 16)
    assert controller.round_plan == RoundPlan(
        "draft", 16, "the draft gains 0.51 tokens a round"
    )
    assert len(first.tokens) == 2
    assert first.reason == "draft expects 1.2 of 2 accepted"
    controller.record_round(
        RoundResult(first, 1, [first.tokens[0], 9999], RoundTimes(22, 12, 0), width=3)
    )
    tokens += [first.tokens[0], 9999]

    lookup.copied = list(range(50, 58))
    copied = controller.propose(tokens, 16)
    assert controller.round_plan == RoundPlan(
        "copy", 8, "4 tokens matched earlier text: 3.5 of 8 expected right"
    )
    assert copied.tokens == lookup.copied


def known_beliefs(chance: float) -> PairBeliefs:
    beliefs = PairBeliefs()
    for i in range(250):
        accepted = (i * 7 % 100) < 100 * chance
        beliefs.record_draft_token(i % 5, is_accepted=accepted)
    return beliefs


class NoDraft:
    """A draft model that is asked, and has nothing to say."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        return Draft()


class ScriptedDraft:
    """A draft model with these confidences in the tokens that it drafts."""

    def __init__(self, confidences: Sequence[float]) -> None:
        self._confidences = confidences

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        assert stop_policy is not None
        drafted: list[int] = []
        for token, confidence in enumerate(self._confidences, start=1000):
            if not stop_policy.should_draft_token(confidence):
                break
            drafted.append(token)
            if not stop_policy.should_continue(token):
                break
        return Draft(drafted, source="model")


class ScriptedCopies:
    """Prompt lookup that copies this, behind a match of four tokens."""

    def __init__(self) -> None:
        self.copied: list[int] = []

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        if not self.copied:
            return Draft()
        return Draft(self.copied, source="lookup", match_length=4)


class Watched:
    """A controller, and what its rounds did."""

    def __init__(self, controller: SpeculationController) -> None:
        self._controller = controller
        self.sources: list[str] = []

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        draft = self._controller.propose(tokens, limit, stop_policy)
        self.sources.append(self._controller.round_plan.source)
        return draft


def state(controller: SpeculationController) -> SpeculationPlan:
    return controller._report(controller._state())


def test_states_are_told_once_and_with_their_reason() -> None:
    world = World(steady(0.8))
    controller = world.controller()
    told: list[SpeculationPlan] = []

    class Listening:
        def record_round(self, step: RoundResult) -> None:
            controller.record_round(step)
            if (plan := controller.plan_change()) is not None:
                told.append(plan)

    world.run(controller, 200, 16, cast(SpeculationController, Listening()))
    assert [plan.state for plan in told][:2] == ["probing", "on"]
    assert len(told) < 8
    assert all(plan.why for plan in told)
    assert told[-1].speedup is not None and told[-1].speedup > 1.5


def copying(
    rounds: int,
    text: Sequence[int],
    n_prompt: int = 4,
    curve: dict[str, float] | None = None,
) -> tuple[SpeculationPlan, float]:
    """The plan of a controller without a draft model, and its tokens a round.

    The text is known.
    """
    costs = PassCosts(MeasuredCosts(10.0, curve or {"1": 1.0, "8": 1.3}))
    controller = SpeculationController(None, LookupDrafter(), costs, PairBeliefs())
    tokens = list(text[:n_prompt])
    n = 0
    while len(tokens) < len(text) and n < rounds:
        n += 1
        draft = controller.propose(tokens, 16)
        kept = common_prefix_length(draft.tokens, text[len(tokens) :])
        new = list(text[len(tokens) :][: kept + 1])
        width = len(draft.tokens) + 1
        tokens += new
        times = RoundTimes(0, costs.verify_ms[width], 0)
        result = RoundResult(draft, kept, tokens=new, ms=times, width=width)
        controller.record_round(result)
    return state(controller), (len(tokens) - n_prompt) / n


def test_copies_are_used_where_a_text_repeats_itself() -> None:
    plan, rate = copying(200, [1, 2, 3, 4, 5, 6, 7, 8, 9] * 60)

    assert (plan.state, plan.why) == ("on", "prompt lookup finds repeated text")
    assert rate > 5


def test_copies_pause_where_pairs_of_tokens_return_but_not_what_follows_them() -> None:
    text: list[int] = []
    for i in range(300):
        text += [1, 2, 1000 + i]

    plan, rate = copying(900, text)

    assert plan == SpeculationPlan("paused", "not worth it for this text", 1.0)
    assert rate < 1.6


def test_there_are_no_copies_of_a_text_that_repeats_nothing() -> None:
    plan, _ = copying(100, range(1000))

    assert plan.why == "no repeated text yet"


def test_an_edit_is_copied_again_soon_behind_a_copy_that_was_rejected() -> None:
    """With passes as dear as on two cores, where the rejected copy takes the budget."""
    given = [*range(60), *range(100, 120)]
    edit = [*range(16), 200, 201, *range(18, 60)]
    dear = {"1": 1.0, "2": 1.85, "4": 2.9, "8": 4.85, "16": 6.3}
    _, rate = copying(200, [*given, *edit], len(given), dear)
    assert rate > 3.2, "3.0 without that trust"

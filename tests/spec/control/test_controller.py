"""The controller in worlds whose best draft length is known: no clock, no model."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import cast

import numpy as np
import pytest

from localspec.protocol.events import RoundTimes, SpeculationPlan
from localspec.protocol.wire import MeasuredCosts
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.pair_stats import PairStats
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.speculative_loop import RoundResult
from tests.spec.control.worlds import CLIFF, FLAT, STEEP, World, mixed, steady

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


@pytest.mark.parametrize("world", HOPELESS.values(), ids=HOPELESS)
def test_where_nothing_pays_it_costs_next_to_nothing(world: World) -> None:
    assert world.adaptive(400) >= 0.97


@pytest.mark.parametrize("world", MISJUDGED.values(), ids=MISJUDGED)
def test_wrong_measurements_cost_little(world: World) -> None:
    """Plain passes are tried now and then: only they show that drafting is slower."""
    plain = 1 + world.host(1)
    assert mean(world.adaptive(400) * plain for _ in range(4)) >= 0.95


@pytest.mark.parametrize("world", WORTH.values(), ids=WORTH)
def test_it_comes_near_the_best_fixed_length(world: World) -> None:
    best = world.best_fixed()
    # it takes a thousand tokens of probes to find that drafting pays
    if world.curve is CLIFF:
        speedups = [replace(world, seed=seed).adaptive(12_000) for seed in range(2)]
        assert mean(speedups) >= 0.95 * best
    else:
        assert world.adaptive(4000) >= 0.95 * best


def judge(world: World, n_accepted: int) -> None:
    """Saves a score of the draft, as `localspec pair` does, and reads it back."""
    stats = PairStats()
    stats.record_score([n_accepted] * 100)
    world.stats = PairStats.from_saved(stats.saved())


def test_a_dear_draft_is_not_used_before_it_was_judged() -> None:
    """Reading what it missed would cost more than the regret budget ever has."""
    assert World(steady(0.9), c=0.35).adaptive(1000) < 1.05


def test_a_dear_draft_is_used_once_it_was_judged_good() -> None:
    good = World(steady(0.9), c=0.35)
    judge(good, n_accepted=6)
    controller = good.controller()

    speedup = 10.0 / good.run(controller, 4000, 16, controller)

    assert speedup >= 0.9 * good.best_fixed()


def test_a_dear_draft_costs_next_to_nothing_once_it_was_judged_bad() -> None:
    bad = World(steady(0.3), c=0.35)
    judge(bad, n_accepted=0)
    controller = bad.controller()

    assert 10.0 / bad.run(controller, 400, 16, controller) >= 0.97


def test_knowing_which_tokens_are_easy_beats_every_fixed_length() -> None:
    world = World(mixed(0.1, 0.95, 0.6))
    assert mean(world.adaptive(1000) for _ in range(3)) > 1.05 * world.best_fixed()


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
    assert priced > 1.04 * unpriced


def test_a_pause_ends_when_the_draft_gets_better() -> None:
    world = World(steady(0.01))
    controller = world.controller()
    world.run(controller, 300, 16, controller)
    assert state(controller).state == "paused"
    world.sure = steady(0.9)
    world.run(controller, 600, 16, controller)
    assert state(controller).state == "on"


def test_a_draft_that_is_given_up_for_its_reading_is_not_said_to_be_measured() -> None:
    world = World(steady(0.0), c=0.14, prompt=40, reading=0.2, noise=0.0)
    for said in (
        "measuring draft acceptance",
        "the draft would first have to read the text; that costs more than it saves",
    ):
        controller = world.controller()
        world.run(controller, 20, 16, controller)
        assert state(controller).why == said
        world.run(controller, 76, 16, controller)


def test_a_long_text_is_read_where_the_gain_covers_what_reading_costs() -> None:
    """One rule for CPU and GPU: measured times decide.

    The device does only until there are any.
    """
    for on_gpu, accepted in itertools.product((False, True), (0, 1, 2)):
        world = World(steady(0.5), on_gpu=on_gpu)
        controller = world.controller()
        stats = world.stats
        assert not controller.pays_to_read(10, 4), "nothing is known of the drafts"
        for _ in range(50):
            stats.record_draft_gain(accepted, 2.0, 10.0)
            stats.acceptance.record_model_token(0, float(accepted > 0))
        assert controller.pays_to_read(300, 4) == (accepted > 0)
        gain = stats.expected_gain(controller._gain.model_gain(0, 1.0, 4))
        for share in (0.1, 1.0):  # of a draft pass, which is a tenth of the target's
            stats.reading = share
            worth = int(max(gain, 0.0) * 32 / (share * world.c))
            assert accepted == 0 or controller.pays_to_read(int(0.99 * worth), 4)
            assert not controller.pays_to_read(int(1.01 * worth) + 1, 4)
        controller.max_tokens_left = 2
        assert not controller.pays_to_read(int(0.99 * worth), 4), "a short answer"


def test_a_pause_blames_the_text_or_the_passes() -> None:
    """The second curve is that of SmolLM2 135M on two cores."""
    dear = [1.0, 1.0, 1.8, 2.2, *(2.6 + 0.75 * i for i in range(14))]
    for curve, why in (
        (FLAT, "not worth it for this text"),
        (dear, "here, checking 4 tokens costs 2.6 passes"),
    ):
        world = World(steady(0.1), curve=curve, noise=0.0)
        controller = world.controller()
        world.run(controller, 600, 16, controller)
        assert (state(controller).state, state(controller).why) == ("paused", why)


def state(controller: SpeculationController) -> SpeculationPlan:
    return controller._plan(controller._state())


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
    controller = SpeculationController(
        None, LookupDrafter(), costs, PairStats(), n_prompt=n_prompt
    )
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

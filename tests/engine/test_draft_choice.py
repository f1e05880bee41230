"""Two drafts for one target: the better one is used, and neither changes the text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import mean
from types import SimpleNamespace

import numpy as np
import pytest

from localspec.engine import speculative_loop
from localspec.engine.control.acceptance_stats import PairStats
from localspec.engine.control.controller import Controller
from localspec.engine.control.draft_choice import DraftChoice
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.drafters.lookup import LookupDrafter
from localspec.engine.protocols import Draft, DraftStopPolicy
from localspec.engine.session import Session
from localspec.engine.verifiers import make_verifier
from localspec.errors import UsageError
from localspec.paths import package_data_dir
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import LoadCommand, MeasuredCosts, SamplingParams
from tests.engine.laws import PROMPT, SAMPLED
from tests.engine.worlds import FLAT, STEEP, World, steady
from tests.fakeheads import head_drafter
from tests.fakes import GREEDY, HistoryModel, job, model_drafter, plain, run
from tests.sessions import SETTINGS, require_same_logits_at_every_width, say

DEMO = package_data_dir() / "demo"
TARGET, DRAFT, HEAD = (DEMO / f"demo-{name}.gguf" for name in ("target", "draft", "eagle3"))


class SecondDraft:
    """Drafts in a world of its own, for a run of another world."""

    def __init__(self, own: World, run_in: World) -> None:
        self.own, self.run_in = own, run_in
        self.n_drafted = 0

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        draft = self.own.propose(tokens, limit, draft_prefix, stop_policy)
        self.run_in.stands, self.run_in.passes = self.own.stands, self.own.passes
        self.n_drafted += bool(draft.tokens)
        return draft


def speed(first: World, second: World, n: int) -> float:
    """Speed-up of both together over n tokens, without history."""
    choice = DraftChoice(
        [
            Controller(first, None, first.costs(), PairStats()),
            Controller(SecondDraft(second, first), None, second.costs(), PairStats()),
        ]
    )
    return 10.0 / first.run(choice, n, 16, choice)


Chance = Callable[[np.random.Generator], float]
GOOD, POOR, HOPELESS = steady(0.85), steady(0.5), steady(0.02)


@pytest.mark.parametrize(
    ("first", "second"), [(GOOD, POOR), (POOR, GOOD)], ids=["the first", "the second"]
)
def test_the_better_of_two_drafts_is_found(first: Chance, second: Chance) -> None:
    together = mean(speed(World(first), World(second), 4000) for _ in range(3))
    assert together >= 0.95 * World(GOOD).adaptive(4000)


def test_of_two_good_drafts_the_cheaper_is_used() -> None:
    dear, cheap = World(GOOD, c=0.25), World(GOOD, c=0.05)
    alone = cheap.adaptive(4000)
    assert alone > 1.2 * World(GOOD, c=0.25).adaptive(4000)
    assert mean(speed(dear, cheap, 4000) for _ in range(3)) >= 0.93 * alone


def test_a_draft_that_is_better_than_expected_is_found() -> None:
    """Nothing but trying it tells."""
    together = mean(speed(World(GOOD), World(steady(0.97)), 4000) for _ in range(3))
    assert together >= 0.92 * World(steady(0.97)).adaptive(4000)


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_two_hopeless_drafts_cost_next_to_nothing(curve: list[float]) -> None:
    first, second = World(HOPELESS, curve=curve), World(HOPELESS, curve=curve)
    assert mean(speed(first, second, 400) for _ in range(4)) >= 0.96
    assert all(lost <= 0.03 * n_tokens + 1.0 for n_tokens, lost in first.regret)


def test_a_draft_that_gets_better_is_changed_to() -> None:
    late = World(steady(0.9))
    n_drawn = iter(range(10**6))
    late.sure = lambda _: 0.02 if next(n_drawn) < 20 else 0.95
    first = World(POOR)
    assert speed(first, late, 8000) >= 1.15 * World(POOR).adaptive(8000)


COSTS = MeasuredCosts(10.0, {"1": 1.0, "8": 1.1}, 0.01)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_two_drafts_and_lookup_change_nothing(
    sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = itertools.count()  # on a busy machine a slow trial would end trying
    clock = SimpleNamespace(perf_counter=lambda: next(readings) * 0.01)
    monkeypatch.setattr(speculative_loop, "time", clock)
    what = job([*PROMPT, *PROMPT], 120, sampling=sampling, draft_length=16)
    verifier = make_verifier("coupled", sampling.seed)
    drafts = (
        model_drafter(HistoryModel(2), verifier, sampling, len(what.prompt)),
        head_drafter(1, 1, verifier, what),
    )
    lookup = LookupDrafter(1)
    choice = DraftChoice(
        [Controller(draft, lookup, PassCosts(COSTS), PairStats()) for draft in drafts]
    )
    got = run(HistoryModel(1), choice, verifier, replace(what, on_round=choice.record_round))
    expected = plain(HistoryModel(1), make_verifier("coupled", sampling.seed), what)
    assert got.tokens == expected.tokens
    sources = " ".join(step.draft.source or "" for step in got.steps)
    assert "model" in sources and "eagle3" in sources


# --- on the demo, with its draft model and its head -------------------------------------------


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    for path in (TARGET, DRAFT):
        require_same_logits_at_every_width(path)
    load = LoadCommand(str(TARGET), str(DRAFT), SETTINGS, SETTINGS, second_draft=str(HEAD))
    session = Session(load)
    yield session
    session.close()


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.8, seed=3)])
def test_both_draft_and_the_text_stays(session: Session, sampling: SamplingParams) -> None:
    prompt = "def read_lines(path):\n"
    expected = say(session, prompt, spec="off", sampling=sampling, max_tokens=120)
    sources = set()
    for spec in ("auto", "model", "eagle3", "lookup", "auto"):
        said = say(session, prompt, spec=spec, sampling=sampling, max_tokens=120)
        assert said.ids == expected.ids, spec
        sources |= {event.source for event in said.rounds if event.drafted}
    assert {"model", "eagle3"} <= sources


def test_what_was_learnt_of_both_is_measured(session: Session) -> None:
    say(session, "import os\n", spec="auto", max_tokens=200)
    (costs,) = session.measured_costs()
    assert {"greedy", "second draft, greedy"} <= set(costs.survival)
    say(session, "import os\n", spec="auto", max_tokens=60)
    load = LoadCommand(str(TARGET), str(DRAFT), SETTINGS, SETTINGS, measured=costs)
    again = Session(replace(load, second_draft=str(HEAD)))
    try:
        (kept,) = again.measured_costs()
        assert (kept.c, kept.second_c) == pytest.approx((costs.c, costs.second_c))
        assert set(kept.survival) == set(costs.survival)
    finally:
        again.close()


def test_the_pair_names_both(session: Session) -> None:
    ready: EngineReady = session.ready
    assert ready.draft == "demo-draft.gguf + demo-eagle3.gguf"
    assert ready.settings["draft_kinds"] == ["model", "eagle3"]
    assert any("whichever gains more" in notice.message for notice in ready.notices)
    with pytest.raises(UsageError, match="its drafts are a model and a head"):
        say(session, "x", spec="mtp")

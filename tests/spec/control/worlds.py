"""Simulations for the controller: acceptance and costs of passes are known."""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.protocol.events import RoundTimes
from localspec.protocol.wire import MeasuredCosts
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.pair_beliefs import PairBeliefs
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.protocols import Draft, Drafter, DraftStopPolicy
from localspec.spec.speculative_loop import RoundResult

FLAT = [1.0, *(1 + 0.04 * w for w in range(18))]
"""Like a GPU's verify curve: one more row costs little."""
H100 = [1.0, 1.0, 1.16, 1.33, 1.5, 1.69, 1.9, 2.1, *(2.3 + 0.15 * w for w in range(11))]
"""A model of 7.5 B in Q4_K, whose passes are launched as graphs.

Without graphs each pass costs 0.26 more.
"""
STEEP = [1.0, *(1 + 0.35 * w for w in range(18))]
CLIFF = [
    1.0,
    1.0,
    2.3,
    2.5,
    2.7,
    2.9,
    3.0,
    3.1,
    3.2,
    5.0,
    *(5.1 + 0.1 * w for w in range(8)),
]
"""Expensive at two rows, then nearly flat to eight: Q8_0 on a CPU."""


@dataclass
class World:
    """Consecutive answers, in units of one plain pass (10 ms)."""

    sure: Callable[[np.random.Generator], float]
    """Draws the acceptance probability of the next draft token: its true confidence."""
    c: float = 0.1
    curve: Sequence[float] = field(default_factory=lambda: FLAT)
    told: bool = True
    """Whether costs were measured beforehand."""
    noise: float = 0.05
    seed: int = 1
    honest: Callable[[float], float] = lambda chance: chance
    """Maps the true confidence to the reported one."""
    host: Callable[[int], float] = lambda width: 0.0
    """Cost of a round outside the models, which is not measured beforehand."""
    truly: Callable[[int], float] = lambda n: 1.0
    """Real cost of wide passes relative to the measurement, after n tokens."""
    believed: float = 1.0
    """Measured cost of a plain pass relative to the real one."""
    on_gpu: bool = False
    """Whether the draft model is: it reads many tokens at the price of few."""
    prompt: int = 3
    """Tokens before an answer."""
    reading: float = 0.0
    """What the draft model's reading of a token costs, in one-token target passes."""
    max_unread: int = sys.maxsize
    """The most tokens of a text that it reads."""
    change: float = 0.0
    """Extra cost of the first `settling` passes of another width than the last one."""
    settling: int = 1
    """1 on a worker, which is sent a graph again; 2 on a GPU that captures graphs."""
    prices_changes: bool = True
    """Whether the controller knows that there may be such a cost."""

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self.stands: list[bool] = []
        self.passes = 0
        self._read_to = 0
        self.beliefs = PairBeliefs()
        self.lost_passes: list[tuple[int, float]] = []
        """After each round of the last run: tokens, and passes that drafting has lost.

        Passes are those of one token.
        """

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        """The draft model; acceptance is decided while drafting."""
        self.stands = []
        self.passes = 0
        unread = min(len(tokens) - self._read_to, self.max_unread)
        self._read_to = len(tokens)
        for _ in range(limit):
            self.passes += 1
            chance = self.sure(self._rng)
            if stop_policy is not None and not stop_policy.should_draft_token(
                self.honest(chance)
            ):
                break
            self.stands.append(bool(self._rng.random() < chance))
            if stop_policy is not None and not stop_policy.should_continue(7):
                break
        seconds = (self.passes * self.c + unread * self.reading) * 0.01 * self._noisy()
        return Draft([7] * len(self.stands), None, "model", seconds)

    def _noisy(self) -> float:
        return float(np.exp(self._rng.normal() * self.noise))

    def costs(self) -> PassCosts:
        if not self.told:
            return self.priced(None)
        curve = {"1": 1.0}
        for width in (2, 4, 8):
            curve[str(width)] = self.curve[width] / self.believed
        plain_ms = 10.0 * self.believed
        return self.priced(MeasuredCosts(plain_ms, curve, self.c / self.believed))

    def priced(self, measured: MeasuredCosts | None) -> PassCosts:
        settling = 0
        if self.prices_changes and self.change > 0:
            settling = self.settling
        costs = PassCosts(measured, settling=settling, drafts_on_gpu=self.on_gpu)
        if settling > 1:  # what launching the kernels of a graph takes is known
            costs.change_ms = 10.0 * self.change
            costs.start_answer()
        return costs

    def controller(self) -> SpeculationController:
        return SpeculationController(self, None, self.costs(), self.beliefs)

    def result(self, draft: Draft, times: RoundTimes) -> RoundResult:
        kept = next((i for i, ok in enumerate(self.stands) if not ok), len(self.stands))
        kept = min(kept, len(draft.tokens))
        new = [7] * kept + [int(self._rng.integers(100, 10_000))]
        width = len(draft.tokens) + 1
        return RoundResult(draft, kept, tokens=new, ms=times, width=width)

    def run(
        self,
        drafter: Drafter,
        n: int,
        length: int,
        controller: SpeculationController | None,
    ) -> float:
        ms = 0.0
        tokens = [1] * self.prompt
        lost = 0.0
        last_width = 0
        n_alike = 0
        self.lost_passes = []
        self._read_to = 0
        while len(tokens) < self.prompt + n:
            draft = drafter.propose(tokens, length)
            width = len(draft.tokens) + 1
            verify = 10.0 * self.curve[width] * self._noisy()
            if width > 1:
                verify *= self.truly(len(tokens) - self.prompt)
            if width != last_width:
                n_alike = 0
            n_alike += 1
            last_width = width
            is_dear = n_alike <= self.settling
            if is_dear:
                verify += 10.0 * self.change
            times = RoundTimes(
                draft.decode_seconds * 1e3, verify, 10.0 * self.host(width)
            )
            result = self.result(draft, times)
            tokens += result.tokens
            if controller is not None:
                controller.record_round(result)
            if self.passes or width > 1 or (is_dear and lost):
                spent = times.draft + verify + times.host
                lost += spent / (10.0 * (1 + self.host(1))) - len(result.tokens)
            self.lost_passes.append((len(tokens) - self.prompt, lost))
            self.stands = []
            self.passes = 0
            ms += times.draft + verify + times.host
        return ms / (len(tokens) - self.prompt)

    def fixed(self, length: int, n: int = 8000) -> float:
        if not length:
            return 1.0
        return 10.0 / self.run(self, n, length, None)

    def best_fixed(self) -> float:
        return max(self.fixed(length) for length in range(9))

    def adaptive(self, n: int = 400) -> float:
        self.beliefs = PairBeliefs()
        controller = self.controller()
        return 10.0 / self.run(controller, n, 16, controller)


def steady(chance: float) -> Callable[[np.random.Generator], float]:
    return lambda _: chance


def turning(*chances: float, every: int) -> Callable[[np.random.Generator], float]:
    """The acceptance probability changes every so many draft tokens, over and over."""
    drawn = itertools.count()
    return lambda _: chances[next(drawn) // every % len(chances)]


def mixed(
    low: float, high: float, share: float
) -> Callable[[np.random.Generator], float]:
    def draw(rng: np.random.Generator) -> float:
        if rng.random() < share:
            return high
        return low

    return draw

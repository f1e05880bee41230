"""Runs each prompt plain and speculating, in turns, and keeps what came when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from localspec.bench.workloads import Workload
from localspec.errors import EngineError
from localspec.launch import Engine
from localspec.protocol.events import Dead, Finished, Round
from localspec.protocol.wire import Generate, Sampling
from localspec.worker import ending

Arm = Literal["plain", "speculative"]
_PATIENCE = 40.0
"""Seconds for all rounds, by the pass of one token: prompts and a busy machine double it."""
_MOST_TURNS = 3
_SEED = 20_000
"""Seeds are fixed, so that two benches draw the same noise."""


@dataclass(frozen=True, slots=True)
class Task:
    """One text to complete, at one temperature, with one seed."""

    workload: str
    prompt: int
    text: str
    temperature: float
    turn: int
    """Which round of the bench."""
    copies: bool = False

    @property
    def seed(self) -> int:
        return _SEED + 100 * self.turn + self.prompt


@dataclass(frozen=True, slots=True)
class Way:
    """How to answer: as `run` would with this pair."""

    max_tokens: int
    spec: str = "auto"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished answer and when its rounds came."""

    task: Task
    arm: Arm
    rounds: tuple[Round, ...]
    arrivals: tuple[float, ...]
    """Seconds from the request to each round, seen by the parent."""
    timings: dict[str, Any] = field(default_factory=dict)
    tail: str = ""

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for event in self.rounds for token in event.tokens)

    @property
    def text(self) -> str:
        said = (token.text for event in self.rounds for token in event.tokens)
        return "".join(said) + self.tail

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token, by the engine's clock."""
        rate = self.timings.get("tokens_per_second")
        return float(rate) if rate else None

    @property
    def first_token_ms(self) -> float | None:
        """From the request to the first round, by the parent's clock."""
        return self.arrivals[0] * 1e3 if self.arrivals else None

    @property
    def latencies(self) -> list[float]:
        """Ms of each token after the first round: its round's wait, shared by its tokens."""
        waits = zip(self.rounds[1:], self.arrivals, self.arrivals[1:], strict=False)
        return [
            (now - before) * 1e3 / len(event.tokens)
            for event, before, now in waits
            for _ in event.tokens
        ]


@dataclass(frozen=True, slots=True)
class Going:
    """An answer that is being written."""

    task: Task
    arm: Arm
    tokens: int
    """So far."""
    tokens_per_second: float | None
    """After the first round, by the parent's clock."""


def schedule(
    workloads: Sequence[Workload], temperatures: Sequence[float], turns: int
) -> list[tuple[Task, Arm]]:
    """Both arms of every task, taking turns: A B A B A B, and the next group B A B A B A.

    The prompts of a workload go round twice, the second time with the other arm: no run follows
    one of the same prompt, which the engine would still have in its memory.
    """
    jobs: list[tuple[Task, Arm]] = []
    arms: tuple[Arm, Arm] = ("plain", "speculative")
    flip = 0
    for turn in range(turns):
        for workload in workloads:
            for temperature in temperatures:
                tasks = [
                    Task(workload.name, i, text, temperature, turn, workload.copies)
                    for i, text in enumerate(workload.prompts)
                ]
                jobs += [(task, arms[(i + flip) % 2]) for i, task in enumerate(tasks)]
                jobs += [(task, arms[(i + flip + 1) % 2]) for i, task in enumerate(tasks)]
                flip = 1 - flip
    return jobs


def affordable(answers: int, seconds_each: float) -> int:
    """Rounds of so many answers that a person waits for gladly: 1 to 3."""
    once = answers * seconds_each
    return min(max(int(_PATIENCE / once) if once else _MOST_TURNS, 1), _MOST_TURNS)


def measure(
    engine: Engine,
    jobs: Sequence[tuple[Task, Arm]],
    way: Way,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Run]:
    """Each job's run; ends early after `engine.stop()`.  Raises what the engine died of."""
    return (told for told in follow(engine, jobs, way, clock) if isinstance(told, Run))


def follow(
    engine: Engine,
    jobs: Sequence[tuple[Task, Arm]],
    way: Way,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Going | Run]:
    """As `measure`, and every answer while it is being written."""
    for task, arm in jobs:
        whole = False
        for told in _answered(engine, task, arm, way, clock):
            whole = isinstance(told, Run)
            yield told
        if not whole:
            return


def _answered(
    engine: Engine, task: Task, arm: Arm, way: Way, clock: Callable[[], float]
) -> Iterator[Going | Run]:
    """The last is the run, unless it was stopped."""
    rounds: list[Round] = []
    arrivals: list[float] = []
    tokens = 0
    began = clock()
    for event in engine.generate(_request(task, arm, way)):
        if isinstance(event, Round):
            arrivals.append(clock() - began)
            rounds.append(event)
            tokens += len(event.tokens)
            took = arrivals[-1] - arrivals[0]
            yield Going(
                task, arm, tokens, (tokens - len(rounds[0].tokens)) / took if took else None
            )
        elif isinstance(event, Dead):
            raise ending.error(event)
        elif isinstance(event, Finished):
            if event.reason != "cancelled":
                timings = event.totals.get("timings", {})
                yield Run(task, arm, tuple(rounds), tuple(arrivals), timings, event.tail)
            return
    raise EngineError("The engine's answer has no end.", "This is a bug.")


def _request(task: Task, arm: Arm, way: Way) -> Generate:
    plain = arm == "plain"
    return Generate(
        text=task.text,
        sampling=Sampling(temperature=task.temperature, seed=task.seed),
        max_tokens=way.max_tokens,
        spec="off" if plain else way.spec,
        why="" if plain else way.why,
    )

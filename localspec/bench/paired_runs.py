"""Runs each prompt plain and speculative, alternating, and records the timing of every round."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal

from localspec.bench.workloads import Workload
from localspec.errors import EngineError
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import EngineExit, GenerationFinished, Round
from localspec.protocol.wire import GenerateCommand, SamplingParams
from localspec.worker import exit_causes

Arm = Literal["plain", "speculative"]
_TIME_BUDGET_SECONDS = 40.0
"""For all rounds, counting plain passes only; reading the prompts can double it."""
_MAX_ROUNDS = 3
_BASE_SEED = 20_000
"""Fixed seeds make two benchmarks comparable."""


@dataclass(frozen=True, slots=True)
class BenchTask:
    """One text to complete, at one temperature, with one seed."""

    workload: str
    prompt_index: int
    text: str
    temperature: float
    round_index: int
    copies_prompt: bool = False

    @property
    def seed(self) -> int:
        return _BASE_SEED + 100 * self.round_index + self.prompt_index


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to measure; `spec` and `why` as `run` would use for this pair."""

    name: str
    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...]
    max_tokens: int
    spec: str = "auto"
    why: str = ""
    rounds: int | None = None
    """None: as many as the time budget allows."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    task: BenchTask
    arm: Arm
    rounds: tuple[Round, ...]
    arrivals: tuple[float, ...]
    """Seconds from the request to each round, by the parent's clock."""
    tokens_per_second: float | None = None
    """After the first token, by the engine's clock."""
    tail: str = ""

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for event in self.rounds for token in event.tokens)

    @property
    def text(self) -> str:
        texts = (token.text for event in self.rounds for token in event.tokens)
        return "".join(texts) + self.tail

    @property
    def first_token_ms(self) -> float | None:
        """From the request to the first round, by the parent's clock."""
        return self.arrivals[0] * 1e3 if self.arrivals else None

    @property
    def latencies(self) -> list[float]:
        """Ms per token after the first round: each round's time, divided by its tokens."""
        waits = zip(self.rounds[1:], self.arrivals, self.arrivals[1:], strict=False)
        return [
            (now - before) * 1e3 / len(event.tokens)
            for event, before, now in waits
            for _ in event.tokens
        ]


@dataclass(frozen=True, slots=True)
class RunProgress:
    task: BenchTask
    arm: Arm
    tokens: int
    tokens_per_second: float | None
    """After the first round, by the parent's clock."""


def schedule_runs(
    workloads: Sequence[Workload], temperatures: Sequence[float], n_rounds: int
) -> list[tuple[BenchTask, Arm]]:
    """Both arms of every task, alternating: A B A B A B, then B A B A B A for the next group.

    A workload's prompts run twice, the second time with the other arm. So no run follows one of
    the same prompt, whose KV cache the engine would reuse.
    """
    jobs: list[tuple[BenchTask, Arm]] = []
    arms: tuple[Arm, Arm] = ("plain", "speculative")
    flip = 0
    for turn in range(n_rounds):
        for workload in workloads:
            for temperature in temperatures:
                tasks = [
                    BenchTask(workload.name, i, text, temperature, turn, workload.copies_prompt)
                    for i, text in enumerate(workload.prompts)
                ]
                jobs += [(task, arms[(i + flip) % 2]) for i, task in enumerate(tasks)]
                jobs += [(task, arms[(i + flip + 1) % 2]) for i, task in enumerate(tasks)]
                flip = 1 - flip
    return jobs


def count_affordable_rounds(answers: int, seconds_each: float) -> int:
    """As many rounds of `answers` as fit the time budget: 1 to _MAX_ROUNDS."""
    seconds = answers * seconds_each
    return min(max(int(_TIME_BUDGET_SECONDS / seconds) if seconds else _MAX_ROUNDS, 1), _MAX_ROUNDS)


def stream_run(
    engine: Engine, task: BenchTask, arm: Arm, request: BenchRequest, clock: Callable[[], float]
) -> Generator[RunProgress, None, BenchRun | None]:
    """Returns the run, or None if `engine.stop()` ended it. Raises EngineError."""
    rounds: list[Round] = []
    arrivals: list[float] = []
    tokens = 0
    began = clock()
    for event in engine.generate(_generate_command(task, arm, request)):
        if isinstance(event, Round):
            arrivals.append(clock() - began)
            rounds.append(event)
            tokens += len(event.tokens)
            seconds = arrivals[-1] - arrivals[0]
            speed = (tokens - len(rounds[0].tokens)) / seconds if seconds else None
            yield RunProgress(task, arm, tokens, speed)
        elif isinstance(event, EngineExit):
            raise exit_causes.exit_error(event)
        elif isinstance(event, GenerationFinished):
            if event.reason == "cancelled":
                return None
            rate = event.totals.get("timings", {}).get("tokens_per_second") or None
            return BenchRun(task, arm, tuple(rounds), tuple(arrivals), rate, event.tail)
    raise EngineError("The engine ended an answer without a final event.", "This is a bug.")


def _generate_command(task: BenchTask, arm: Arm, request: BenchRequest) -> GenerateCommand:
    plain = arm == "plain"
    return GenerateCommand(
        text=task.text,
        sampling=SamplingParams(temperature=task.temperature, seed=task.seed),
        max_tokens=request.max_tokens,
        spec="off" if plain else request.spec,
        why="" if plain else request.why,
    )

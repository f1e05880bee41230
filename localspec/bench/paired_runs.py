"""The runs of a benchmark: each prompt plain and speculative, alternating."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from localspec.bench.measurement import RecordedAnswer
from localspec.bench.workloads import Workload
from localspec.lazy_dataclass import dataclass
from localspec.protocol.wire import GenerateCommand, SamplingParams

Arm = Literal["plain", "speculative"]
_TIME_BUDGET_SECONDS = 40.0
"""For all rounds, counting plain passes only; reading the prompts can double it."""
_MAX_ROUNDS = 3
_BASE_SEED = 20_000  # Fixed seeds make two benchmarks comparable.


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
    rounds: int | None = None  # None: as many as the time budget allows.

    def build_command(self, task: BenchTask, arm: Arm) -> GenerateCommand:
        plain = arm == "plain"
        return GenerateCommand(
            text=task.text,
            sampling=SamplingParams(temperature=task.temperature, seed=task.seed),
            max_tokens=self.max_tokens,
            spec="off" if plain else self.spec,
            why="" if plain else self.why,
        )


@dataclass(frozen=True, slots=True)
class BenchRun:
    task: BenchTask
    arm: Arm
    answer: RecordedAnswer


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

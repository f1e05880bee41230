"""The benchmark's prompts, from workloads.yaml, and the order of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import yaml
from msgspec import Struct

from localspec.bench.measurement import RecordedAnswer
from localspec.errors import UsageError
from localspec.protocol.wire import GenerateCommand, SamplingParams
from localspec.sanitize import sanitize

Arm = Literal["plain", "speculative"]
_BASE_SEED = 20_000  # Fixed seeds make two benchmarks comparable.


class Workload(Struct, frozen=True):
    name: str
    title: str
    prompts: tuple[str, ...]
    copies_prompt: bool = False  # The answer should repeat most of the prompt.


def load(names: Sequence[str] = ()) -> list[Workload]:
    """The workloads in the file's order; all without names.

    Raises UsageError for unknown names.
    """
    known = {}
    file = Path(__file__).with_name("workloads.yaml")
    for entry in yaml.safe_load(file.read_text("utf-8"))["workloads"]:
        # A YAML block ends with a line feed; a text to be copied continues on the next
        # line.
        copies = bool(entry.get("copies", False))
        texts = tuple(
            text if copies else text.rstrip("\n") for text in entry["prompts"]
        )
        known[entry["name"]] = Workload(entry["name"], entry["title"], texts, copies)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"There is no workload called {sanitize(unknown[0], multiline=False)}.",
            f"Workloads: {', '.join(known)}.",
        )
    return [workload for name, workload in known.items() if not names or name in names]


class BenchTask(Struct, frozen=True):
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


class BenchRequest(Struct, frozen=True):
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

    def schedule_runs(self, n_rounds: int) -> list[tuple[BenchTask, Arm]]:
        """Both arms of every task, alternating: A B A B A B, then B A B A B A for the
        next group.

        A workload's prompts run twice, the second time with the other arm. So no run
        follows one of the same prompt, whose KV cache the engine would reuse.
        """
        runs: list[tuple[BenchTask, Arm]] = []
        first: tuple[Arm, Arm] = ("plain", "speculative")
        for turn in range(n_rounds):
            for workload in self.workloads:
                for temperature in self.temperatures:
                    tasks = [
                        BenchTask(
                            workload.name,
                            i,
                            text,
                            temperature,
                            turn,
                            workload.copies_prompt,
                        )
                        for i, text in enumerate(workload.prompts)
                    ]
                    for arms in (first, first[::-1]):
                        runs += [(task, arms[i % 2]) for i, task in enumerate(tasks)]
                    first = first[::-1]
        return runs


class BenchRun(Struct, frozen=True):
    task: BenchTask
    arm: Arm
    answer: RecordedAnswer

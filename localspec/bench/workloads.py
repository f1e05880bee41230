"""The benchmark's prompts, from workloads.yaml, and the order of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
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
    """The workloads in the file's order; without names all of them.

    Raises UsageError for unknown names.
    """
    known = _read_workloads()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"There is no workload called {sanitize(unknown[0], multiline=False)}.",
            f"Workloads: {', '.join(known)}.",
        )
    if not names:
        return list(known.values())
    return [workload for name, workload in known.items() if name in names]


def _read_workloads() -> dict[str, Workload]:
    file = Path(__file__).with_name("workloads.yaml")
    workloads = {}
    for entry in yaml.safe_load(file.read_text("utf-8"))["workloads"]:
        name = entry["name"]
        prompts = entry["prompts"]
        copies_prompt = bool(entry.get("copies", False))
        if not copies_prompt:
            # A YAML block ends with a line feed. The answer is to continue the last
            # line, but to begin a new one where it is to copy the text.
            prompts = [prompt.rstrip("\n") for prompt in prompts]
        workloads[name] = Workload(name, entry["title"], tuple(prompts), copies_prompt)
    return workloads


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
    """What to measure; `spec` and `why` are those that `run` would use for the pair."""

    name: str
    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...]
    max_tokens: int
    spec: str = "auto"
    why: str = ""
    rounds: int | None = None  # None: as many as the time budget allows.

    def build_command(self, task: BenchTask, arm: Arm) -> GenerateCommand:
        spec = self.spec
        why = self.why
        if arm == "plain":
            spec = "off"
            why = ""
        return GenerateCommand(
            text=task.text,
            sampling=SamplingParams(temperature=task.temperature, seed=task.seed),
            max_tokens=self.max_tokens,
            spec=spec,
            why=why,
        )

    def schedule_runs(self, n_rounds: int) -> list[tuple[BenchTask, Arm]]:
        """Both arms of every task, alternating, so that drift affects both alike.

        A workload's prompts run twice, the second time with the other arm. So no run
        follows one of the same prompt, whose KV cache the engine would reuse. With the
        prompts 1 to 3 and the arms p (plain) and s (speculative), the runs of a
        workload are p1 s2 p3, s1 p2 s3; the next workload begins with s.
        """
        runs: list[tuple[BenchTask, Arm]] = []
        arms: tuple[Arm, Arm] = ("plain", "speculative")
        groups = product(range(n_rounds), self.workloads, self.temperatures)
        for round_index, workload, temperature in groups:
            tasks = _make_tasks(workload, temperature, round_index)
            swapped_arms = arms[::-1]
            runs += zip(tasks, cycle(arms), strict=False)
            runs += zip(tasks, cycle(swapped_arms), strict=False)
            arms = swapped_arms
        return runs


def _make_tasks(
    workload: Workload, temperature: float, round_index: int
) -> list[BenchTask]:
    return [
        BenchTask(
            workload=workload.name,
            prompt_index=prompt_index,
            text=text,
            temperature=temperature,
            round_index=round_index,
            copies_prompt=workload.copies_prompt,
        )
        for prompt_index, text in enumerate(workload.prompts)
    ]


class BenchRun(Struct, frozen=True):
    task: BenchTask
    arm: Arm
    answer: RecordedAnswer

"""The texts that a bench asks for, read from workloads.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from localspec.errors import UsageError
from localspec.sanitize import sanitize

_FILE = Path(__file__).with_name("workloads.yaml")


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of text, with prompts for it."""

    name: str
    title: str
    prompts: tuple[str, ...]
    copies_prompt: bool = False
    """Whether the answer should repeat most of the prompt."""


def load(names: Sequence[str] = ()) -> list[Workload]:
    """The workloads of these names in the file's order; all of them where none is named.

    Raises UsageError where one is unknown.
    """
    known = [
        _parse_workload(entry) for entry in yaml.safe_load(_FILE.read_text("utf-8"))["workloads"]
    ]
    unknown = [name for name in names if name not in {workload.name for workload in known}]
    if unknown:
        raise UsageError(
            f"There is no workload called {sanitize(unknown[0], multiline=False)}.",
            f"Known: {', '.join(workload.name for workload in known)}.",
        )
    return [workload for workload in known if not names or workload.name in names]


def _parse_workload(entry: dict[str, object]) -> Workload:
    prompts = entry["prompts"]
    assert isinstance(prompts, list)
    # Without the line feed that YAML puts at the end of a block, unless the text is to go on below.
    copies = bool(entry.get("copies", False))
    texts = tuple(text if copies else text.rstrip("\n") for text in prompts)
    return Workload(str(entry["name"]), str(entry["title"]), texts, copies)

"""The benchmark's prompts, read from workloads.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from localspec.errors import UsageError
from localspec.lazy_dataclass import dataclass
from localspec.sanitize import sanitize

_FILE = Path(__file__).with_name("workloads.yaml")


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    prompts: tuple[str, ...]
    copies_prompt: bool = False  # The answer should repeat most of the prompt.


def load(names: Sequence[str] = ()) -> list[Workload]:
    """The workloads in the file's order; all without names. Raises UsageError for unknown names."""
    known = []
    for entry in yaml.safe_load(_FILE.read_text("utf-8"))["workloads"]:
        # A YAML block ends with a line feed; a text to be copied continues on the next line.
        copies = bool(entry.get("copies", False))
        texts = tuple(text if copies else text.rstrip("\n") for text in entry["prompts"])
        known.append(Workload(entry["name"], entry["title"], texts, copies))
    unknown = [name for name in names if name not in {workload.name for workload in known}]
    if unknown:
        raise UsageError(
            f"There is no workload called {sanitize(unknown[0], multiline=False)}.",
            f"Workloads: {', '.join(workload.name for workload in known)}.",
        )
    return [workload for workload in known if not names or workload.name in names]

"""Prompts of the benchmarks.

They are those of held-out modules, of `localspec bench`, or the user's own.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from programs import BenchError

from localspec.bench import workloads

HEADS = {
    "textwrap": "class TextWrapper",
    "shlex": "class shlex",
    "heapq": "def merge",
    "configparser": "class RawConfigParser",
    "difflib": "def get_close_matches",
}
"""Modules that the demo pair was not trained on, and where each prompt starts."""
HEAD_LINES = 40


def prompts_of(path: Path | None) -> dict[str, str]:
    if path is None:
        return {f"{name}.py": _head(name, start) for name, start in HEADS.items()}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: {error}") from error
    is_valid = isinstance(found, dict) and all(
        str(text).strip() for text in found.values()
    )
    if not is_valid:
        raise BenchError(f"{path}: not a JSON object of names and texts.")
    return {name: str(text) for name, text in found.items()}


def workload_prompts(names: Sequence[str]) -> dict[str, str]:
    """The prompts of these workloads, of all without names."""
    prompts = {}
    for workload in workloads.load(names):
        for n, prompt in enumerate(workload.prompts, 1):
            prompts[f"{workload.name} {n}"] = prompt
    return prompts


def _head(module: str, start: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise BenchError(f"This Python has no source of {module}; give --prompts.")
    lines = Path(spec.origin).read_text(encoding="utf-8").splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(start)), 0)
    return "\n".join(lines[first : first + HEAD_LINES])

"""bench/workloads.py: the prompts."""

from __future__ import annotations

import pytest

from localspec.bench import workloads
from localspec.errors import UsageError

NAMES = ["code", "prose", "chat", "long-form", "copy-edit"]


def test_every_workload_has_three_short_prompts() -> None:
    loaded = workloads.load()
    assert [workload.name for workload in loaded] == NAMES
    prompts = [prompt for workload in loaded for prompt in workload.prompts]
    assert all(len(workload.prompts) == 3 for workload in loaded)
    assert all(10 < len(prompt.split()) <= 200 for prompt in prompts)
    assert len(set(prompts)) == len(prompts)


def test_selected_workloads_come_once_and_in_the_files_order() -> None:
    loaded = workloads.load(["chat", "code", "chat"])
    assert [workload.name for workload in loaded] == ["code", "chat"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no workload called poems") as failure:
        workloads.load(["code", "poems"])
    assert all(name in failure.value.hint for name in NAMES)

"""The prompts that a bench asks for."""

from __future__ import annotations

import pytest

from localspec.bench import workloads
from localspec.errors import UsageError

NAMES = ["code", "prose", "chat", "long-form", "copy-edit"]


def test_all_of_them_are_short_and_three_each() -> None:
    found = workloads.load()
    assert [workload.name for workload in found] == NAMES
    prompts = [prompt for workload in found for prompt in workload.prompts]
    assert all(len(workload.prompts) == 3 for workload in found)
    assert all(10 < len(prompt.split()) <= 200 for prompt in prompts)
    assert len(set(prompts)) == len(prompts)


def test_some_of_them_in_the_files_order_whatever_was_said_first_or_twice() -> None:
    found = workloads.load(["chat", "code", "chat"])
    assert [workload.name for workload in found] == ["code", "chat"]


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no workload called poems") as failure:
        workloads.load(["code", "poems"])
    assert all(name in failure.value.hint for name in NAMES)

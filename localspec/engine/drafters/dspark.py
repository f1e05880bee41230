"""Guess a block of tokens in one pass, each with how sure the head is of it (DSpark)."""

from __future__ import annotations

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.head_runner import BlockDrafter, BlockHeadRunner


def make(inputs: DrafterInputs) -> BlockDrafter:
    if not isinstance(inputs.head_runner, BlockHeadRunner):
        raise KeyError("dspark")
    return BlockDrafter(inputs.head_runner, inputs, "dspark")

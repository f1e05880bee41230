"""DSpark drafter: a head that drafts a block in one pass, with a confidence per token."""

from __future__ import annotations

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.head_runner import BlockDrafter, BlockHeadRunner


def make(inputs: DrafterInputs) -> BlockDrafter:
    if not isinstance(inputs.head_runner, BlockHeadRunner):
        raise KeyError("dspark")
    return BlockDrafter(inputs.head_runner, inputs, "dspark")

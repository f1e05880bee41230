"""DFlash drafter: a head that drafts a block of tokens in one pass."""

from __future__ import annotations

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.head_runner import BlockDrafter, BlockHeadRunner


def make(inputs: DrafterInputs) -> BlockDrafter:
    if not isinstance(inputs.head_runner, BlockHeadRunner):
        raise KeyError("dflash")
    return BlockDrafter(inputs.head_runner, inputs, "dflash")

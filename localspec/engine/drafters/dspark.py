"""Guess a block of tokens in one pass, each with how sure the head is of it (DSpark)."""

from __future__ import annotations

from localspec.engine.drafters import Needs
from localspec.engine.drafters.blocks import BlockCompanion, BlockDrafter


def make(needs: Needs) -> BlockDrafter:
    if not isinstance(needs.companion, BlockCompanion):
        raise KeyError("dspark")
    return BlockDrafter(needs.companion, needs, "dspark")

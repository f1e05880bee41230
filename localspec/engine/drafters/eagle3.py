"""Guess with an EAGLE-3 head: one layer that goes on from three of the target's layers."""

from __future__ import annotations

from localspec.engine.drafters import Needs
from localspec.engine.drafters.companion import Companion, HeadDrafter


def make(needs: Needs) -> HeadDrafter:
    if not isinstance(needs.companion, Companion):
        raise KeyError("eagle3")
    return HeadDrafter(needs.companion, needs, "eagle3")

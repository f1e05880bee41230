"""Guess with the layer that a model brings to predict one token more (MTP)."""

from __future__ import annotations

from localspec.engine.drafters import Needs
from localspec.engine.drafters.companion import Companion, HeadDrafter


def make(needs: Needs) -> HeadDrafter:
    if not isinstance(needs.companion, Companion):
        raise KeyError("mtp")
    return HeadDrafter(needs.companion, needs, "mtp")

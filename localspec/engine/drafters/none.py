"""Guess nothing: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.drafters import Needs
from localspec.engine.protocols import Draft, Gauge

_NOTHING = Draft()


class NoDrafter:
    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        return _NOTHING


def make(needs: Needs) -> NoDrafter:
    return NoDrafter()

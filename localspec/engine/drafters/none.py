"""No drafter: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.drafters import DrafterInputs
from localspec.engine.protocols import Draft, DraftStopPolicy

_EMPTY_DRAFT = Draft()


class NoDrafter:
    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        return _EMPTY_DRAFT


def make(inputs: DrafterInputs) -> NoDrafter:
    return NoDrafter()

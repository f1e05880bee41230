"""The echo drafter: it proposes the last token again.

Only the engine process imports this file.
"""

from collections.abc import Sequence

from localspec.spec.drafters import DrafterInputs
from localspec.spec.protocols import Draft, DraftStopPolicy


class EchoDrafter:
    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        """Propose `limit` tokens after `tokens`, the whole text so far."""
        drafted = [tokens[-1]] * limit
        # None: the tokens were certain, so that no distributions come with them.
        return Draft(drafted, None, "echo")


def make(inputs: DrafterInputs) -> EchoDrafter:
    return EchoDrafter()

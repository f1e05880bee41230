"""Lets a drafter read a text without its pictures.

Draft models and heads do not see. With the places of a picture left out, more of their
drafts were accepted than with any stand-in for its rows (a token for each, or zeros).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from localspec.spec.constraints.output_constraint import PicturelessConstraint
from localspec.spec.drafters import DrafterInputs
from localspec.spec.picture_ids import PicturelessText, without_pictures
from localspec.spec.protocols import Draft, Drafter, DraftStopPolicy, OverlapRound


def leave_out_pictures(inputs: DrafterInputs, prompt: Sequence[int]) -> DrafterInputs:
    """The inputs of a drafter that reads the prompt without its pictures."""
    n_text = len(without_pictures(prompt))
    n_left_out = len(prompt) - n_text
    constraint = inputs.constraint
    if constraint is not None:
        constraint = PicturelessConstraint(constraint, n_left_out)
    return replace(inputs, prompt_length=n_text, constraint=constraint)


class TextOnlyDrafter:
    """Gives a drafter the text of an answer without its pictures, in one growing list."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._text = PicturelessText()

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        return self._drafter.propose(self._text.read(tokens), limit, stop_policy)

    def leave_out_pictures_of(self, overlap: OverlapRound) -> OverlapRound:
        """What the drafter does while the target verifies, for the whole text."""
        return lambda tokens, draft: overlap(self._text.read(tokens), draft)

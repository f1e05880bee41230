"""MTP drafter: a layer trained with the model to predict one further token."""

from __future__ import annotations

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.head_runner import HeadDrafter, HeadRunner


def make(inputs: DrafterInputs) -> HeadDrafter:
    if not isinstance(inputs.head_runner, HeadRunner):
        raise KeyError("mtp")
    return HeadDrafter(inputs.head_runner, inputs, "mtp")

"""EAGLE-3 drafter: a one-layer head over hidden states of three of the target's layers."""

from __future__ import annotations

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.head_runner import HeadDrafter, HeadRunner


def make(inputs: DrafterInputs) -> HeadDrafter:
    if not isinstance(inputs.head_runner, HeadRunner):
        raise KeyError("eagle3")
    return HeadDrafter(inputs.head_runner, inputs, "eagle3")

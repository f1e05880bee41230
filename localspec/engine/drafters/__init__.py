"""Drafters by name; choosing one imports one.

A factory gets what a drafter may need and ignores the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Drafter, HiddenStateListener, Verifier
from localspec.protocol.wire import SamplingParams
from localspec.speculation import DRAFTERS, WITHOUT_DRAFT

DRAFT_FREE = ("none", *(name for name in WITHOUT_DRAFT if name != "off"))
"""Those that need no draft model."""
NAMES = ("none", *DRAFTERS)


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    """What one answer offers to its drafter."""

    draft_cache: PrefixCache | None
    """The draft model, if one is loaded."""
    verifier: Verifier
    sampling: SamplingParams
    prompt_length: int
    """Length of the prompt: place 0 of the answer."""
    n_vocab: int
    """Tokens the target knows; ids from there on are never drafted."""
    is_eog: Callable[[int], bool]
    cancelled: Callable[[], bool] = lambda: False
    head_runner: HiddenStateListener | None = None
    """The head that follows the target, if one is loaded."""
    keep_logits: bool = False
    """Whether a draft comes with the draft model's logits."""


def make(name: str, inputs: DrafterInputs) -> Drafter:
    """The drafter of that name."""
    if name not in NAMES:
        raise KeyError(name)
    drafter: Drafter = import_module(f"localspec.engine.drafters.{name}").make(inputs)
    return drafter

"""Drafters by name. Each module has a factory `make(inputs)` and is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Drafter, HiddenStateListener, Verifier
from localspec.protocol.wire import SamplingParams
from localspec.speculation import DRAFTERS, WITHOUT_DRAFT

DRAFT_FREE = ("none", *(name for name in WITHOUT_DRAFT if name != "off"))
"""Drafters that need no draft model."""
NAMES = ("none", *DRAFTERS)


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    """Inputs of a drafter for one answer; each factory uses what it needs."""

    draft_cache: PrefixCache | None
    """The draft model, if loaded."""
    verifier: Verifier
    sampling: SamplingParams
    prompt_length: int
    """Length of the prompt: position 0 of the answer."""
    n_vocab: int
    """The target's vocabulary size; larger ids are never drafted."""
    is_eog: Callable[[int], bool]
    cancelled: Callable[[], bool] = lambda: False
    head_runner: HiddenStateListener | None = None
    """The head's runner, if a head is loaded."""
    keep_logits: bool = False
    """Whether drafts include the draft model's logits."""


def make(name: str, inputs: DrafterInputs) -> Drafter:
    """Raises KeyError for an unknown name, or if its model or head is not loaded."""
    if name not in NAMES:
        raise KeyError(name)
    drafter: Drafter = import_module(f"localspec.engine.drafters.{name}").make(inputs)
    return drafter

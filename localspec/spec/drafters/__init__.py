"""Drafters by name, and what each is made from.

The row of a kind (`draft_kinds.py`) names the factory of its drafter, `make(inputs)` in
one of these modules or elsewhere, which is imported when it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from localspec import draft_kinds
from localspec.protocol.wire import SamplingParams
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import (
    Draft,
    Drafter,
    DraftStopPolicy,
    HiddenStateListener,
    Verifier,
)


class DrafterInputs(Struct, frozen=True):
    """Inputs of a drafter for one answer; each factory uses what it needs."""

    draft_cache: PrefixCache | None  # The draft model, if loaded.
    verifier: Verifier
    sampling: SamplingParams
    prompt_length: int  # Length of the prompt: position 0 of the answer.
    n_vocab: int  # The target's vocabulary size; larger ids are never drafted.
    is_eog: Callable[[int], bool]
    cancelled: Callable[[], bool] = lambda: False
    # The head's runner, if a head is loaded.
    head_runner: HiddenStateListener | None = None
    constraint: OutputConstraint | None = None
    """The grammar of the answer: a draft that ignores it is cut."""
    # Tokens that the answer probably repeats, for prompt lookup.
    prediction: tuple[int, ...] = ()
    keep_logits: bool = False  # Whether drafts include the draft model's logits.
    prepared: object = None
    """What the kind's `loader` made of the loaded draft model, if it has one."""
    draft_prompt: Sequence[int] | None = None
    """The prompt of a chat in the draft model's own template; None: it reads the
    target's.
    """


class HeadStates:
    """Copies a head's runner: its pending states, and the head's memory.

    A copy has every attribute of the runner but `head`, whatever a subclass adds.
    `ConversationSnapshots` keeps it with the copy of the target's memory, which holds
    the same tokens.
    """

    head: Any
    buffer_bytes: int  # The size of the buffer of pending states.

    def state_bytes(self) -> int:
        return self.buffer_bytes + int(self.head.memory_bytes())

    def save_state(self) -> Any:
        own = {name: value for name, value in vars(self).items() if name != "head"}
        return copy.deepcopy(own), self.head.save_memory(), self.head.n_past

    def restore_state(self, state: Any) -> None:
        own, memory, n_past = state
        vars(self).update(copy.deepcopy(own))
        self.head.restore_memory(memory, n_past)


def make(name: str, inputs: DrafterInputs) -> Drafter:
    """Make the drafter of a kind; `none` is plain decoding.

    Raises KeyError for an unknown name, or if its model or head is not loaded.
    """
    if name == "none":
        return NoDrafter()
    kind = draft_kinds.find(name)
    if kind is None:
        raise KeyError(name)
    factory = draft_kinds.load_factory(kind)
    drafter: Drafter = factory(inputs)
    return drafter


class NoDrafter:
    """Plain decoding."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        return Draft()

"""Checkpoints: saved states of a context whose cache cannot be truncated."""

from __future__ import annotations

import ctypes
from typing import Any

from localspec.engine.llama.library import C
from localspec.engine.protocols import HiddenStates
from localspec.lazy_dataclass import dataclass

_MAX_CHECKPOINTS = 32
_MAX_CHECKPOINT_BYTES = 256 * 2**20  # Of all checkpoints, in RAM.
_PARTIAL_STATE = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True, slots=True)
class ContextCheckpoint:
    n_past: int
    data: Any  # The state as llama.cpp serialised it.
    head_state: HiddenStates | None  # The head's hidden state at this point.


class ContextCheckpoints:
    """States of a recurrent or windowed cache, as llama.cpp's server has them too.

    The oldest is dropped when there are too many.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._checkpoints: list[ContextCheckpoint] = []

    def save(self, n_past: int, state: HiddenStates | None) -> None:
        """Save the memory, which holds n_past tokens; without effect if llama.cpp cannot."""
        self.drop_after(n_past)
        if self._checkpoints and self._checkpoints[-1].n_past == n_past:
            return
        size = C.llama_state_seq_get_size_ext(self._context, 0, _PARTIAL_STATE)
        if not 0 < size <= _MAX_CHECKPOINT_BYTES:
            return
        data = (ctypes.c_uint8 * size)()
        if C.llama_state_seq_get_data_ext(self._context, data, size, 0, _PARTIAL_STATE) != size:
            return
        self._checkpoints.append(ContextCheckpoint(n_past, data, state))
        while (
            len(self._checkpoints) > _MAX_CHECKPOINTS
            or sum(len(c.data) for c in self._checkpoints) > _MAX_CHECKPOINT_BYTES
        ):
            del self._checkpoints[0]

    def drop_after(self, n_past: int) -> None:
        """Drop the checkpoints beyond n_past tokens."""
        while self._checkpoints and self._checkpoints[-1].n_past > n_past:
            self._checkpoints.pop()

    def restore(self) -> ContextCheckpoint | None:
        """Restore the last checkpoint; None if there is none or llama.cpp cannot restore it."""
        if not self._checkpoints:
            return None
        checkpoint, memory = self._checkpoints[-1], C.llama_get_memory(self._context)
        size = len(checkpoint.data)
        read = C.llama_state_seq_set_data_ext(
            self._context, checkpoint.data, size, 0, _PARTIAL_STATE
        )
        if read == size and C.llama_memory_seq_rm(memory, 0, checkpoint.n_past, -1):
            return checkpoint
        self._checkpoints.clear()
        return None

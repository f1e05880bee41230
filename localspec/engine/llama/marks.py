"""Places that a memory can return to though it cannot be cut there: recurrent states, windows.

llama.cpp writes only the part of a memory that a cut would not bring back, so a mark is small
(llama.h, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY; its server's context checkpoints).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from localspec.engine.llama.library import C
from localspec.engine.protocols import States

_MOST = 32
_BYTES = 256 * 2**20
"""Of all marks, in this computer's memory."""
_PART = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True, slots=True)
class Mark:
    n_past: int
    data: Any
    """As llama.cpp wrote it."""
    state: States | None
    """What a head must be given to go on from there."""


class Marks:
    """Those of one context, by place; the oldest goes where there are too many."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._marks: list[Mark] = []

    def set(self, n_past: int, state: States | None) -> None:
        """The memory as it is now, which holds n_past tokens."""
        self.forget(n_past)
        if self._marks and self._marks[-1].n_past == n_past:
            return
        size = C.llama_state_seq_get_size_ext(self._context, 0, _PART)
        if not 0 < size <= _BYTES:
            return
        data = (ctypes.c_uint8 * size)()
        if C.llama_state_seq_get_data_ext(self._context, data, size, 0, _PART) != size:
            return
        self._marks.append(Mark(n_past, data, state))
        while len(self._marks) > _MOST or sum(len(m.data) for m in self._marks) > _BYTES:
            del self._marks[0]

    def forget(self, n_past: int) -> None:
        """The text is another from there on."""
        while self._marks and self._marks[-1].n_past > n_past:
            self._marks.pop()

    def restore(self) -> Mark | None:
        """Return to the last one; None where there is none or llama.cpp refuses."""
        if not self._marks:
            return None
        mark, memory = self._marks[-1], C.llama_get_memory(self._context)
        size = len(mark.data)
        read = C.llama_state_seq_set_data_ext(self._context, mark.data, size, 0, _PART)
        if read == size and C.llama_memory_seq_rm(memory, 0, mark.n_past, -1):
            return mark
        self._marks.clear()
        return None

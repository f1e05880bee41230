"""A llama_batch: the rows of one pass, as tokens or hidden states."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.llama.library import C
from localspec.spec.protocols import HiddenStates

_SHORT_BATCH = 32  # Up to this many tokens are written one by one.
_TEXT_AXES = 3
"""The first three axes of an M-RoPE position are equal in a text; the fourth is 0."""

_INTS = ctypes.POINTER(ctypes.c_int32)
_FLOATS = ctypes.POINTER(ctypes.c_float)


class LlamaBatch:
    """A llama_batch of up to `n` rows: tokens, hidden states of `width`, or both.

    llama.cpp takes a row's width from the model: a wrong `width` makes it read out of
    bounds. The same holds for `axes`, the numbers in the position of a row without a
    token (M-RoPE).
    """

    def __init__(
        self, n: int, *, tokens: bool = True, width: int = 0, axes: int = 1
    ) -> None:
        self._tokens = np.zeros(n, np.int32)
        self._positions = np.zeros(n * axes, np.int32)
        self._axes = axes
        self._output_flags = np.zeros(n, np.int8)
        self._states = np.zeros((n, width), np.float32)
        self._counts = np.ones(n, np.int32)
        # Of each row, the sequence that it belongs to: 0, the text, but for branches.
        self._sequence_ids = [(ctypes.c_int32 * 1)(0) for _ in range(n)]
        pointers = [ctypes.cast(id_, _INTS) for id_ in self._sequence_ids]
        self._sequences = (_INTS * n)(*pointers)
        self._offsets = np.arange(n, dtype=np.int32)
        self._last_outputs = (0, 0)
        self._position_pointer = self._positions.ctypes.data_as(_INTS)
        self._token_pointer = self._tokens.ctypes.data_as(_INTS)
        token_pointer = None
        if tokens:
            token_pointer = self._token_pointer
        state_pointer = None
        if width:
            state_pointer = self._states.ctypes.data_as(_FLOATS)
        flag_pointer = self._output_flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.struct = C.llama_batch(
            n_tokens=0,
            token=token_pointer,
            embd=state_pointer,
            pos=self._position_pointer,
            n_seq_id=self._counts.ctypes.data_as(_INTS),
            seq_id=ctypes.cast(self._sequences, ctypes.POINTER(_INTS)),
            logits=flag_pointer,
        )

    def set_rows(self, n: int, *, n_past: int, outputs: int) -> None:
        """Make the batch `n` rows long, and number them from position `n_past` on.

        The last `outputs` rows give logits. What the rows hold is set by `set_tokens`
        and `set_hidden_states`. A round's few positions are written one by one: after a
        decode the numpy code is cold.
        """
        if n <= _SHORT_BATCH:
            position = self._position_pointer
            for i in range(n):
                position[i] = n_past + i
        else:
            np.add(self._offsets[:n], n_past, out=self._positions[:n])
        # With several axes (M-RoPE) the positions of one axis follow those of another.
        for axis in range(1, min(self._axes, _TEXT_AXES)):
            self._positions[axis * n : (axis + 1) * n] = self._positions[:n]
        if self._axes > _TEXT_AXES:
            self._positions[_TEXT_AXES * n : self._axes * n] = 0
        if self._last_outputs != (n, outputs):
            self._output_flags[: n - outputs] = 0
            self._output_flags[n - outputs : n] = 1
            self._last_outputs = (n, outputs)
        self.struct.n_tokens = n

    def set_picture(
        self, states: HiddenStates, positions: NDArray[np.int32], *, outputs: int
    ) -> None:
        """Make the batch rows of a picture, with positions of shape (axes, rows).

        The last `outputs` rows give logits.
        """
        n = len(states)
        self.set_hidden_states(states)
        self.set_rows(n, n_past=0, outputs=outputs)
        self._positions[: positions.size] = positions.reshape(-1)

    def set_tokens(self, tokens: Sequence[int]) -> None:
        n = len(tokens)
        if n <= _SHORT_BATCH:
            token = self._token_pointer
            for i in range(n):
                token[i] = tokens[i]
        else:
            self._tokens[:n] = tokens

    def set_branches(
        self, steps: Sequence[tuple[int, int]], positions: Sequence[int]
    ) -> None:
        """Set one row for each pair of branch and token, all with logits.

        Call `clear_branches` after the pass.
        """
        self.set_tokens([token for _, token in steps])
        self.set_rows(len(steps), n_past=0, outputs=len(steps))
        for i, (branch, _) in enumerate(steps):
            self._position_pointer[i] = positions[i]
            self._sequence_ids[i][0] = branch

    def clear_branches(self, n: int) -> None:
        """The first n rows belong to the text again."""
        for id_ in self._sequence_ids[:n]:
            id_[0] = 0

    def set_hidden_states(self, states: HiddenStates) -> None:
        self._states[: len(states)] = states

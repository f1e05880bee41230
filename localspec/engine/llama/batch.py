"""What one llama_decode reads: llama_batch over arrays of ours, of one sequence."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from localspec.engine.llama.library import C
from localspec.engine.protocols import States

_SHORT = 32
"""Tokens that are written one by one."""
_OF_TEXT = 3
"""Axes of a position that tell where a text's token stands; the fourth is 0."""


class Batch:
    """Room for `n` rows: tokens, hidden states `width` wide, or both.

    llama.cpp takes a row's width from the model, not from here: a wrong one reads out of bounds.
    So it does with the axes of a position (time, height and width: M-RoPE), which rows without
    a token have.
    """

    def __init__(self, n: int, *, tokens: bool = True, width: int = 0, axes: int = 1) -> None:
        self._tokens = np.zeros(n, np.int32)
        self._positions = np.zeros(n * axes, np.int32)
        self._axes = axes
        self._wanted = np.zeros(n, np.int8)
        self._states = np.zeros((n, width), np.float32)
        self._counts = np.ones(n, np.int32)
        self._sequence = (ctypes.c_int32 * 1)(0)
        own = ctypes.cast(self._sequence, ctypes.POINTER(ctypes.c_int32))
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * n)(*[own] * n)
        self._steps = np.arange(n, dtype=np.int32)
        self._pattern = (0, 0)
        self._position = self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self._token = self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self.struct = C.llama_batch(
            0,
            self._token if tokens else None,
            self._states.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) if width else None,
            self._position,
            self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            ctypes.cast(self._sequences, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def place(self, n: int, past: int, outputs: int) -> None:
        """`n` rows from position `past` on, of which the last `outputs` give logits.

        A round's few go in one by one: after a pass every numpy call is cold.  Which rows give
        logits is written only when it changes: rarely, from round to round.
        """
        if n <= _SHORT:
            position = self._position
            for i in range(n):
                position[i] = past + i
        else:
            np.add(self._steps[:n], past, out=self._positions[:n])
        for axis in range(1, min(self._axes, _OF_TEXT)):  # a text has the same on each
            self._positions[axis * n : (axis + 1) * n] = self._positions[:n]
        if self._axes > _OF_TEXT:
            self._positions[_OF_TEXT * n : self._axes * n] = 0
        if self._pattern != (n, outputs):
            self._wanted[: n - outputs] = 0
            self._wanted[n - outputs : n] = 1
            self._pattern = (n, outputs)
        self.struct.n_tokens = n

    def write(self, tokens: Sequence[int]) -> None:
        n = len(tokens)
        if n <= _SHORT:
            token = self._token
            for i in range(n):
                token[i] = tokens[i]
        else:
            self._tokens[:n] = tokens

    def fill(self, states: States) -> None:
        self._states[: len(states)] = states

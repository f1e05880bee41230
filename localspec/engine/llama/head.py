"""A trained head's context beside its target's: tokens and hidden states in, logits out.

Never close the target before its head: the head's graph uses the target's weights.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from localspec.engine import pulse
from localspec.engine.llama import failures, taps
from localspec.engine.llama.batch import Batch
from localspec.engine.llama.context import Llama
from localspec.engine.llama.library import LOG, LOGITS, C
from localspec.engine.llama.weights import Weights
from localspec.engine.protocols import Logits, States
from localspec.errors import EngineError
from localspec.machine import parameters
from localspec.machine.ledger import HOST
from localspec.machine.parameters import Role
from localspec.protocol.wire import ContextSettings

BATCH = parameters.HEAD_BATCH
"""Rows of one pass."""


class Head:
    """A `Model` whose every token comes with a hidden state, `width` wide.

    An EAGLE-3 head first makes that of the target's own, `taken_width` wide, by `encode`.
    `predicting`: it is a layer that predicts (MTP), which takes them as they are; without a path
    the target's own.
    """

    def __init__(
        self,
        path: Path | None,
        settings: ContextSettings,
        target: Llama,
        *,
        taken_width: int,
        predicting: bool = False,
    ) -> None:
        taps.require()
        self._context: Any = None
        self._target = target  # lives longer
        self._inside = path is None
        self._predicts = predicting or self._inside
        self.weights = target.weights
        if path is not None:
            self.weights = Weights(path, settings, predicting=predicting)
        try:
            if self._predicts and self.weights.n_predicting < 1:  # llama.cpp would abort
                raise EngineError("The model has no layer that predicts further tokens (MTP).")
            self.vocabulary = self.weights.vocabulary
            self.n_vocab: int = self.vocabulary.n_tokens
            self.width: int = self.weights.n_embd_out if self._predicts else self.weights.n_embd
            if self._predicts and taken_width != self.width:
                raise EngineError(f"the layer takes no states {taken_width} wide")
            self.taken_width = taken_width
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: ContextSettings) -> None:
        role = Role(replace(settings, n_ubatch=BATCH), BATCH, 0)
        params = parameters.context(C, self.weights.handle, role, self._target.n_ctx)
        params.ctx_other = self._target.context
        if self._predicts:
            params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
        self.n_threads: int = params.n_threads
        LOG.lines.clear()
        self._context = C.llama_init_from_model(self.weights.handle, params)
        if not self._context:
            raise failures.context_error(self.weights.path)
        self._memory = C.llama_get_memory(self._context)
        taps.ask_for_next_states(self._context, of_outputs_only=True)
        self.n_ctx: int = C.llama_n_ctx(self._context)
        self.n_batch: int = C.llama_n_ubatch(self._context)
        self.n_past, self.seconds = 0, 0.0
        self._read, self._outputs = Batch(self.n_batch, width=self.width), 0
        axes = self.weights.n_axes
        self._taken = Batch(self.n_batch, tokens=False, width=self.taken_width, axes=axes)

    # --- passes -------------------------------------------------------------------------

    def encode(self, states: States) -> States:
        """What the head makes of the target's states; a copy.  Its memory stays as it is."""
        n = self._checked(states, self.taken_width)
        if self._predicts:
            return states
        self._taken.fill(states)
        # Positions go on from the memory's, although the encoder has no use for them.
        self._taken.place(n, self.n_past, n)
        self._pass(C.llama_encode, self._taken)
        return taps.next_states(self._context, n, self.width).copy()

    def read(self, tokens: Sequence[int], outputs: int, states: States | None = None) -> Logits:
        """Append a row for each token; logits of the last `outputs` of them, until the next call.

        The states are zero where none are given: for measuring.
        """
        if states is None:
            states = np.zeros((len(tokens), self.width), np.float32)
        n = self._checked(states, self.width)
        if n != len(tokens) or self.n_past + n > self.n_ctx or not 0 <= outputs <= n:
            raise EngineError(f"cannot read {len(tokens)} rows at {self.n_past} of {self.n_ctx}")
        self._read.fill(states)
        return self._rows(tokens, outputs)

    def _rows(self, tokens: Sequence[int], outputs: int) -> Logits:
        n = len(tokens)
        # Padding of the target's vocabulary, which no text holds, has no row here.
        self._read.write([token if 0 <= token < self.n_vocab else 0 for token in tokens])
        # All rows or none: the graph ignores which are wanted, and gives the first instead.
        self._outputs = n if outputs else 0
        self._read.place(n, self.n_past, self._outputs)
        self._pass(C.llama_decode, self._read)
        self.n_past += n
        if not outputs:
            return np.empty((0, self.n_vocab), np.float32)
        pointer = ctypes.cast(LOGITS(self._context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (n, self.n_vocab))[n - outputs :]

    def last_state(self) -> States:
        """What the last row leaves for the next, shape (1, width); a copy."""
        rows = taps.next_states(self._context, self._outputs, self.width)
        return rows[-1:].copy()

    def _checked(self, states: States, width: int) -> int:
        n = len(states)
        if self._context is None:
            raise EngineError("The head is closed.")
        if not 0 < n <= self.n_batch or states.shape[1] != width:
            raise EngineError(f"the head takes no states of shape {states.shape}")
        return n

    def _pass(self, call: Any, batch: Batch) -> None:
        began = time.perf_counter()
        result = call(self._context, batch.struct)
        C.llama_synchronize(self._context)
        self.seconds += time.perf_counter() - began
        pulse.beat()
        if result != 0:
            self.n_past = C.llama_memory_seq_pos_max(self._memory, 0) + 1
            raise failures.decode_error(result)

    def forget(self, n_past: int) -> None:
        """Keep the first n_past rows."""
        if n_past >= self.n_past:
            return
        if not C.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            C.llama_memory_clear(self._memory, True)
            n_past = 0
        self.n_past = n_past

    def use_threads(self, n: int) -> None:
        """Compute with so many threads from the next pass on."""
        self.n_threads = parameters.threads(n)
        C.llama_set_n_threads(self._context, self.n_threads, self.n_threads)

    def memory(self) -> dict[str, int]:
        """Bytes by device; empty where unknown."""
        used = self.weights.used_with(self._context, self.n_batch, shared=self._inside)
        if used:
            used[HOST] += 4 * self.n_batch * self.width
        return used

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Before the target is closed."""
        if self._context:
            C.llama_free(self._context)
        self._context = None
        if not self._inside:
            self.weights.close()

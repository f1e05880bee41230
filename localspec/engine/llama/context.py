"""One llama.cpp model and its context: tokens in, rows of logits out.

Every argument that makes llama.cpp abort is checked before the call and every return code after
it.  Never `llama_cpp.Llama`: it allocates n_ctx x n_vocab floats.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from localspec.engine import heartbeat
from localspec.engine.llama import library
from localspec.engine.llama.hidden_states import HiddenStateSource
from localspec.engine.llama.library import LOG, C, get_logits_address
from localspec.engine.llama.model import LlamaModel
from localspec.engine.protocols import DecodeInterrupted, HiddenStateListener, HiddenStates, Logits
from localspec.errors import DoesNotFitError, EngineError, ModelFileError
from localspec.machine import llama_params
from localspec.machine.llama_params import ModelRole
from localspec.machine.memory_by_device import HOST
from localspec.protocol.wire import ContextSettings
from localspec.units import gib

_SHORT_DECODE = 32
"""Tokens of a read that is soon over."""
_ABORTED = 2
"""llama_decode's code where the abort callback said so."""


class LlamaContext:
    """A loaded model with one context of one sequence; a `Model`.

    `outputs`, `rollback` and `within_trained` are those of a `Role`, `predicting` of `Weights`.
    """

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
        *,
        outputs: int,
        rollback: int,
        within_trained: bool = False,
        with_mtp: bool = False,
    ) -> None:
        role = ModelRole(settings, outputs, rollback, within_trained)
        self._context: Any = None
        self._listener: HiddenStateListener | None = None
        self._state_source: HiddenStateSource | None = None
        self.model = LlamaModel(path, settings, with_mtp=with_mtp)
        try:
            if not self.model.is_generative:
                raise ModelFileError(
                    f"{path.name} is not a model that continues text.",
                    "Give a text-generation model; encoders and embedding models cannot be run.",
                )
            self.vocabulary = self.model.vocabulary
            self.n_vocab: int = self.vocabulary.n_tokens
            self.n_ctx_train = self.model.n_ctx_train
            self.is_recurrent = self.model.is_recurrent
            self._open(llama_params.limit_to_trained(C, self.model.handle, role))
        except BaseException:
            self.close()
            raise

    # --- loading ------------------------------------------------------------------------

    def _open(self, role: ModelRole) -> None:
        self.n_ctx_requested = self._choose_n_ctx(role.settings)
        params = llama_params.context_params(C, self.model.handle, role, self.n_ctx_requested)
        self.n_threads: int = params.n_threads
        LOG.lines.clear()
        self._context = C.llama_init_from_model(self.model.handle, params)
        if not self._context:
            raise library.context_error(self.model.path)
        self._memory = C.llama_get_memory(self._context)
        self._checkpoints = ContextCheckpoints(self._context)
        self.n_ctx: int = C.llama_n_ctx(self._context)
        self.n_batch: int = C.llama_n_ubatch(self._context)
        self._max_outputs = role.n_outputs_max
        self.n_past = self._last_decode_at = 0
        self.decode_seconds = 0.0
        self._batch = LlamaBatch(self.n_batch)
        self._logits_views: dict[int, Logits] = {}
        self._logits_address = 0
        self.is_interrupted: Callable[[], bool] = _never
        """Asked during a long read; True ends it with Interrupted.  On the CPU only."""
        self._abort_callback = C.ggml_abort_callback(self._should_abort)
        self.rollback = self._probe_rollback(role.n_rs_seq)
        windowed = self.model.n_swa > 0 and not params.swa_full
        self.needs_checkpoints: bool = self.is_recurrent or windowed

    def _choose_n_ctx(self, settings: ContextSettings) -> int:
        weights = self.model
        n_ctx = llama_params.resolve_n_ctx(settings, weights.n_ctx_train, weights.path.name)
        needed = weights.kv_bytes(n_ctx, settings.kv_type)
        total = psutil.virtual_memory().total
        on_cpu = settings.n_gpu_layers == 0 or not C.llama_supports_gpu_offload()
        if on_cpu and needed > total:
            raise DoesNotFitError(
                f"A context of {n_ctx:,} tokens needs about {gib(needed)} for keys and values; "
                f"this machine has {gib(total)}.",
                "Use a smaller --ctx, or --kv q8_0.",
            )
        return n_ctx

    def _probe_rollback(self, requested: int) -> int:
        """How many tokens of the last read can be forgotten: tried, not believed, if recurrent."""
        if not self.is_recurrent:
            return self.n_batch
        snapshots = min(requested, int(C.llama_n_rs_seq(self._context)))
        if snapshots <= 0:
            return 0
        self.decode([0, 0], 0)
        self.truncate(1)
        cut = self.n_past == 1
        C.llama_memory_clear(self._memory, True)
        self.n_past, self.decode_seconds = 0, 0.0
        return snapshots if cut else 0

    # --- a Model ------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append tokens; rows of logits of the last `outputs`, shape (outputs, n_vocab).

        The rows are a view of llama.cpp's memory and hold until the next call.  Raises
        EngineError where llama_decode fails; n_past then says what the memory still holds.
        """
        n = len(tokens)
        if self._context is None:
            raise EngineError("The model is closed.")
        if not 0 < n <= self.n_batch or self.n_past + n > self.n_ctx:
            raise EngineError(f"cannot read {n} tokens at {self.n_past} of {self.n_ctx}")
        if not 0 <= outputs <= min(n, self._max_outputs):
            raise EngineError(f"cannot give {outputs} rows of {n} tokens")
        self._batch.set_tokens(tokens)
        self._batch.set_positions(n, self.n_past, outputs)
        self._last_decode_at = self.n_past
        began = time.perf_counter()
        if n > _SHORT_DECODE:  # asked at every node of the graph: too dear for a round
            C.llama_set_abort_callback(self._context, self._abort_callback, None)
        result = C.llama_decode(self._context, self._batch.struct)
        if n > _SHORT_DECODE:
            C.llama_set_abort_callback(self._context, C.ggml_abort_callback(0), None)
        address = get_logits_address(self._context) if outputs else 0
        self.decode_seconds += time.perf_counter() - began
        heartbeat.record_progress()
        if result != 0:
            self._set_n_past(C.llama_memory_seq_pos_max(self._memory, 0) + 1)
            if result == _ABORTED:
                raise DecodeInterrupted
            raise library.decode_error(result)
        self.n_past += n
        if self._listener is not None and self._state_source is not None:
            self._listener.on_decode(tokens, self._state_source.states(n))
        return self._view_logits(address, outputs)

    def set_listener(self, source: HiddenStateSource, listener: HiddenStateListener) -> None:
        """From now on `follower` hears of every token, with its hidden states; memory empty."""
        self.truncate(0)
        self._state_source, self._listener = source, listener

    def _set_n_past(self, n_past: int) -> None:
        """The memory holds so many tokens."""
        self.n_past = n_past
        if self._listener is not None:
            self._listener.on_truncate(n_past)

    def _view_logits(self, address: int, outputs: int) -> Logits:
        """Making a view costs more than a round of bookkeeping, so it is kept by address."""
        if address != self._logits_address:
            self._logits_views, self._logits_address = {}, address
        rows = self._logits_views.get(outputs)
        if rows is None:
            shape = (outputs, self.n_vocab)
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            rows = np.ctypeslib.as_array(pointer, shape) if outputs else np.empty(shape, np.float32)
            self._logits_views[outputs] = rows
        return rows

    def _should_abort(self, _: Any) -> bool:
        heartbeat.record_progress()
        return self.is_interrupted()

    def save_checkpoint(self) -> None:
        """What is read now can be returned to, also where the memory cannot be cut."""
        if self.needs_checkpoints and self.n_past > 0:
            self._checkpoints.save(
                self.n_past, self._listener.newest_state() if self._listener else None
            )

    def truncate(self, n_past: int) -> None:
        """Keep the first n_past tokens, or fewer: to a mark or none where it cannot be cut."""
        if n_past >= self.n_past:
            return
        self._checkpoints.drop_after(n_past)
        if self._listener is not None:
            n_past = self._listener.limit_truncation(n_past)
        # Snapshots are of the last read only; llama.cpp would take older, stale ones for good.
        cut = not self.is_recurrent or n_past > self._last_decode_at
        cut = cut and C.llama_memory_seq_rm(self._memory, 0, n_past, -1)
        window = self.model.n_swa
        if cut and window and n_past:
            # A sliding window reuses the slots of what it left behind (algorithms.md 9).
            # Where it left all that is to be kept, there is no oldest: -1.
            oldest = C.llama_memory_seq_pos_min(self._memory, 0)
            cut = 0 <= oldest <= max(0, n_past - window)
        if cut:
            self._checkpoints.drop_after(n_past)
            self._set_n_past(n_past)
        else:
            self._restore_checkpoint()

    def _restore_checkpoint(self) -> None:
        """To the last mark, or to the beginning."""
        mark = self._checkpoints.restore()
        if mark is None:
            C.llama_memory_clear(self._memory, True)
            self._checkpoints.drop_after(0)
            self._set_n_past(0)
            return
        self._set_n_past(mark.n_past)
        self._last_decode_at = mark.n_past
        if self._listener is not None and mark.head_state is not None:
            self._listener.on_restore(mark.head_state)

    def set_n_threads(self, n: int) -> None:
        """Compute with so many threads from the next read on."""
        self.n_threads = llama_params.resolve_n_threads(n)
        C.llama_set_n_threads(self._context, self.n_threads, self.n_threads)

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything; in this order, or llama.cpp uses freed memory."""
        self._logits_views = {}
        if self._context:
            C.llama_free(self._context)
        self._context = None
        self.model.close()

    def memory_by_device(self) -> dict[str, int]:
        """Bytes by device; empty where unknown."""
        used = self.model.memory_with_context(self._context, self._max_outputs)
        if used and self._state_source is not None:
            used[HOST] += 4 * self.n_batch * self._state_source.width
        return used

    @property
    def handle(self) -> Any:
        """llama.cpp's own, for a head beside it."""
        return self._context


def _never() -> bool:
    return False


# --- What one llama_decode reads: llama_batch over arrays of ours, of one sequence.

_SHORT_BATCH = 32
"""Tokens that are written one by one."""
_TEXT_AXES = 3
"""Axes of a position that tell where a text's token stands; the fourth is 0."""


class LlamaBatch:
    """Room for `n` rows: tokens, hidden states `width` wide, or both.

    llama.cpp takes a row's width from the model, not from here: a wrong one reads out of bounds.
    So it does with the axes of a position (time, height and width: M-RoPE), which rows without
    a token have.
    """

    def __init__(self, n: int, *, tokens: bool = True, width: int = 0, axes: int = 1) -> None:
        self._tokens = np.zeros(n, np.int32)
        self._positions = np.zeros(n * axes, np.int32)
        self._axes = axes
        self._output_flags = np.zeros(n, np.int8)
        self._states = np.zeros((n, width), np.float32)
        self._counts = np.ones(n, np.int32)
        self._sequence = (ctypes.c_int32 * 1)(0)
        own = ctypes.cast(self._sequence, ctypes.POINTER(ctypes.c_int32))
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * n)(*[own] * n)
        self._offsets = np.arange(n, dtype=np.int32)
        self._last_outputs = (0, 0)
        self._position_pointer = self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self._token_pointer = self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self.struct = C.llama_batch(
            0,
            self._token_pointer if tokens else None,
            self._states.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) if width else None,
            self._position_pointer,
            self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            ctypes.cast(self._sequences, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            self._output_flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def set_positions(self, n: int, n_past: int, outputs: int) -> None:
        """`n` rows from position `past` on, of which the last `outputs` give logits.

        A round's few go in one by one: after a pass every numpy call is cold.  Which rows give
        logits is written only when it changes: rarely, from round to round.
        """
        if n <= _SHORT_BATCH:
            position = self._position_pointer
            for i in range(n):
                position[i] = n_past + i
        else:
            np.add(self._offsets[:n], n_past, out=self._positions[:n])
        for axis in range(1, min(self._axes, _TEXT_AXES)):  # a text has the same on each
            self._positions[axis * n : (axis + 1) * n] = self._positions[:n]
        if self._axes > _TEXT_AXES:
            self._positions[_TEXT_AXES * n : self._axes * n] = 0
        if self._last_outputs != (n, outputs):
            self._output_flags[: n - outputs] = 0
            self._output_flags[n - outputs : n] = 1
            self._last_outputs = (n, outputs)
        self.struct.n_tokens = n

    def set_tokens(self, tokens: Sequence[int]) -> None:
        n = len(tokens)
        if n <= _SHORT_BATCH:
            token = self._token_pointer
            for i in range(n):
                token[i] = tokens[i]
        else:
            self._tokens[:n] = tokens

    def set_hidden_states(self, states: HiddenStates) -> None:
        self._states[: len(states)] = states


# --- Places that a memory can return to though it cannot be cut there: recurrent states, windows.

_MAX_CHECKPOINTS = 32
_MAX_CHECKPOINT_BYTES = 256 * 2**20
"""Of all marks, in this computer's memory."""
_PARTIAL_STATE = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True, slots=True)
class ContextCheckpoint:
    n_past: int
    data: Any
    """As llama.cpp wrote it."""
    head_state: HiddenStates | None
    """What a head must be given to go on from there."""


class ContextCheckpoints:
    """Those of one context, by place; the oldest goes where there are too many."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._checkpoints: list[ContextCheckpoint] = []

    def save(self, n_past: int, state: HiddenStates | None) -> None:
        """The memory as it is now, which holds n_past tokens."""
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
            or sum(len(m.data) for m in self._checkpoints) > _MAX_CHECKPOINT_BYTES
        ):
            del self._checkpoints[0]

    def drop_after(self, n_past: int) -> None:
        """The text is another from there on."""
        while self._checkpoints and self._checkpoints[-1].n_past > n_past:
            self._checkpoints.pop()

    def restore(self) -> ContextCheckpoint | None:
        """Return to the last one; None where there is none or llama.cpp refuses."""
        if not self._checkpoints:
            return None
        mark, memory = self._checkpoints[-1], C.llama_get_memory(self._context)
        size = len(mark.data)
        read = C.llama_state_seq_set_data_ext(self._context, mark.data, size, 0, _PARTIAL_STATE)
        if read == size and C.llama_memory_seq_rm(memory, 0, mark.n_past, -1):
            return mark
        self._checkpoints.clear()
        return None

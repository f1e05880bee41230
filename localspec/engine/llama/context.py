"""A llama.cpp context with one sequence: tokens in, rows of logits out.

Arguments that would make llama.cpp abort are checked before each call, return codes after it.
`llama_cpp.Llama` is not used: it allocates n_ctx x n_vocab floats.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
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
from localspec.errors import DoesNotFitError, EngineError, Hint, ModelFileError
from localspec.lazy_dataclass import dataclass
from localspec.machine import llama_params
from localspec.machine.device import HOST
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import ContextSettings
from localspec.units import gib

_SHORT_DECODE = 32  # Up to this many tokens a decode is short, and needs no abort callback.
_ABORTED = 2  # llama_decode's return code after the abort callback returned True.
_LIBC = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)


class InterruptFlag:
    """Ends the pass in progress of the contexts that watch it, however narrow it is.

    llama.cpp calls strlen on the flag at each node of the graph: Python would be too slow there.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        self.callback = C.ggml_abort_callback(ctypes.cast(_LIBC.strlen, ctypes.c_void_p).value)
        self.address = ctypes.addressof(self._text)

    def raise_(self) -> None:
        self._text.value = b"1"

    def lower(self) -> None:
        self._text.value = b""


_NO_CALLBACK = C.ggml_abort_callback(0)


class OpenContext:
    """A llama_context with the tokens in its memory, and the time of its passes."""

    handle: Any = None  # The llama_context; None before it is opened, and after it is closed.
    model: LlamaModel

    def _open_context(self, params: Any) -> None:
        """Raises OutOfMemoryError, UsageError."""
        self.n_threads: int = params.n_threads  # For passes of one token.
        self.n_threads_batch: int = params.n_threads_batch  # For wider passes.
        LOG.clear()
        self.handle = C.llama_init_from_model(self.model.handle, params)
        if not self.handle:
            raise library.context_error(self.model.path)
        self._buffers = LOG.buffers.by_device()
        self._memory = C.llama_get_memory(self.handle)
        self.n_ctx: int = C.llama_n_ctx(self.handle)
        self.n_batch: int = C.llama_n_ubatch(self.handle)
        self.n_past, self.decode_seconds = 0, 0.0

    def _run(self, call: Any, batch: LlamaBatch, wait: Callable[[Any], Any] | None) -> Any:
        """Call llama_decode or llama_encode; return what `wait`, which ends the pass, returns.

        Raises EngineError, or DecodeInterrupted if aborted; n_past is then what the memory holds.
        """
        began = time.perf_counter()
        result = call(self.handle, batch.struct)
        waited = wait(self.handle) if wait else 0
        self.decode_seconds += time.perf_counter() - began
        heartbeat.record_progress()
        if result != 0:
            self._set_n_past(C.llama_memory_seq_pos_max(self._memory, 0) + 1)
            raise DecodeInterrupted if result == _ABORTED else library.decode_error(result)
        return waited

    def _set_n_past(self, n_past: int) -> None:
        self.n_past = n_past

    def watch(self, flag: InterruptFlag | None) -> None:
        """While the flag is raised, passes end with DecodeInterrupted; on the CPU only."""
        callback, address = (flag.callback, flag.address) if flag else (_NO_CALLBACK, None)
        C.llama_set_abort_callback(self.handle, callback, address)

    def set_n_threads(self, n: int, n_batch: int) -> None:
        self.n_threads, self.n_threads_batch = n, n_batch
        C.llama_set_n_threads(self.handle, n, n_batch)

    def close(self) -> None:
        if self.handle:
            C.llama_free(self.handle)
        self.handle = None


class LlamaContext(OpenContext):
    """A loaded model with its context; a `LanguageModel`."""

    def __init__(self, path: Path, role: ModelRole) -> None:
        self.n_branches = role.n_branches
        self._branch_past: dict[int, int] = {}
        self._listener: HiddenStateListener | None = None
        self._state_source: HiddenStateSource | None = None
        self.model = LlamaModel(path, role.settings, with_mtp=role.load_mtp)
        try:
            model = self.model.handle
            if C.llama_model_has_encoder(model) or not C.llama_model_has_decoder(model):
                raise ModelFileError(
                    f"{path.name} is not a text-generation model.",
                    "Encoders and embedding models cannot be used.",
                )
            self.vocabulary = self.model.vocabulary
            self.n_vocab: int = self.vocabulary.n_tokens
            self.n_ctx_train = self.model.n_ctx_train
            self.is_recurrent = self.model.is_recurrent
            self._open(llama_params.limit_to_trained(C, self.model.handle, role))
        except BaseException:
            self.close()
            raise

    def _open(self, role: ModelRole) -> None:
        self.n_ctx_requested = self._choose_n_ctx(role.settings)
        params = llama_params.context_params(C, self.model.handle, role, self.n_ctx_requested)
        self._open_context(params)
        self._checkpoints = ContextCheckpoints(self.handle)
        self._max_outputs = role.n_outputs_max
        self._last_decode_at = 0
        self._batch = LlamaBatch(self.n_batch)
        self._logits_views: dict[int, Logits] = {}
        self._logits_address = 0
        self.is_interrupted: Callable[[], bool] = lambda: False
        """Polled during a long decode; True ends it with DecodeInterrupted. Only on the CPU."""
        self._abort_callback = C.ggml_abort_callback(self._should_abort)
        self.rollback = self._probe_rollback(role.n_rs_seq)
        windowed = self.model.n_swa > 0 and not params.swa_full
        self.needs_checkpoints: bool = self.is_recurrent or windowed

    def _choose_n_ctx(self, settings: ContextSettings) -> int:
        model = self.model
        n_ctx = llama_params.resolve_n_ctx(settings, model.n_ctx_train, model.path.name)
        needed = model.kv_bytes(n_ctx, settings.kv_type)
        total = psutil.virtual_memory().total
        on_cpu = settings.n_gpu_layers == 0 or not C.llama_supports_gpu_offload()
        if on_cpu and needed > total:
            raise DoesNotFitError(
                f"A context of {n_ctx:,} tokens needs about {gib(needed)} for keys and values; "
                f"this machine has {gib(total)}.",
                Hint("Use a smaller {ctx}, or {kv=q8_0}."),
            )
        return n_ctx

    def _probe_rollback(self, requested: int) -> int:
        """How many tokens of the last decode can be rolled back; measured if recurrent."""
        if not self.is_recurrent:
            return self.n_batch
        snapshots = min(requested, int(C.llama_n_rs_seq(self.handle)))
        if snapshots <= 0:
            return 0
        self.decode([0, 0], 0)
        self.truncate(1)
        works = self.n_past == 1
        C.llama_memory_clear(self._memory, True)
        self.n_past, self.decode_seconds = 0, 0.0
        return snapshots if works else 0

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """As in `LanguageModel`. Raises EngineError if llama_decode fails, DecodeInterrupted if
        aborted; n_past is then what the memory still holds.
        """
        n = len(tokens)
        if self.handle is None:
            raise EngineError("The model is closed.")
        if not 0 < n <= self.n_batch or self.n_past + n > self.n_ctx:
            raise EngineError(f"cannot decode {n} tokens at {self.n_past} of {self.n_ctx}")
        if not 0 <= outputs <= min(n, self._max_outputs):
            raise EngineError(f"cannot output {outputs} rows of {n} tokens")
        self._batch.set_tokens(tokens)
        self._batch.set_positions(n, self.n_past, outputs)
        self._last_decode_at = self.n_past
        if n > _SHORT_DECODE:  # polled at every graph node: too slow for a round
            C.llama_set_abort_callback(self.handle, self._abort_callback, None)
        try:
            address = self._run(
                C.llama_decode, self._batch, get_logits_address if outputs else None
            )
        finally:
            if n > _SHORT_DECODE:
                self.watch(None)
        self.n_past += n
        if self._listener is not None and self._state_source is not None:
            self._listener.on_decode(tokens, self._state_source.states(n))
        return self._view_logits(address, outputs)

    def read_hidden_states(self, tokens: Sequence[int]) -> HiddenStates:
        """Append tokens without the listener; return their hidden states."""
        assert self._state_source is not None
        listener, self._listener = self._listener, None
        try:
            self.decode(tokens, 0)
        finally:
            self._listener = listener
        return self._state_source.states(len(tokens))

    def fork(self, branch: int, n_past: int) -> None:
        C.llama_memory_seq_rm(self._memory, branch, -1, -1)
        C.llama_memory_seq_cp(self._memory, 0, branch, 0, n_past)
        self._branch_past[branch] = n_past

    def decode_branches(self, steps: Sequence[tuple[int, int]]) -> Logits:
        """As in `BranchingModel`. Raises EngineError if llama_decode fails."""
        if not 0 < len(steps) <= self._max_outputs:
            raise EngineError(f"cannot decode {len(steps)} branches of {self._max_outputs}")
        past = self._branch_past | {0: self.n_past}
        self._batch.set_branches(steps, [past[branch] for branch, _ in steps])
        self._last_decode_at = self.n_past
        try:
            address = self._run(C.llama_decode, self._batch, get_logits_address)
        finally:
            self._batch.clear_branches(len(steps))
        for branch, _ in steps:
            if branch:
                self._branch_past[branch] += 1
            else:
                self.n_past += 1
        return self._view_logits(address, len(steps))

    def adopt(self, branch: int) -> None:
        if branch:
            n_past = self._branch_past[branch]
            C.llama_memory_seq_rm(self._memory, 0, -1, -1)
            C.llama_memory_seq_cp(self._memory, branch, 0, 0, n_past)
            self.n_past = n_past
        self.drop_branches()

    def drop_branches(self) -> None:
        for branch in self._branch_past:
            C.llama_memory_seq_rm(self._memory, branch, -1, -1)
        self._branch_past = {}

    def set_listener(self, source: HiddenStateSource, listener: HiddenStateListener) -> None:
        """Empty the memory and send the hidden states of every decoded token to `listener`."""
        self.truncate(0)
        self._state_source, self._listener = source, listener

    def _set_n_past(self, n_past: int) -> None:
        self.n_past = n_past
        if self._listener is not None:
            self._listener.on_truncate(n_past)

    def _view_logits(self, address: int, outputs: int) -> Logits:
        """Rows of logits as an array; cached by address, because creating one is slow."""
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

    def save_checkpoint(self, *, until_next: bool = False) -> None:
        """Save the state for `truncate`; `until_next` keeps it, on the device, until the next."""
        if self.needs_checkpoints and self.n_past > 0:
            state = self._listener.newest_state() if self._listener else None
            self._checkpoints.save(self.n_past, state, until_next=until_next)

    def truncate(self, n_past: int) -> None:
        """Keep the first n_past tokens, or restore an earlier checkpoint, or empty the memory."""
        if n_past >= self.n_past:
            return
        self._checkpoints.drop_after(n_past)
        if self._listener is not None:
            n_past = self._listener.limit_truncation(n_past)
        # Snapshots cover the last decode only; llama.cpp would accept older ones, which are stale.
        truncated = not self.is_recurrent or n_past > self._last_decode_at
        truncated = truncated and C.llama_memory_seq_rm(self._memory, 0, n_past, -1)
        window = self.model.n_swa
        if truncated and window and n_past:
            # A sliding window reuses the cells of tokens that it has left (algorithms.md 9).
            # If no kept token is left in the window, the minimum position is -1.
            oldest = C.llama_memory_seq_pos_min(self._memory, 0)
            truncated = 0 <= oldest <= max(0, n_past - window)
        if truncated:
            self._checkpoints.drop_after(n_past)
            self._set_n_past(n_past)
        else:
            self._restore_checkpoint()

    def _restore_checkpoint(self) -> None:
        """Return to the last checkpoint, or empty the memory."""
        checkpoint = self._checkpoints.restore()
        if checkpoint is None:
            C.llama_memory_clear(self._memory, True)
            self._checkpoints.drop_after(0)
            self._set_n_past(0)
            return
        self._set_n_past(checkpoint.n_past)
        self._last_decode_at = checkpoint.n_past
        if self._listener is not None and checkpoint.head_state is not None:
            self._listener.on_restore(checkpoint.head_state)

    def state_bytes(self) -> int:
        """Of a copy of the memory; 0 if a copy does not suffice to continue.

        A head has its own states; llama.cpp leaves out what a sliding window has left.
        """
        if self.is_recurrent or self.model.n_swa > 0 or self._listener is not None:
            return 0
        return int(C.llama_state_seq_get_size(self.handle, 0))

    def save_state(self) -> Any:
        """A copy of the memory, of `state_bytes`."""
        data = (ctypes.c_uint8 * self.state_bytes())()
        C.llama_state_seq_get_data(self.handle, data, len(data), 0)
        return data

    def restore_state(self, state: Any, n_past: int) -> bool:
        """Replace the memory by a copy that holds n_past tokens; empty, and False, on failure."""
        C.llama_memory_clear(self._memory, False)
        if C.llama_state_seq_set_data(self.handle, state, len(state), 0) != len(state):
            C.llama_memory_clear(self._memory, False)
            n_past = 0
        self._set_n_past(n_past)
        self._last_decode_at = n_past
        return n_past > 0

    def close(self) -> None:
        """Free the context, then the model: the other order makes llama.cpp use freed memory."""
        self._logits_views = {}
        super().close()
        self.model.close()

    def memory_by_device(self) -> dict[str, int]:
        """Bytes by device."""
        used = self.model.memory_with_context(self._buffers, self._max_outputs)
        if self._state_source is not None:
            used[HOST] += 4 * self.n_batch * self._state_source.width
        return used


_MAX_CHECKPOINTS = 32
_MAX_CHECKPOINT_BYTES = 256 * 2**20  # Of all checkpoints, in RAM.
_PARTIAL_STATE = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_ON_DEVICE = C.LLAMA_STATE_SEQ_FLAGS_ON_DEVICE  # llama.cpp keeps one such state.


@dataclass(frozen=True, slots=True)
class ContextCheckpoint:
    n_past: int
    data: Any  # The state as llama.cpp serialised it.
    head_state: HiddenStates | None  # The head's hidden state at this point.
    flags: int


class ContextCheckpoints:
    """States of a recurrent or windowed cache; the oldest is dropped when there are too many."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._checkpoints: list[ContextCheckpoint] = []

    def save(self, n_past: int, state: HiddenStates | None, *, until_next: bool = False) -> None:
        """Save the memory, which holds n_past tokens; without effect if llama.cpp cannot."""
        self.drop_after(n_past)
        if self._checkpoints and self._checkpoints[-1].flags & _ON_DEVICE:
            self._checkpoints.pop()
        if self._checkpoints and self._checkpoints[-1].n_past == n_past:
            return
        flags = _PARTIAL_STATE | (_ON_DEVICE if until_next else 0)
        size = C.llama_state_seq_get_size_ext(self._context, 0, flags)
        if not 0 < size <= _MAX_CHECKPOINT_BYTES:
            return
        data = (ctypes.c_uint8 * size)()
        if C.llama_state_seq_get_data_ext(self._context, data, size, 0, flags) != size:
            return
        self._checkpoints.append(ContextCheckpoint(n_past, data, state, flags))
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
        data, flags = checkpoint.data, checkpoint.flags
        read = C.llama_state_seq_set_data_ext(self._context, data, len(data), 0, flags)
        if read == len(data) and C.llama_memory_seq_rm(memory, 0, checkpoint.n_past, -1):
            return checkpoint
        self._checkpoints.clear()
        return None


_SHORT_BATCH = 32  # Up to this many tokens are written one by one.
_TEXT_AXES = 3  # For text the first three axes of an M-RoPE position are equal; the fourth is 0.


class LlamaBatch:
    """A llama_batch of up to `n` rows: tokens, hidden states of `width`, or both.

    llama.cpp takes a row's width from the model: a wrong `width` makes it read out of bounds.
    The same holds for `axes`, the numbers in the position of a row without a token (M-RoPE).
    """

    def __init__(self, n: int, *, tokens: bool = True, width: int = 0, axes: int = 1) -> None:
        self._tokens = np.zeros(n, np.int32)
        self._positions = np.zeros(n * axes, np.int32)
        self._axes = axes
        self._output_flags = np.zeros(n, np.int8)
        self._states = np.zeros((n, width), np.float32)
        self._counts = np.ones(n, np.int32)
        self._sequence_ids = [(ctypes.c_int32 * 1)(0) for _ in range(n)]
        pointers = [ctypes.cast(id_, ctypes.POINTER(ctypes.c_int32)) for id_ in self._sequence_ids]
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * n)(*pointers)
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
        """Set `n` rows from position `n_past` on, of which the last `outputs` give logits.

        A round's few positions are written one by one: after a decode the numpy code is cold.
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

    def set_branches(self, steps: Sequence[tuple[int, int]], positions: Sequence[int]) -> None:
        """Set one row for each pair of branch and token, all with logits."""
        self.set_tokens([token for _, token in steps])
        self.set_positions(len(steps), 0, len(steps))
        for i, (branch, _) in enumerate(steps):
            self._position_pointer[i] = positions[i]
            self._sequence_ids[i][0] = branch

    def clear_branches(self, n: int) -> None:
        for id_ in self._sequence_ids[:n]:
            id_[0] = 0

    def set_hidden_states(self, states: HiddenStates) -> None:
        self._states[: len(states)] = states

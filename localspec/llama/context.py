"""A llama.cpp context with one sequence: tokens in, rows of logits out.

Arguments that would make llama.cpp abort are checked before each call, return codes
after it. `llama_cpp.Llama` is not used: it allocates n_ctx x n_vocab floats.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from msgspec import Struct

from localspec.errors import DoesNotFitError, EngineError, Hint, ModelFileError
from localspec.llama import library
from localspec.llama.batch import LlamaBatch
from localspec.llama.hidden_states import HiddenStateSource
from localspec.llama.images import ImageRows
from localspec.llama.library import LOG, C, get_logits_address
from localspec.llama.model import LlamaModel
from localspec.machine import llama_params
from localspec.machine.device import HOST
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import ContextSettings
from localspec.spec import heartbeat
from localspec.spec.picture_ids import has_pictures, is_later_row, split_at_pictures
from localspec.spec.protocols import (
    DecodeInterrupted,
    HiddenStateListener,
    HiddenStates,
    Logits,
)
from localspec.units import gib

# Up to this many tokens a decode is short, and needs no abort callback.
_SHORT_DECODE = 32
_ABORTED = 2  # llama_decode's return code after the abort callback returned True.
_LIBC_NAME = "msvcrt" if sys.platform == "win32" else None
_LIBC = ctypes.CDLL(_LIBC_NAME)


class InterruptFlag:
    """Ends the pass in progress of the contexts that watch it, however narrow it is.

    llama.cpp calls strlen on the flag at each node of the graph: Python would be too
    slow there.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        self.callback = C.ggml_abort_callback(
            ctypes.cast(_LIBC.strlen, ctypes.c_void_p).value
        )
        self.address = ctypes.addressof(self._text)

    @property
    def is_raised(self) -> bool:
        return bool(self._text.value)

    def raise_(self) -> None:
        self._text.value = b"1"

    def lower(self) -> None:
        self._text.value = b""


_NO_CALLBACK = C.ggml_abort_callback(0)


class OpenContext:
    """A llama_context with the tokens in its memory, and the time of its passes."""

    # The llama_context; None before it is opened, and after it is closed.
    handle: Any = None
    model: LlamaModel
    _is_stop_requested: Callable[[], bool] | None = None
    """Whether a pass that can be stopped was asked to; None if passes cannot be."""

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
        self.n_past = 0
        self.decode_seconds = 0.0

    def _run(
        self, call: Any, batch: LlamaBatch, wait: Callable[[Any], Any] | None
    ) -> Any:
        """Call llama_decode or llama_encode, and `wait`, which ends the pass.

        Returns what `wait` returns. Raises EngineError, or DecodeInterrupted if aborted;
        n_past is then what the memory holds.
        """
        check = self._is_stop_requested
        if check is not None:
            LOG.begin_stoppable_pass(check)
        began = time.perf_counter()
        result = call(self.handle, batch.struct)
        waited = wait(self.handle) if wait else 0
        self.decode_seconds += time.perf_counter() - began
        heartbeat.record_progress()
        if check is not None:
            LOG.end_stoppable_pass(is_stopped=result == _ABORTED)
        if result != 0:
            newest = C.llama_memory_seq_pos_max(self._memory, 0)
            self._set_n_past(self._count_cells(newest + 1))
            if result == _ABORTED:
                raise DecodeInterrupted
            raise library.decode_error(result)
        return waited

    def _count_cells(self, end: int) -> int:
        """How many cells of the memory are at positions before `end`."""
        return end

    def _set_n_past(self, n_past: int) -> None:
        self.n_past = n_past

    def memory_bytes(self) -> int:
        """The size of a copy of the memory."""
        return int(C.llama_state_seq_get_size(self.handle, 0))

    def save_memory(self) -> Any:
        """A copy of the memory, without the tokens that a sliding window has left."""
        data = (ctypes.c_uint8 * self.memory_bytes())()
        if data:
            C.llama_state_seq_get_data(self.handle, data, len(data), 0)
        return data

    def restore_memory(self, data: Any, n_past: int) -> bool:
        """Replace the memory by a copy that holds n_past tokens.

        If that fails, the memory is empty and the result False.
        """
        if data:
            C.llama_memory_clear(self._memory, False)
            if C.llama_state_seq_set_data(self.handle, data, len(data), 0) != len(data):
                C.llama_memory_clear(self._memory, False)
                n_past = 0
        self._set_n_past(n_past)
        return n_past > 0

    def watch(self, flag: InterruptFlag | None) -> None:
        """While the flag is raised, passes end with DecodeInterrupted; on the CPU only."""
        if flag is None:
            self._stop_passes_if(_NO_CALLBACK, None, None)
        else:
            self._stop_passes_if(flag.callback, flag.address, lambda: flag.is_raised)

    def _stop_passes_if(
        self, callback: Any, address: int | None, check: Callable[[], bool] | None
    ) -> None:
        """The one place that sets an abort callback; `check` is its value for the log."""
        C.llama_set_abort_callback(self.handle, callback, address)
        self._is_stop_requested = check

    def set_n_threads(self, n: int, n_batch: int) -> None:
        self.n_threads = n
        self.n_threads_batch = n_batch
        C.llama_set_n_threads(self.handle, n, n_batch)

    def close(self) -> None:
        if self.handle:
            C.llama_free(self.handle)
        self.handle = None


class PlacedPicture(Struct, frozen=True):
    """A picture in a context's memory, or in part: the memory may end in it."""

    start: int  # The cell of its first row.
    rows: ImageRows
    shift: int
    """How much later than its cell a token behind the picture stands; mostly negative."""

    @property
    def end(self) -> int:
        return self.start + self.rows.n_rows


class LlamaContext(OpenContext):
    """A loaded model with its context; a `LanguageModel`.

    Outside of this class a place in the text is the number of cells before it. To
    llama.cpp it is a position, which is the same without pictures. With M-RoPE all rows
    of a picture stand at the place of its first row, and differ in column and row. In
    the text "a", a picture of 2 rows by 3 columns, "b c", the three columns count:

        cell        0   1   2   3   4   5   6   7   8
        token       a  -2  -3  -3  -3  -3  -3   b   c
        position    0   1   1   1   1   1   1   4   5

    llama.cpp takes a cell for a position without an error, and the logits are wrong. So
    `position` is called wherever it is told a place: in batches, cuts, copies, and for
    the window. A picture is in memory whole or not at all, except while it is read.
    """

    def __init__(self, path: Path, role: ModelRole) -> None:
        self.n_branches = role.n_branches
        self._branch_past: dict[int, int] = {}
        """How many tokens each branch holds, the shared ones included."""
        self.pictures: Mapping[int, ImageRows] | None = None
        """The rows of pictures that a text may have, by their id; None: it has none."""
        self._placed: list[PlacedPicture] = []
        """The pictures in memory, in the order of the text."""
        self._picture_batch: LlamaBatch | None = None
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
        params = llama_params.context_params(
            C, self.model.handle, role, self.n_ctx_requested
        )
        self._open_context(params)
        self._checkpoints = ContextCheckpoints(self.handle)
        self._max_outputs = role.n_outputs_max
        self._last_decode_at = 0
        """How many tokens were in memory before the last decode."""
        self._batch = LlamaBatch(self.n_batch)
        self._logits_views: dict[int, Logits] = {}
        """By the number of rows, at `_logits_address`."""
        self._logits_address = 0
        self.is_interrupted: Callable[[], bool] = lambda: False
        """Polled during a long decode; True ends it with DecodeInterrupted.

        Only on the CPU.
        """
        self._abort_callback = C.ggml_abort_callback(self._should_abort)
        self.rollback = self._probe_rollback(role.n_rs_seq)
        windowed = self.model.n_swa > 0 and not params.swa_full
        self.needs_checkpoints: bool = self.is_recurrent or windowed
        # A copy of a window needs them, too.
        self.saves_checkpoints = self.needs_checkpoints

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
        """How many tokens of the last decode can be rolled back.

        A recurrent memory is tried, because llama.cpp may accept the setting and still
        not roll back.
        """
        if not self.is_recurrent:
            return self.n_batch
        snapshots = min(requested, int(C.llama_n_rs_seq(self.handle)))
        if snapshots <= 0:
            return 0
        self.decode([0, 0], 0)
        self.truncate(1)
        works = self.n_past == 1
        C.llama_memory_clear(self._memory, True)
        self.n_past = 0
        self.decode_seconds = 0.0
        return snapshots if works else 0

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """The method of `LanguageModel`.

        Raises EngineError if llama_decode fails, DecodeInterrupted if aborted; n_past
        is then what the memory still holds.
        """
        n = len(tokens)
        if self.handle is None:
            raise EngineError("The model is closed.")
        if not 0 < n <= self.n_batch or self.n_past + n > self.n_ctx:
            raise EngineError(
                f"cannot decode {n} tokens at {self.n_past} of {self.n_ctx}"
            )
        if not 0 <= outputs <= min(n, self._max_outputs):
            raise EngineError(f"cannot output {outputs} rows of {n} tokens")
        if self.pictures is not None and has_pictures(tokens):
            return self._decode_with_pictures(tokens, outputs)
        return self._decode_tokens(tokens, outputs)

    def _decode_tokens(self, tokens: Sequence[int], outputs: int) -> Logits:
        n = len(tokens)
        self._batch.set_tokens(tokens)
        self._batch.set_rows(n, n_past=self.position(self.n_past), outputs=outputs)
        self._last_decode_at = self.n_past
        address = self._run_pass(self._batch, n, outputs)
        self.n_past += n
        if self._listener is not None and self._state_source is not None:
            self._listener.on_decode(tokens, self._state_source.states(n))
        return self._view_logits(address, outputs)

    def _run_pass(self, batch: LlamaBatch, n: int, outputs: int) -> Any:
        """Decode a batch of n rows; return the address of the logits."""
        # The callback is called at every graph node: too slow for a round.
        if n > _SHORT_DECODE:
            self._stop_passes_if(self._abort_callback, None, self.is_interrupted)
        wait = get_logits_address if outputs else None
        try:
            return self._run(C.llama_decode, batch, wait)
        finally:
            if n > _SHORT_DECODE:
                self.watch(None)

    def _decode_with_pictures(self, tokens: Sequence[int], outputs: int) -> Logits:
        """A pass for each run of tokens and each picture."""
        found: list[Logits] = []
        n_left = len(tokens)
        for part in split_at_pictures(tokens):
            n_left -= len(part)
            n_outputs = min(len(part), max(0, outputs - n_left))
            if part[0] < -1:
                rows = self._decode_picture(part, n_outputs)
            else:
                rows = self._decode_tokens(part, n_outputs)
            if not n_left and n_outputs == outputs:
                return rows
            found.append(rows.copy())
        return np.concatenate(found)

    def _decode_picture(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append a picture, or some rows of one that is too long for a pass."""
        placed = self._place_picture(tokens[0])
        rows = placed.rows
        n = len(tokens)
        first = self.n_past - placed.start
        is_whole = n == rows.n_rows
        if first + n > rows.n_rows or not (is_whole or rows.is_causal):
            raise EngineError(f"cannot decode {n} rows of a picture of {rows.n_rows}")
        states = rows.load_states()[first : first + n]
        positions = rows.positions(self.position(placed.start))[:, first : first + n]
        batch = self._make_picture_batch()
        batch.set_picture(states, positions, outputs=outputs)
        # No snapshot reaches into a picture: llama.cpp counts them in positions.
        self._last_decode_at = self.n_past
        is_read = False
        C.llama_set_causal_attn(self.handle, rows.is_causal)
        try:
            address = self._run_pass(batch, n, outputs)
            is_read = True
        finally:
            C.llama_set_causal_attn(self.handle, True)
            if not is_read:
                self._drop_from(placed.start)
        if not first:
            self._placed.append(placed)
        self.n_past += n
        self._last_decode_at = self.n_past
        return self._view_logits(address, outputs)

    def _place_picture(self, token: int) -> PlacedPicture:
        """The picture that the next cell belongs to. Raises EngineError."""
        if is_later_row(token):
            last = self._placed[-1] if self._placed else None
            if last is None or not last.start < self.n_past < last.end:
                raise EngineError("cannot decode a picture without its first row")
            return last
        rows = self.pictures.get(token) if self.pictures is not None else None
        if rows is None:
            raise EngineError(f"there is no picture {token}")
        shift = self._placed[-1].shift if self._placed else 0
        shift += rows.n_positions - rows.n_rows
        return PlacedPicture(self.n_past, rows, shift)

    def _make_picture_batch(self) -> LlamaBatch:
        if self._picture_batch is None:
            self._picture_batch = LlamaBatch(
                self.n_batch,
                tokens=False,
                width=self.model.n_embd_inp,
                axes=self.model.n_position_axes,
            )
        return self._picture_batch

    def _drop_from(self, start: int) -> None:
        """After a failure in a picture: drop what there is of it, from its first row."""
        self._checkpoints.drop_after(start)
        if self._cut_memory(start):
            self._set_n_past(start)
        else:
            self._restore_checkpoint()

    def position(self, n_past: int) -> int:
        """The position of what follows the first n_past cells.

        It is not for places inside a picture.
        """
        for placed in reversed(self._placed):
            if placed.end <= n_past:
                return n_past + placed.shift
        return n_past

    def _count_cells(self, end: int) -> int:
        for placed in reversed(self._placed):
            if end >= self.position(placed.end):
                return end - placed.shift
            # Rows of a picture may all be at its first position.
            if end > self.position(placed.start):
                return placed.end
        return end

    def _find_cut(self, n_past: int) -> int:
        """The last place up to n_past that is not inside a picture.

        What is left of a picture would be wrong: rows may have seen those behind them,
        and with M-RoPE llama.cpp cannot tell its rows apart.
        """
        for placed in reversed(self._placed):
            if placed.start < n_past < placed.end:
                return placed.start
        return n_past

    def _count_tokens(self, n_past: int) -> int:
        """How many of the first n_past cells are tokens."""
        n_tokens = n_past
        for placed in self._placed:
            if placed.start < n_past:
                n_tokens -= min(placed.end, n_past) - placed.start
        return n_tokens

    def _limit_truncation(self, n_past: int) -> int:
        """As the listener wants it, which knows the tokens alone."""
        assert self._listener is not None
        n_tokens = self._count_tokens(n_past)
        kept = self._listener.limit_truncation(n_tokens)
        if kept == n_tokens:
            return n_past
        # The cell of token number `kept`, from which on all is dropped.
        for placed in self._placed:
            if placed.start <= kept:
                kept += placed.rows.n_rows
        return kept

    def read_hidden_states(self, tokens: Sequence[int]) -> HiddenStates:
        """Append tokens without the listener; return their hidden states."""
        assert self._state_source is not None
        if has_pictures(tokens):
            raise EngineError("cannot read the hidden states of a picture")
        listener = self._listener
        self._listener = None
        try:
            self.decode(tokens, 0)
        finally:
            self._listener = listener
        return self._state_source.states(len(tokens))

    def fork(self, branch: int, n_past: int) -> None:
        C.llama_memory_seq_rm(self._memory, branch, -1, -1)
        C.llama_memory_seq_cp(self._memory, 0, branch, 0, self.position(n_past))
        self._branch_past[branch] = n_past

    def decode_branches(self, steps: Sequence[tuple[int, int]]) -> Logits:
        """The method of `BranchingModel`. Raises EngineError if llama_decode fails."""
        if not 0 < len(steps) <= self._max_outputs:
            raise EngineError(
                f"cannot decode {len(steps)} branches of {self._max_outputs}"
            )
        n_past = self._branch_past | {0: self.n_past}
        positions = [self.position(n_past[branch]) for branch, _ in steps]
        self._batch.set_branches(steps, positions)
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
            C.llama_memory_seq_cp(self._memory, branch, 0, 0, self.position(n_past))
            self.n_past = n_past
        for each in self._branch_past:
            C.llama_memory_seq_rm(self._memory, each, -1, -1)
        self._branch_past = {}

    def set_listener(
        self, source: HiddenStateSource, listener: HiddenStateListener
    ) -> None:
        """Empty the memory, and send `listener` every decoded token's hidden states."""
        self.truncate(0)
        self._state_source = source
        self._listener = listener

    def _set_n_past(self, n_past: int) -> None:
        self.n_past = n_past
        while self._placed and self._placed[-1].start >= n_past:
            self._placed.pop()
        if self._listener is not None:
            self._listener.on_truncate(self._count_tokens(n_past))

    def _view_logits(self, address: int, outputs: int) -> Logits:
        """Rows of logits as an array; cached by address, because creating one is slow."""
        if address != self._logits_address:
            self._logits_views = {}
            self._logits_address = address
        rows = self._logits_views.get(outputs)
        if rows is None:
            shape = (outputs, self.vocabulary.n_tokens)
            if outputs:
                pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
                rows = np.ctypeslib.as_array(pointer, shape)
            else:
                rows = np.empty(shape, np.float32)
            self._logits_views[outputs] = rows
        return rows

    def _should_abort(self, _: Any) -> bool:
        heartbeat.record_progress()
        return self.is_interrupted()

    def save_checkpoint(self, *, until_next: bool = False) -> bool:
        """Save the state for `truncate`; return whether there is one of this place now.

        With `until_next` it stays on the device, until the next one is saved.
        """
        if not self.saves_checkpoints or not self.n_past:
            return False
        # A memory that can be truncated needs no checkpoint before a draft.
        if until_next and not self.needs_checkpoints:
            return False
        if self._find_cut(self.n_past) < self.n_past:
            return False
        state = self._listener.newest_state() if self._listener else None
        position = self.position(self.n_past)
        return self._checkpoints.save(
            self.n_past, state, position=position, until_next=until_next
        )

    def truncate(self, n_past: int) -> None:
        """Keep the first n_past tokens.

        If the memory cannot be cut there, it returns to an earlier checkpoint, or is
        emptied. A cut inside a picture drops all of it.
        """
        if n_past >= self.n_past:
            return
        n_past = self._find_cut(n_past)
        self._checkpoints.drop_after(n_past)
        if self._listener is not None:
            n_past = self._limit_truncation(n_past)
        if self._cut_memory(n_past):
            self._checkpoints.drop_after(n_past)
            self._set_n_past(n_past)
        else:
            self._restore_checkpoint()

    def _cut_memory(self, n_past: int) -> bool:
        """Drop all but the first n_past tokens; False if what is left is not whole."""
        # A recurrent memory has a snapshot after each token of the last decode only: a
        # decode of 4 tokens at 100 left those of 101 to 104 tokens, and the state of 100
        # is gone. llama.cpp would accept older snapshots, which are stale.
        if self.is_recurrent and n_past <= self._last_decode_at:
            return False
        position = self.position(n_past)
        if not C.llama_memory_seq_rm(self._memory, 0, position, -1):
            return False
        window = self.model.n_swa
        if not window or not n_past:
            return True
        # A sliding window reuses the cells of tokens that it has left. With a window of
        # 512 the token at 2,000 attends to 1,488 and later. If only 2,000 tokens are
        # kept of 2,300, whose window began at 1,788, the cells of 1,488 to 1,787 may hold
        # newer tokens, or none. So the oldest token that is there must be at 1,488 or
        # earlier. Its position is -1 if none of the kept tokens is left.
        oldest = C.llama_memory_seq_pos_min(self._memory, 0)
        return bool(0 <= oldest <= max(0, position - window))

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
        """The size of a copy of the memory, its checkpoints, and a head's states."""
        n_bytes = self.memory_bytes() + self._checkpoints.n_bytes
        if self._listener is not None:
            n_bytes += self._listener.state_bytes()
        return n_bytes

    def save_state(self) -> Any:
        """A copy of all that `state_bytes` counts."""
        # llama.cpp keeps the data of a checkpoint on the device, and only one of them.
        in_ram = [
            checkpoint
            for checkpoint in self._checkpoints.items
            if not checkpoint.flags & _ON_DEVICE
        ]
        head_state = None
        if self._listener is not None:
            head_state = self._listener.save_state()
        return self.save_memory(), in_ram, head_state, tuple(self._placed)

    def restore_state(self, state: Any, n_past: int) -> bool:
        """Continue where the copy, of n_past tokens, was made.

        If that fails, the memory is empty and the result False.
        """
        data, checkpoints, head_state, placed = state
        self._checkpoints.drop_after(0)
        if not self.restore_memory(data, n_past):
            return False
        self._placed = list(placed)
        self._last_decode_at = n_past
        self._checkpoints.items = list(checkpoints)
        if self._listener is not None:
            self._listener.restore_state(head_state)
        return True

    def close(self) -> None:
        """Free the context, then the model.

        The other order makes llama.cpp use freed memory.
        """
        self._logits_views = {}
        super().close()
        self.model.close()

    def memory_by_device(self) -> dict[str, int]:
        """Bytes by device."""
        used = self.model.memory_with_context(self._buffers, self._max_outputs)
        if self._state_source is not None:
            used[HOST] += 4 * self.n_batch * self._state_source.width
        if self.pictures is not None:
            used[HOST] += 4 * self.n_batch * self.model.n_embd_inp
        return used

    @property
    def captured_after(self) -> int:
        """Passes of a width before ggml-cuda launches them as one graph.

        It is 0 on other devices, and where the user has switched graphs off.
        """
        if _SWITCHES_GRAPHS_OFF in os.environ:
            return 0
        names = self.memory_by_device()
        return 2 if any(name.startswith(("CUDA", "ROCm")) for name in names) else 0


_SWITCHES_GRAPHS_OFF = "GGML_CUDA_DISABLE_GRAPHS"
"""Whatever its value is, an empty one included (ggml-cuda/common.cuh)."""
_MAX_CHECKPOINTS = 32
_MAX_CHECKPOINT_BYTES = 256 * 2**20  # All checkpoints together take no more RAM.
_PARTIAL_STATE = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_ON_DEVICE = C.LLAMA_STATE_SEQ_FLAGS_ON_DEVICE  # llama.cpp keeps one such state.


class ContextCheckpoint(Struct, frozen=True):
    """A state to which a memory that cannot be truncated can return."""

    n_past: int
    position: int  # Of what follows.
    data: Any  # The state as llama.cpp serialised it.
    head_state: HiddenStates | None  # The head's hidden state at this point.
    flags: int


class ContextCheckpoints:
    """States of a recurrent or windowed cache; if there are too many, they are thinned.

    In the second turn of a chat there may be checkpoints after 300 and 992 tokens, those
    of `PrefixCache.prefill`, and one after 1,040, where the last draft began, which stays
    on the device. To truncate to 1,041 tokens drops none: the memory returns to 1,040,
    and one token is decoded again. To truncate to 995 drops the last, and the memory
    returns to 992.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self.items: list[ContextCheckpoint] = []

    def save(
        self,
        n_past: int,
        state: HiddenStates | None,
        *,
        position: int,
        until_next: bool = False,
    ) -> bool:
        """Save the memory, which holds n_past tokens; return whether llama.cpp could."""
        self.drop_after(n_past)
        # Only one state is kept on the device, so the new one would overwrite its data.
        if self.items and self.items[-1].flags & _ON_DEVICE:
            self.items.pop()
        if self.items and self.items[-1].n_past == n_past:
            return True
        flags = _PARTIAL_STATE
        if until_next:
            flags |= _ON_DEVICE
        size = C.llama_state_seq_get_size_ext(self._context, 0, flags)
        if not 0 < size <= _MAX_CHECKPOINT_BYTES:
            return False
        data = (ctypes.c_uint8 * size)()
        if C.llama_state_seq_get_data_ext(self._context, data, size, 0, flags) != size:
            return False
        self.items.append(
            ContextCheckpoint(n_past, position, data, head_state=state, flags=flags)
        )
        while (
            len(self.items) > _MAX_CHECKPOINTS or self.n_bytes > _MAX_CHECKPOINT_BYTES
        ):
            self._drop_closest()
        return True

    def _drop_closest(self) -> None:
        """Drop the checkpoint beside which another one is nearest.

        The two newest stay: a chat goes on there, or is answered again. Of 100, 992,
        1,000, 1,040 and 1,050 tokens, 1,000 is dropped: 992 is 48 tokens before 1,040.
        """
        n_past = [0, *(checkpoint.n_past for checkpoint in self.items)]
        gaps = [n_past[i + 2] - n_past[i] for i in range(len(self.items) - 2)]
        closest = 0
        if gaps:
            closest = gaps.index(min(gaps))
        del self.items[closest]

    @property
    def n_bytes(self) -> int:
        return sum(len(checkpoint.data) for checkpoint in self.items)

    def drop_after(self, n_past: int) -> None:
        """Drop the checkpoints beyond n_past tokens."""
        while self.items and self.items[-1].n_past > n_past:
            self.items.pop()

    def restore(self) -> ContextCheckpoint | None:
        """Restore the last checkpoint; None if there is none, or llama.cpp cannot."""
        if not self.items:
            return None
        checkpoint = self.items[-1]
        memory = C.llama_get_memory(self._context)
        n_bytes = len(checkpoint.data)
        n_read = C.llama_state_seq_set_data_ext(
            self._context, checkpoint.data, n_bytes, 0, checkpoint.flags
        )
        # Tokens behind the checkpoint are still in memory: drop them.
        is_restored = n_read == n_bytes and C.llama_memory_seq_rm(
            memory, 0, checkpoint.position, -1
        )
        if not is_restored:
            self.items.clear()
            return None
        return checkpoint

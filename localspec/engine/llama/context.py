"""One llama.cpp model and its context: tokens in, rows of logits out.

Every argument that makes llama.cpp abort is checked before the call and every return code after
it.  Never `llama_cpp.Llama`: it allocates n_ctx x n_vocab floats.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from localspec.engine import pulse
from localspec.engine.llama import failures
from localspec.engine.llama.batch import Batch
from localspec.engine.llama.library import LOG, LOGITS, C
from localspec.engine.llama.marks import Marks
from localspec.engine.llama.taps import Source
from localspec.engine.llama.weights import Weights
from localspec.engine.protocols import Follower, Interrupted, Logits
from localspec.errors import DoesNotFitError, EngineError, ModelFileError
from localspec.machine import parameters
from localspec.machine.ledger import HOST
from localspec.machine.parameters import Role
from localspec.protocol.wire import ContextSettings
from localspec.units import gib

_SHORT = 32
"""Tokens of a read that is soon over."""
_ABORTED = 2
"""llama_decode's code where the abort callback said so."""


class Llama:
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
        predicting: bool = False,
    ) -> None:
        role = Role(settings, outputs, rollback, within_trained)
        self._context: Any = None
        self._follower: Follower | None = None
        self._source: Source | None = None
        self.weights = Weights(path, settings, predicting=predicting)
        try:
            if not self.weights.writes:
                raise ModelFileError(
                    f"{path.name} is not a model that continues text.",
                    "Give a text-generation model; encoders and embedding models cannot be run.",
                )
            self.vocabulary = self.weights.vocabulary
            self.n_vocab: int = self.vocabulary.n_tokens
            self.n_ctx_train = self.weights.n_ctx_train
            self.recurrent = self.weights.recurrent
            self._open(parameters.trained(C, self.weights.handle, role))
        except BaseException:
            self.close()
            raise

    # --- loading ------------------------------------------------------------------------

    def _open(self, role: Role) -> None:
        self.n_ctx_asked = self._context_size(role.settings)
        params = parameters.context(C, self.weights.handle, role, self.n_ctx_asked)
        self.n_threads: int = params.n_threads
        LOG.lines.clear()
        self._context = C.llama_init_from_model(self.weights.handle, params)
        if not self._context:
            raise failures.context_error(self.weights.path)
        self._memory = C.llama_get_memory(self._context)
        self._marks = Marks(self._context)
        self.n_ctx: int = C.llama_n_ctx(self._context)
        self.n_batch: int = C.llama_n_ubatch(self._context)
        self._outputs = role.outputs
        self.n_past = self._read_at = 0
        self.seconds = 0.0
        self._batch = Batch(self.n_batch)
        self._rows: dict[int, Logits] = {}
        self._rows_at = 0
        self.interrupted: Callable[[], bool] = _never
        """Asked during a long read; True ends it with Interrupted.  On the CPU only."""
        self._asks = C.ggml_abort_callback(self._asked)
        self.rollback = self._probed_rollback(role.rollback)
        windowed = self.weights.n_swa > 0 and not params.swa_full
        self.needs_marks: bool = self.recurrent or windowed

    def _context_size(self, settings: ContextSettings) -> int:
        weights = self.weights
        n_ctx = parameters.context_size(settings, weights.n_ctx_train, weights.path.name)
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

    def _probed_rollback(self, wanted: int) -> int:
        """How many tokens of the last read can be forgotten: tried, not believed, if recurrent."""
        if not self.recurrent:
            return self.n_batch
        snapshots = min(wanted, int(C.llama_n_rs_seq(self._context)))
        if snapshots <= 0:
            return 0
        self.read([0, 0], 0)
        self.forget(1)
        cut = self.n_past == 1
        C.llama_memory_clear(self._memory, True)
        self.n_past, self.seconds = 0, 0.0
        return snapshots if cut else 0

    # --- a Model ------------------------------------------------------------------------

    def read(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append tokens; rows of logits of the last `outputs`, shape (outputs, n_vocab).

        The rows are a view of llama.cpp's memory and hold until the next call.  Raises
        EngineError where llama_decode fails; n_past then says what the memory still holds.
        """
        n = len(tokens)
        if self._context is None:
            raise EngineError("The model is closed.")
        if not 0 < n <= self.n_batch or self.n_past + n > self.n_ctx:
            raise EngineError(f"cannot read {n} tokens at {self.n_past} of {self.n_ctx}")
        if not 0 <= outputs <= min(n, self._outputs):
            raise EngineError(f"cannot give {outputs} rows of {n} tokens")
        self._batch.write(tokens)
        self._batch.place(n, self.n_past, outputs)
        self._read_at = self.n_past
        began = time.perf_counter()
        if n > _SHORT:  # asked at every node of the graph: too dear for a round
            C.llama_set_abort_callback(self._context, self._asks, None)
        result = C.llama_decode(self._context, self._batch.struct)
        if n > _SHORT:
            C.llama_set_abort_callback(self._context, C.ggml_abort_callback(0), None)
        address = LOGITS(self._context) if outputs else 0
        self.seconds += time.perf_counter() - began
        pulse.beat()
        if result != 0:
            self._now(C.llama_memory_seq_pos_max(self._memory, 0) + 1)
            if result == _ABORTED:
                raise Interrupted
            raise failures.decode_error(result)
        self.n_past += n
        if self._follower is not None and self._source is not None:
            self._follower.heard(tokens, self._source.states(n))
        return self._view(address, outputs)

    def follow(self, source: Source, follower: Follower) -> None:
        """From now on `follower` hears of every token, with its hidden states; memory empty."""
        self.forget(0)
        self._source, self._follower = source, follower

    def _now(self, n_past: int) -> None:
        """The memory holds so many tokens."""
        self.n_past = n_past
        if self._follower is not None:
            self._follower.forgot(n_past)

    def _view(self, address: int, outputs: int) -> Logits:
        """Making a view costs more than a round of bookkeeping, so it is kept by address."""
        if address != self._rows_at:
            self._rows, self._rows_at = {}, address
        rows = self._rows.get(outputs)
        if rows is None:
            shape = (outputs, self.n_vocab)
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            rows = np.ctypeslib.as_array(pointer, shape) if outputs else np.empty(shape, np.float32)
            self._rows[outputs] = rows
        return rows

    def _asked(self, _: Any) -> bool:
        pulse.beat()
        return self.interrupted()

    def mark(self) -> None:
        """What is read now can be returned to, also where the memory cannot be cut."""
        if self.needs_marks and self.n_past > 0:
            self._marks.set(self.n_past, self._follower.state() if self._follower else None)

    def forget(self, n_past: int) -> None:
        """Keep the first n_past tokens, or fewer: to a mark or none where it cannot be cut."""
        if n_past >= self.n_past:
            return
        self._marks.forget(n_past)
        if self._follower is not None:
            n_past = self._follower.keeps(n_past)
        # Snapshots are of the last read only; llama.cpp would take older, stale ones for good.
        cut = not self.recurrent or n_past > self._read_at
        cut = cut and C.llama_memory_seq_rm(self._memory, 0, n_past, -1)
        window = self.weights.n_swa
        if cut and window and n_past:
            # A sliding window reuses the slots of what it left behind (algorithms.md 9).
            # Where it left all that is to be kept, there is no oldest: -1.
            oldest = C.llama_memory_seq_pos_min(self._memory, 0)
            cut = 0 <= oldest <= max(0, n_past - window)
        if cut:
            self._marks.forget(n_past)
            self._now(n_past)
        else:
            self._return()

    def _return(self) -> None:
        """To the last mark, or to the beginning."""
        mark = self._marks.restore()
        if mark is None:
            C.llama_memory_clear(self._memory, True)
            self._marks.forget(0)
            self._now(0)
            return
        self._now(mark.n_past)
        self._read_at = mark.n_past
        if self._follower is not None and mark.state is not None:
            self._follower.returned(mark.state)

    def use_threads(self, n: int) -> None:
        """Compute with so many threads from the next read on."""
        self.n_threads = parameters.threads(n)
        C.llama_set_n_threads(self._context, self.n_threads, self.n_threads)

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything; in this order, or llama.cpp uses freed memory."""
        self._rows = {}
        if self._context:
            C.llama_free(self._context)
        self._context = None
        self.weights.close()

    def memory(self) -> dict[str, int]:
        """Bytes by device; empty where unknown."""
        used = self.weights.used_with(self._context, self._outputs)
        if used and self._source is not None:
            used[HOST] += 4 * self.n_batch * self._source.width
        return used

    @property
    def context(self) -> Any:
        """llama.cpp's own, for a head beside it."""
        return self._context


def _never() -> bool:
    return False

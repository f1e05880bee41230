"""One llama.cpp model and its context: tokens in, rows of logits out.

Every argument that makes llama.cpp abort is checked before the call and every return code after
it.  Never `llama_cpp.Llama`: it allocates n_ctx x n_vocab floats.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from localspec.engine import pulse
from localspec.engine.llama import failures
from localspec.engine.llama.library import LOG, LOGITS, C
from localspec.engine.llama.vocabulary import Vocabulary
from localspec.engine.protocols import Interrupted, Logits
from localspec.errors import DoesNotFitError, EngineError, ModelFileError
from localspec.machine import breakdown, parameters
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

    `outputs`, `rollback` and `within_trained` are those of a `Role`.
    """

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
        *,
        outputs: int,
        rollback: int,
        within_trained: bool = False,
    ) -> None:
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = None
        self._path = path
        self._load(settings)
        role = Role(settings, outputs, rollback, within_trained)
        try:
            self._open(parameters.trained(C, self._model, role))
        except BaseException:
            self.close()
            raise

    # --- loading ------------------------------------------------------------------------

    def _load(self, settings: ContextSettings) -> None:
        given = parameters.model(C, settings)
        params, self._kept = given.params, given.kept
        self._loading = C.llama_progress_callback(_loading)
        params.progress_callback = self._loading
        LOG.lines.clear()
        self._model = C.llama_model_load_from_file(os.fsencode(self._path), params)
        if not self._model:
            raise failures.load_error(self._path)
        self.vocabulary = Vocabulary(C.llama_model_get_vocab(self._model))
        self.n_vocab: int = self.vocabulary.n_tokens
        self.n_layer: int = C.llama_model_n_layer(self._model)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self._model)
        self._n_swa: int = C.llama_model_n_swa(self._model)
        self.recurrent = parameters.is_recurrent(C, self._model)
        if self.vocabulary.kind == 0:
            self.close()
            raise ModelFileError(
                f"{self._path.name} has no vocabulary.", "Give a file with the whole model."
            )
        if C.llama_model_has_encoder(self._model) or not C.llama_model_has_decoder(self._model):
            self.close()
            raise ModelFileError(
                f"{self._path.name} is not a model that continues text.",
                "Give a text-generation model; encoders and embedding models cannot be run.",
            )

    def _open(self, role: Role) -> None:
        self.n_ctx_asked = self._context_size(role.settings)
        params = parameters.context(C, self._model, role, self.n_ctx_asked)
        self.n_threads: int = params.n_threads
        LOG.lines.clear()
        self._context = C.llama_init_from_model(self._model, params)
        if not self._context:
            raise failures.context_error(self._path)
        self._memory = C.llama_get_memory(self._context)
        self.n_ctx: int = C.llama_n_ctx(self._context)
        self.n_batch: int = C.llama_n_ubatch(self._context)
        self._outputs = role.outputs
        self.n_past = self._read_at = 0
        self.seconds = 0.0
        self._prepare_batch()
        self.interrupted: Callable[[], bool] = _never
        """Asked during a long read; True ends it with Interrupted.  On the CPU only."""
        self._asks = C.ggml_abort_callback(self._asked)
        self.rollback = self._probed_rollback(role.rollback)

    def _context_size(self, settings: ContextSettings) -> int:
        n_ctx = parameters.context_size(settings, self.n_ctx_train, self._path.name)
        needed = self._kv_bytes(n_ctx, settings.kv_type)
        total = psutil.virtual_memory().total
        on_cpu = settings.n_gpu_layers == 0 or not C.llama_supports_gpu_offload()
        if on_cpu and needed > total:
            raise DoesNotFitError(
                f"A context of {n_ctx:,} tokens needs about {gib(needed)} for keys and values; "
                f"this machine has {gib(total)}.",
                "Use a smaller --ctx, or --kv q8_0.",
            )
        return n_ctx

    def _kv_bytes(self, n_ctx: int, kv_type: str) -> float:
        heads = max(1, C.llama_model_n_head(self._model))
        width = C.llama_model_n_embd(self._model) / heads * C.llama_model_n_head_kv(self._model)
        item = {"f32": 4.0, "q8_0": 1.0625, "q4_0": 0.5625}.get(kv_type, 2.0)
        return float(2 * n_ctx * self.n_layer * width * item)

    def _prepare_batch(self) -> None:
        """Numpy views over llama_batch's arrays; sequence and count never change."""
        n = self.n_batch
        self._batch = C.llama_batch_init(n, 0, 1)
        for i in range(n):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0
        self._token, self._position = self._batch.token, self._batch.pos
        self._tokens = np.ctypeslib.as_array(self._batch.token, (n,))
        self._positions = np.ctypeslib.as_array(self._batch.pos, (n,))
        self._wanted = np.ctypeslib.as_array(self._batch.logits, (n,))
        self._pattern = (0, 0)
        self._steps = np.arange(n, dtype=np.int32)
        self._rows: dict[int, Logits] = {}
        self._rows_at = 0

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
        self._fill(tokens, outputs)
        self._read_at = self.n_past
        began = time.perf_counter()
        if n > _SHORT:  # asked at every node of the graph: too dear for a round
            C.llama_set_abort_callback(self._context, self._asks, None)
        result = C.llama_decode(self._context, self._batch)
        if n > _SHORT:
            C.llama_set_abort_callback(self._context, C.ggml_abort_callback(0), None)
        address = LOGITS(self._context) if outputs else 0
        self.seconds += time.perf_counter() - began
        pulse.beat()
        if result != 0:
            self.n_past = C.llama_memory_seq_pos_max(self._memory, 0) + 1
            if result == _ABORTED:
                raise Interrupted
            raise failures.decode_error(result)
        self.n_past += n
        return self._view(address, outputs)

    def _fill(self, tokens: Sequence[int], outputs: int) -> None:
        """The batch.  A round's few tokens go in one by one: after a pass every numpy call is cold.

        Which tokens give logits is written only when it changes: rarely, from round to round.
        """
        n, past = len(tokens), self.n_past
        if n <= _SHORT:
            token, position = self._token, self._position
            for i in range(n):
                token[i] = tokens[i]
                position[i] = past + i
        else:
            self._tokens[:n] = tokens
            np.add(self._steps[:n], past, out=self._positions[:n])
        if self._pattern != (n, outputs):
            self._wanted[: n - outputs] = 0
            self._wanted[n - outputs : n] = 1
            self._pattern = (n, outputs)
        self._batch.n_tokens = n

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

    def forget(self, n_past: int) -> None:
        """Keep the first n_past tokens; none where the memory cannot be cut there."""
        if n_past >= self.n_past:
            return
        # Snapshots are of the last read only; llama.cpp would take older, stale ones for good.
        cut = not self.recurrent or n_past > self._read_at
        cut = cut and C.llama_memory_seq_rm(self._memory, 0, n_past, -1)
        if cut and self._n_swa and n_past:
            # A sliding window reuses the slots of what it left behind (algorithms.md 9).
            # Where it left all that is to be kept, there is no oldest: -1.
            oldest = C.llama_memory_seq_pos_min(self._memory, 0)
            cut = 0 <= oldest <= max(0, n_past - self._n_swa)
        if not cut:
            C.llama_memory_clear(self._memory, True)
            n_past = 0
        self.n_past = n_past

    def use_threads(self, n: int) -> None:
        """Compute with so many threads from the next read on."""
        self.n_threads = parameters.threads(n)
        C.llama_set_n_threads(self._context, self.n_threads, self.n_threads)

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything; in this order, or llama.cpp uses freed memory."""
        if self._batch is not None:
            self._rows = {}
            C.llama_batch_free(self._batch)
        if self._context:
            C.llama_free(self._context)
        if self._model:
            C.llama_model_free(self._model)
        self._batch = self._context = self._model = None

    def chat_template(self) -> str:
        """Its source, as the model's file has it; empty where there is none."""
        return bytes(C.llama_model_chat_template(self._model, None) or b"").decode(
            "utf-8", "replace"
        )

    def memory(self) -> dict[str, int]:
        """Bytes by device, the rows of logits with the computer's own; empty where unknown."""
        try:
            parts = breakdown.by_device(C._lib, self._context)
        except breakdown.UnknownLayoutError:
            return {}
        used = {name: part.total for name, part in parts.items()}
        used[HOST] = used.get(HOST, 0) + 4 * self._outputs * self.n_vocab
        return used

    def bytes_of_weights(self) -> int:
        return int(C.llama_model_size(self._model))


def _never() -> bool:
    return False


def _loading(_share: float, _: Any) -> bool:
    """llama.cpp's progress while it loads; False would end it."""
    pulse.beat()
    return True

"""A model opened as the engine would open it, with its data or without: what it takes.

Used in children only: without data llama.cpp still reads the header, and may die of it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from localspec.machine import breakdown, parameters
from localspec.machine.ledger import Ledger
from localspec.machine.parameters import Role

_COPIES = 4
"""GGML_SCHED_MAX_COPIES."""


class OpeningError(Exception):
    """llama.cpp does not take the model, or not these settings."""


class Opened:
    """A model and its context.  Raises OpeningError or UsageError; `close` frees both.

    `devices` are addresses, None for llama.cpp's own choice; `split` stands in for a
    tensor_split that was not asked for.
    """

    def __init__(
        self,
        c: Any,
        path: str,
        role: Role,
        *,
        devices: Sequence[int] | None = None,
        split: tuple[float, ...] = (),
        data: bool = False,
    ) -> None:
        self._c = c
        self.model: Any = None
        self.context: Any = None
        self.kept = 0
        """Bytes of hidden states that are handed out beside the logits."""
        given = parameters.model(c, role.settings)
        params = given.params
        # Without data llama.cpp aborts in any other mode; with it a mapped file would count whole.
        params.no_alloc, params.load_mode = not data, c.LLAMA_LOAD_MODE_NONE
        params.load_mtp = role.predicting
        params.use_extra_bufts = params.use_extra_bufts and role.repack
        if devices is not None:
            offered = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
            params.devices = ctypes.cast(offered, ctypes.c_void_p)
        if split:
            chosen = parameters.shares(c, split)
            params.tensor_split = chosen
        try:
            self.model = c.llama_model_load_from_file(os.fsencode(path), params)
            if not self.model:
                raise OpeningError("the model cannot be loaded")
            self._begin(role)
        except BaseException:
            self.close()
            raise

    def _begin(self, role: Role) -> None:
        """The model's context."""
        c = self._c
        self.role = parameters.trained(c, self.model, role)
        trained = int(c.llama_model_n_ctx_train(self.model))
        n_ctx = parameters.context_size(self.role.settings, trained, "this model")
        wanted = parameters.context(c, self.model, self.role, n_ctx)
        self.context = c.llama_init_from_model(self.model, wanted)
        if not self.context:
            raise OpeningError("no context with these settings")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.recurrent = parameters.is_recurrent(c, self.model)

    def ledger(self) -> Ledger:
        """Raises breakdown.UnknownLayoutError."""
        taken = breakdown.by_device(self._c._lib, self.context)
        output = parameters.output_bytes(self._c, self.model, self.role)
        return Ledger(taken, output + self.kept)

    def doubt(self) -> int:
        """Bytes by which the graph's memory on the last of several devices may be wrong.

        Where they take turns at batches, llama.cpp without data counts the copies of one row of
        activations more than it needs, or less.
        """
        c = self._c
        return int(_COPIES * 4 * c.llama_n_ubatch(self.context) * c.llama_model_n_embd(self.model))

    def close(self) -> None:
        if self.context:
            self._c.llama_free(self.context)
        if self.model:
            self._c.llama_model_free(self.model)
        self.context = self.model = None

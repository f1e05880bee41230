"""A model opened as the engine would open it, with its data or without: what it takes.

Used in children only: without data llama.cpp still reads the header, and may die of it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.machine import llama_params, memory_breakdown
from localspec.machine.llama_params import ModelRole
from localspec.machine.memory_breakdown import UnknownLayoutError
from localspec.machine.memory_by_device import MemoryByDevice

_COPIES = 4
"""GGML_SCHED_MAX_COPIES."""


class ModelOpenError(Exception):
    """llama.cpp does not take the model, or not these settings."""


class ProbedModel:
    """A model and its context.  Raises OpeningError or UsageError; `close` frees both.

    `devices` are addresses, None for llama.cpp's own choice; `split` stands in for a
    tensor_split that was not asked for.
    """

    def __init__(
        self,
        c: Any,
        path: str,
        role: ModelRole,
        *,
        devices: Sequence[int] | None = None,
        split: tuple[float, ...] = (),
        data: bool = False,
    ) -> None:
        self._c = c
        self.model: Any = None
        self.context: Any = None
        self.hidden_state_bytes = 0
        """Bytes of hidden states that are handed out beside the logits."""
        given = llama_params.model_params(c, role.settings)
        params = given.params
        # Without data llama.cpp aborts in any other mode; with it a mapped file would count whole.
        params.no_alloc, params.load_mode = not data, c.LLAMA_LOAD_MODE_NONE
        params.load_mtp = role.load_mtp
        params.use_extra_bufts = params.use_extra_bufts and role.repack
        if devices is not None:
            offered = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
            params.devices = ctypes.cast(offered, ctypes.c_void_p)
        if split:
            chosen = llama_params.tensor_split_array(c, split)
            params.tensor_split = chosen
        try:
            self.model = c.llama_model_load_from_file(os.fsencode(path), params)
            if not self.model:
                raise ModelOpenError("the model cannot be loaded")
            self._create_context(role)
        except BaseException:
            self.close()
            raise

    def _create_context(self, role: ModelRole) -> None:
        """The model's context."""
        c = self._c
        self.role = llama_params.limit_to_trained(c, self.model, role)
        trained = int(c.llama_model_n_ctx_train(self.model))
        n_ctx = llama_params.resolve_n_ctx(self.role.settings, trained, "this model")
        wanted = llama_params.context_params(c, self.model, self.role, n_ctx)
        self.context = c.llama_init_from_model(self.model, wanted)
        if not self.context:
            raise ModelOpenError("no context with these settings")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.is_recurrent = llama_params.is_recurrent(c, self.model)

    def memory_by_device(self) -> MemoryByDevice:
        """Raises breakdown.UnknownLayoutError."""
        taken = memory_breakdown.read_by_device(self._c._lib, self.context)
        output = llama_params.output_bytes(self._c, self.model, self.role)
        return MemoryByDevice(taken, output + self.hidden_state_bytes)

    def error_bound(self) -> int:
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


# --- A head opened beside its target, as the engine would open it: what both take then.

_SET_LAYER_INPUTS = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_SET_NEXTN = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_SCHED_RESERVE = "_ZN13llama_context13sched_reserveEv"
_ARGUMENTS: dict[str, list[Any]] = {
    _SET_LAYER_INPUTS: [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool],
    _SET_NEXTN: [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool],
    _SCHED_RESERVE: [ctypes.c_void_p],
}


_HEAD_FUNCTIONS = {
    "llama_set_embeddings_layer_inp": (
        _SET_LAYER_INPUTS,
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    "llama_set_embeddings_nextn": (
        _SET_NEXTN,
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    "llama_get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
}
"""What the engine calls where a head drafts, by plain name: as GCC and Clang, and as Microsoft's
compiler write it."""


def missing_head_functions(c: Any) -> list[str]:
    """Functions without which this build runs no heads."""

    def has(symbol: str) -> bool:
        try:
            return bool(c._lib[symbol])
        except AttributeError:
            return False

    return [name for name, ways in _HEAD_FUNCTIONS.items() if not any(map(has, (name, *ways)))]


def enable_hidden_states(c: Any, target: ProbedModel, layers: Sequence[int]) -> None:
    """From now on the target keeps the inputs of these layers, of every token of a batch.

    llama.cpp aborts on layers that it does not give.  Raises UnknownLayoutError.
    """
    for layer in set(layers):
        _call(c, _SET_LAYER_INPUTS, target.context, layer, True)
    _call(c, _SCHED_RESERVE, target.context)
    target.hidden_state_bytes = len(set(layers)) * _hidden_state_bytes(
        c, target, c.llama_model_n_embd
    )


def enable_mtp_state(c: Any, target: ProbedModel) -> None:
    """The same of what leaves its last layer, for the layer of its own that guesses."""
    _call(c, _SET_NEXTN, target.context, True, False)
    _call(
        c, _SET_LAYER_INPUTS, target.context, 0, False
    )  # asks for nothing, but the graph is sized anew
    _call(c, _SCHED_RESERVE, target.context)
    target.hidden_state_bytes = _hidden_state_bytes(c, target, c.llama_model_n_embd_out)


class ProbedHead(ProbedModel):
    """A head of another file.  Close it before the target."""

    def __init__(
        self, c: Any, path: str, role: ModelRole, target: ProbedModel, **options: Any
    ) -> None:
        """`how` as `Opened` has it."""
        self._target = target
        super().__init__(c, path, role, **options)

    def _create_context(self, role: ModelRole) -> None:
        self._create_head_context(role, self._c.LLAMA_CONTEXT_TYPE_DEFAULT)

    def _create_head_context(self, role: ModelRole, context_type: int) -> None:
        c, self.role = self._c, role
        params = llama_params.context_params(c, self.model, role, self._target.n_ctx)
        params.ctx_other, params.ctx_type = self._target.context, context_type
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            raise ModelOpenError("no context for the head")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.recurrent = False
        self.hidden_state_bytes = _hidden_state_bytes(c, self, c.llama_model_n_embd)


class ProbedMtpHead(ProbedHead):
    """The target's own layer that guesses (MTP): a context more of the same model."""

    def __init__(self, c: Any, role: ModelRole, target: ProbedModel) -> None:
        self._c, self._target = c, target
        self.model, self.context = target.model, None
        self._create_head_context(role, c.LLAMA_CONTEXT_TYPE_MTP)

    def memory_by_device(self) -> MemoryByDevice:
        """The weights are the target's."""
        found = super().memory_by_device()
        on = {name: replace(part, weights=0) for name, part in found.on.items()}
        return MemoryByDevice(on, found.output)

    def close(self) -> None:
        self.model = None
        super().close()


def _hidden_state_bytes(c: Any, model: ProbedModel, width: Any) -> int:
    return int(4 * c.llama_n_ubatch(model.context) * width(model.model))


def _call(c: Any, name: str, *arguments: Any) -> None:
    try:
        function = c._lib[name]
    except AttributeError:
        raise UnknownLayoutError(f"no {name}") from None
    function.argtypes, function.restype = _ARGUMENTS[name], None
    function(*arguments)

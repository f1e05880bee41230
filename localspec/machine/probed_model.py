"""Models and heads opened as the engine opens them, with or without data, to read their memory.

For child processes only: llama.cpp may abort on a malformed header.
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
    """llama.cpp rejects the model or the settings."""


class ProbedModel:
    """A model and its context.  Raises ModelOpenError or UsageError; `close` frees both.

    `devices` are addresses, None for the choice of llama.cpp; `split` is a tensor_split for
    settings without one; `data` loads the weights.
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
        """Bytes of hidden states in the output buffer, beside the logits."""
        model_params = llama_params.model_params(c, role.settings)
        params = model_params.params
        # Without data llama.cpp aborts in other modes; with data a mapped file would count whole.
        params.no_alloc, params.load_mode = not data, c.LLAMA_LOAD_MODE_NONE
        params.load_mtp = role.load_mtp
        params.use_extra_bufts = params.use_extra_bufts and role.repack
        if devices is not None:
            device_array = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
            params.devices = ctypes.cast(device_array, ctypes.c_void_p)
        if split:
            split_array = llama_params.tensor_split_array(c, split)
            params.tensor_split = split_array
        try:
            self.model = c.llama_model_load_from_file(os.fsencode(path), params)
            if not self.model:
                raise ModelOpenError("llama.cpp cannot load the model")
            self._create_context(role)
        except BaseException:
            self.close()
            raise

    def _create_context(self, role: ModelRole) -> None:
        c = self._c
        self.role = llama_params.limit_to_trained(c, self.model, role)
        trained = int(c.llama_model_n_ctx_train(self.model))
        n_ctx = llama_params.resolve_n_ctx(self.role.settings, trained, "this model")
        params = llama_params.context_params(c, self.model, self.role, n_ctx)
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            raise ModelOpenError("llama.cpp cannot create a context with these settings")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.is_recurrent = llama_params.is_recurrent(c, self.model)

    def memory_by_device(self) -> MemoryByDevice:
        """Raises UnknownLayoutError."""
        by_device = memory_breakdown.read_by_device(self._c._lib, self.context)
        output = llama_params.output_bytes(self._c, self.model, self.role)
        return MemoryByDevice(by_device, output + self.hidden_state_bytes)

    def error_bound(self) -> int:
        """Bytes by which the compute buffer of the last of several devices may be wrong.

        With pipeline parallelism, llama.cpp without data miscounts the copies of one batch of
        activations.
        """
        c = self._c
        return int(_COPIES * 4 * c.llama_n_ubatch(self.context) * c.llama_model_n_embd(self.model))

    def close(self) -> None:
        if self.context:
            self._c.llama_free(self.context)
        if self.model:
            self._c.llama_model_free(self.model)
        self.context = self.model = None


# Exported C++ functions without C equivalents, by mangled name.
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
"""Functions the engine needs for heads, with their names by GCC or Clang and by MSVC."""


def missing_head_functions(c: Any) -> list[str]:
    """Functions that heads need and this build does not export."""

    def has(symbol: str) -> bool:
        try:
            return bool(c._lib[symbol])
        except AttributeError:
            return False

    return [
        name for name, mangled in _HEAD_FUNCTIONS.items() if not any(map(has, (name, *mangled)))
    ]


def enable_hidden_states(c: Any, target: ProbedModel, layers: Sequence[int]) -> None:
    """Makes the target output the inputs of these layers for every token.

    llama.cpp aborts on invalid layers.  Raises UnknownLayoutError.
    """
    for layer in set(layers):
        _call(c, _SET_LAYER_INPUTS, target.context, layer, True)
    _call(c, _SCHED_RESERVE, target.context)
    layer_bytes = _hidden_state_bytes(c, target, c.llama_model_n_embd)
    target.hidden_state_bytes = len(set(layers)) * layer_bytes


def enable_mtp_state(c: Any, target: ProbedModel) -> None:
    """Makes the target output the result of its last layer, for its MTP layer."""
    _call(c, _SET_NEXTN, target.context, True, False)
    # Enables nothing, but makes llama.cpp reserve the graph again.
    _call(c, _SET_LAYER_INPUTS, target.context, 0, False)
    _call(c, _SCHED_RESERVE, target.context)
    target.hidden_state_bytes = _hidden_state_bytes(c, target, c.llama_model_n_embd_out)


class ProbedHead(ProbedModel):
    """A head in its own file.  Close it before the target."""

    def __init__(
        self, c: Any, path: str, role: ModelRole, target: ProbedModel, **options: Any
    ) -> None:
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
            raise ModelOpenError("llama.cpp cannot create a context for the head")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.is_recurrent = False
        self.hidden_state_bytes = _hidden_state_bytes(c, self, c.llama_model_n_embd)


class ProbedMtpHead(ProbedHead):
    """The MTP layer of the target: a second context of the same model."""

    def __init__(self, c: Any, role: ModelRole, target: ProbedModel) -> None:
        self._c, self._target = c, target
        self.model, self.context = target.model, None
        self._create_head_context(role, c.LLAMA_CONTEXT_TYPE_MTP)

    def memory_by_device(self) -> MemoryByDevice:
        """Without weights, which belong to the target."""
        memory = super().memory_by_device()
        on = {name: replace(part, weights=0) for name, part in memory.on.items()}
        return MemoryByDevice(on, memory.output)

    def close(self) -> None:
        self.model = None
        super().close()


def _hidden_state_bytes(c: Any, model: ProbedModel, width: Any) -> int:
    return int(4 * c.llama_n_ubatch(model.context) * width(model.model))


def _call(c: Any, name: str, *arguments: Any) -> None:
    try:
        function = c._lib[name]
    except AttributeError:
        raise UnknownLayoutError(f"llama.cpp does not export {name}") from None
    function.argtypes, function.restype = _ARGUMENTS[name], None
    function(*arguments)

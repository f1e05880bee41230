"""Hidden states of a llama.cpp context, for heads.

Their functions are looked up on first use; without them heads are unavailable.
Arguments that would make llama.cpp abort or read out of bounds are checked here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from localspec.errors import EngineError, Hint
from localspec.llama.library import C
from localspec.llama.model import LlamaModel
from localspec.machine import ggml
from localspec.models.gguf import architectures
from localspec.spec.protocols import HiddenStates

_CONTEXT_POINTER = ctypes.c_void_p
_FLOAT_POINTER = ctypes.POINTER(ctypes.c_float)
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "llama_set_embeddings_layer_inp": (
        [_CONTEXT_POINTER, ctypes.c_uint32, ctypes.c_bool],
        None,
    ),
    "llama_get_embeddings_layer_inp": (
        [_CONTEXT_POINTER, ctypes.c_uint32],
        _FLOAT_POINTER,
    ),
    "llama_set_embeddings_nextn": (
        [_CONTEXT_POINTER, ctypes.c_bool, ctypes.c_bool],
        None,
    ),
    "llama_get_embeddings_nextn": ([_CONTEXT_POINTER], _FLOAT_POINTER),
    "llama_set_nextn_layer_offset": ([_CONTEXT_POINTER, ctypes.c_int32], None),
}
"""Argument types and result type."""


class HeadsUnsupportedError(EngineError):
    """This build of llama.cpp lacks a function that heads need."""

    def __init__(self, missing_function: str) -> None:
        super().__init__(
            f"This build of llama.cpp cannot run heads: it lacks {missing_function}.",
            Hint(
                "Install the llama-cpp-python version that localspec requires, or use {draft=none}."
            ),
        )
        self.missing_function = missing_function


@cache
def load_function(name: str) -> Any:
    """One of the functions above. Raises HeadsUnsupportedError."""
    function = ggml.find_head_function(C._lib, name)
    if function is None:
        raise HeadsUnsupportedError(name)
    function.argtypes, function.restype = _SIGNATURES[name]
    return function


def require_functions() -> None:
    """Raise HeadsUnsupportedError unless all functions are available."""
    for name in _SIGNATURES:
        load_function(name)


def read_nextn_states(context: Any, n: int, width: int) -> HiddenStates:
    """Hidden states of the first n rows of the context's last pass.

    They are a view, valid until the next pass.
    """
    address = load_function("llama_get_embeddings_nextn")(context)
    if not address:
        raise EngineError("llama.cpp returned no hidden states of the head.")
    return np.ctypeslib.as_array(address, (n, width))


class LayerHiddenStates:
    """The inputs of some of the target's layers, concatenated in the given order."""

    def __init__(self, context: Any, model: LlamaModel, layers: Sequence[int]) -> None:
        """Raises EngineError if llama.cpp would abort for these layers."""
        architecture = model.architecture
        last = model.n_layer - 1
        if architecture not in architectures.EXPOSING_HIDDEN_STATES:
            raise EngineError(
                f"llama.cpp does not expose the hidden states of {architecture} models."
            )
        if architecture in architectures.EXPOSING_LAST_LAYER_OUTPUT:
            last += 1
        wrong = [layer for layer in layers if not 0 <= layer <= last]
        if wrong or not layers:
            raise EngineError(f"there is no layer {wrong or layers} of {model.n_layer}")
        require_functions()
        self._context = context
        self._layers = tuple(layers)
        self._n_embd = model.n_embd
        self.width = len(self._layers) * self._n_embd
        for layer in sorted(set(layers)):
            load_function("llama_set_embeddings_layer_inp")(context, layer, True)

    def states(self, n: int) -> HiddenStates:
        get = load_function("llama_get_embeddings_layer_inp")
        shape = (n, self._n_embd)
        rows = [
            np.ctypeslib.as_array(get(self._context, i), shape) for i in self._layers
        ]
        return np.concatenate(rows, axis=1)


class FinalHiddenStates:
    """The output of the target's last layer, the input of an MTP head."""

    def __init__(self, context: Any, model: LlamaModel) -> None:
        # llama.cpp returns garbage for other models, and no error.
        if model.architecture not in architectures.EXPOSING_FINAL_STATE:
            raise EngineError("llama.cpp supports no MTP layers of this architecture.")
        require_functions()
        self._context = context
        self.width = model.n_embd_out
        load_function("llama_set_embeddings_nextn")(context, True, False)

    def states(self, n: int) -> HiddenStates:
        return read_nextn_states(self._context, n, self.width).copy()


HiddenStateSource = LayerHiddenStates | FinalHiddenStates
"""Its method `states(n)` returns a copy of the hidden states of all n tokens of the last
decode, shape (n, width).
"""

"""ctypes bindings of functions that llama_cpp does not have.

They are those of ggml's devices, and those for heads. They are for child processes
only. Callers pass the library handle: loading ggml by its path would create a second
copy with separate devices.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes import (
    POINTER,
    c_bool,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

KINDS = ("cpu", "gpu", "igpu", "accel")
"""ggml_backend_dev_type, by number; later types have no memory."""


class GgmlDeviceProps(ctypes.Structure):
    """ggml_backend_dev_props."""

    _fields_ = [
        ("name", c_char_p),
        ("description", c_char_p),
        ("memory_free", c_size_t),
        ("memory_total", c_size_t),
        ("type", c_int),
        ("device_id", c_char_p),
        ("caps", c_bool * 5),
    ]


class GgmlTypeTraits(ctypes.Structure):
    """ggml_type_traits."""

    _fields_ = [
        ("name", c_char_p),
        ("sizes", c_int64 * 3),
        ("is_quantized", c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64)),
    ]


class GgmlLibrary(Struct, frozen=True):
    """Functions of ggml as attributes, without the prefix `ggml_`.

    `library` is the ctypes handle of libllama, which also resolves symbols of its
    dependencies. A function that it lacks raises AttributeError.
    """

    library: Any

    def __getattr__(self, name: str) -> Any:
        if name not in _SIGNATURES:
            raise AttributeError(name)
        return _function(self.library, name)

    def devices(self) -> list[int]:
        """Addresses of all devices, including the CPU."""
        return [self.backend_dev_get(i) for i in range(self.backend_dev_count())]

    def kind(self, device: int) -> str:
        number = self.backend_dev_type(device)
        if not 0 <= number < len(KINDS):
            return "meta"
        return KINDS[number]

    def describe(self, device: int) -> dict[str, Any]:
        """Properties of a device, as JSON values."""
        props = GgmlDeviceProps()
        self.backend_dev_get_props(device, ctypes.byref(props))
        registry = self.backend_dev_backend_reg(device)
        backend = ""
        if registry:
            backend = _text(self.backend_reg_name(registry))
        return {
            "name": _text(props.name),
            "description": _text(props.description),
            "type": self.kind(device),
            "free": int(props.memory_free),
            "total": int(props.memory_total),
            "id": _text(props.device_id) or None,
            "backend": backend,
        }


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "backend_dev_count": (c_size_t,),
    "backend_dev_get": (c_void_p, c_size_t),
    "backend_dev_type": (c_int, c_void_p),
    "backend_dev_get_props": (None, c_void_p, POINTER(GgmlDeviceProps)),
    "backend_dev_backend_reg": (c_void_p, c_void_p),
    "backend_reg_name": (c_char_p, c_void_p),
    "backend_reg_by_name": (c_void_p, c_char_p),
    "backend_reg_dev_count": (c_size_t, c_void_p),
    "backend_reg_dev_get": (c_void_p, c_void_p, c_size_t),
    "backend_reg_get_proc_address": (c_void_p, c_void_p, c_char_p),
    "backend_load": (c_void_p, c_char_p),
    "backend_register": (None, c_void_p),
    "backend_cpu_buffer_type": (c_void_p,),
    "backend_cpu_init": (c_void_p,),
    "backend_free": (None, c_void_p),
    "backend_buft_alloc_buffer": (c_void_p, c_void_p, c_size_t),
    "backend_dev_supports_op": (c_bool, c_void_p, c_void_p),
    "op_name": (c_char_p, c_int),
    "nbytes": (c_size_t, c_void_p),
    "nrows": (c_int64, c_void_p),
    "row_size": (c_size_t, c_int, c_int64),
    "is_quantized": (c_bool, c_int),
    "get_type_traits": (POINTER(GgmlTypeTraits), c_int),
    "quantize_chunk": (
        c_size_t,
        c_int,
        c_void_p,
        c_char_p,
        c_int64,
        c_int64,
        c_int64,
        c_void_p,
    ),
}
"""Result type, then argument types."""


@cache
def _function(library: Any, name: str) -> Any:
    function = _find_symbol(library, f"ggml_{name}")
    function.restype, *arguments = _SIGNATURES[name]
    function.argtypes = arguments
    return function


def _find_symbol(library: Any, name: str) -> Any:
    try:
        return library[name]
    except AttributeError:
        if sys.platform != "win32":
            raise
    # Windows searches one library only. The ggml ones beside it are loaded already.
    folder = Path(library._name).parent
    for file in sorted(folder.glob("ggml*.dll")):
        try:
            return ctypes.CDLL(str(file))[name]
        except (AttributeError, OSError):
            continue
    raise AttributeError(name)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


HEAD_FUNCTIONS = {
    "llama_set_embeddings_layer_inp": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    "llama_set_embeddings_nextn": (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    "llama_get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
    "llama_set_nextn_layer_offset": (
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
    ),
}
"""C++ functions of llama.cpp that are not part of its C API: a build may lack them.

By plain name, the symbol of GCC and Clang, and the one of Microsoft's compiler.
"""


_RESERVE_GRAPH = (
    "_ZN13llama_context13sched_reserveEv",
    "?sched_reserve@llama_context@@QEAAXXZ",
)
"""llama_context::sched_reserve(), which sizes the compute buffers.

Builds of Microsoft's compiler do not export it.
"""


def find_head_function(library: Any, name: str) -> Any | None:
    """`library` is the ctypes handle of libllama."""
    gnu, microsoft = HEAD_FUNCTIONS[name]
    return _find_cpp_function(library, name, gnu, microsoft)


def _find_cpp_function(library: Any, *symbols: str) -> Any | None:
    for symbol in symbols:
        on_macos = f"_{symbol}"  # There dlsym adds one more underscore.
        for name in (symbol, on_macos):
            function = getattr(library, name, None)
            if function is not None:
                return function
    return None


def reserve_hidden_states(library: Any, context: Any, layers: Sequence[int]) -> bool:
    """Makes a context output the inputs of these layers, and size its buffers anew.

    The engine enables them in the same way, and llama.cpp sizes the buffers in the
    first pass after that. Returns False if this build of llama.cpp cannot do it without
    a pass.
    """
    enable = find_head_function(library, "llama_set_embeddings_layer_inp")
    reserve = _find_cpp_function(library, *_RESERVE_GRAPH)
    if enable is None or reserve is None:
        return False
    enable.argtypes = [c_void_p, c_uint32, c_bool]
    enable.restype = None
    reserve.argtypes = [c_void_p]
    reserve.restype = None
    for layer in sorted(set(layers)):
        enable(context, layer, True)
    reserve(context)
    return True


def list_missing_head_functions(library: Any) -> list[str]:
    return [
        name for name in HEAD_FUNCTIONS if find_head_function(library, name) is None
    ]

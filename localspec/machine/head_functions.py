"""Functions of llama.cpp that draft heads need.

They are not part of its C API: they are C++, exported under mangled names, and a build may lack
them.
"""

from __future__ import annotations

from typing import Any

SYMBOLS = {
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
}
"""By plain name: the symbols of GCC and Clang, and of Microsoft's compiler."""


def find(library: Any, name: str) -> Any | None:
    """`library` is the ctypes handle of libllama."""
    gnu, microsoft = SYMBOLS[name]
    for symbol in (name, gnu, f"_{gnu}", microsoft):  # on macOS dlsym adds one more underscore
        function = getattr(library, symbol, None)
        if function is not None:
            return function
    return None


def list_missing(library: Any) -> list[str]:
    return [name for name in SYMBOLS if find(library, name) is None]

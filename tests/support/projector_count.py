"""Asks llama.cpp what a projector takes, without its weights; a process of its own.

    python -m tests.support.projector_count FILE

prints the bytes of weights and of the buffer of the picture that it warms up with.
`mtmd_get_memory_usage` is C++: it is called by its mangled name, and the nodes of the
`std::map` that it returns are read as GCC's library lays them out.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Any

_NAME = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_NODE = struct.Struct("<6Q")
"""Colour, parent, left and right; the device's address, and its bytes."""


class _Map(ctypes.Structure):
    """The tree's root is the third word."""

    _fields_ = [("words", ctypes.c_uint64 * 6)]


def count(path: str) -> int:
    import llama_cpp.mtmd_cpp as mtmd  # noqa: PLC0415  the parent imports no llama.cpp

    library: Any = mtmd._libmtmd
    ask = library[_NAME]
    ask.restype = _Map
    ask.argtypes = [ctypes.c_char_p, mtmd.mtmd_context_params]
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = False
    words = ask(os.fsencode(path), params).words
    return _sum_nodes(words[2])


def _sum_nodes(node: int) -> int:
    if not node:
        return 0
    _, _, left, right, _, size = _NODE.unpack(ctypes.string_at(node, _NODE.size))
    n_bytes: int = size
    return n_bytes + _sum_nodes(left) + _sum_nodes(right)


if __name__ == "__main__":
    print(count(sys.argv[1]))

"""Memory of a context and its model by buffer, read from llama_get_memory_breakdown.

For child processes only.  The function returns a C++ std::map by value and has no C equivalent, so
this module walks the tree in the memory layout of libstdc++ or libc++.
"""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from typing import Any

from localspec.machine.ggml import GgmlLibrary
from localspec.machine.memory_by_device import HOST, DeviceMemory

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_MAX_BUFFERS = 256
"""More buffer types than any machine has: a larger count means an unknown layout."""


class UnknownLayoutError(Exception):
    """This build of llama.cpp has no breakdown, or an unknown memory layout."""


class _LibstdcxxMap(ctypes.Structure):
    """std::map of libstdc++: comparator, color, root, first, last, count."""

    _fields_ = [("words", ctypes.c_uint64 * 6)]


class _LibcxxMap(ctypes.Structure):
    """std::map of libc++: first, root, count."""

    _fields_ = [("words", ctypes.c_uint64 * 3)]


class _MapNode(ctypes.Structure):
    """A tree node: four link words, then the key and three sizes."""

    _fields_ = [("links", ctypes.c_uint64 * 4), ("value", ctypes.c_uint64 * 4)]


def read_by_device(library: Any, context: Any) -> dict[str, DeviceMemory]:
    """Bytes by device name, system memory under HOST.  Raises UnknownLayoutError."""
    ggml = GgmlLibrary(library)
    sums: dict[str, DeviceMemory] = defaultdict(DeviceMemory)
    for buffer_type, *sizes in read_buffers(library, context):
        sums[_device_name(ggml, buffer_type)] += DeviceMemory(*sizes)
    return dict(sums)


def read_buffers(library: Any, context: Any) -> list[list[int]]:
    """Rows of buffer type, weights, KV cache, compute.  Raises UnknownLayoutError."""
    is_libcxx = sys.platform == "darwin"
    if sys.platform == "win32":
        raise UnknownLayoutError("unknown layout of std::map on Windows")
    try:
        function = library[_SYMBOL]
    except AttributeError:
        raise UnknownLayoutError(f"llama.cpp does not export {_SYMBOL}") from None
    function.argtypes = [ctypes.c_void_p]
    function.restype = _LibcxxMap if is_libcxx else _LibstdcxxMap
    words = function(context).words
    root, count = (words[1], words[2]) if is_libcxx else (words[2], words[5])
    if not 0 < count <= _MAX_BUFFERS:
        raise UnknownLayoutError(f"implausible number of buffers: {count}")
    return _walk_tree(root, count, 0 if is_libcxx else 2)


def _walk_tree(root: int, count: int, left_link: int) -> list[list[int]]:
    rows: list[list[int]] = []
    pending = [root]
    while pending:
        node = _MapNode.from_address(pending.pop())
        rows.append(list(node.value))
        pending += [link for link in (node.links[left_link], node.links[left_link + 1]) if link]
        if len(rows) > count:
            raise UnknownLayoutError("the tree of buffers is not finite")
    if len(rows) != count:
        raise UnknownLayoutError(f"found {len(rows)} of {count} buffers")
    return rows


def _device_name(ggml: GgmlLibrary, buffer_type: int) -> str:
    if ggml.backend_buft_is_host(buffer_type):
        return HOST
    device = ggml.backend_buft_get_device(buffer_type)
    # Repacked weights are not a host buffer, as no other device can read them.
    if not device or ggml.kind(device) in ("cpu", "accel"):
        return HOST
    return bytes(ggml.backend_dev_name(device)).decode("utf-8", "replace")

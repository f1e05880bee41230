"""What llama.cpp says a context and its model take, buffer by buffer.  Used in children only.

It is a C++ map, returned by value; no C function gives it.  The map is walked as the compiler's
library lays it out: three words that count, and nodes of eight.
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
"""Buffer types that any machine could have: more means that the layout is another one."""


class UnknownLayoutError(Exception):
    """This build of llama.cpp cannot be asked."""


class _LibstdcxxMap(ctypes.Structure):
    """std::map of libstdc++: comparator, colour, root, first, last, count."""

    _fields_ = [("words", ctypes.c_uint64 * 6)]


class _LibcxxMap(ctypes.Structure):
    """std::map of libc++: first, root, count."""

    _fields_ = [("words", ctypes.c_uint64 * 3)]


class _MapNode(ctypes.Structure):
    """A node's pair; the links before it are read by position."""

    _fields_ = [("links", ctypes.c_uint64 * 4), ("value", ctypes.c_uint64 * 4)]


def read_by_device(library: Any, context: Any) -> dict[str, DeviceMemory]:
    """Bytes on each device by its name; all of the computer's own memory under HOST.

    Raises UnknownLayoutError.
    """
    ggml = GgmlLibrary(library)
    sums: dict[str, DeviceMemory] = defaultdict(DeviceMemory)
    for buffer_type, *counted in read_buffers(library, context):
        sums[_device_name(ggml, buffer_type)] += DeviceMemory(*counted)
    return dict(sums)


def read_buffers(library: Any, context: Any) -> list[list[int]]:
    """Buffer type, weights, keys and values, compute.  Raises UnknownLayoutError."""
    llvm = sys.platform == "darwin"
    if sys.platform == "win32":
        raise UnknownLayoutError("Microsoft's std::map is not known")
    try:
        ask = library[_SYMBOL]
    except AttributeError:
        raise UnknownLayoutError(f"no {_SYMBOL}") from None
    ask.argtypes = [ctypes.c_void_p]
    ask.restype = _LibcxxMap if llvm else _LibstdcxxMap
    words = ask(context).words
    root, count = (words[1], words[2]) if llvm else (words[2], words[5])
    if not 0 < count <= _MAX_BUFFERS:
        raise UnknownLayoutError(f"{count} buffers")
    return _walk_tree(root, count, 0 if llvm else 2)


def _walk_tree(root: int, count: int, left_link: int) -> list[list[int]]:
    found: list[list[int]] = []
    waiting = [root]
    while waiting:
        node = _MapNode.from_address(waiting.pop())
        found.append(list(node.value))
        waiting += [link for link in (node.links[left_link], node.links[left_link + 1]) if link]
        if len(found) > count:
            raise UnknownLayoutError("a tree without an end")
    if len(found) != count:
        raise UnknownLayoutError(f"{len(found)} of {count} buffers")
    return found


def _device_name(ggml: GgmlLibrary, buffer_type: int) -> str:
    if ggml.backend_buft_is_host(buffer_type):
        return HOST
    device = ggml.backend_buft_get_device(buffer_type)
    # Weights repacked for the CPU are no host buffer, because others could not read them.
    if not device or ggml.kind(device) in ("cpu", "accel"):
        return HOST
    return bytes(ggml.backend_dev_name(device)).decode("utf-8", "replace")

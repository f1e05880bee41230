"""Sizes of llama.cpp's buffers, read from its log.

A load without data prints 0.00 MiB for weights and for the KV cache of each device.  It prints the
total of the KV cache, and the real sizes of recurrent states and compute buffers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from localspec.machine.memory_by_device import HOST, DeviceMemory

_BUFFER = re.compile(r"\w+: +(\S+) +(?:DSV4 \w+ )?(\w+) buffer size = +([\d.]+) MiB\s*$")
"""`sched_reserve:      CUDA0 compute buffer size =   258.50 MiB`.

No other words may stand in the line: llama.cpp also prints texts of the model's file.
"""
_KV_TOTAL = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
"""One line for each cache; a model with sliding windows has two."""
_HOST_BUFFER = re.compile(r"CPU|AMX|BLAS|.*_Host$")
"""Repacked (CPU_REPACK), mapped (CPU_Mapped) and pinned memory (CUDA_Host) are system memory."""
_BUFFER_SUFFIX = re.compile(r"_(Mapped|Private|Shared|Split)$")
_CATEGORIES = {"model": "weights", "compute": "compute", "output": ""}
"""Other buffers (KV, RS, state) count as KV cache; the output buffer grows later."""
_MIB = 1 << 20


class BufferLog:
    """Collects the sizes of one model or context from its log lines."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        """Bytes by buffer and category."""
        self.kv_total = 0
        """Bytes of the KV cache on all devices, without recurrent states."""

    def read(self, line: str) -> None:
        """Ignores other lines.  A compute buffer may be reserved again: its last size counts."""
        if match := _KV_TOTAL.match(line):
            self.kv_total += _bytes(match[1])
        if not (match := _BUFFER.match(line)):
            return
        buffer, category = match[1], _CATEGORIES.get(match[2], "kv")
        if category == "compute":
            self._sizes[buffer, category] = 0
        if category:
            self._sizes[buffer, category] += _bytes(match[3])

    def by_device(self) -> dict[str, DeviceMemory]:
        """By device name, system memory under HOST."""
        sums: dict[str, DeviceMemory] = defaultdict(DeviceMemory)
        for (buffer, category), size in self._sizes.items():
            sums[_device(buffer)] += replace(DeviceMemory(), **{category: size})
        return dict(sums)


def _bytes(mib: str) -> int:
    return round(float(mib) * _MIB)


def _device(buffer: str) -> str:
    return HOST if _HOST_BUFFER.match(buffer) else _BUFFER_SUFFIX.sub("", buffer)

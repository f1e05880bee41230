"""Recorded sizes of pairs on GPUs, as llama.cpp counted them.

fit/gpu_counts.jsonl holds llama.cpp's sizes (llama-cpp-python 0.3.36, x86-64 without
AMX) for random settings on ggml devices without hardware, which had the allocation
rules of the backends. Bytes by device: weights, KV cache, compute buffers.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from localspec.fit.memory import MemoryByDevice, MemoryEstimate
from localspec.machine.device import Device, DeviceMemory
from localspec.models.gguf.header import Header
from localspec.protocol.json_values import from_json
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import families, headshapes

_FILE = Path(__file__).with_name("gpu_counts.jsonl")
_GIB = 1 << 30


@dataclass(frozen=True)
class GpuCount:
    name: str
    """The family, or the head."""
    models: tuple[str, str | None]
    """As in families.py, with their size, or as in headshapes.py."""
    load: LoadCommand
    headers: tuple[Header, Header | None]
    devices: tuple[Device, ...]
    exact: MemoryEstimate


def read() -> Iterator[GpuCount]:
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        body = json.loads(line)
        name, draft = body["models"]
        load = LoadCommand(
            name,
            draft,
            _settings(body["settings"]),
            _settings(body["draft_settings"]),
            body["draft_max"],
            snapshots=body["draft_max"],
        )
        devices = tuple(
            Device(
                name, free=gib * _GIB, total=gib * _GIB, backend=backend, simulated=True
            )
            for name, backend, gib in body["devices"]
        )
        outputs = body["output"]
        target = _memory(body["target"], outputs[0])
        draft_memory = body["draft"] and _memory(body["draft"], outputs[1])
        exact = MemoryEstimate(target, draft_memory, "exact")
        family = name.removesuffix("-full").removesuffix("-small")
        yield GpuCount(
            family, (name, draft), load, _headers(name, draft), devices, exact
        )


def _settings(body: dict[str, Any]) -> ContextSettings:
    settings: ContextSettings = from_json(ContextSettings, body)
    return settings


def _memory(body: dict[str, list[int]], output: int) -> MemoryByDevice:
    return MemoryByDevice(
        {name: DeviceMemory(*sizes) for name, sizes in body.items()}, output
    )


@cache
def _headers(name: str, draft: str | None) -> tuple[Header, Header | None]:
    if name in headshapes.HEADS or name == "mtp-qwen35":
        target, head = headshapes.pair(name)
        return target, target if target == head else head
    return _header(name), _header(draft) if draft else None


@cache
def _header(name: str) -> Header:
    family, _, size = name.rpartition("-")
    return replace(families.header(family, small=size == "small"), name=name)

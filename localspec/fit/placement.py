"""Placement of layers on devices, by the rules of llama.cpp."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from localspec.fit.shape import ModelShape
from localspec.lazy_dataclass import dataclass
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST
from localspec.protocol.wire import ContextSettings


@dataclass(frozen=True, slots=True)
class BackendRules:
    """How a backend allocates.  By default as CUDA, whose rules and code most others share."""

    f16_copies: bool = True
    """Attention over a cache in another type keeps f16 copies of it behind its output."""
    pipeline: bool = True  # Supports pipeline parallelism, with copies of the graph's inputs.
    host_buffer: bool = True
    """Offers a buffer type of pinned host memory (`get_host_buffer_type`).

    llama.cpp then puts the CPU's weights there and does not repack them.
    """


_CPU_RULES = BackendRules(f16_copies=False, pipeline=False)
_RULES = {
    "Vulkan": BackendRules(f16_copies=False),
    "Metal": BackendRules(f16_copies=False, pipeline=False, host_buffer=False),
}
_MAX_COPIES = 4  # Copies of every input with pipeline parallelism (GGML_SCHED_MAX_COPIES).


@dataclass(frozen=True)
class LayerPlacement:
    """Backends are numbered: GPUs first, the CPU last."""

    backend_names: tuple[str, ...]
    backend_rules: tuple[BackendRules, ...]
    layer_backends: tuple[int, ...]  # A backend for each layer, then one for the output.
    experts_on_cpu: bool
    n_copies: int  # Of every input.

    @property
    def cpu_backend(self) -> int:
        return len(self.backend_names) - 1

    @property
    def output_backend(self) -> int:
        return self.layer_backends[-1]

    @property
    def has_gpu(self) -> bool:
        return self.cpu_backend > 0

    @property
    def is_partial(self) -> bool:
        """Some layers, or the output, are on the CPU although there is a GPU."""
        return self.has_gpu and self.cpu_backend in self.layer_backends

    @property
    def repacks(self) -> bool:
        """llama.cpp repacks weights on the CPU, unless a GPU offers pinned host memory for them."""
        return not any(rule.host_buffer for rule in self.backend_rules[:-1])


def offload_devices(settings: ContextSettings, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices llama.cpp offloads to; integrated GPUs only if there is no other.

    Workers come first (machine/rpc/client.py); models without workers do not use theirs.
    """
    local = tuple(d for d in devices if not d.worker)
    gpus = tuple(d for d in local if d.kind == "gpu") or tuple(d for d in local if d.kind == "igpu")
    gpus = (*(d for d in devices if d.worker and d.worker in settings.workers), *gpus)
    if settings.split_mode == "none" and gpus:
        if not 0 <= settings.main_gpu < len(gpus):
            return ()
        return (gpus[settings.main_gpu],)
    return gpus


def place_layers(
    shape: ModelShape,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> LayerPlacement:
    """`used_bytes`: memory already in use on each device."""
    chosen = offload_devices(settings, devices)
    rules = tuple(_RULES.get(device.backend, BackendRules()) for device in chosen)
    layers = _assign_layers(len(shape.layers), settings, chosen, used_bytes)
    if chosen and chosen[-1].worker and settings.output_layer == "local":
        layers = (*layers[:-1], len(chosen))
    is_pipelined = len(chosen) > 1 and len(chosen) not in layers and not settings.cpu_moe
    is_pipelined = is_pipelined and settings.split_mode == "layer"
    return LayerPlacement(
        (*(device.name for device in chosen), HOST),
        (*rules, _CPU_RULES),
        layers,
        settings.cpu_moe,
        _MAX_COPIES if is_pipelined and all(rule.pipeline for rule in rules) else 1,
    )


def _assign_layers(
    n_layer: int,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> tuple[int, ...]:
    """Offloads from the back: the output first, then the last layer, and so on."""
    n = n_layer + 1 if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, n_layer + 1)
    n = n if devices else 0
    ends = _cumulative_split(settings, devices, used_bytes) if n else []
    backends = [len(devices)] * (n_layer + 1 - n)
    for i in range(n):
        backends.append(min(bisect_right(ends, _to_float32(i / n)), len(devices) - 1))
    return tuple(backends)


def _cumulative_split(
    settings: ContextSettings, devices: Sequence[Device], used_bytes: Mapping[str, int]
) -> list[float]:
    """The end of each device's share of the layers, from 0 to 1, in the precision of llama.cpp."""
    if any(settings.tensor_split[: len(devices)]):
        parts = [*settings.tensor_split, *[0.0] * len(devices)][: len(devices)]
    else:
        least = 1 if used_bytes else 0  # the same rule as memory_probe_child uses for the draft
        parts = [float(max(least, (d.free or 0) - used_bytes.get(d.name, 0))) for d in devices]
    if not any(parts):
        parts = [1.0] * len(devices)
    sums = list(accumulate((_to_float32(part) for part in parts), lambda a, b: _to_float32(a + b)))
    return [_to_float32(part / sums[-1]) for part in sums]


def _to_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded

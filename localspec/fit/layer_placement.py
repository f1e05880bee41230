"""Which layer of a model lies on which device, by llama.cpp's rules."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from localspec.fit.hparams import ModelHparams
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST
from localspec.machine.simulated_gpu import ALLOCATION_RULES, AllocationRules
from localspec.protocol.wire import ContextSettings

_CPU_RULES = AllocationRules(alignment=32, padding=0, f16_copies=False, pipeline=False)
_MAX_COPIES = 4
"""Of every input, where several cards take turns at batches (GGML_SCHED_MAX_COPIES)."""


@dataclass(frozen=True)
class LayerPlacement:
    """Backends are numbered: the cards first, the computer's own memory last."""

    backend_names: tuple[str, ...]
    backend_rules: tuple[AllocationRules, ...]
    layer_backends: tuple[int, ...]
    """A backend for each layer, and behind them one for the output."""
    experts_on_cpu: bool
    fully_offloaded: bool
    """All layers and the output lie on cards."""
    n_copies: int
    """Of every input."""
    norms_pinned: bool = True
    """Norms stay where their layer is.  llama.cpp sees to it as it loads, not as it projects."""

    @property
    def cpu_backend(self) -> int:
        return len(self.backend_names) - 1

    @property
    def repacks(self) -> bool:
        """llama.cpp repacks the CPU's weights, unless a card offers pinned memory for them."""
        return not any(rule.host_buffer for rule in self.backend_rules[:-1])

    @property
    def output_backend(self) -> int:
        return self.layer_backends[-1]


def offload_devices(settings: ContextSettings, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that llama.cpp would offload to; integrated ones only where there is no other."""
    found = tuple(d for d in devices if d.kind == "gpu") or tuple(
        d for d in devices if d.kind == "igpu"
    )
    if settings.split_mode == "none" and found:
        if not 0 <= settings.main_gpu < len(found):
            return ()
        return (found[settings.main_gpu],)
    return found


def place_layers(
    hparams: ModelHparams,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> LayerPlacement:
    """`used`: bytes that have already been taken of each device."""
    chosen = offload_devices(settings, devices)
    rules = tuple(ALLOCATION_RULES.get(d.backend, AllocationRules()) for d in chosen)
    layers = _assign_layers(hparams.n_layer_all, settings, chosen, used_bytes)
    full = bool(chosen) and len(chosen) not in layers
    turns = full and len(chosen) > 1 and all(rule.pipeline for rule in rules)
    turns = turns and settings.split_mode == "layer" and not settings.cpu_moe
    return LayerPlacement(
        backend_names=(*(d.name for d in chosen), HOST),
        backend_rules=(*rules, _CPU_RULES),
        layer_backends=layers,
        experts_on_cpu=settings.cpu_moe,
        fully_offloaded=full,
        n_copies=_MAX_COPIES if turns else 1,
    )


def _assign_layers(
    n_layer: int,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> tuple[int, ...]:
    """From the back: the output first, then the last layer, ..."""
    wanted = settings.n_gpu_layers
    if wanted < 0:
        wanted = n_layer + 1
    n = min(wanted, n_layer + 1) if devices else 0
    ends = _cumulative_split(settings, devices, used_bytes) if n else []
    first = n_layer + 1 - n
    found = [len(devices)] * first
    for i in range(n):
        found.append(min(bisect_right(ends, _to_float32(i / n)), len(devices) - 1))
    return tuple(found)


def _cumulative_split(
    settings: ContextSettings, devices: Sequence[Device], used_bytes: Mapping[str, int]
) -> list[float]:
    """Where each device's part of the layers ends, from 0 to 1, in llama.cpp's precision."""
    if any(settings.tensor_split[: len(devices)]):
        parts = [*settings.tensor_split, *[0.0] * len(devices)][: len(devices)]
    else:
        least = 1 if used_bytes else 0  # as the probe has it for what comes second
        parts = [float(max(least, (d.free or 0) - used_bytes.get(d.name, 0))) for d in devices]
    if not any(parts):
        parts = [1.0] * len(devices)
    sums = list(accumulate((_to_float32(part) for part in parts), lambda a, b: _to_float32(a + b)))
    return [_to_float32(part / sums[-1]) for part in sums]


def _to_float32(value: float) -> float:
    """As C's float has it."""
    single: float = struct.unpack("f", struct.pack("f", value))[0]
    return single

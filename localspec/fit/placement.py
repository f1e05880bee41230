"""Which layer of a model lies on which device, by llama.cpp's rules."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from localspec.fit.facts import Facts
from localspec.machine.device import Device
from localspec.machine.ledger import HOST
from localspec.machine.pretend import RULES, Rules
from localspec.protocol.wire import ContextSettings

_CPU = Rules(alignment=32, padding=0, f16_copies=False, pipeline=False)
_COPIES = 4
"""Of every input, where several cards take turns at batches (GGML_SCHED_MAX_COPIES)."""


@dataclass(frozen=True)
class Placement:
    """Backends are numbered: the cards first, the computer's own memory last."""

    names: tuple[str, ...]
    rules: tuple[Rules, ...]
    layers: tuple[int, ...]
    """A backend for each layer, and behind them one for the output."""
    experts_on_cpu: bool
    full: bool
    """All layers and the output lie on cards."""
    copies: int
    """Of every input."""
    pinned: bool = True
    """Norms stay where their layer is.  llama.cpp sees to it as it loads, not as it projects."""

    @property
    def cpu(self) -> int:
        return len(self.names) - 1

    @property
    def repacks(self) -> bool:
        """llama.cpp repacks the CPU's weights, unless a card offers pinned memory for them."""
        return not any(rule.host_buffer for rule in self.rules[:-1])

    @property
    def output(self) -> int:
        return self.layers[-1]


def cards(settings: ContextSettings, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that llama.cpp would offload to; integrated ones only where there is no other."""
    found = tuple(d for d in devices if d.kind == "gpu") or tuple(
        d for d in devices if d.kind == "igpu"
    )
    if settings.split_mode == "none" and found:
        if not 0 <= settings.main_gpu < len(found):
            return ()
        return (found[settings.main_gpu],)
    return found


def place(
    facts: Facts,
    settings: ContextSettings,
    devices: Sequence[Device],
    used: Mapping[str, int],
) -> Placement:
    """`used`: bytes that have already been taken of each device."""
    chosen = cards(settings, devices)
    rules = tuple(RULES.get(d.backend, Rules()) for d in chosen)
    layers = _layers(facts.n_layer_all, settings, chosen, used)
    full = bool(chosen) and len(chosen) not in layers
    turns = full and len(chosen) > 1 and all(rule.pipeline for rule in rules)
    turns = turns and settings.split_mode == "layer" and not settings.cpu_moe
    return Placement(
        names=(*(d.name for d in chosen), HOST),
        rules=(*rules, _CPU),
        layers=layers,
        experts_on_cpu=settings.cpu_moe,
        full=full,
        copies=_COPIES if turns else 1,
    )


def _layers(
    n_layer: int,
    settings: ContextSettings,
    chosen: Sequence[Device],
    used: Mapping[str, int],
) -> tuple[int, ...]:
    """From the back: the output first, then the last layer, ..."""
    wanted = settings.n_gpu_layers
    if wanted < 0:
        wanted = n_layer + 1
    n = min(wanted, n_layer + 1) if chosen else 0
    ends = _ends(settings, chosen, used) if n else []
    first = n_layer + 1 - n
    found = [len(chosen)] * first
    for i in range(n):
        found.append(min(bisect_right(ends, _float(i / n)), len(chosen) - 1))
    return tuple(found)


def _ends(
    settings: ContextSettings, chosen: Sequence[Device], used: Mapping[str, int]
) -> list[float]:
    """Where each device's part of the layers ends, from 0 to 1, in llama.cpp's precision."""
    if any(settings.tensor_split[: len(chosen)]):
        parts = [*settings.tensor_split, *[0.0] * len(chosen)][: len(chosen)]
    else:
        least = 1 if used else 0  # as the probe has it for what comes second
        parts = [float(max(least, (d.free or 0) - used.get(d.name, 0))) for d in chosen]
    if not any(parts):
        parts = [1.0] * len(chosen)
    sums = list(accumulate((_float(part) for part in parts), lambda a, b: _float(a + b)))
    return [_float(part / sums[-1]) for part in sums]


def _float(value: float) -> float:
    """As C's float has it."""
    single: float = struct.unpack("f", struct.pack("f", value))[0]
    return single

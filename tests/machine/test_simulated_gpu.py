"""llama.cpp counts on simulated GPUs what it counted before.

The recorded sizes are of ggml devices written in C++, with the same rules of the
backends.
"""

import platform

import pytest
from msgspec.structs import replace

from localspec.machine import memory_probe
from localspec.machine.memory_probe import ModelBuffers
from tests.support import gpu_counts, shapes
from tests.support.gpu_counts import GpuCount
from tests.support.long_cases import often

PRINTED = 0.011 * (1 << 20)
"""llama.cpp prints hundredths of a MiB, here in up to two lines."""
COUNTS = {f"{i}-{count.name}": count for i, count in enumerate(gpu_counts.read())}


def is_head(count: GpuCount) -> bool:
    return count.models[0] == count.models[1] or "head" in (count.models[1] or "")


MODELS = [name for name, count in COUNTS.items() if not is_head(count)]
HEADS = [name for name, count in COUNTS.items() if is_head(count)]

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="recorded on x86-64"
)


def count_on(count: GpuCount) -> memory_probe.PairBuffers:
    # recorded before the draft had branches
    load = replace(count.load, overlap=False)
    estimate = shapes.estimate_pair(load, *count.headers, count.devices)
    return memory_probe.count_buffers(
        load,
        *count.headers,
        simulated=count.devices,
        used_by_target={name: part.total for name, part in estimate.target.on.items()},
    )


@pytest.mark.parametrize("name", often(MODELS, MODELS[::12]))
def test_models_need_what_was_recorded(name: str) -> None:
    count = COUNTS[name]
    counted = count_on(count)
    check_compute(counted.target, count, "target")
    if counted.draft is not None:
        check_compute(counted.draft, count, "draft")


@pytest.mark.parametrize("name", often(HEADS, HEADS[::12]))
def test_heads_need_what_was_recorded(name: str) -> None:
    """Their targets too, with the hidden states that the head reads."""
    count = COUNTS[name]
    counted = count_on(count)
    assert counted.has_hidden_states
    assert counted.draft is not None
    check_compute(counted.draft, count, "draft")
    check_compute(counted.target, count, "target")


def check_compute(counted: ModelBuffers, count: GpuCount, which: str) -> None:
    recorded = getattr(count.exact, which)
    for name in counted.compute.keys() | recorded.on.keys():
        off = counted.compute.get(name, 0) - recorded.of(name).compute
        assert abs(off) <= 2 * PRINTED, (which, name)
